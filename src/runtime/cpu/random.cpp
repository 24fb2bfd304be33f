#include "runtime/cpu/random.h"

#include <algorithm>
#include <atomic>

#include "support/cpu.h"

namespace trainc::runtime {
namespace {
std::atomic<int> chosen{-1};
}

MaskGenerator mask_generator() {
  const int g = chosen.load();
  if (g >= 0) return static_cast<MaskGenerator>(g);
  return cpu_is_intel() ? MaskGenerator::Mkl : MaskGenerator::Twister;
}

void set_mask_generator(MaskGenerator g) { chosen.store(static_cast<int>(g)); }

void bernoulli(MaskGenerator generator, Twister& twister, double p, uint8_t* out, int64_t n) {
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
