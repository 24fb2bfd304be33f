// Eager's CPU dropout masks, bit for bit (docs/runtime.md, "Random numbers"). Takes: the bytes of
// torch.get_rng_state(). Gives: masks, and the bytes of the state after them. Includes: support, runtime/runtime.h.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "support/cpu.h"
#include "support/mask_generator.h"

namespace trainc::runtime {

/// The default CPU generator (at::CPUGeneratorImpl): mt19937, with the rest of the state carried along.
class MersenneTwister {
 public:
  static constexpr int64_t kWords = 624;
  static constexpr size_t kStateBytes = 5056;
  /// Throws InternalError where the bytes are not such a state.
  explicit MersenneTwister(std::span<const uint8_t> state, CpuLevel level = cpu_level());
  std::vector<uint8_t> state() const;

  uint32_t next();
  /// Moves on over n draws of 32 bits; what far ones cost does not grow with n (jump.h).
  void skip(int64_t n);
  /// The next n draws of 64 bits (two of 32 bits, the high word first); out[i] = (draw mod 2^53) * 2^-53 < p.
  void bernoulli(double p, uint8_t* out, int64_t n);

 private:
  void refill();  // the next 624 words

  bool wide_;                                              // with AVX-512
  std::vector<uint8_t> bytes_;                             // as given; the fields below are put back into it
  alignas(64) std::array<uint32_t, kWords + 32> words_{};  // untempered; the tail is room for whole vectors
  int64_t used_ = kWords;                                  // of the current 624
  bool drew_ = false;
};

/// Fills out[0, n) with 1 (probability p) or 0, as eager's Tensor.bernoulli_(p) on a contiguous bool tensor. Where p is
/// 0 or 1, or n is 0, nothing is drawn: that is what eager's dropout does, the one source of such masks.
void bernoulli(MaskGenerator, MersenneTwister&, double p, uint8_t* out, int64_t n);

/// How many 32-bit draws of the twister a mask of n elements takes, where p is neither 0 nor 1.
int64_t draws_of_mask(MaskGenerator, int64_t n);

/// The same draws, as bits: out[i / 8] has element i at bit i % 8; the last byte's others are 0.
void bernoulli_bits(MaskGenerator, MersenneTwister&, double p, uint8_t* out, int64_t n);

/// MKL's viRngBernoulli on a stream MCG31m1 seeded with `seed`; `bits`: as bernoulli_bits has them.
void mkl_bernoulli(uint32_t seed, double p, uint8_t* out, int64_t n, bool bits = false);

/// Bytes of 0 and 1 as bits; the last byte's others are 0.
void pack_bits(const uint8_t* bytes, int64_t n, uint8_t* bits);

}  // namespace trainc::runtime
