#include "runtime/places.h"

#include <fmt/format.h>

#include <cstring>

#include "support/error.h"

namespace trainc::runtime {

std::vector<void*> place_buffers(const plan::Plan& plan, const Call& call, uint8_t* arena) {
  require(static_cast<int64_t>(call.inputs.size()) == plan.input_count,
          fmt::format("plan {}: {} inputs given, it takes {}", plan.name, call.inputs.size(), plan.input_count));
  require(static_cast<int64_t>(call.outputs.size()) == plan.output_count,
          fmt::format("plan {}: {} outputs given, it gives {}", plan.name, call.outputs.size(), plan.output_count));
  std::vector<void*> pointers;
  for (const plan::Buffer& b : plan.buffers) {
    void* p = nullptr;
    switch (b.home) {
      case plan::Home::Input: p = call.inputs[b.index]; break;
      case plan::Home::Output: p = call.outputs[b.index]; break;
      case plan::Home::Saved: p = call.saved ? static_cast<uint8_t*>(call.saved) + b.offset : nullptr; break;
      case plan::Home::Temp: p = arena ? arena + b.offset : nullptr; break;
      case plan::Home::Constant: p = const_cast<uint8_t*>(plan.constants.data()) + b.offset; break;
      case plan::Home::Extern: break;
    }
    pointers.push_back(p);
  }
  return pointers;
}

void Draws::fill(const plan::Step& step, const plan::Buffer& buffer, void* mask) {
  int64_t n = 1;
  for (int64_t d : buffer.shape) n *= d;
  require(n == 0 || mask != nullptr, "no memory for a mask");
  if (n > 0 && step.p > 0 && step.p < 1) bernoulli(mask_generator(), twister(), step.p, static_cast<uint8_t*>(mask), n);
  else std::memset(mask, step.p >= 1, static_cast<size_t>(n));
}

}  // namespace trainc::runtime
