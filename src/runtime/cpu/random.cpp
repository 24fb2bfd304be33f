#include "runtime/cpu/random.h"

#include <emmintrin.h>

#include <algorithm>
#include <optional>

#include "runtime/runtime.h"

namespace trainc::runtime {
namespace {
constexpr int64_t kDrawnPiece = 1 << 12;  // drawn as bytes in the first cache, then packed; a multiple of 8
constexpr int64_t kDrawnPart = 1 << 17;   // elements of a part that a thread draws, at least
// What of its time an element takes that is stepped over: the twister goes on, but nothing is made of its words.
constexpr double kSteppedOver = 0.44;

/// draw(twister, from, count) for parts of a mask of n elements, on all threads. Each part has a twister of its own
/// that steps over what lies before, so later parts are shorter; `twister` stands behind the last one afterwards, as if
/// one thread had drawn all.
template <class Draw>
void draw_in_parts(MersenneTwister& twister, int64_t n, Draw draw) {
  const int64_t parts = std::clamp<int64_t>(n / kDrawnPart, 1, std::max(1, thread_count()));
  if (parts == 1) return draw(twister, 0, n);
  std::vector<int64_t> begins{0};
  double sum = 0, length = 1;
  std::vector<double> ends;
  for (int64_t part = 0; part < parts; ++part, length *= 1 - kSteppedOver) ends.push_back(sum += length);
  for (const double end : ends)
    begins.push_back(static_cast<int64_t>(end / sum * double(n)) / kDrawnPiece * kDrawnPiece);
  begins.back() = n;
  const MersenneTwister before = twister;
  parallel_for(parts, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      MersenneTwister own = before;
      own.skip(2 * begins[part]);
      draw(own, begins[part], begins[part + 1] - begins[part]);
      if (part == parts - 1) twister = std::move(own);
    }
  });
}

}  // namespace

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
      return draw_in_parts(twister, n, [&](MersenneTwister& own, int64_t from, int64_t count) {
        uint8_t piece[kDrawnPiece];
        for (int64_t i = from; i < from + count; i += kDrawnPiece) {
          const int64_t here = std::min(kDrawnPiece, from + count - i);
          own.bernoulli(p, piece, here);
          pack_bits(piece, here, out + i / 8);
        }
      });
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
    case MaskGenerator::Twister:
      return draw_in_parts(
          twister, n, [&](MersenneTwister& own, int64_t from, int64_t count) { own.bernoulli(p, out + from, count); });
    case MaskGenerator::Mkl: return mkl_bernoulli(twister.next(), p, out, n);
  }
}

}  // namespace trainc::runtime
