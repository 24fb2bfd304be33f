// Arithmetic, comparisons, logic, shifts, choices and conversions.
#include <cmath>
#include <limits>

#include "frontend/formulas/special.h"
#include "frontend/stablehlo/bits.h"
#include "frontend/stablehlo/table.h"

namespace trainc::frontend::stablehlo {
namespace {

using formulas::broadcast;
using formulas::cast;
using formulas::is_nan;
using formulas::number;
using formulas::where;
using Unary = Value (*)(Value);
using Binary = Value (*)(Value, Value);

/// Halves are computed in f32 and rounded once.
Handler unary(Unary f) {
  return [f](const Call& c) { return Values{c.rounded(f(c.computed(0)))}; };
}
Handler unary(Op op) {
  return [op](const Call& c) { return Values{c.rounded(formulas::unary(op, c.computed(0)))}; };
}
Handler binary(Binary f) {
  return [f](const Call& c) { return Values{c.rounded(f(c.computed(0), c.computed(1)))}; };
}
/// `of_bool`: the operation that arithmetic on bools means.
Handler arithmetic(Op op, Op of_bool) {
  return [=](const Call& c) {
    return Values{c.rounded(formulas::binary(c.dtype() == DType::Bool ? of_bool : op, c.computed(0), c.computed(1)))};
  };
}
/// Operations on bits: halves are not widened.
Handler on_bits(Op op) {
  return [op](const Call& c) { return Values{formulas::binary(op, c.operand(0), c.operand(1))}; };
}

/// Floats: NaN and zeros are their own sign.
Value sign(Value x) {
  if (!is_float(x.dtype())) return formulas::sign(x);
  return where(is_nan(x) | (x == 0.0), x, formulas::sign(x));
}
Value absolute(Value x) { return is_unsigned(x.dtype()) ? x : formulas::abs(x); }
/// Ties away from zero: what is cut off is exact.
Value round_away(Value x) {
  const Value whole = formulas::trunc(x);
  return where(formulas::abs(x - whole) >= 0.5, whole + formulas::sign(x), whole);
}
Value is_finite(Value x) { return formulas::abs(x) < std::numeric_limits<double>::infinity(); }
Value divide(Value x, Value y) {
  if (is_float(x.dtype())) return x / y;
  return where(y == 0.0, with(x, x.b->constant_int(x.dtype(), -1)), x / y);
}
/// The sign of x; of integers x where y is 0, which Op::Div makes of it.
Value remainder(Value x, Value y) {
  if (!is_float(x.dtype())) return x - (x / y) * y;
  if (x.dtype() == DType::F64) throw InternalError("of f64 is not compiled");
  return cast(formulas::float_remainder(cast(x, DType::F64), cast(y, DType::F64)), x.dtype());
}

Values clamp(const Call& c) {
  const Value x = c.computed(1);
  const auto bound = [&](size_t i) { return broadcast(c.computed(i), c.shape()); };
  return {c.rounded(formulas::min(formulas::max(bound(0), x), bound(2)))};
}

Values compare(const Call& c) {
  Value x = c.operand(0), y = c.operand(1);
  if (c.text("compare_type") == "TOTALORDER") x = total_order(x), y = total_order(y);
  const std::string direction = c.text("comparison_direction");
  if (direction == "EQ") return {x == y};
  if (direction == "NE") return {x != y};
  if (direction == "LT") return {x < y};
  if (direction == "LE") return {x <= y};
  if (direction == "GT") return {x > y};
  if (direction == "GE") return {x >= y};
  c.fail("no comparison is called '" + direction + "'");
}

Values select(const Call& c) { return {where(broadcast(c.operand(0), c.shape()), c.operand(1), c.operand(2))}; }

/// Floats to the nearest integer towards zero that the dtype has; NaN is 0. Op::Cast gives the least one of 32 or 64
/// bits where they do not fit.
Value saturated(Value x, DType to) {
  x = cast(x, compute_dtype(x.dtype()));
  const auto whole = [](Value x, DType d) {
    const double limit = d == DType::I64 ? 0x1p63 : 0x1p31;
    const int64_t most = d == DType::I64 ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int32_t>::max();
    const auto constant = [&](int64_t v) { return with(x, x.b->constant_int(d, v)); };
    return where(is_nan(x), constant(0), where(x >= limit, constant(most), cast(x, d)));
  };
  const auto within = [&](DType d, int64_t least, int64_t most) {
    const auto constant = [&](int64_t v) { return with(x, x.b->constant_int(d, v)); };
    return cast(formulas::min(formulas::max(whole(x, d), constant(least)), constant(most)), to);
  };
  switch (to) {
    case DType::I64:
    case DType::I32: return whole(x, to);
    case DType::I16: return within(DType::I32, -32768, 32767);
    case DType::I8: return within(DType::I32, -128, 127);
    case DType::U16: return within(DType::I32, 0, 65535);
    case DType::U8: return within(DType::I32, 0, 255);
    case DType::U32: return within(DType::I64, 0, 0xffffffff);
    case DType::U64: {
      const Value upper = cast(whole(x - 0x1p63, DType::I64), to);
      return where(x >= 0x1p63, upper + with(x, x.b->constant_int(to, std::numeric_limits<int64_t>::min())),
                   within(DType::I64, 0, std::numeric_limits<int64_t>::max()));
    }
    case DType::Bool:
    case DType::F64:
    case DType::F32:
    case DType::BF16:
    case DType::F16: break;
  }
  return cast(x, to);
}

Values convert(const Call& c) {
  const Value x = c.operand(0);
  return {is_float(x.dtype()) ? saturated(x, c.dtype()) : cast(x, c.dtype())};
}

}  // namespace

void add_elementwise(Table& t) {
  t.add({"stablehlo.add"}, arithmetic(Op::Add, Op::Or));
  t.add({"stablehlo.subtract"}, arithmetic(Op::Sub, Op::Xor));
  t.add({"stablehlo.multiply"}, arithmetic(Op::Mul, Op::And));
  t.add({"stablehlo.maximum"}, arithmetic(Op::Max, Op::Or));
  t.add({"stablehlo.minimum"}, arithmetic(Op::Min, Op::And));
  t.add({"stablehlo.power"}, arithmetic(Op::Pow, Op::Pow));
  t.add({"stablehlo.divide"}, binary(divide));
  t.add({"stablehlo.remainder"}, binary(remainder));
  t.add({"stablehlo.clamp"}, clamp);

  t.add({"stablehlo.negate"}, unary(Op::Neg));
  t.add({"stablehlo.abs"}, unary(absolute));
  t.add({"stablehlo.sign"}, unary(sign));
  t.add({"stablehlo.floor"}, unary(Op::Floor));
  t.add({"stablehlo.ceil"}, unary(Op::Ceil));
  t.add({"stablehlo.round_nearest_even"}, unary(Op::Round));
  t.add({"stablehlo.round_nearest_afz"}, unary(round_away));
  t.add({"stablehlo.sqrt"}, unary(Op::Sqrt));
  t.add({"stablehlo.rsqrt"}, unary(Op::Rsqrt));
  t.add({"stablehlo.exponential"}, unary(Op::Exp));
  t.add({"stablehlo.exponential_minus_one"}, unary(Op::Expm1));
  t.add({"stablehlo.log"}, unary(Op::Log));
  t.add({"stablehlo.log_plus_one"}, unary(Op::Log1p));
  t.add({"stablehlo.sine"}, unary(Op::Sin));
  t.add({"stablehlo.cosine"}, unary(Op::Cos));
  t.add({"stablehlo.tanh"}, unary(Op::Tanh));
  t.add({"stablehlo.logistic"}, unary(formulas::sigmoid));
  t.add({"stablehlo.is_finite"}, unary(is_finite));
  t.add({"chlo.erf", "mhlo.erf"}, unary(Op::Erf));
  t.add({"chlo.erfc"}, unary(Op::Erfc));
  t.add({"chlo.square"}, unary([](Value x) { return x * x; }));

  t.add({"stablehlo.and"}, on_bits(Op::And));
  t.add({"stablehlo.or"}, on_bits(Op::Or));
  t.add({"stablehlo.xor"}, on_bits(Op::Xor));
  t.add({"stablehlo.not"}, unary(Op::Not));
  t.add({"stablehlo.shift_left"}, on_bits(Op::Shl));
  t.add({"stablehlo.shift_right_logical"}, on_bits(Op::Shr));
  t.add({"stablehlo.shift_right_arithmetic"}, on_bits(Op::Sar));
  t.add({"chlo.mulhi"}, [](const Call& c) { return Values{high_product(c.operand(0), c.operand(1))}; });
  t.add({"stablehlo.popcnt"}, unary(count_ones));
  t.add({"stablehlo.count_leading_zeros"}, unary(count_leading_zeros));

  t.add({"stablehlo.compare"}, compare);
  t.add({"stablehlo.select"}, select);
  t.add({"stablehlo.convert"}, convert);
  t.add({"stablehlo.reduce_precision"}, [](const Call& c) {
    return Values{reduced_precision(c.operand(0), static_cast<int>(c.integer("exponent_bits")),
                                    static_cast<int>(c.integer("mantissa_bits")))};
  });
  t.add({"stablehlo.bitcast_convert"}, [](const Call& c) { return Values{bitcast(c.operand(0), c.type())}; });
}

}  // namespace trainc::frontend::stablehlo
