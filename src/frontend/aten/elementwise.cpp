// Arithmetic, comparisons, logic, choice and casts. Float results are computed in compute_dtype and rounded once.
#include "frontend/formulas/elementwise.h"

#include <cmath>

#include "frontend/aten/table.h"

namespace trainc::frontend::aten {
namespace {

/// x of a float dtype -> op(x); integers are cast up first (the framework's result says to what).
Handler float_unary(Op op) {
  return [op](const Call& c) -> Outcome { return c.give(unary(op, c.in(0, "self"))); };
}

/// Rounding functions: integers stay as they are.
Handler rounding(Op op) {
  return [op](const Call& c) -> Outcome {
    Value x = c.in(0, "self");
    return c.give(is_float(x.dtype()) ? unary(op, x) : x);
  };
}

/// Neg, Abs, Sign of any numeric dtype.
Handler numeric_unary(Op op) {
  return [op](const Call& c) -> Outcome {
    if (c.dtype() == DType::Bool) return std::nullopt;
    return c.give(unary(op, c.in(0, "self")));
  };
}

/// self + sign * alpha * other; bool: or.
Handler sum_of(double sign, bool reversed = false) {
  return [sign, reversed](const Call& c) -> Outcome {
    const auto is_bool = [&](const Arg& a) { return a.is_tensor() ? a.tensor().dtype() == DType::Bool : a.is_bool(); };
    if (sign < 0 && (is_bool(c.arg(0, "self")) || is_bool(c.arg(1, "other")))) return std::nullopt;  // eager's error
    Value x = c.operand(0, "self"), y = c.operand(1, "other");
    const double alpha = c.arg(2, "alpha").number(1);
    if (c.dtype() == DType::Bool) return sign > 0 && alpha == 1 ? Outcome(c.give(x | y)) : std::nullopt;
    if (reversed) std::swap(x, y);
    if (alpha != 1) y = y * c.operand(2, "alpha");
    return c.give(sign > 0 ? x + y : x - y);
  };
}

/// The divisor of an integer division: eager raises where it is 0.
Value divisor(const Call& c) {
  Value y = c.operand(1, "other");
  return c.type().numel() == 0 ? y : checked(y, y != 0, Failure::Division);
}

/// The right side of a product or a quotient: a single number keeps the digits that the result's dtype does not have.
bool is_single(const Arg& a) { return !a.is_tensor() || a.tensor().numel() == 1; }
Value factor(const Call& c) { return is_single(c.arg(1, "other")) ? c.in(1, "other") : c.operand(1, "other"); }

Outcome mul(const Call& c) {
  Value x = c.operand(0, "self"), y = factor(c);
  return c.give(c.dtype() == DType::Bool ? x & y : x * y);
}

Outcome div(const Call& c) { return c.give(c.operand(0, "self") / factor(c)); }

Outcome div_mode(const Call& c) {
  const std::string mode = c.arg(2, "rounding_mode").text("");
  if (mode.empty()) return div(c);
  Value x = c.operand(0, "self");
  if (!is_float(x.dtype())) return c.give(binary(mode == "trunc" ? Op::Div : Op::FloorDiv, x, divisor(c)));
  Value y = factor(c);
  // Eager corrects the quotient by the remainder, which floor(x / y) does not.
  if (mode != "trunc") return std::nullopt;
  Value quotient = x / y;  // of halves: a half before it is cut off, but where the divisor is a single number
  return c.give(trunc(is_single(c.arg(1, "other")) ? quotient : cast(cast(quotient, c.dtype()), c.compute())));
}

Handler integer_division(Value (*f)(Value, Value)) {
  return [f](const Call& c) -> Outcome {
    if (is_float(c.dtype()) || c.dtype() == DType::Bool) return std::nullopt;
    return c.give(f(c.operand(0, "self"), divisor(c)));
  };
}

/// Maximum, minimum: NaN where either is.
Handler extremum(Op op) {
  return [op](const Call& c) -> Outcome { return c.give(binary(op, c.operand(0, "self"), c.operand(1, "other"))); };
}

/// A comparison in the common dtype of both sides.
Handler comparison(Value (*f)(Value, Value)) {
  return [f](const Call& c) -> Outcome {
    const Arg x = c.arg(0, "self"), y = c.arg(1, "other");
    const DType common = c.promoted({x, y});
    return c.give(f(cast(x.as(common), compute_dtype(common)), cast(y.as(common), compute_dtype(common))));
  };
}

/// Logical functions take the truth of any dtype; bitwise ones bool and integers.
Handler logic(Op op, bool logical) {
  return [op, logical](const Call& c) -> Outcome {
    const Arg x = c.arg(0, "self"), y = c.arg(1, "other");
    const DType d = logical ? DType::Bool : c.dtype();
    return c.give(binary(op, x.as(d), y.as(d)));
  };
}

Outcome logical_not(const Call& c) { return c.give(!c.arg(0, "self").as(DType::Bool)); }
Outcome bitwise_not(const Call& c) { return c.give(!c.arg(0, "self").as(c.dtype())); }

Outcome is_nan_row(const Call& c) {
  Value x = c.arg(0, "self").tensor();
  return is_float(x.dtype()) ? c.give(is_nan(x)) : c.give(c.full({}, DType::Bool, 0));
}

Outcome is_inf_row(const Call& c) {
  Value x = c.arg(0, "self").tensor();
  return is_float(x.dtype()) ? c.give(abs(x) == INFINITY) : c.give(c.full({}, DType::Bool, 0));
}

/// Eager has own formulas for the small exponents, so that x^2 is x * x to the bit (ATen's PowKernel.cpp). The square
/// within a cube of bfloat16 is a bfloat16; float16 has no root of its own, so that -0.0 and -inf to the power of 0.5
/// are 0.0 and inf.
Outcome pow_scalar(const Call& c) {
  Value x = c.operand(0, "self");
  const double e = c.arg(1, "exponent").number();
  if (c.dtype() == DType::Bool) return std::nullopt;
  if (e == 0) return c.give(number(x, 1));
  if (e == 1) return c.give(x);
  if (e == 2) return c.give(x * x);
  const auto square = [&] { return c.dtype() == DType::BF16 ? cast(cast(x * x, c.dtype()), c.compute()) : x * x; };
  if (e == 3) return c.give(square() * x);
  if (!is_float(x.dtype())) return std::nullopt;
  if (e == -2) return c.give(1.0 / square());
  if (c.dtype() != DType::F16) {
    if (e == 0.5) return c.give(sqrt(x));
    if (e == -0.5) return c.give(unary(Op::Rsqrt, x));
    if (e == -1) return c.give(1.0 / x);
  }
  if (c.compute() != c.dtype() && !c.fits(1, "exponent")) return std::nullopt;
  return c.give(pow(x, c.operand(1, "exponent")));
}

Outcome pow_tensor(const Call& c) {
  if (!is_float(c.dtype())) return std::nullopt;
  return c.give(pow(c.operand(0, "self"), c.operand(1, "exponent")));
}

Outcome where_row(const Call& c) {
  if (!c.fits(1, "self") || !c.fits(2, "other")) return std::nullopt;
  return c.give(
      where(c.arg(0, "condition").as(DType::Bool), c.arg(1, "self").as(c.dtype()), c.arg(2, "other").as(c.dtype())));
}

Outcome masked_fill(const Call& c) {
  if (!c.fits(2, "value")) return std::nullopt;
  return c.give(
      where(c.arg(1, "mask").as(DType::Bool), c.arg(2, "value").as(c.dtype()), c.arg(0, "self").as(c.dtype())));
}

/// min(max(self, low), high); either bound may be missing. Zeros of two signs are equal: x itself is kept beside a
/// number, the bound of a tensor.
Handler clamp_between(int low, int high) {
  return [low, high](const Call& c) -> Outcome {
    if ((low > 0 && !c.fits(low, "min")) || (high > 0 && !c.fits(high, "max"))) return std::nullopt;
    Value x = c.operand(0, "self");
    const auto bounded = [&](int at, const char* name, Op op) {
      if (at < 0 || c.arg(at, name).none()) return;
      Value bound = c.operand(at, name);
      if (c.arg(at, name).is_tensor()) x = binary(op, x, bound);
      else x = op == Op::Max ? at_least(x, bound) : at_most(x, bound);
    };
    bounded(low, "min", Op::Max);
    bounded(high, "max", Op::Min);
    return c.give(x);
  };
}

Outcome reciprocal(const Call& c) { return c.give(1.0 / c.in(0, "self")); }
Outcome sigmoid_row(const Call& c) { return c.give(sigmoid(c.in(0, "self"))); }

/// self + value * t1 (*|/) t2, in eager's order.
Handler add_product(bool divide) {
  return [divide](const Call& c) -> Outcome {
    Value t1 = c.operand(1, "tensor1"), t2 = c.operand(2, "tensor2");
    if (c.arg(3, "value").number(1) != 1) t1 = t1 * c.in(3, "value");
    return c.give(c.operand(0, "self") + (divide ? t1 / t2 : t1 * t2));
  };
}

Outcome logaddexp(const Call& c) {
  if (!is_float(c.dtype())) return std::nullopt;
  return c.give(formulas::logaddexp(c.operand(0, "self"), c.operand(1, "other")));
}

Outcome lerp(const Call& c) {
  Value x = c.in(0, "self"), end = c.in(1, "end");
  const Arg w = c.arg(2, "weight");
  return c.give(w.is_tensor() ? formulas::lerp(x, end, w.as(c.compute())) : formulas::lerp(x, end, w.number()));
}

Outcome nan_to_num(const Call& c) {
  Value x = c.arg(0, "self").tensor();
  const DType d = x.dtype();
  if (!is_float(d)) return c.give(x);
  const double most = formulas::largest(d);
  return c.give(formulas::nan_to_num(x, c.arg(1, "nan").number(0), c.arg(2, "posinf").number(most),
                                     c.arg(3, "neginf").number(-most)));
}

Outcome copy_of_source(const Call& c) { return c.give(c.arg(1, "src").as(c.dtype())); }
Outcome cast_row(const Call& c) { return c.give(c.arg(0, "self").as(c.dtype())); }
Outcome fill(const Call& c) {
  return c.fits(1, "value") ? Outcome(c.give(c.arg(1, "value").as(c.dtype()))) : std::nullopt;
}

}  // namespace

void add_elementwise(Table& t) {
  t.add({"aten.exp.default"}, float_unary(Op::Exp));
  t.add({"aten.expm1.default"}, float_unary(Op::Expm1));
  t.add({"aten.log.default"}, float_unary(Op::Log));
  t.add({"aten.log1p.default"}, float_unary(Op::Log1p));
  t.add({"aten.sqrt.default"}, float_unary(Op::Sqrt));
  t.add({"aten.rsqrt.default"}, float_unary(Op::Rsqrt));
  t.add({"aten.sin.default"}, float_unary(Op::Sin));
  t.add({"aten.cos.default"}, float_unary(Op::Cos));
  t.add({"aten.tanh.default"}, float_unary(Op::Tanh));
  t.add({"aten.erf.default", "aten.special_erf.default"}, float_unary(Op::Erf));
  t.add({"aten.sigmoid.default"}, sigmoid_row);
  t.add({"aten.reciprocal.default"}, reciprocal);
  t.add({"aten.floor.default"}, rounding(Op::Floor));
  t.add({"aten.ceil.default"}, rounding(Op::Ceil));
  t.add({"aten.round.default"}, rounding(Op::Round));
  t.add({"aten.trunc.default"}, rounding(Op::Trunc));
  t.add({"aten.neg.default"}, numeric_unary(Op::Neg));
  t.add({"aten.abs.default"}, numeric_unary(Op::Abs));
  t.add({"aten.sign.default", "aten.sgn.default"}, numeric_unary(Op::Sign));

  t.add({"aten.add.Tensor", "aten.add.Scalar"}, sum_of(1));
  t.add({"aten.sub.Tensor", "aten.sub.Scalar"}, sum_of(-1));
  t.add({"aten.rsub.Tensor", "aten.rsub.Scalar"}, sum_of(-1, /*reversed=*/true));
  t.add({"aten.mul.Tensor", "aten.mul.Scalar"}, mul);
  t.add({"aten.div.Tensor", "aten.div.Scalar"}, div);
  t.add({"aten.div.Tensor_mode", "aten.div.Scalar_mode"}, div_mode);
  t.add({"aten.floor_divide.default", "aten.floor_divide.Scalar"},
        integer_division([](Value x, Value y) { return binary(Op::FloorDiv, x, y); }));
  t.add({"aten.remainder.Tensor", "aten.remainder.Scalar"}, integer_division(formulas::operator%));
  t.add({"aten.fmod.Tensor", "aten.fmod.Scalar"}, integer_division([](Value x, Value y) { return x - x / y * y; }));
  t.add({"aten.pow.Tensor_Scalar"}, pow_scalar);
  t.add({"aten.pow.Tensor_Tensor", "aten.pow.Scalar"}, pow_tensor);
  t.add({"aten.addcmul.default"}, add_product(false));
  t.add({"aten.addcdiv.default"}, add_product(true));
  t.add({"aten.lerp.Scalar", "aten.lerp.Tensor"}, lerp);
  t.add({"aten.logaddexp.default"}, logaddexp);

  t.add({"aten.maximum.default"}, extremum(Op::Max));
  t.add({"aten.minimum.default"}, extremum(Op::Min));
  t.add({"aten.clamp.default", "aten.clamp.Tensor"}, clamp_between(1, 2));
  t.add({"aten.clamp_min.default", "aten.clamp_min.Tensor"}, clamp_between(1, -1));
  t.add({"aten.clamp_max.default", "aten.clamp_max.Tensor"}, clamp_between(-1, 1));

  t.add({"aten.lt.Tensor", "aten.lt.Scalar"}, comparison(formulas::operator<));
  t.add({"aten.le.Tensor", "aten.le.Scalar"}, comparison(formulas::operator<=));
  t.add({"aten.gt.Tensor", "aten.gt.Scalar"}, comparison(formulas::operator>));
  t.add({"aten.ge.Tensor", "aten.ge.Scalar"}, comparison(formulas::operator>=));
  t.add({"aten.eq.Tensor", "aten.eq.Scalar"}, comparison(formulas::operator==));
  t.add({"aten.ne.Tensor", "aten.ne.Scalar"}, comparison(formulas::operator!=));

  t.add({"aten.logical_and.default"}, logic(Op::And, true));
  t.add({"aten.logical_or.default"}, logic(Op::Or, true));
  t.add({"aten.logical_xor.default"}, logic(Op::Xor, true));
  t.add({"aten.logical_not.default"}, logical_not);
  t.add({"aten.bitwise_and.Tensor", "aten.bitwise_and.Scalar", "aten.__and__.Tensor", "aten.__and__.Scalar"},
        logic(Op::And, false));
  t.add({"aten.bitwise_or.Tensor", "aten.bitwise_or.Scalar", "aten.__or__.Tensor", "aten.__or__.Scalar"},
        logic(Op::Or, false));
  t.add({"aten.bitwise_xor.Tensor", "aten.bitwise_xor.Scalar", "aten.__xor__.Tensor", "aten.__xor__.Scalar"},
        logic(Op::Xor, false));
  t.add({"aten.bitwise_not.default"}, bitwise_not);
  t.add({"aten.isnan.default"}, is_nan_row);
  t.add({"aten.isinf.default"}, is_inf_row);
  t.add({"aten.nan_to_num.default"}, nan_to_num);

  t.add({"aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar"}, where_row);
  t.add({"aten.masked_fill.Scalar", "aten.masked_fill.Tensor"}, masked_fill);
  t.add({"aten.copy.default"}, copy_of_source);
  t.add({"aten.fill.Scalar", "aten.fill.Tensor"}, fill);
  t.add({"aten._to_copy.default", "prims.convert_element_type.default"}, cast_row);
}

}  // namespace trainc::frontend::aten
