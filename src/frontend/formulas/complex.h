// Complex numbers as pairs of reals: the graph has no other. Sums, differences and movements go part by part and need
// nothing here. Both parts have one shape and one float dtype, in which products and quotients are computed; the
// functions are of f64 (narrower ones are cast before and rounded after, so that f32's squares neither overflow nor
// cancel). Infinities are
// C's (Annex G), but where XLA gives NaN, and a NaN part makes all NaN at will; -0 lies on 0's side of the branch cuts
// of the roots and of the inverse functions, as XLA takes it, and below that of log. Bounds:
// tests/cpp/frontend/formulas/complex_test.cpp.
#pragma once
#include "frontend/formulas/value.h"

namespace trainc::formulas {

struct Complex { Value re, im; };

inline Complex where(Value c, Complex x, Complex y) { return {where(c, x.re, y.re), where(c, x.im, y.im)}; }
inline Complex cast(Complex z, DType d) { return {cast(z.re, d), cast(z.im, d)}; }

/// By the definition: an infinity times what is not real may be NaN, as XLA's.
Complex multiply(Complex x, Complex y);
/// Its real part is (re - im)(re + im): where both are near each other their squares would cancel.
Complex square(Complex z);
/// Smith's, with C's results where an operand is infinite or the divisor 0; of f32 to the bit what XLA's CPU gives.
Complex divide(Complex x, Complex y);

/// |z| without overflow.
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
/// x^y = e^(y log x); 1 where x is 1 or y is 0. Of x = 0: 0 where y is positive, NaN of others.
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
