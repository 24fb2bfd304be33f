#include "support/mask_generator.h"

#include <atomic>

#include "support/cpu.h"
#include "support/error.h"

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

std::string_view name_of(MaskGenerator g) { return g == MaskGenerator::Mkl ? "mkl" : "twister"; }

MaskGenerator mask_generator_of(std::string_view name) {
  for (const MaskGenerator g : {MaskGenerator::Twister, MaskGenerator::Mkl})
    if (name == name_of(g)) return g;
  throw UserError("no generator of masks is called " + std::string(name));
}

}  // namespace trainc
