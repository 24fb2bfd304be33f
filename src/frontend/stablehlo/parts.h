// Parts of tensors: padding with gaps, slices whose place is computed, and what is written there.
#pragma once
#include "frontend/formulas/shapes.h"
#include "frontend/stablehlo/known.h"

namespace trainc::frontend::stablehlo {

using formulas::Value;

constexpr int64_t kMostConstants = 64;  // elements of a constant that are nodes each

/// x with `interior` of the scalar `fill` between elements, then `low` and `high` of them around it; negative numbers
/// cut off. One number an axis.
Value padded(Value x, Value fill, const Dims& low, const Dims& high, const Dims& interior);
/// Integers as i64, within [0, most].
Value clamped(Value start, int64_t most);
/// `extent` elements along an axis, from `start` on (as `clamped` gives it).
Value slice_from(Value x, int64_t axis, Value start, int64_t extent, Known&);
/// x with `update` written over it, from `starts` on (one an axis).
Value updated(Value x, Value update, const std::vector<Value>& starts, Known&);

}  // namespace trainc::frontend::stablehlo
