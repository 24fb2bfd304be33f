// Elementwise functions that are more than one primitive. Shapes broadcast; floats have one dtype, in which they are
// computed.
#pragma once
#include "frontend/formulas/value.h"

namespace trainc::formulas {

/// x + w (end - x), from the end where w is large, so that it is exact at 1.
Value lerp(Value x, Value end, Value w);
Value lerp(Value x, Value end, double w);
/// log(e^x + e^y) without overflow; two infinities of one sign stay.
Value logaddexp(Value x, Value y);
/// NaN, inf and -inf replaced.
Value nan_to_num(Value x, double nan, double infinity, double minus_infinity);
/// The largest finite number.
double largest(DType d);

}  // namespace trainc::formulas
