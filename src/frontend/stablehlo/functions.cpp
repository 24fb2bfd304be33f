// Functions of single elements that the graph has no primitive for: computed in f64, rounded once.
#include "frontend/formulas/special.h"
#include "frontend/stablehlo/bits.h"
#include "frontend/stablehlo/table.h"

namespace trainc::frontend::stablehlo {
namespace {

using formulas::cast;

Handler in_f64(Value (*f)(Value)) {
  return [f](const Call& c) { return Values{c.rounded(f(cast(c.operand(0), DType::F64)))}; };
}
Handler in_f64(Value (*f)(Value, Value)) {
  return [f](const Call& c) {
    return Values{c.rounded(f(cast(c.operand(0), DType::F64), cast(c.operand(1), DType::F64)))};
  };
}

/// The number beside x in the direction of y.
Values next_after(const Call& c) {
  const Value x = c.operand(0), y = c.operand(1);
  const Value bits = signed_bits(x), one = number(bits, 1);
  // Away from 0 where y lies on the far side of x; from 0 to the least number of y's sign.
  const Value grows = (x < y) == (x > number(x, 0));
  const Value least =
      where(y < number(y, 0), with(bits, bits.b->constant_int(bits.dtype(), least_of(bits.dtype()))) + one,
            formulas::broadcast(one, x.shape()));
  Value next = where(x == number(x, 0), least, where(grows, bits + one, bits - one));
  Value result = with_dtype(next, x.dtype());
  result = where(x == y, y, result);
  return {
      where(formulas::is_nan(x) | formulas::is_nan(y), number(x, std::numeric_limits<double>::quiet_NaN()), result)};
}

}  // namespace

void add_functions(Table& t) {
  t.add({"stablehlo.tan", "chlo.tan"}, in_f64(formulas::tan));
  t.add({"stablehlo.atan2"}, in_f64(formulas::atan2));
  t.add({"chlo.atan"}, in_f64(formulas::atan));
  t.add({"chlo.asin"}, in_f64(formulas::asin));
  t.add({"chlo.acos"}, in_f64(formulas::acos));
  t.add({"chlo.sinh"}, in_f64(formulas::sinh));
  t.add({"chlo.cosh"}, in_f64(formulas::cosh));
  t.add({"chlo.asinh"}, in_f64(formulas::asinh));
  t.add({"chlo.acosh"}, in_f64(formulas::acosh));
  t.add({"chlo.atanh"}, in_f64(formulas::atanh));
  t.add({"stablehlo.cbrt"}, in_f64(formulas::cbrt));
  t.add({"chlo.erf_inv"}, in_f64(formulas::erf_inv));
  t.add({"chlo.lgamma"}, in_f64(formulas::lgamma));
  t.add({"chlo.digamma"}, in_f64(formulas::digamma));
  t.add({"chlo.zeta"}, in_f64(formulas::zeta));
  t.add({"chlo.polygamma"}, in_f64(formulas::polygamma));
  t.add({"chlo.bessel_i1e"}, in_f64(formulas::bessel_i1e));
  t.add({"chlo.next_after"}, next_after);
}

}  // namespace trainc::frontend::stablehlo
