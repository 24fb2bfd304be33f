// mt19937 as the framework keeps it, 624 words at a time as vector code.
#include <cmath>
#include <cstring>

#include "runtime/cpu/random.h"
#include "support/error.h"

// One function, compiled for each level and chosen when the library is loaded.
#if defined(__SANITIZE_ADDRESS__)
#define TRAINC_VECTOR_CLONES  // the chooser would run before the sanitizer is ready
#else
#define TRAINC_VECTOR_CLONES __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#endif

namespace trainc::runtime {
namespace {

// torch.get_rng_state(): at::CPUGeneratorImplState, whose first part is the layout of torch 1.0.
struct State {
  uint64_t seed;
  int32_t left;    // words unused, + 1; 1 before the first draw after seeding
  int32_t seeded;
  uint64_t next;   // words used
  uint64_t words[Twister::kWords];
  double normal_x, normal_y, normal_rho;
  int32_t normal_is_valid;
  float next_float_normal;
  bool is_next_float_normal_valid;
};
static_assert(sizeof(State) == Twister::kStateBytes);

constexpr int64_t kN = Twister::kWords, kM = 397;

// Element i of the next 624 needs i, i + 1 and i + 397 of the last (mod 624): 227 of them read only old words, the rest reads new ones
// at a distance of 227, so both loops are free of dependences shorter than a vector.
TRAINC_VECTOR_CLONES void twist(uint32_t* w) {
  const auto mix = [](uint32_t u, uint32_t v) {
    return (((u & 0x80000000u) | (v & 0x7fffffffu)) >> 1) ^ ((0u - (v & 1u)) & 0x9908b0dfu);
  };
#pragma GCC ivdep
  for (int64_t i = 0; i < kN - kM; ++i) w[i] = w[i + kM] ^ mix(w[i], w[i + 1]);
#pragma GCC ivdep
  for (int64_t i = kN - kM; i < kN - 1; ++i) w[i] = w[i + kM - kN] ^ mix(w[i], w[i + 1]);
  w[kN - 1] = w[kM - 1] ^ mix(w[kN - 1], w[0]);
}

TRAINC_VECTOR_CLONES void temper(const uint32_t* __restrict w, uint32_t* __restrict out) {
  for (int64_t i = 0; i < kN; ++i) {
    uint32_t y = w[i];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    out[i] = y ^ (y >> 18);
  }
}

constexpr uint64_t kMask53 = (uint64_t{1} << 53) - 1;

// `words`: pairs of high and low word. x * 2^-53 < p exactly where x < threshold: scaling by a power of two is exact.
TRAINC_VECTOR_CLONES void below(const uint32_t* __restrict words, int64_t threshold, uint8_t* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    uint64_t pair;
    std::memcpy(&pair, words + 2 * i, sizeof pair);
    const int64_t x = static_cast<int64_t>(((pair << 32) | (pair >> 32)) & kMask53);
    out[i] = x < threshold;
  }
}

}  // namespace

Twister::Twister(std::span<const uint8_t> state) : bytes_(state.begin(), state.end()) {
  require(state.size() == kStateBytes, "the framework's generator state has " + std::to_string(state.size()) + " bytes, not 5056");
  State s;
  std::memcpy(&s, bytes_.data(), sizeof s);
  require(s.seeded == 1 && s.left >= 1 && s.left <= kN && s.next <= uint64_t(kN), "the framework's generator state is not a mt19937");
  for (int64_t i = 0; i < kN; ++i) words_[i] = static_cast<uint32_t>(s.words[i]);
  used_ = kN + 1 - s.left;
  require(used_ == kN || used_ == static_cast<int64_t>(s.next), "the framework's generator state is not a mt19937");
  temper(words_.data(), tempered_.data());
}

std::vector<uint8_t> Twister::state() const {
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

void Twister::refill() {
  twist(words_.data());
  temper(words_.data(), tempered_.data());
  used_ = 0;
}

uint32_t Twister::next() {
  drew_ = true;
  if (used_ == kN) refill();
  return tempered_[used_++];
}

void Twister::bernoulli(double p, uint8_t* out, int64_t n) {
  const auto threshold = static_cast<int64_t>(std::ceil(std::ldexp(p, 53)));
  drew_ |= n > 0;
  while (n > 0) {
    const int64_t pairs = std::min((kN - used_) / 2, n);
    below(tempered_.data() + used_, threshold, out, pairs);
    used_ += 2 * pairs;
    out += pairs;
    n -= pairs;
    if (n > 0 && kN - used_ < 2) {  // a pair across the seam, or a fresh start
      if (used_ == kN) {
        refill();
      } else {
        uint32_t pair[2] = {next(), 0};
        pair[1] = next();
        below(pair, threshold, out++, 1);
        --n;
      }
    }
  }
}

}  // namespace trainc::runtime
