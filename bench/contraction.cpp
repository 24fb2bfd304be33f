// GPT-2's (batch 4 x 256 tokens) and RoBERTa's (8 x 128) contractions on one thread, as a share of what the FMA units give in the same run.
//   bench_contraction --benchmark_filter=...; the counter `of_peak` is what to look at: other load on the machine moves both its parts.
// The last line is its geometric mean over the contractions with all sizes at least 512.
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

double peak_flops_per_second(CpuLevel level) {
  double start = seconds();
  double flops = bench::fma_chains(level, 50000);
  return flops / (seconds() - start);
}

// Share of the peak by name, of the large contractions.
std::map<std::string, double> large;

void run(benchmark::State& state, const char* name, const GemmCase& c) {
  const CpuLevel level = cpu_level();
  loop::LoopNest nest = testing::plain_gemm(c, level, cache_sizes());
  testing::Code code(emit::compile(nest, level));
  testing::Scratch scratch(nest);
  auto lhs = testing::random_array<float>(c.batch * c.m * c.k, 1), rhs = testing::random_array<float>(c.batch * c.n * c.k, 2);
  testing::Guarded out(c.batch * c.m * c.n * 4);
  void* arguments[] = {lhs.as<void>(), rhs.as<void>(), out.as<void>()};
  uint32_t status = 0;
  // The best of each: whatever else runs on the machine only ever takes away.
  double peak = 0, best = std::numeric_limits<double>::infinity();
  for (auto _ : state) {
    peak = std::max(peak, peak_flops_per_second(level));
    double start = seconds();
    code.kernel(arguments, scratch.data(), &status, 0, nest.parallel_extent);
    double time = seconds() - start;
    best = std::min(best, time);
    state.SetIterationTime(time);
  }
  state.counters["GFLOPs"] = double(nest.flops) / best * 1e-9;
  double of_peak = double(nest.flops) / best / peak;
  state.counters["of_peak"] = of_peak;
  if (std::min({c.m, c.n, c.k}) >= 512) large[name] = std::max(large[name], of_peak);
  state.counters["tasks"] = double(nest.parallel_extent);
}

struct Named { const char* name; GemmCase gemm; };
constexpr bool kAlong = true, kAcross = false;  // the operand's neighbours in memory: along k, or across it
// RoBERTa's are these too, in other roles: its weights lie as [out, in], so its forward is GPT-2's input gradient and the other way round.
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
};

}  // namespace
}  // namespace trainc

int main(int argc, char** argv) {
  for (const auto& c : trainc::kCases)
    benchmark::RegisterBenchmark(c.name, trainc::run, c.name, c.gemm)->UseManualTime()->Unit(benchmark::kMillisecond)->MinTime(0.15);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  double logs = 0;
  for (const auto& [name, of_peak] : trainc::large) logs += std::log(of_peak);
  if (!trainc::large.empty()) std::printf("geomean of_peak, %zu contractions of at least 512: %.3f\n", trainc::large.size(), std::exp(logs / double(trainc::large.size())));
}
