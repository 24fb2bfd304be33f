#include "runtime/cpu/random.h"

#include <algorithm>

namespace trainc::runtime {
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
