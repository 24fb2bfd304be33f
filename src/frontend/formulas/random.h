// Random operations: a mask is a node of its own with its place among the program's draws; what is done with it is
// arithmetic.
#pragma once
#include "frontend/formulas/value.h"

namespace trainc::formulas {

/// bool [shape], true with probability p, in row-major order. `draw.draw` is the mask's place among the draws: two
/// masks with one place are one.
inline Value random_mask(Builder& b, const Dims& shape, const RandomAttr& draw) { return {&b, b.random(shape, draw)}; }
/// x where the mask is true, times `scale` (1 / the mask's probability). Of dy: its own derivative.
inline Value dropout(Value x, Value mask, double scale) { return x * cast(mask, x.dtype()) * scale; }

}  // namespace trainc::formulas
