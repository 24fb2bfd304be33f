// Functions of single elements without a primitive of their own, of f64 (narrower floats are cast before and rounded
// after). A few ulp of f64; bounds: tests/cpp/frontend/formulas/special_test.cpp. NaN where the function is not
// defined.
#pragma once
#include "frontend/formulas/value.h"

namespace trainc::formulas {

Value tan(Value x);
/// The angle of (x, y), as IEEE 754 says it for zeros and infinities.
Value atan2(Value y, Value x);
Value atan(Value x);
Value asin(Value x);
Value acos(Value x);
Value sinh(Value x);
Value cosh(Value x);
Value asinh(Value x);
Value acosh(Value x);
Value atanh(Value x);
Value cbrt(Value x);
Value erf_inv(Value x);
/// log|gamma(x)|: absolute errors near 1 and 2, where it is 0.
Value lgamma(Value x);
Value digamma(Value x);
/// Hurwitz's: the sum of (q + k)^-s over k >= 0, of s > 1. Of q < 0 where s is a whole number; at the poles, whole q <=
/// 0, infinite of even s and NaN of odd ones.
Value zeta(Value s, Value q);
/// The n-th derivative of digamma, of whole n >= 0.
Value polygamma(Value n, Value x);
/// e^-|x| times the modified Bessel function of the first kind and order 1.
Value bessel_i1e(Value x);
/// What is left of x / y cut off towards zero: the sign of x, exact. Of f32 (and what is computed in it): x and y are
/// f32 values as f64.
Value float_remainder(Value x, Value y);

}  // namespace trainc::formulas
