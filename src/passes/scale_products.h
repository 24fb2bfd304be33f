// Numbers that scale what a product reads, moved behind it.
#pragma once
#include "graph/graph.h"

namespace trainc {

/// Where both operands of a contraction are bf16 that was cast to f32 and, one or both, multiplied by numbers there,
/// the product is of the bf16 values, and scaled: PyTorch's attention with dropout scales queries and keys by the root
/// of the scale, in f32. CPUs and GPUs multiply bf16 several times as fast as f32. Movements may lie in between. Needs:
/// any graph; after `simplify`, which brings numbers to one form. Gives: the same values but for rounding, of which
/// there is less (docs/numerics.md); contractions of f32 values, and those that nothing scales, or scales by far, stay
/// as they are.
Graph scale_products(const Graph&);

}  // namespace trainc
