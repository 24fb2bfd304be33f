#include "reference/philox.h"

#include <cstddef>

namespace trainc::reference {

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> c, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c[0], b = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ key[0], static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return c;
}

namespace {

/// One thread's generator: its own sequence, four uniform numbers a call.
struct Sequence {
  uint64_t seed, number, next;
  std::array<float, 4> uniform() {
    const auto bits = philox({static_cast<uint32_t>(next), static_cast<uint32_t>(next >> 32),
                              static_cast<uint32_t>(number), static_cast<uint32_t>(number >> 32)},
                             {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
    ++next;
    std::array<float, 4> u;
    for (int i = 0; i < 4; ++i) u[i] = static_cast<float>(bits[i]) * 0x1p-32f + 0x1p-33f;
    return u;
  }
};

}  // namespace

std::vector<uint8_t> dropout_mask(uint64_t seed, uint64_t offset, int64_t numel, int64_t threads, int64_t vector,
                                  double p) {
  std::vector<uint8_t> mask(static_cast<size_t>(numel));
  for (int64_t t = 0; t < threads; ++t) {
    Sequence sequence{seed, static_cast<uint64_t>(t), offset / 4};
    if (vector > 1) {
      for (int64_t i = t * vector; i < numel; i += threads * vector) {
        std::array<float, 4> u{};
        for (int64_t j = 0; j < vector; ++j) {
          if (j % 4 == 0) u = sequence.uniform();
          mask[i + j] = u[j % 4] < p;
        }
      }
    } else {
      for (int64_t i = t; i < numel; i += threads * 4) {
        const std::array<float, 4> u = sequence.uniform();
        for (int64_t j = 0; j < 4 && i + j * threads < numel; ++j) mask[i + j * threads] = u[j] < p;
      }
    }
  }
  return mask;
}

}  // namespace trainc::reference
