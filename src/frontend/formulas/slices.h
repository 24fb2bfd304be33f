// Slices along one axis and what undoes them, shared by the rows of movements. Includes: value.
#pragma once
#include <algorithm>

#include "frontend/formulas/value.h"

namespace trainc::formulas {

/// The elements start, start + step, ... of an axis, `extent` of them.
struct Range { int64_t axis, start, extent, step; };

Value sliced(Value x, const Range&);
/// `x` laid into a tensor of `n` along the axis, at the places of the slice; the scalar `fill` elsewhere.
Value unsliced(Value x, const Range&, int64_t n, Value fill);
/// `self` with `src` in the places of the slice.
Value slice_scattered(Value self, Value src, const Range&);

}  // namespace trainc::formulas
