#include "frontend/formulas/complex.h"

#include "frontend/formulas/signs.h"
#include "frontend/formulas/special.h"

namespace trainc::formulas {
namespace {

constexpr double kHuge = 0x1p500, kTiny = 0x1p-500;  // beyond these a square overflows or vanishes

Value is_inf(Value x) { return abs(x) == kInf; }
Value is_finite(Value x) { return abs(x) < kInf; }

/// i z
Complex turned(Complex z) { return {-z.im, z.re}; }
/// -i conj(z), for functions that are odd in both parts
Complex swapped(Complex z) { return {z.im, z.re}; }

/// The greater and the lesser part's magnitude; NaN where either part is.
struct Magnitudes {
  Value more, less, ratio;  // less / more; 0 of two zeros
  explicit Magnitudes(Complex z) {
    const Value x = abs(z.re), y = abs(z.im);
    more = max(x, y), less = min(x, y);
    ratio = where(less == 0.0, less, less / more);
  }
};

// --- sums of more digits than one number has

struct Sum { Value high, low; };

/// Knuth's: x + y, and what it lost.
Sum two_sum(Value x, Value y) {
  const Value s = x + y, of_y = s - x;
  return {s, (x - (s - of_y)) + (y - of_y)};
}
/// Dekker's: x^2, and what it lost. Of what is neither huge nor tiny.
Sum two_square(Value x) {
  const Value wide = x * 134217729.0, high = wide - (wide - x), low = x - high, square = x * x;
  return {square, low * low - ((square - high * high) - high * low * 2.0)};
}
/// start + x^2 + y^2, rounded once or nearly so.
Value plus_squares(Value start, Value x, Value y) {
  const Sum a = two_square(x), b = two_square(y);
  const Sum first = two_sum(start, a.high), second = two_sum(first.high, b.high);
  return second.high + (second.low + (first.low + (a.low + b.low)));
}

/// log |z|
Value log_abs(Complex z) {
  const Magnitudes m(z);
  const Value far = log(m.more) + log1p(m.ratio * m.ratio) * 0.5;
  const Value near = log1p(plus_squares(number(m.more, -1), m.more, m.less)) * 0.5;
  const Value result = where((m.more > 0.5) & (m.more < 1.75), near, far);
  return where(m.more == kInf, kInf, result);
}
Value angle(Complex z) { return atan2(z.im, z.re); }

/// v cosh(y) and v sinh(y), where neither factor's overflow is the product's; 0 stays 0.
Value times_cosh(Value v, Value y) {
  const Value a = abs(y), half = exp(a * 0.5);
  return where(v == 0.0, v, where(a > 700.0, (v * half * 0.5) * half, v * cosh(y)));
}
Value times_sinh(Value v, Value y) {
  const Value a = abs(y), half = exp(a * 0.5);
  return where(v == 0.0, v * with_sign(number(y, 1), y),
               with_sign(where(a > 700.0, (v * half * 0.5) * half, v * sinh(a)), y));
}

/// e^x v; 0 stays 0.
Value times_exp(Value v, Value x) {
  const Value half = exp(x * 0.5);
  return where(v == 0.0, v, where(x > 700.0, v * half * half, v * exp(x)));
}

/// x y + z. Of f32 it is rounded once (a product of two is exact in f64), as XLA's code for the CPU has it.
Value plus_product(Value x, Value y, Value z) {
  if (x.dtype() != DType::F32) return x * y + z;
  const auto wide = [](Value v) { return cast(v, DType::F64); };
  return cast(wide(x) * wide(y) + wide(z), DType::F32);
}

}  // namespace

Complex multiply(Complex x, Complex y) { return {x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re}; }

Complex square(Complex z) {
  const Value x = abs(z.re), y = abs(z.im);
  // Of equal parts the one factor is 0, and the other may be infinite.
  return {where(x == y, x - y, (z.re - z.im) * (z.re + z.im)), z.re * z.im * 2.0};
}

Complex divide(Complex x, Complex y) {
  const Value wide = abs(y.re) >= abs(y.im);
  const Value more = where(wide, y.re, y.im), less = where(wide, y.im, y.re);
  const Value r = less / more, d = plus_product(less, r, more);
  const Complex smith = {plus_product(where(wide, x.im, x.re), r, where(wide, x.re, x.im)) / d,
                         plus_product(where(wide, -x.re, x.im), r, where(wide, x.im, -x.re)) / d};
  // C's, where that gave no number
  const auto unit = [](Value v) { return with_sign(where(is_inf(v), number(v, 1), number(v, 0)), v); };
  const Value zero = (y.re == 0.0) & (y.im == 0.0) & !(is_nan(x.re) & is_nan(x.im));
  const Value inf = with_sign(number(y.re, kInf), y.re);
  const Value infinite_x = (is_inf(x.re) | is_inf(x.im)) & is_finite(y.re) & is_finite(y.im);
  const Value infinite_y = (is_inf(y.re) | is_inf(y.im)) & is_finite(x.re) & is_finite(x.im);
  const auto conjugate = [](Complex a, Complex b) {
    return Complex{a.re * b.re + a.im * b.im, a.im * b.re - a.re * b.im};
  };
  const Complex top = conjugate({unit(x.re), unit(x.im)}, y), bottom = conjugate(x, {unit(y.re), unit(y.im)});
  Complex other = where(infinite_y, Complex{bottom.re * 0.0, bottom.im * 0.0}, smith);
  other = where(infinite_x, Complex{top.re * kInf, top.im * kInf}, other);
  other = where(zero, Complex{x.re * inf, x.im * inf}, other);
  return where(is_nan(smith.re) & is_nan(smith.im), other, smith);
}

Value abs(Complex z) {
  const Magnitudes m(z);
  return where(m.more == kInf, kInf, m.more * sqrt(m.ratio * m.ratio + 1.0));
}

Complex sign(Complex z) {
  const Value length = abs(z);
  return where(length == 0.0, z, Complex{z.re / length, z.im / length});
}

Complex exp(Complex z) { return {times_exp(cos(z.im), z.re), where(z.im == 0.0, z.im, times_exp(sin(z.im), z.re))}; }

Complex expm1(Complex z) {
  const Value half = sin(z.im * 0.5);  // cos y - 1 = -2 sin^2(y / 2)
  const Complex e = exp(z);
  const Value re = where(z.im == 0.0, expm1(z.re), expm1(z.re) * cos(z.im) - half * half * 2.0);
  return {where(z.re > 40.0, e.re, re), e.im};
}

Complex log(Complex z) { return {log_abs(z), angle(z)}; }

Complex log1p(Complex z) {
  const Complex w = {z.re + 1.0, z.im};
  const Magnitudes m(z);
  const Value squares = plus_squares(z.re * 2.0, z.re, z.im);  // |1 + z|^2 - 1
  const Value small = (m.more < 1.75) & (squares > -0.5);
  // Below this what the squares lose is no number, and z.re may be as small as they are.
  const Value near = where(m.more < kTiny, z.re + z.im * z.im * 0.5, log1p(squares) * 0.5);
  return {where(small, near, log_abs(w)), angle(w)};
}

namespace {

/// The root whose imaginary part has the sign of z's, that of a zero among them.
Complex root_of(Complex z) {
  const Magnitudes m(z);
  const Value huge = m.more > kHuge, tiny = m.more < kTiny;  // x and y times 2^(2k), the root by 2^k
  const Value scale = where(huge, 0x1p-600, where(tiny, number(z.re, 0x1p600), 1.0));
  const Value back = where(huge, 0x1p300, where(tiny, number(z.re, 0x1p-300), 1.0));
  const Complex s = {z.re * scale, z.im * scale};
  const Value most = sqrt((abs(s.re) + abs(s)) * 0.5), least = abs(s.im) / (most * 2.0);
  const Value right = s.re >= 0.0, none = number(z.re, 0), inf = number(z.re, kInf);
  Complex root = {where(right, most, least) * back, where(right, least, most) * back};
  root = where(m.more == 0.0, Complex{none, none}, root);
  const Complex of_infinite = {where(z.re == -kInf, none, inf), where(z.re == kInf, none, inf)};
  root = where(m.more == kInf, where(is_inf(z.im), Complex{inf, inf}, of_infinite), root);
  return {root.re, with_sign(root.im, z.im)};
}
/// The side of a branch cut that 0 lies on, for -0, too: as XLA takes it.
Complex above(Complex z) { return {z.re, z.im + 0.0}; }

}  // namespace

Complex sqrt(Complex z) { return root_of(above(z)); }
Complex rsqrt(Complex z) { return divide({number(z.re, 1), number(z.re, 0)}, root_of(z)); }

Complex cbrt(Complex z) {
  const Value r = cbrt(abs(z)), third = angle(z) * (1.0 / 3);
  return {r * cos(third), r * sin(third)};
}

Complex pow(Complex x, Complex y) {
  const Value length = log_abs(x), turn = angle(x);
  const Complex general = exp({y.re * length - y.im * turn, y.im * length + y.re * turn});
  const Value none = number(x.re, 0), positive = y.re > 0.0, real = y.im == 0.0;
  const Complex one = {number(x.re, 1), none}, zero = {none, none}, infinite = {number(x.re, kInf), none};
  const Value is_real = x.im == 0.0, is_zero = is_real & (x.re == 0.0), is_infinite = is_real & (x.re == kInf);
  Complex result = where(is_zero & real & positive, zero, general);
  result = where(is_infinite & real & positive, infinite, result);
  result = where(is_infinite & real & (y.re < 0.0), zero, result);
  return where((real & (y.re == 0.0)) | (is_real & (x.re == 1.0)), one, result);
}

Complex sigmoid(Complex z) {
  const Complex e = exp({-z.re, -z.im});
  return divide({number(z.re, 1), number(z.re, 0)}, {e.re + 1.0, e.im});
}

Complex sin(Complex z) { return {times_cosh(sin(z.re), z.im), times_sinh(cos(z.re), z.im)}; }
Complex cos(Complex z) { return {times_cosh(cos(z.re), z.im), -times_sinh(sin(z.re), z.im)}; }
Complex tan(Complex z) { return swapped(tanh(swapped(z))); }
Complex sinh(Complex z) { return swapped(sin(swapped(z))); }
Complex cosh(Complex z) { return cos(turned(z)); }

/// Kahan's, "Branch cuts for complex elementary functions" (1987); far out what is left of it.
Complex tanh(Complex z) {
  const Value t = tan(z.im), beta = t * t + 1.0, a = abs(z.re), s = sinh(min(a, 25.0));
  const Value d = beta * s * s + 1.0;
  const Value re = where(a > 20.0, 1.0, beta * sqrt(s * s + 1.0) * s / d);
  const Value far = sin(z.im) * cos(z.im) * 4.0 * exp(a * -2.0);
  Value im = where(a > 20.0, far, t / d);
  im = where(z.im == 0.0, z.im, where((a == kInf) & !is_finite(z.im), 0.0, im));
  return {with_sign(re, z.re), im};
}

// Hull, Fairgrieve and Tang, "Implementing the complex arcsine and arccosine functions using exception handling"
// (1997).

namespace {

/// Of the quadrant of two positive parts x and y. With r and s the distances from -1 and 1, and a their mean:
struct Arc {
  Value beside;  // sqrt(a^2 - x^2): asin is the angle of x above it, acos that of it above x
  Value height;  // log(a + sqrt(a^2 - 1)), the imaginary part of both
  explicit Arc(Complex z) {
    const Value x = abs(z.re), y = abs(z.im);
    const Value r = abs(Complex{x + 1.0, y}), s = abs(Complex{x - 1.0, y}), a = (r + s) * 0.5;
    // a - x and a - 1 without a difference of near numbers; where they are small, sqrt(y) times a root
    const Value left = y / (r + (x + 1.0)), under = y / (s + (1.0 - x)), over = y / (s + (x - 1.0));
    beside = where(x > 1.0, sqrt(y) * sqrt((a + x) * (left + over) * 0.5),
                   sqrt((a + x) * (y * left + (s + (1.0 - x))) * 0.5));
    const Value within = (left + under) * 0.5, beyond = (y * left + (s + (x - 1.0))) * 0.5;
    const Value above = where(x < 1.0, y * within, beyond);
    const Value root = where(x < 1.0, sqrt(y) * sqrt(within * (a + 1.0)), sqrt(beyond * (a + 1.0)));
    height = where(a < 1.5, log1p(above + root), log(a + sqrt((a - 1.0) * (a + 1.0))));
    const Value far = max(x, y) > kHuge;  // as if 1 were nothing: squares would overflow
    beside = where(far, y, beside);
    height = where(far, log_abs(z) + std::numbers::ln2, height);
  }
};

}  // namespace

Complex asin(Complex z) {
  const Arc arc(z);
  return {atan2(z.re, arc.beside), with_sign(arc.height, above(z).im)};
}
Complex acos(Complex z) {
  const Arc arc(z);
  return {atan2(arc.beside, z.re), with_sign(-arc.height, above(z).im)};
}
Complex asinh(Complex z) { return swapped(asin(swapped(z))); }
Complex acosh(Complex z) {
  const Arc arc(z);
  return {arc.height, with_sign(atan2(arc.beside, z.re), above(z).im)};
}

Complex atanh(Complex z) {
  const Value x = abs(z.re), y = abs(z.im), near = 1.0 - x;
  const Magnitudes m(z);
  const Value far = m.more > kHuge;
  Value re = log1p(x * 4.0 / (near * near + y * y)) * 0.25;
  re = where((near == 0.0) & (y < kTiny), (std::numbers::ln2 - log(y)) * 0.5, re);
  re = where(is_inf(x) | is_inf(y), 0.0, where(far, x / m.more / (m.more * (m.ratio * m.ratio + 1.0)), re));
  const Value im = where(far, kPi / 2, atan2(y * 2.0, near * (x + 1.0) - y * y) * 0.5);
  return {with_sign(re, z.re), with_sign(where(is_nan(z.im), z.im, im), z.im)};
}
Complex atan(Complex z) { return swapped(atanh(swapped(z))); }

}  // namespace trainc::formulas
