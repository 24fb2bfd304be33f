// GPT-2's contractions (batch 4 x 256 tokens) on one thread, as a share of what the FMA units give in the same run.
//   bench_contraction --benchmark_filter=...; the counter `of_peak` is what to look at: other load on the machine moves both its parts.
#include <benchmark/benchmark.h>
#include <immintrin.h>
#include <time.h>

#include <algorithm>
#include <limits>

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
double peak_flops_per_second(CpuLevel level) {
  double start = seconds();
  double flops = f32_lanes(level) == 16 ? fma_chains_avx512(50000) : fma_chains_avx2(100000);
  return flops / (seconds() - start);
}

void run(benchmark::State& state, const GemmCase& c) {
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
  state.counters["of_peak"] = double(nest.flops) / best / peak;
  state.counters["tasks"] = double(nest.parallel_extent);
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
    {"four rows", {1, 4, 768, 768, kAlong, kAcross}},
};

}  // namespace
}  // namespace trainc

int main(int argc, char** argv) {
  for (const auto& c : trainc::kCases)
    benchmark::RegisterBenchmark(c.name, trainc::run, c.gemm)->UseManualTime()->Unit(benchmark::kMillisecond)->MinTime(0.15);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
