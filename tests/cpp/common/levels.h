// The CPU levels that a test goes through.
#pragma once
#include <vector>

#include "support/cpu.h"

namespace trainc::testing {

/// Best first.
inline std::vector<CpuLevel> all_levels() {
  return {
#define X(name, text, cpu, lanes) CpuLevel::name,
      TRAINC_CPU_LEVELS(X)
#undef X
  };
}
/// Those that this machine can run; with tiles after interpret::emulate_amx().
inline std::vector<CpuLevel> runnable_levels() {
  std::vector<CpuLevel> levels = all_levels();
  std::erase_if(levels, [](CpuLevel l) { return l < machine_cpu_level(); });
  return levels;
}

}  // namespace trainc::testing
