// Groups -> loop nests.
#pragma once
#include <vector>

#include "loop/loop.h"
#include "schedule/schedule.h"
#include "support/cpu.h"

namespace trainc::schedule {

struct LoweredKernel {
  loop::LoopNest nest;
  // The nest's arguments, in order: stored values and Input nodes.
  std::vector<const Node*> arguments;
};

struct Machine {
  CpuLevel level;
  CacheSizes caches;
};

/// The kernels of one group, to run in this order; none for draws, externs, and values without elements.
std::vector<LoweredKernel> lower(const Graph&, const Schedule&, const Group&, const Machine&);

}  // namespace trainc::schedule
