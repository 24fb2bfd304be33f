// mt19937 as the framework keeps it, 624 words at a time as vector code: written out for AVX-512 (a GPT-2 step draws
// 115 million words; the compiler's own vectors take five times as long), left to the compiler elsewhere.
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12 sees them in its own intrinsics (its bug 105593)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "runtime/cpu/jump.h"
#include "runtime/cpu/random.h"
#include "support/error.h"

namespace trainc::runtime {
namespace {

// torch.get_rng_state(): at::CPUGeneratorImplState, whose first part is the layout of torch 1.0.
struct State {
  uint64_t seed;
  int32_t left;  // words unused, + 1; 1 before the first draw after seeding
  int32_t seeded;
  uint64_t next;  // words used
  uint64_t words[MersenneTwister::kWords];
  double normal_x, normal_y, normal_rho;
  int32_t normal_is_valid;
  float next_float_normal;
  bool is_next_float_normal_valid;
};
static_assert(sizeof(State) == MersenneTwister::kStateBytes);

constexpr int64_t kN = MersenneTwister::kWords, kM = 397;

constexpr uint64_t kMask53 = (uint64_t{1} << 53) - 1;

// Element i of the next 624 needs i, i + 1 and i + 397 of the last (mod 624): 227 of them read only old words, the rest
// reads new ones at a distance of 227, so both loops are free of dependences shorter than a vector.
uint32_t mix(uint32_t u, uint32_t v) {
  return (((u & 0x80000000u) | (v & 0x7fffffffu)) >> 1) ^ ((0u - (v & 1u)) & 0x9908b0dfu);
}

uint32_t temper(uint32_t y) {
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

#if !defined(__SANITIZE_ADDRESS__)  // the chooser would run before the sanitizer is ready
__attribute__((target_clones("arch=haswell", "default")))
#endif
void twist(uint32_t* w) {
#pragma GCC ivdep
  for (int64_t i = 0; i < kN - kM; ++i) w[i] = w[i + kM] ^ mix(w[i], w[i + 1]);
#pragma GCC ivdep
  for (int64_t i = kN - kM; i < kN - 1; ++i) w[i] = w[i + kM - kN] ^ mix(w[i], w[i + 1]);
  w[kN - 1] = w[kM - 1] ^ mix(w[kN - 1], w[0]);
}

// `words`: untempered pairs of high and low word. x * 2^-53 < p exactly where x < threshold: scaling by a power of two
// is exact.
#if !defined(__SANITIZE_ADDRESS__)
__attribute__((target_clones("arch=haswell", "default")))
#endif
void below(const uint32_t* __restrict words, int64_t threshold, uint8_t* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t x = uint64_t{temper(words[2 * i])} << 32 | temper(words[2 * i + 1]);
    out[i] = static_cast<int64_t>(x & kMask53) < threshold;
  }
}

#define TRAINC_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))

/// Words [i, i + 16) of the next 624 that `stored` names.
TRAINC_AVX512 inline void twist_vector(uint32_t* w, int64_t i, int64_t other, __mmask16 stored) {
  const __m512i u = _mm512_loadu_si512(w + i), v = _mm512_loadu_si512(w + i + 1);
  // the top bit of u, the rest of v
  const __m512i high_of_u = _mm512_ternarylogic_epi32(_mm512_set1_epi32(INT32_MIN), u, v, 0xCA);
  __m512i y = _mm512_xor_si512(_mm512_srli_epi32(high_of_u, 1), _mm512_loadu_si512(w + other));
  const __mmask16 odd = _mm512_test_epi32_mask(v, _mm512_set1_epi32(1));
  y = _mm512_mask_xor_epi32(y, odd, y, _mm512_set1_epi32(static_cast<int>(0x9908b0dfu)));
  _mm512_mask_storeu_epi32(w + i, stored, y);
}
TRAINC_AVX512 void twist_avx512(uint32_t* w) {
  constexpr auto first = [](int64_t words) { return static_cast<__mmask16>((1u << words) - 1); };
  int64_t i = 0;
  for (; i + 16 <= kN - kM; i += 16) twist_vector(w, i, i + kM, first(16));
  twist_vector(w, i, i + kM, first(kN - kM - i));
  for (i = kN - kM; i + 16 <= kN - 1; i += 16) twist_vector(w, i, i + kM - kN, first(16));
  twist_vector(w, i, i + kM - kN, first(kN - 1 - i));
  w[kN - 1] = w[kM - 1] ^ mix(w[kN - 1], w[0]);
}

TRAINC_AVX512 inline __mmask8 eight_below(const uint32_t* words, __m512i threshold) {
  __m512i y = _mm512_loadu_si512(words);
  y = _mm512_xor_si512(y, _mm512_srli_epi32(y, 11));
  // y ^ (shifted & constant)
  y = _mm512_ternarylogic_epi32(y, _mm512_slli_epi32(y, 7), _mm512_set1_epi32(static_cast<int>(0x9d2c5680u)), 0x78);
  y = _mm512_ternarylogic_epi32(y, _mm512_slli_epi32(y, 15), _mm512_set1_epi32(static_cast<int>(0xefc60000u)), 0x78);
  y = _mm512_xor_si512(y, _mm512_srli_epi32(y, 18));
  const __m512i x = _mm512_and_si512(_mm512_rol_epi64(y, 32), _mm512_set1_epi64(static_cast<int64_t>(kMask53)));
  return _mm512_cmplt_epi64_mask(x, threshold);
}
TRAINC_AVX512 void below_avx512(const uint32_t* words, int64_t threshold, uint8_t* out, int64_t n) {
  const __m512i t = _mm512_set1_epi64(threshold);
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 kept =
        static_cast<__mmask16>(eight_below(words + 2 * i, t) | eight_below(words + 2 * i + 16, t) << 8);
    const __mmask16 stored = n - i >= 16 ? 0xffff : static_cast<__mmask16>((1u << (n - i)) - 1);
    _mm_mask_storeu_epi8(out + i, stored, _mm_maskz_set1_epi8(kept, 1));
  }
}

}  // namespace

MersenneTwister::MersenneTwister(std::span<const uint8_t> state, CpuLevel level)
    : wide_(f32_lanes(level) == 16), bytes_(state.begin(), state.end()) {
  require(state.size() == kStateBytes,
          "the framework's generator state has " + std::to_string(state.size()) + " bytes, not 5056");
  State s;
  std::memcpy(&s, bytes_.data(), sizeof s);
  require(s.seeded == 1 && s.left >= 1 && s.left <= kN && s.next <= uint64_t(kN),
          "the framework's generator state is not a mt19937");
  for (int64_t i = 0; i < kN; ++i) words_[i] = static_cast<uint32_t>(s.words[i]);
  used_ = kN + 1 - s.left;
  require(used_ == kN || used_ == static_cast<int64_t>(s.next), "the framework's generator state is not a mt19937");
}

std::vector<uint8_t> MersenneTwister::state() const {
  std::vector<uint8_t> bytes = bytes_;
  State s;
  std::memcpy(&s, bytes.data(), sizeof s);
  const int32_t left = static_cast<int32_t>(kN + 1 - used_);
  if (drew_) s.next = used_;  // a state just seeded has left = 1, next = 0; one just used up left = 1, next = 624
  s.left = left;
  for (int64_t i = 0; i < kN; ++i) s.words[i] = words_[i];
  std::memcpy(bytes.data(), &s, offsetof(State, is_next_float_normal_valid));
  return bytes;
}

void MersenneTwister::refill() {
  (wide_ ? twist_avx512 : twist)(words_.data());
  used_ = 0;
}

uint32_t MersenneTwister::next() {
  drew_ = true;
  if (used_ == kN) refill();
  return temper(words_[used_++]);
}

void MersenneTwister::skip(int64_t n) {
  drew_ |= n > 0;
  constexpr int64_t kFar = 6000 * 624;  // draws, from which on a jump is quicker than going there
  if (n > kFar) {
    // Whole blocks, of a number that does not depend on where in its block the generator stands: a plan always skips as
    // many.
    const int64_t blocks = n / kN - 1;
    jump(words_.data(), blocks * kN);
    n -= blocks * kN;
  }
  while (n > 0) {
    if (used_ == kN) refill();
    const int64_t here = std::min(kN - used_, n);
    used_ += here;
    n -= here;
  }
}

void MersenneTwister::bernoulli(double p, uint8_t* out, int64_t n) {
  const auto threshold = static_cast<int64_t>(std::ceil(std::ldexp(p, 53)));
  drew_ |= n > 0;
  while (n > 0) {
    const int64_t pairs = std::min((kN - used_) / 2, n);
    (wide_ ? below_avx512 : below)(words_.data() + used_, threshold, out, pairs);
    used_ += 2 * pairs;
    out += pairs;
    n -= pairs;
    if (n > 0 && kN - used_ < 2) {  // a pair across the seam, or a fresh start
      if (used_ == kN) {
        refill();
      } else {
        const uint64_t high = next(), low = next();
        *out++ = static_cast<int64_t>((high << 32 | low) & kMask53) < threshold;
        --n;
      }
    }
  }
}

}  // namespace trainc::runtime
