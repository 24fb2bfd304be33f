// A kernel whose code is the text of its nest, run by the interpreter in the host's memory. Inside runtime/interpret
// only.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "interpret/device.h"
#include "plan/plan.h"

namespace trainc::runtime::interpreted {

/// InternalError where it is no nest.
loop::LoopNest nest_of(const plan::Kernel&);

struct Argument {
  void* data;
  int64_t bytes;
  bool fresh;  // nothing has been written there yet
};
/// Runs iterations [0, extent) and gives the code of a failed Check, or 0. InternalError with whatever the interpreter
/// finds, as errors of the kernel `name`.
uint32_t run_nest(const loop::LoopNest&, const std::string& name, const std::vector<Argument>&, int64_t extent);

}  // namespace trainc::runtime::interpreted
