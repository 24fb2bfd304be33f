// What the arithmetic units give at most: chains of multiply-adds between registers. Each function returns the FLOPs
// that it did.
#pragma once
#include <benchmark/benchmark.h>
#include <immintrin.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "support/cpu.h"

namespace trainc::bench {

// 24 (AVX-512) or 12 (AVX2) chains: more than latency times units, and no more than there are registers.
__attribute__((target("avx512f"))) inline double fma_chains_avx512(int64_t steps) {
  __m512 sums[24], a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f);
  for (auto& sum : sums) sum = a;
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 24
    for (auto& sum : sums) sum = _mm512_fmadd_ps(sum, a, b);
  }
  for (auto& sum : sums) benchmark::DoNotOptimize(sum);
  return double(steps) * 24 * 16 * 2;
}
__attribute__((target("avx2,fma"))) inline double fma_chains_avx2(int64_t steps) {
  __m256 sums[12], a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f);
  for (auto& sum : sums) sum = a;
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (auto& sum : sums) sum = _mm256_fmadd_ps(sum, a, b);
  }
  for (auto& sum : sums) benchmark::DoNotOptimize(sum);
  return double(steps) * 12 * 8 * 2;
}
// vdpbf16ps: 16 sums, each of two products of bf16.
__attribute__((target("avx512f,avx512bf16"))) inline double bf16_chains(int64_t steps) {
  __m512 sums[24];
  __m512bh a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5f), _mm512_set1_ps(0.5f)), b = a;
  for (auto& sum : sums) sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 24
    for (auto& sum : sums) sum = _mm512_dpbf16_ps(sum, a, b);
  }
  for (auto& sum : sums) benchmark::DoNotOptimize(sum);
  return double(steps) * 24 * 16 * 4;
}

// tdpbf16ps: four chains of 16 x 16 sums, each of 32 products. Needs a process that may use tiles (machine_cpu_level()
// asks).
__attribute__((target("amx-tile,amx-bf16"))) inline double tile_chains(int64_t steps) {
  alignas(64) uint8_t shapes[64] = {1};
  for (int tile = 0; tile < 8; ++tile) shapes[16 + 2 * tile] = 64, shapes[48 + tile] = 16;
  benchmark::DoNotOptimize(shapes);  // GCC's intrinsic says that it reads eight bytes, and the rest is left out
  _tile_loadconfig(shapes);
  // Numbers as a model has them: with zeros the clock runs a fifth faster (measured on Emerald Rapids).
  alignas(64) static const auto numbers = [] {
    std::array<uint16_t, 16 * 32> bf16;
    for (size_t i = 0; i < bf16.size(); ++i) bf16[i] = static_cast<uint16_t>(0x3f00 | (i * 37 & 0x80ff));
    return bf16;
  }();
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, numbers.data(), 64);
  _tile_loadd(5, numbers.data(), 64);
  _tile_loadd(6, numbers.data(), 64);
  _tile_loadd(7, numbers.data(), 64);
  for (int64_t i = 0; i < steps; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return double(steps) * 4 * 16 * 16 * 32 * 2;
}

inline double fma_chains(CpuLevel level, int64_t steps) {
  return f32_lanes(level) == 16 ? fma_chains_avx512(steps) : fma_chains_avx2(2 * steps);
}

}  // namespace trainc::bench
