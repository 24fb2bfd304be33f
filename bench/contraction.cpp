// GPT-2's contractions (batch 4 x 256 tokens) on one thread, as a share of what the FMA units give in the same run.
//   bench_contraction --benchmark_filter=...; the counter `of_peak` is what to look at. bf16: of the dot product's peak, where the machine has it.
#include <benchmark/benchmark.h>
#include <immintrin.h>
#include <time.h>

#include <algorithm>
#include <limits>
#include <string>

#include "../tests/cpp/contraction/gemm.h"

namespace trainc {
namespace {

using testing::GemmCase;

// Of this thread on a CPU: what else runs on the machine takes time from the clock on the wall.
double seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// 24 (AVX-512) or 12 (AVX2) chains of FMAs between registers. Returns the flops done.
__attribute__((target("avx512f"))) double fma_chains_avx512(int64_t steps) {
  __m512 sums[24], a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f);
  for (auto& sum : sums) sum = a;
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 24
    for (auto& sum : sums) sum = _mm512_fmadd_ps(sum, a, b);
  }
  for (auto& sum : sums) benchmark::DoNotOptimize(sum);
  return double(steps) * 24 * 16 * 2;
}
__attribute__((target("avx2,fma"))) double fma_chains_avx2(int64_t steps) {
  __m256 sums[12], a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f);
  for (auto& sum : sums) sum = a;
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (auto& sum : sums) sum = _mm256_fmadd_ps(sum, a, b);
  }
  for (auto& sum : sums) benchmark::DoNotOptimize(sum);
  return double(steps) * 12 * 8 * 2;
}
// 24 chains of dot products of bf16 pairs.
__attribute__((target("avx512f,avx512bf16"))) double dot_chains(int64_t steps) {
  __m512 sums[24];
  __m512bh a = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3f7f3f7f)), b = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3a833a83));
  for (auto& sum : sums) sum = _mm512_set1_ps(1);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 24
    for (auto& sum : sums) sum = _mm512_dpbf16_ps(sum, a, b);
  }
  for (auto& sum : sums) benchmark::DoNotOptimize(sum);
  return double(steps) * 24 * 32 * 2;
}
double peak_flops_per_second(CpuLevel level, DType dtype) {
  double start = seconds();
  double flops = dtype == DType::BF16 ? dot_chains(20000) : f32_lanes(level) == 16 ? fma_chains_avx512(20000) : fma_chains_avx2(40000);
  return flops / (seconds() - start);
}

// A few tasks at a time, the peak before and after each: both move with the clock and with what else runs. A part counts with the lower quartile
// of its runs (time * peak), which is what other load adds least to.
void run(benchmark::State& state, const GemmCase& c) {
  const CpuLevel level = cpu_level();
  loop::LoopNest nest = testing::plain_gemm(c, level, cache_sizes());
  testing::Code code(emit::compile(nest, level));
  testing::Scratch scratch(nest);
  const auto random = [&](int64_t count, unsigned seed) {
    return c.dtype == DType::BF16 ? testing::random_array<testing::Bf16>(count, seed) : testing::random_array<float>(count, seed);
  };
  auto lhs = random(c.batch * c.m * c.k, 1), rhs = random(c.batch * c.n * c.k, 2);
  testing::Guarded out(c.batch * c.m * c.n * 4);
  void* arguments[] = {lhs.as<void>(), rhs.as<void>(), out.as<void>()};
  uint32_t status = 0;
  const int64_t tasks = nest.parallel_extent;
  const int64_t together = std::max<int64_t>(1, int64_t(double(tasks) / (double(nest.flops) / 3e8)));  // some milliseconds of work
  std::vector<std::vector<double>> slots(size_t((tasks + together - 1) / together));  // of the peak's flops, a part and run each
  double best = std::numeric_limits<double>::infinity();
  for (auto _ : state) {
    double total = 0, before = peak_flops_per_second(level, c.dtype);
    for (int64_t first = 0; first < tasks; first += together) {
      const double start = seconds();
      code.kernel(arguments, scratch.data(), &status, first, std::min(tasks, first + together));
      const double time = seconds() - start, after = peak_flops_per_second(level, c.dtype);
      slots[size_t(first / together)].push_back(time * std::max(before, after));
      total += time, before = after;
    }
    best = std::min(best, total);
    state.SetIterationTime(total);
  }
  double of_peak = 0;
  for (auto& part : slots) {
    std::sort(part.begin(), part.end());
    of_peak += part[part.size() / 4];
  }
  state.counters["GFLOPs"] = double(nest.flops) / best * 1e-9;
  state.counters["of_peak"] = double(nest.flops) / of_peak;
  state.counters["tasks"] = double(tasks);
}

struct Named { const char* name; GemmCase gemm; };
constexpr bool kAlong = true, kAcross = false;  // the operand's neighbours in memory: along k, or across it
const Named kCases[] = {
    {"attention out forward", {1, 1024, 768, 768, kAlong, kAcross}},
    {"qkv forward", {1, 1024, 2304, 768, kAlong, kAcross}},
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
    {"RoBERTa query forward", {1, 1024, 768, 768, kAlong, kAlong}},
    {"RoBERTa mlp up forward", {1, 1024, 3072, 768, kAlong, kAlong}},
    {"RoBERTa mlp down forward", {1, 1024, 768, 3072, kAlong, kAlong}},
    {"four rows", {1, 4, 768, 768, kAlong, kAcross}},
};

}  // namespace
}  // namespace trainc

int main(int argc, char** argv) {
  const auto add = [](const std::string& name, const trainc::testing::GemmCase& gemm) {
    benchmark::RegisterBenchmark(name.c_str(), trainc::run, gemm)->UseManualTime()->Unit(benchmark::kMillisecond)->MinTime(0.15);
  };
  for (const auto& c : trainc::kCases) add(c.name, c.gemm);
  for (const auto& c : trainc::kCases) {
    trainc::testing::GemmCase bf16 = c.gemm;
    bf16.dtype = trainc::DType::BF16;
    if (trainc::has_bf16_dot(trainc::cpu_level())) add(std::string("bf16 ") + c.name, bf16);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
