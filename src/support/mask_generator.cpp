#include "support/mask_generator.h"

#include <atomic>

#include "support/cpu.h"

namespace trainc {
namespace {
std::atomic<int> chosen{-1};
}

MaskGenerator mask_generator() {
  const int g = chosen.load();
  if (g >= 0) return static_cast<MaskGenerator>(g);
  return cpu_is_intel() ? MaskGenerator::Mkl : MaskGenerator::Twister;
}

void set_mask_generator(MaskGenerator g) { chosen.store(static_cast<int>(g)); }

}  // namespace trainc
