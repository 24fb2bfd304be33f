// Haramoto, Matsumoto, Nishimura, Panneton, L'Ecuyer: "Efficient jump ahead for F2-linear random number generators"
// (2008). One draw is a linear map A of the state, so A^steps is p(A) for the polynomial p = x^steps mod A's
// characteristic polynomial, and p(A) applied to a state is a sum of the next 19,937 states, by Horner's rule.
#include "runtime/cpu/jump.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "runtime/cpu/random.h"
#include "runtime/short_lock.h"

namespace trainc::runtime {
namespace {

constexpr int64_t kAll = MersenneTwister::kWords, kMiddle = 397, kDegree = 19937, kWords = (kDegree + 63) / 64;
constexpr uint32_t kMatrix = 0x9908b0df;
constexpr size_t kKept = 256;  // polynomials: a plan needs one for each of its runs of masks

// over the field of two elements, of a degree below kDegree; bit i: the factor of x^i
using Polynomial = std::array<uint64_t, kWords>;

/// The exponents of the characteristic polynomial below its highest, as Matsumoto and Nishimura give it (1998, appendix
/// A.1): a^(w-r) b^r + sum over i < r of m_i a^(w-r) b^(r-1-i) + sum over i from r of m_i a^(w-1-i), where a = x^624 +
/// x^397, b = x^623 + x^396, w = 32, r = 31, and m_i is bit i of the matrix.
std::vector<int64_t> characteristic() {
  std::vector<bool> sum(kDegree + 1);
  // x^(free) (x^227 + 1)^power: a^i b^j is x^(397 i + 396 j) (x^227 + 1)^(i + j), and a binomial is odd where `k &
  // ~power` is 0.
  const auto add = [&](int64_t a, int64_t b) {
    const int64_t power = a + b;
    for (int64_t k = 0; k <= power; ++k)
      if ((k & ~power) == 0) {
        const size_t e = static_cast<size_t>(kMiddle * a + (kMiddle - 1) * b + (kAll - kMiddle) * k);
        sum[e] = !sum[e];
      }
  };
  add(1, 31);
  for (int64_t i = 0; i < 31; ++i)
    if (kMatrix >> i & 1) add(1, 30 - i);
  if (kMatrix >> 31 & 1) add(0, 0);
  std::vector<int64_t> exponents;
  for (int64_t e = 0; e < kDegree; ++e)
    if (sum[static_cast<size_t>(e)]) exponents.push_back(e);
  return exponents;
}

const std::vector<int64_t>& lower_terms() {
  static const std::vector<int64_t>* terms = new std::vector<int64_t>(characteristic());
  return *terms;
}

/// Adds 64 factors, the lowest of x^at.
template <class Words> void add_at(Words& words, int64_t at, uint64_t factors) {
  const size_t word = static_cast<size_t>(at / 64);
  const int shift = static_cast<int>(at % 64);
  words[word] ^= factors << shift;
  if (shift > 0 && factors >> (64 - shift)) words[word + 1] ^= factors >> (64 - shift);
}

/// The bits of `half`, each with a 0 behind it: the square of a polynomial.
uint64_t spread(uint32_t half) {
  uint64_t x = half;
  x = (x | x << 16) & 0x0000ffff0000ffff;
  x = (x | x << 8) & 0x00ff00ff00ff00ff;
  x = (x | x << 4) & 0x0f0f0f0f0f0f0f0f;
  x = (x | x << 2) & 0x3333333333333333;
  return (x | x << 1) & 0x5555555555555555;
}

Polynomial squared(const Polynomial& p) {
  std::array<uint64_t, 2 * kWords + 1> square{};
  for (size_t i = 0; i < kWords; ++i) {
    square[2 * i] = spread(static_cast<uint32_t>(p[i]));
    square[2 * i + 1] = spread(static_cast<uint32_t>(p[i] >> 32));
  }
  // x^kDegree is the sum of the lower terms. 64 factors at a time: the next term lies 227 below, so that none falls
  // among those just taken.
  for (int64_t top = 2 * kWords - 1; top >= kDegree / 64; --top) {
    const int64_t first = std::max(kDegree, top * 64);
    const int shift = static_cast<int>(first - top * 64);
    const uint64_t factors = square[static_cast<size_t>(top)] >> shift;
    if (!factors) continue;
    square[static_cast<size_t>(top)] ^= factors << shift;
    for (int64_t e : lower_terms()) add_at(square, first - kDegree + e, factors);
  }
  Polynomial result;
  std::copy_n(square.begin(), kWords, result.begin());
  return result;
}

void multiply_by_x(Polynomial& p) {
  for (size_t i = kWords; i-- > 1;) p[i] = p[i] << 1 | p[i - 1] >> 63;
  p[0] <<= 1;
  const uint64_t highest = uint64_t{1} << (kDegree % 64);
  if (!(p[kWords - 1] & highest)) return;
  p[kWords - 1] ^= highest;
  for (int64_t e : lower_terms()) add_at(p, e, 1);
}

/// x^exponent mod the characteristic polynomial.
Polynomial power_of_x(uint64_t exponent) {
  Polynomial p{1};
  for (int bit = 63 - std::countl_zero(exponent | 1); bit >= 0; --bit) {
    p = squared(p);
    if (exponent >> bit & 1) multiply_by_x(p);
  }
  return p;
}

std::shared_ptr<const Polynomial> kept_power_of_x(uint64_t exponent) {
  static auto* kept = new std::map<uint64_t, std::shared_ptr<const Polynomial>>;
  {
    const ShortLock lock;
    if (auto it = kept->find(exponent); it != kept->end()) return it->second;
  }
  auto made = std::make_shared<const Polynomial>(power_of_x(exponent));
  const ShortLock lock;
  if (kept->size() >= kKept) kept->clear();
  return (*kept)[exponent] = made;
}

uint32_t next(const uint32_t* last) {  // the word after `last`[0, 624)
  const uint32_t mixed = (last[0] & 0x80000000u) | (last[1] & 0x7fffffffu);
  return last[kMiddle] ^ (mixed >> 1) ^ ((0u - (mixed & 1u)) & kMatrix);
}

#if !defined(__SANITIZE_ADDRESS__)
__attribute__((target_clones("arch=haswell", "default")))
#endif
void add(uint32_t* __restrict sum, const uint32_t* __restrict words) {
  for (int64_t i = 0; i < kAll; ++i) sum[i] ^= words[i];
}

}  // namespace

void jump(uint32_t* words, int64_t steps) {
  // The low 31 bits of the first word are no part of the generator's state, and come out as anything: so one step less,
  // then a true one.
  const auto p = kept_power_of_x(static_cast<uint64_t>(steps - 1));
  std::vector<uint32_t> stream(static_cast<size_t>(kAll + kDegree + 1));  // the sum is [at, at + 624)
  int64_t at = 0;
  for (int64_t i = kDegree - 1; i >= 0; --i, ++at) {
    stream[static_cast<size_t>(at + kAll)] = next(&stream[static_cast<size_t>(at)]);
    if ((*p)[static_cast<size_t>(i / 64)] >> (i % 64) & 1) add(&stream[static_cast<size_t>(at + 1)], words);
  }
  stream[static_cast<size_t>(at + kAll)] = next(&stream[static_cast<size_t>(at)]);
  std::copy_n(&stream[static_cast<size_t>(at + 1)], kAll, words);
}

}  // namespace trainc::runtime
