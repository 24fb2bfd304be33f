// Complex numbers as pairs of reals: the graph has no other. Sums, differences and movements go part by part and need
// nothing here. Both parts have one shape and one float dtype, in which a product is computed; the functions are of f64
// (narrower ones are cast before and rounded after, so that f32's squares neither overflow nor cancel). Infinities, NaN
// and the sides of branch cuts are C's (Annex G), but where a line says otherwise; bounds:
// tests/cpp/frontend/formulas/complex_test.cpp.
#pragma once
#include "frontend/formulas/value.h"

namespace trainc::formulas {

struct Complex { Value re, im; };

inline Complex where(Value c, Complex x, Complex y) { return {where(c, x.re, y.re), where(c, x.im, y.im)}; }
inline Complex cast(Complex z, DType d) { return {cast(z.re, d), cast(z.im, d)}; }

/// By the definition: an infinity times what is not real may be NaN, as XLA's.
Complex multiply(Complex x, Complex y);
/// Smith's, with C's results where an operand is infinite or the divisor 0.
Complex divide(Complex x, Complex y);

/// |z| without overflow; of an infinity infinite, whatever the other part is.
Value abs(Complex z);
/// z / |z|; 0 of 0.
Complex sign(Complex z);

Complex exp(Complex z);
Complex expm1(Complex z);
/// The real part keeps its precision where |z| is near 1, and that of log1p where |1 + z| is.
Complex log(Complex z);
Complex log1p(Complex z);
Complex sqrt(Complex z);
Complex rsqrt(Complex z);
Complex cbrt(Complex z);
/// x^y = e^(y log x); of x = 0: 1 where y is 0, and 0 where its real part is positive.
Complex pow(Complex x, Complex y);
Complex sigmoid(Complex z);

Complex sin(Complex z);
Complex cos(Complex z);
Complex tan(Complex z);
Complex sinh(Complex z);
Complex cosh(Complex z);
Complex tanh(Complex z);
Complex asin(Complex z);
Complex acos(Complex z);
Complex atan(Complex z);
Complex asinh(Complex z);
Complex acosh(Complex z);
Complex atanh(Complex z);

}  // namespace trainc::formulas
