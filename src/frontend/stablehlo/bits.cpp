#include "frontend/stablehlo/bits.h"

namespace trainc::frontend::stablehlo {
namespace {

using formulas::cast;
using formulas::where;

int64_t bits_of(DType d) { return size_of(d) * 8; }

DType unsigned_of(DType d) {
  switch (size_of(d)) {
    case 1: return DType::U8;
    case 2: return DType::U16;
    case 4: return DType::U32;
    default: return DType::U64;
  }
}
DType signed_of(DType d) {
  switch (size_of(d)) {
    case 1: return DType::I8;
    case 2: return DType::I16;
    case 4: return DType::I32;
    default: return DType::I64;
  }
}

}  // namespace

Value with_dtype(Value x, DType d) { return x.dtype() == d ? x : with(x, x.b->bitcast(x.node, d)); }
Value signed_bits(Value x) { return with_dtype(x, signed_of(x.dtype())); }
int64_t least_of(DType d) { return wrap_to(d, static_cast<int64_t>(~uint64_t{0} << (bits_of(d) - 1))); }

Value count_ones(Value x) {
  const DType dtype = x.dtype();
  Value n = with_dtype(x, unsigned_of(dtype));
  const auto pattern = [&](uint64_t bytes) { return integer(n, static_cast<int64_t>(bytes)); };
  n = n - (shift(Op::Shr, n, 1) & pattern(0x5555555555555555));
  n = (n & pattern(0x3333333333333333)) + (shift(Op::Shr, n, 2) & pattern(0x3333333333333333));
  n = (n + shift(Op::Shr, n, 4)) & pattern(0x0f0f0f0f0f0f0f0f);
  n = shift(Op::Shr, n * pattern(0x0101010101010101), bits_of(dtype) - 8);
  return with_dtype(n, dtype);
}

Value count_leading_zeros(Value x) {
  Value below = with_dtype(x, unsigned_of(x.dtype()));
  for (int64_t by = 1; by < bits_of(x.dtype()); by *= 2) below = below | shift(Op::Shr, below, by);
  return with_dtype(count_ones(formulas::unary(Op::Not, below)), x.dtype());
}

Value high_product(Value x, Value y) {
  const DType dtype = x.dtype();
  const bool is_signed = !is_unsigned(dtype);
  if (bits_of(dtype) < 64) {
    const DType wide = is_signed ? DType::I64 : DType::U64;
    return cast(shift(is_signed ? Op::Sar : Op::Shr, cast(x, wide) * cast(y, wide), bits_of(dtype)), dtype);
  }
  // Halves of 32 bits, without signs; then what a negative factor was taken for too much.
  const Value a = with_dtype(x, DType::U64), b = with_dtype(y, DType::U64), mask = integer(a, 0xffffffff);
  const Value a_low = a & mask, a_high = shift(Op::Shr, a, 32), b_low = b & mask, b_high = shift(Op::Shr, b, 32);
  const Value cross = a_high * b_low + shift(Op::Shr, a_low * b_low, 32);
  const Value middle = (cross & mask) + a_low * b_high;
  Value high = a_high * b_high + shift(Op::Shr, cross, 32) + shift(Op::Shr, middle, 32);
  if (is_signed) {
    const Value none = integer(a, 0);
    high = high - where(x < 0.0, b, none) - where(y < 0.0, a, none);
  }
  return with_dtype(high, dtype);
}

Value total_order(Value x) {
  if (!is_float(x.dtype())) return x;
  const Value bits = signed_bits(x), least = integer(bits, least_of(bits.dtype()));
  return where(bits < 0.0, formulas::unary(Op::Not, bits) ^ least, bits);
}

Value reduced_precision(Value x, int exponent_bits, int mantissa_bits) {
  struct Format { int exponent, mantissa; };
  const Format own = x.dtype() == DType::F64   ? Format{11, 52}
                     : x.dtype() == DType::F32 ? Format{8, 23}
                     : x.dtype() == DType::F16 ? Format{5, 10}
                                               : Format{8, 7};
  const Value bits = with_dtype(x, unsigned_of(x.dtype()));
  const auto word = [&](uint64_t v) { return integer(bits, static_cast<int64_t>(v)); };
  Value rounded = bits;
  if (const int cut = own.mantissa - mantissa_bits; cut > 0) {  // to nearest, ties to even
    const Value last = shift(Op::Shr, bits, cut) & word(1);
    rounded = (bits + last + word((uint64_t{1} << (cut - 1)) - 1)) & word(~uint64_t{0} << cut);
  }
  if (exponent_bits < own.exponent) {
    const uint64_t bias = (uint64_t{1} << (own.exponent - 1)) - 1, reach = (uint64_t{1} << (exponent_bits - 1)) - 1;
    const uint64_t infinity = ((uint64_t{1} << own.exponent) - 1) << own.mantissa;
    const Value exponent = rounded & word(infinity);
    const Value sign = bits & word(uint64_t{1} << (own.exponent + own.mantissa));
    rounded = where(word((bias + reach) << own.mantissa) < exponent, sign | word(infinity), rounded);
    rounded = where(exponent <= word((bias - reach) << own.mantissa), sign, rounded);
  }
  return where(formulas::is_nan(x), x, with_dtype(rounded, x.dtype()));
}

Value bitcast(Value x, const Type& type) {
  const int64_t from = bits_of(x.dtype()), to = bits_of(type.dtype);
  if (from == to) return with_dtype(x, type.dtype);
  const DType wide = unsigned_of(from > to ? x.dtype() : type.dtype);
  const DType narrow = unsigned_of(from > to ? type.dtype : x.dtype());
  const int64_t parts = std::max(from, to) / std::min(from, to);
  if (from > to) {
    const Value bits = with_dtype(x, wide);
    std::vector<const Node*> narrower;
    Dims shape = x.shape();
    shape.push_back(1);
    for (int64_t i = 0; i < parts; ++i)
      narrower.push_back(reshape(cast(shift(Op::Shr, bits, i * to), narrow), shape).node);
    return with_dtype(with(x, x.b->concat(narrower, x.rank())), type.dtype);
  }
  const int64_t axis = x.rank() - 1;
  const Value bits = cast(with_dtype(x, narrow), wide);
  const auto part = [&](int64_t i) {
    return shift(Op::Shl, reshape(with(x, x.b->slice_axis(bits.node, axis, i, 1)), type.shape), i * from);
  };
  Value joined = part(0);
  for (int64_t i = 1; i < parts; ++i) joined = joined | part(i);
  return with_dtype(joined, type.dtype);
}

}  // namespace trainc::frontend::stablehlo
