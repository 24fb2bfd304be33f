#include "runtime/cpu/random.h"

#include <emmintrin.h>

#include <algorithm>

namespace trainc::runtime {
namespace {
constexpr int64_t kDrawnPiece = 1 << 12;  // drawn as bytes in the first cache, then packed; a multiple of 8
}

void pack_bits(const uint8_t* bytes, int64_t n, uint8_t* bits) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m128i sixteen = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + i));
    const int mask = _mm_movemask_epi8(_mm_slli_epi16(sixteen, 7));  // a byte's lowest bit becomes its highest
    bits[i / 8] = static_cast<uint8_t>(mask), bits[i / 8 + 1] = static_cast<uint8_t>(mask >> 8);
  }
  for (; i < n; i += 8) {
    unsigned mask = 0;
    for (int64_t j = 0; j < std::min<int64_t>(8, n - i); ++j) mask |= static_cast<unsigned>(bytes[i + j]) << j;
    bits[i / 8] = static_cast<uint8_t>(mask);
  }
}

int64_t draws_of_mask(MaskGenerator generator, int64_t n) {
  switch (generator) {
    case MaskGenerator::Twister: return 2 * n;
    case MaskGenerator::Mkl: return n > 0 ? 1 : 0;  // a seed
  }
  return 0;
}

void bernoulli_bits(MaskGenerator generator, MersenneTwister& twister, double p, uint8_t* out, int64_t n) {
  if (n == 0) return;
  if (p <= 0 || p >= 1) {
    for (int64_t i = 0; i < n; i += 8)
      out[i / 8] = static_cast<uint8_t>(p >= 1 ? (1u << std::min<int64_t>(8, n - i)) - 1 : 0);
    return;
  }
  switch (generator) {
    case MaskGenerator::Twister: {
      uint8_t piece[kDrawnPiece];
      for (int64_t i = 0; i < n; i += kDrawnPiece) {
        const int64_t here = std::min(kDrawnPiece, n - i);
        twister.bernoulli(p, piece, here);
        pack_bits(piece, here, out + i / 8);
      }
      return;
    }
    case MaskGenerator::Mkl: return mkl_bernoulli(twister.next(), p, out, n, true);
  }
}

void bernoulli(MaskGenerator generator, MersenneTwister& twister, double p, uint8_t* out, int64_t n) {
  if (n == 0) return;
  if (p <= 0 || p >= 1) {
    std::fill(out, out + n, p >= 1);
    return;
  }
  switch (generator) {
    case MaskGenerator::Twister: return twister.bernoulli(p, out, n);
    case MaskGenerator::Mkl: return mkl_bernoulli(twister.next(), p, out, n);
  }
}

}  // namespace trainc::runtime
