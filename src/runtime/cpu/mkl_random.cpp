// MKL's MCG31m1 and viRngBernoulli, from their published definition (Intel's "Notes for oneMKL Vector Statistics"):
//   x[0] = seed mod m, 1 instead of 0;   x[i+1] = a x[i] mod m;   a = 1132489760, m = 2^31 - 1
//   u[i] = x[i] / m in single precision;   out[i] = u[i] < p, p in single precision
// "In single precision" was settled by running MKL 2024.2: u is float(x) * 2^-31 (float(m) is 2^31), so that the
// largest x give 1.
#include "runtime/cpu/random.h"
#include "runtime/runtime.h"

namespace trainc::runtime {
namespace {

constexpr uint64_t kFactor = 1132489760, kModulus = 0x7fffffff;
constexpr int64_t kLanes = 16, kChunk = 1 << 14;  // kChunk is a multiple of kLanes

constexpr uint64_t power(uint64_t base, uint64_t exponent) {
  uint64_t result = 1;
  for (; exponent; exponent >>= 1, base = base * base % kModulus)
    if (exponent & 1) result = result * base % kModulus;
  return result;
}

// x * y mod 2^31 - 1, for x, y below it: fold the high bits onto the low ones.
inline uint32_t times(uint64_t x, uint64_t y) {
  const uint64_t product = x * y;
  const uint64_t folded = (product & kModulus) + (product >> 31);
  return static_cast<uint32_t>(folded >= kModulus ? folded - kModulus : folded);
}

// A float comparison with p is monotone in x, so it is made once, for the bound: the first x for which it fails.
uint32_t bound(double p) {
  const float limit = static_cast<float>(p);
  uint64_t low = 0, high = kModulus;  // x in [0, low) passes; high fails or is m
  while (low < high) {
    const uint64_t x = (low + high) / 2;
    if (static_cast<float>(x) * 0x1p-31f < limit) low = x + 1;
    else high = x;
  }
  return static_cast<uint32_t>(low);
}

}  // namespace

void mkl_bernoulli(uint32_t seed, double p, uint8_t* result, int64_t n, bool bits) {
  const uint64_t first = seed % kModulus ? seed % kModulus : 1;
  const uint32_t limit = bound(p);
  constexpr uint64_t kStep = power(kFactor, kLanes);
  parallel_for((n + kChunk - 1) / kChunk, [&](int64_t begin, int64_t end) {
    const int64_t from = begin * kChunk, to = std::min(end * kChunk, n);
    uint32_t x[kLanes];  // kLanes sequences side by side, each kLanes steps at a time
    x[0] = times(first, power(kFactor, static_cast<uint64_t>(from)));
    for (int64_t l = 1; l < kLanes; ++l) x[l] = times(x[l - 1], kFactor);
    uint8_t vector[kLanes];
    for (int64_t i = from; i < to; i += kLanes) {
      const int64_t here = std::min(kLanes, to - i);
      uint8_t* out = bits ? vector : result + i;
      for (int64_t l = 0; l < here; ++l) out[l] = x[l] < limit;
      for (int64_t l = 0; l < kLanes; ++l) x[l] = times(x[l], kStep);
      if (bits) pack_bits(vector, here, result + i / 8);
    }
  });
}

}  // namespace trainc::runtime
