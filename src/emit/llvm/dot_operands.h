// Which memory of a nest holds operands of dot products and nothing else. No LLVM.
#pragma once
#include <set>

#include "loop/loop.h"

namespace trainc::emit {

/// Buffers of scratch and registers, of bf16 or pairs of it, out of which every value goes into a product of Dot,
/// straight or by way of other such buffers, locals, choices and Transposes. `vdpbf16ps` takes denormals for zero, so
/// that whoever fills them may leave zeros in their place.
std::set<int> dot_operands(const loop::LoopNest&);

}  // namespace trainc::emit
