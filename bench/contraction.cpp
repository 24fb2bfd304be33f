// GPT-2's (batch 4 x 256 tokens) and RoBERTa's (8 x 128) contractions on one thread, as a share of what the FMA units
//   give in the same run. bench_contraction --benchmark_filter=...; the counter `of_peak` is what to look at: of the
//   dot product's (on AMX, the tiles') peak for bf16, where the machine has it; of a sixth of the
// tiles' for f32 in parts ("parts ...", on AMX alone).
// The last lines are its geometric means over the contractions with all sizes at least 512.
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <string>

#include "../tests/cpp/contraction/gemm.h"
#include "peak.h"

namespace trainc {
namespace {

using testing::GemmCase;

// Of this thread on a CPU: what else runs on the machine takes time from the clock on the wall.
double seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

double peak_flops_per_second(CpuLevel level, const GemmCase& c) {
  const double start = seconds();
  double flops;
  if (c.in_parts) flops = bench::tile_chains(5000) / 6;  // six products a product
  else if (c.dtype == DType::BF16) flops = has_tiles(level) ? bench::tile_chains(5000) : bench::bf16_chains(20000);
  else flops = bench::fma_chains(level, 20000);
  return flops / (seconds() - start);
}

// Share of the peak by kind ("f32", "bf16", "f32 in parts") and name, of the large contractions.
std::map<std::string, std::map<std::string, double>> large;

std::string kind_of(const GemmCase& c) { return c.in_parts ? "f32 in parts" : std::string(name_of(c.dtype)); }

// A few tasks at a time, the peak before and after each: both move with the clock and with what else runs. A part
// counts with the lower quartile of its runs (time * peak), which is what other load adds least to.
void run(benchmark::State& state, const std::string& name, const GemmCase& c) {
  const CpuLevel level = cpu_level();
  loop::LoopNest nest = testing::plain_gemm(c, level, cache_sizes());
  testing::Code code(emit::compile(nest, level));
  testing::Scratch scratch(nest);
  const auto random = [&](int64_t count, unsigned seed) {
    return c.dtype == DType::BF16 ? testing::random_array<testing::Bf16>(count, seed)
                                  : testing::random_array<float>(count, seed);
  };
  auto lhs = random(c.batch * c.m * c.k, 1), rhs = random(c.batch * c.n * c.k, 2);
  testing::Guarded out(c.batch * c.m * c.n * 4);
  void* arguments[] = {lhs.as<void>(), rhs.as<void>(), out.as<void>()};
  uint32_t status = 0;
  const int64_t tasks = nest.parallel_extent;
  // some milliseconds of work
  const int64_t together = std::max<int64_t>(1, int64_t(double(tasks) / (double(nest.flops) / 3e8)));
  // of the peak's flops, a part and run each
  std::vector<std::vector<double>> slots(size_t((tasks + together - 1) / together));
  // a first run gets its memory from the system, page by page
  code.kernel(arguments, scratch.data(), &status, 0, tasks);
  double best = std::numeric_limits<double>::infinity();
  for (auto _ : state) {
    double total = 0, before = peak_flops_per_second(level, c);
    for (int64_t first = 0; first < tasks; first += together) {
      const double start = seconds();
      code.kernel(arguments, scratch.data(), &status, first, std::min(tasks, first + together));
      const double time = seconds() - start, after = peak_flops_per_second(level, c);
      slots[size_t(first / together)].push_back(time * std::max(before, after));
      total += time, before = after;
    }
    best = std::min(best, total);
    state.SetIterationTime(total);
  }
  double of_peak = 0;  // the slots, then the share
  for (auto& part : slots) {
    std::sort(part.begin(), part.end());
    of_peak += part[part.size() / 4];
  }
  state.counters["GFLOPs"] = double(nest.flops) / best * 1e-9;
  of_peak = double(nest.flops) / of_peak;
  state.counters["of_peak"] = of_peak;
  if (std::min({c.m, c.n, c.k}) >= 512) large[kind_of(c)][name] = of_peak;
  state.counters["tasks"] = double(tasks);
}

struct Named {
  const char* name;
  GemmCase gemm;
};
constexpr bool kAlong = true, kAcross = false;  // the operand's neighbours in memory: along k, or across it
// RoBERTa's are these too, in other roles: its weights lie as [out, in], so its forward is GPT-2's input gradient and
// the other way round.
const Named kCases[] = {
    {"attention out forward", {1, 1024, 768, 768, kAlong, kAcross}},
    {"qkv forward", {1, 1024, 2304, 768, kAlong, kAcross}},
    {"attention out input gradient", {1, 1024, 768, 768, kAlong, kAlong}},
    {"attention out weight gradient", {1, 768, 768, 1024, kAcross, kAcross}},
    {"qkv input gradient", {1, 1024, 768, 2304, kAlong, kAlong}},
    {"qkv weight gradient", {1, 768, 2304, 1024, kAcross, kAcross}},
    {"mlp up forward", {1, 1024, 3072, 768, kAlong, kAcross}},
    {"mlp down forward", {1, 1024, 768, 3072, kAlong, kAcross}},
    {"mlp up input gradient", {1, 1024, 768, 3072, kAlong, kAlong}},
    {"mlp down input gradient", {1, 1024, 3072, 768, kAlong, kAlong}},
    {"mlp up weight gradient", {1, 768, 3072, 1024, kAcross, kAcross}},
    {"mlp down weight gradient", {1, 3072, 768, 1024, kAcross, kAcross}},
    {"lm head forward", {1, 1024, 50257, 768, kAlong, kAlong}},
    {"lm head input gradient", {1, 1024, 768, 50257, kAlong, kAcross}},
    {"lm head weight gradient", {1, 50257, 768, 1024, kAcross, kAcross}},
    {"attention scores", {48, 256, 256, 64, kAlong, kAlong}},
    {"attention values", {48, 256, 64, 256, kAlong, kAcross}},
    {"attention scores gradient (keys)", {48, 256, 64, 256, kAcross, kAcross}},
    {"four rows", {1, 4, 768, 768, kAlong, kAcross}},
    {"batch of 32 forward", {1, 32, 256, 256, kAlong, kAlong}},
    {"batch of 32 input gradient", {1, 32, 256, 256, kAlong, kAcross}},
    {"batch of 32 weight gradient", {1, 256, 256, 32, kAcross, kAcross}},
    {"64 tokens forward", {1, 64, 768, 768, kAlong, kAlong}},
    {"64 tokens input gradient", {1, 64, 768, 768, kAlong, kAcross}},
    {"64 tokens weight gradient", {1, 768, 768, 64, kAcross, kAcross}},
};

}  // namespace
}  // namespace trainc

int main(int argc, char** argv) {
  struct Kind {
    trainc::DType dtype;
    bool in_parts, there;
  };
  const trainc::CpuLevel level = trainc::cpu_level();
  for (const Kind& kind : {Kind{trainc::DType::F32, false, true}, Kind{trainc::DType::BF16, false, has_bf16_dot(level)},
                           Kind{trainc::DType::F32, true, has_tiles(level)}}) {
    if (!kind.there) continue;
    for (const auto& c : trainc::kCases) {
      trainc::testing::GemmCase gemm = c.gemm;
      gemm.dtype = kind.dtype, gemm.in_parts = kind.in_parts;
      const std::string name = (kind.in_parts                       ? "parts "
                                : kind.dtype == trainc::DType::BF16 ? "bf16 "
                                                                    : "") +
                               std::string(c.name);
      benchmark::RegisterBenchmark(name.c_str(), trainc::run, name, gemm)
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond)
          ->MinTime(0.15);
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  for (const auto& [kind, shares] : trainc::large) {
    double logs = 0;
    for (const auto& [name, of_peak] : shares) logs += std::log(of_peak);
    std::printf("geomean of_peak, %s, %zu contractions of at least 512: %.3f\n", kind.c_str(), shares.size(),
                std::exp(logs / double(shares.size())));
  }
}
