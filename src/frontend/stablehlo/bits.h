// Functions of the bits of elements.
#pragma once
#include "frontend/formulas/shapes.h"
#include "support/rounding.h"

namespace trainc::frontend::stablehlo {

using formulas::Value;

/// An integer beside x, of its dtype: it wraps.
inline Value integer(Value x, int64_t v) { return with(x, x.b->constant_int(x.dtype(), wrap_to(x.dtype(), v))); }
/// Op::Shl, Shr or Sar by a number of bits.
inline Value shift(Op op, Value x, int64_t by) { return formulas::binary(op, x, integer(x, by)); }
/// The same bits as the dtype, which is as wide; as the signed integer of that width.
Value with_dtype(Value x, DType d);
Value signed_bits(Value x);
/// The least integer of a signed dtype.
int64_t least_of(DType d);
/// Ones among an integer's bits; of its dtype.
Value count_ones(Value x);
/// Zeros above the highest one.
Value count_leading_zeros(Value x);
/// The upper half of the bits of the product of two integers of one dtype, as that dtype.
Value high_product(Value x, Value y);
/// Integers that compare as IEEE 754's total order of the floats: -NaN < -inf < ... < -0 < 0 < ... < NaN.
Value total_order(Value x);
/// x rounded to the bits of an exponent and a mantissa, as if it had no more; what its exponents do not hold is 0 or
/// infinite.
Value reduced_precision(Value x, int exponent_bits, int mantissa_bits);
/// The same bits as elements of `type`: of another width, a last axis of narrower elements comes or goes, the lowest
/// bits first.
Value bitcast(Value x, const Type& type);

}  // namespace trainc::frontend::stablehlo
