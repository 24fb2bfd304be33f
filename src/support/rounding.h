// Rounding to an element type's values: what constants, constant folding and the reference share.
#pragma once
#include <cstdint>

#include "support/dtype.h"

namespace trainc {

/// The value of `dtype` nearest to `value`, ties to even, overflow to infinity, subnormals kept; NaN stays NaN. F64:
/// itself. One rounding: f64 to bf16 does not pass through f32.
double round_to(DType float_dtype, double value);
/// `value` cut off towards zero as the machine converts it, and eager with it: what does not fit i32 (of 64 bits: i64),
/// and NaN, gives the least one; unsigned and narrower integers are its low bits.
int64_t truncate_to(DType integer_dtype, double value);
/// `value` wrapped to the width of an integer dtype (two's complement); bool: value != 0. What is kept of a u64 are its
/// bits; all other values are themselves.
int64_t wrap_to(DType integer_dtype, int64_t value);

/// The bits of a float dtype, in the low ones; `value` is rounded to it. A NaN keeps its sign, and what it can of its
/// payload.
uint64_t bits_of_float(DType float_dtype, double value);
double float_of_bits(DType float_dtype, uint64_t bits);
/// What compares (signed) as the integer that is kept as `value` compares, and the way back.
constexpr int64_t ordered(DType dtype, int64_t value) {
  return dtype == DType::U64 ? static_cast<int64_t>(static_cast<uint64_t>(value) ^ (uint64_t{1} << 63)) : value;
}
/// Float: the integer kept as `value`, rounded once.
template <class Float> constexpr Float float_of_integer(DType dtype, int64_t value) {
  return dtype == DType::U64 ? static_cast<Float>(static_cast<uint64_t>(value)) : static_cast<Float>(value);
}
/// a << b; a >> b with zeros, or the sign, from above; `bits` wide. Everything is shifted out where b is not below
/// that.
enum class Shift : uint8_t { Left, Right, SignedRight };
constexpr int64_t shifted(Shift shift, DType dtype, int64_t a, int64_t b) {
  const int bits = static_cast<int>(size_of(dtype)) * 8;
  const bool out = b < 0 || b >= bits;
  const uint64_t mask = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
  switch (shift) {
    case Shift::Left: return out ? 0 : static_cast<int64_t>(static_cast<uint64_t>(a) << b);
    case Shift::Right: return out ? 0 : static_cast<int64_t>((static_cast<uint64_t>(a) & mask) >> b);
    case Shift::SignedRight: break;
  }
  const int64_t sign_above = static_cast<int64_t>(static_cast<uint64_t>(a) << (64 - bits)) >> (64 - bits);
  return sign_above >> (out ? 63 : b);
}

}  // namespace trainc
