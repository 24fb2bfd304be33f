// Rounding to an element type's values: what constants, constant folding and the reference share.
#pragma once
#include <cstdint>

#include "support/dtype.h"

namespace trainc {

/// The value of `dtype` nearest to `value`, ties to even, overflow to infinity, subnormals kept; NaN stays NaN. F64:
/// itself. One rounding: f64 to bf16 does not pass through f32.
double round_to(DType float_dtype, double value);
/// `value` cut off towards zero as the machine converts it, and eager with it: what does not fit i32 (of i64: i64), and
/// NaN, gives the least one; narrower integers are its low bits.
int64_t truncate_to(DType integer_dtype, double value);
/// `value` wrapped to the width of an integer dtype (two's complement); bool: value != 0.
int64_t wrap_to(DType integer_dtype, int64_t value);

}  // namespace trainc
