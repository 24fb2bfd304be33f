// The rows of complex numbers. A complex operand is two, its real and its imaginary part, so most rows are those of
// reals: what moves elements is done to each part, and what takes values as they are (calls, loops, regions) takes two.
#include "frontend/formulas/complex.h"

#include "frontend/stablehlo/table.h"

namespace trainc::frontend::stablehlo {
namespace {

using formulas::Complex;

/// The i-th operand, which may be real.
Complex operand(const Call& c, size_t i) {
  size_t at = 0;
  for (size_t k = 0; k < i; ++k) at += static_cast<size_t>(c.operands.at(k));
  const Value re = c.operand(at);
  return {re, c.operands.at(i) == 2 ? c.operand(at + 1) : formulas::broadcast(number(re, 0), re.shape())};
}
Complex wide(const Call& c, size_t i) { return cast(operand(c, i), DType::F64); }
Values rounded(const Call& c, Complex z) { return {c.rounded(z.re), c.rounded(z.im)}; }

/// Of the real parts and of the imaginary parts what the row of reals does.
Handler each_part(const Handler& row) {
  return [row](const Call& c) {
    const Values re = row(c.part(0)), im = row(c.part(1));
    Values both;
    for (size_t i = 0; i < re.size(); ++i) both.push_back(re[i]), both.push_back(im[i]);
    return both;
  };
}

/// Of what is linear in both operands, and real.
Handler product(const Handler& row) {
  return [row](const Call& c) {
    const Complex x = operand(c, 0), y = operand(c, 1);
    const auto of = [&](Value a, Value b) {
      Call one = c.part(0);
      one.in = {a, b};
      return row(one).at(0);
    };
    return Values{of(x.re, y.re) - of(x.im, y.im), of(x.re, y.im) + of(x.im, y.re)};
  };
}

/// Functions are computed in f64, and rounded once.
Handler parts_in_f64(Complex (*f)(Complex)) {
  return [f](const Call& c) { return rounded(c, f(wide(c, 0))); };
}
Handler parts_in_f64(Complex (*f)(Complex, Complex)) {
  return [f](const Call& c) { return rounded(c, f(wide(c, 0), wide(c, 1))); };
}

Values compare_parts(const Call& c) {
  const Complex x = operand(c, 0), y = operand(c, 1);
  const std::string direction = c.text("comparison_direction");
  if (direction == "EQ") return {(x.re == y.re) & (x.im == y.im)};
  if (direction == "NE") return {(x.re != y.re) | (x.im != y.im)};
  c.fail("complex numbers have no order");
}

/// What the row of reals gives (counters, converted numbers), with an imaginary part of 0. A real result of a complex
/// number is the real part.
Handler of_real(const Handler& row) {
  return [row](const Call& c) {
    Values parts = row(c.part(0));
    const bool has_imaginary = !c.operands.empty() && c.operands[0] == 2;
    const auto imaginary = [&] {
      return has_imaginary ? row(c.part(1))[0] : formulas::broadcast(c.scalar(c.dtype(), 0), c.shape());
    };
    if (c.results.at(0) == 2) parts.push_back(imaginary());
    return parts;
  };
}

}  // namespace

void add_complex(Table& t, const Table& of_reals) {
  const auto row = [&](const char* name) { return *of_reals.find(name); };
  for (const char* name :
       {"stablehlo.add", "stablehlo.subtract", "stablehlo.negate", "stablehlo.select", "stablehlo.broadcast_in_dim",
        "stablehlo.reshape", "stablehlo.transpose", "stablehlo.slice", "stablehlo.pad", "stablehlo.concatenate",
        "stablehlo.reverse", "stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice", "stablehlo.gather"})
    t.add({name}, each_part(row(name)));
  for (const char* name :
       {"stablehlo.constant", "stablehlo.reduce", "stablehlo.reduce_window", "stablehlo.scatter", "stablehlo.sort",
        "func.call", "stablehlo.composite", "stablehlo.while", "stablehlo.case", "stablehlo.if",
        "stablehlo.optimization_barrier", "sdy.sharding_constraint", "stablehlo.custom_call", "mhlo.copy"})
    t.add({name}, row(name));
  for (const char* name : {"stablehlo.dot_general", "stablehlo.dot", "stablehlo.convolution"})
    t.add({name}, product(row(name)));
  for (const char* name : {"stablehlo.convert", "stablehlo.iota"}) t.add({name}, of_real(row(name)));
  t.add({"stablehlo.compare"}, compare_parts);

  t.add({"stablehlo.complex"}, [](const Call& c) { return c.in; });
  t.add({"stablehlo.real"}, [](const Call& c) { return Values{operand(c, 0).re}; });
  t.add({"stablehlo.imag"}, [](const Call& c) { return Values{operand(c, 0).im}; });
  t.add({"chlo.conj"}, [](const Call& c) { return Values{operand(c, 0).re, -operand(c, 0).im}; });

  t.add({"stablehlo.multiply"}, [](const Call& c) { return rounded(c, multiply(operand(c, 0), operand(c, 1))); });
  t.add({"chlo.square"}, [](const Call& c) { return rounded(c, square(operand(c, 0))); });
  t.add({"stablehlo.divide"}, [](const Call& c) { return rounded(c, divide(operand(c, 0), operand(c, 1))); });
  t.add({"stablehlo.abs"}, [](const Call& c) { return Values{c.rounded(abs(wide(c, 0)))}; });
  t.add({"stablehlo.power"}, parts_in_f64(formulas::pow));
  t.add({"stablehlo.sign"}, parts_in_f64(formulas::sign));
  t.add({"stablehlo.sqrt"}, parts_in_f64(formulas::sqrt));
  t.add({"stablehlo.rsqrt"}, parts_in_f64(formulas::rsqrt));
  t.add({"stablehlo.cbrt"}, parts_in_f64(formulas::cbrt));
  t.add({"stablehlo.exponential"}, parts_in_f64(formulas::exp));
  t.add({"stablehlo.exponential_minus_one"}, parts_in_f64(formulas::expm1));
  t.add({"stablehlo.log"}, parts_in_f64(formulas::log));
  t.add({"stablehlo.log_plus_one"}, parts_in_f64(formulas::log1p));
  t.add({"stablehlo.logistic"}, parts_in_f64(formulas::sigmoid));
  t.add({"stablehlo.sine"}, parts_in_f64(formulas::sin));
  t.add({"stablehlo.cosine"}, parts_in_f64(formulas::cos));
  t.add({"stablehlo.tan", "chlo.tan"}, parts_in_f64(formulas::tan));
  t.add({"stablehlo.tanh"}, parts_in_f64(formulas::tanh));
  t.add({"chlo.sinh"}, parts_in_f64(formulas::sinh));
  t.add({"chlo.cosh"}, parts_in_f64(formulas::cosh));
  t.add({"chlo.asin"}, parts_in_f64(formulas::asin));
  t.add({"chlo.acos"}, parts_in_f64(formulas::acos));
  t.add({"chlo.atan"}, parts_in_f64(formulas::atan));
  t.add({"chlo.asinh"}, parts_in_f64(formulas::asinh));
  t.add({"chlo.acosh"}, parts_in_f64(formulas::acosh));
  t.add({"chlo.atanh"}, parts_in_f64(formulas::atanh));
}

}  // namespace trainc::frontend::stablehlo
