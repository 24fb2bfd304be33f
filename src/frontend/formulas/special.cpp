#include "frontend/formulas/special.h"

#include <array>
#include <cmath>
#include <limits>
#include <span>

#include "frontend/formulas/signs.h"

namespace trainc::formulas {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kPiLow = 0x1.1a62633145c07p-53;  // with kPi, pi

Value floor(Value x) { return unary(Op::Floor, x); }
Value polynomial(Value x, std::initializer_list<double> c) {  // c[0] + c[1] x + ...
  auto it = std::rbegin(c);
  Value v = number(x, *it);
  for (++it; it != std::rend(c); ++it) v = v * x + *it;
  return v;
}
/// 2^n x for a power that a number holds only by halves.
Value grown(Value half) { return half * 0.5 * half; }

}  // namespace

Value tan(Value x) { return sin(x) / cos(x); }

Value atan2(Value y, Value x) {
  const Value a = abs(x), b = abs(y), greater = max(a, b);
  // of 0 and 0: 0; of two infinities: 1
  Value t = where(greater == 0.0, 0.0, where(a == b, 1.0, min(a, b) / greater));
  t = where(is_nan(greater), greater, t);
  // beyond tan(pi / 8) from pi / 4 on
  const Value far = t > 0.41421356237309503;
  const Value u = where(far, (t - 1.0) / (t + 1.0), t), z = u * u;
  Value angle =
      u + u * z *
              polynomial(z, {-0x1.5555555555555p-2, 0x1.999999999934ap-3, -0x1.24924924360cbp-3, 0x1.c71c7185314cbp-4,
                             -0x1.745d0b26b83e7p-4, 0x1.3b1262d95579ep-4, -0x1.10fa75382537fp-4, 0x1.dfe61e80903d2p-5,
                             -0x1.a098bb6ba4941p-5, 0x1.41603647c7a7cp-5, -0x1.3a2b7a07caea9p-6});
  angle = where(far, kPi / 4 + (angle + kPiLow / 4), angle);
  angle = where(b > a, kPi / 2 - (angle - kPiLow / 2), angle);
  angle = where(negative(x), kPi - (angle - kPiLow), angle);
  return with_sign(angle, y);
}
Value atan(Value x) { return atan2(x, number(x, 1)); }
Value asin(Value x) { return atan2(x, sqrt((1.0 - x) * (x + 1.0))); }
Value acos(Value x) { return atan2(sqrt((1.0 - x) * (x + 1.0)), x); }

Value sinh(Value x) {
  const Value a = abs(x), e = expm1(min(a, 30.0));
  const Value y = where(a > 22.0, grown(exp(a * 0.5)), (e + e / (e + 1.0)) * 0.5);
  return with_sign(where(a < 0x1p-28, a, y), x);
}
Value cosh(Value x) {
  const Value a = abs(x), e = exp(min(a, 30.0));
  return where(a > 22.0, grown(exp(a * 0.5)), (e + 1.0 / e) * 0.5);
}
Value asinh(Value x) {
  const Value a = abs(x), square = a * a;
  const Value y = where(a > 0x1p28, log(a) + std::numbers::ln2, log1p(a + square / (sqrt(square + 1.0) + 1.0)));
  return with_sign(where(a < 0x1p-28, a, y), x);
}
Value acosh(Value x) {
  const Value t = x - 1.0;
  const Value y = where(x > 0x1p28, log(x) + std::numbers::ln2, log1p(t + sqrt(t * 2.0 + t * t)));
  return where(x < 1.0, kNan, y);
}
Value atanh(Value x) {
  const Value a = abs(x);
  return with_sign(log1p(a * 2.0 / (1.0 - a)) * 0.5, x);
}

Value cbrt(Value x) {
  const Value a = abs(x);
  const Value y = pow(a, 1.0 / 3);  // Newton's step takes what the rounded exponent lost
  const Value better = y - (y - a / (y * y)) * (1.0 / 3);
  return with_sign(where((a == 0.0) | (a == kInf), a, better), x);
}

/// Giles, "Approximating the erfinv function" (2012), for a start; then Halley's steps on what is small: erf near 0,
/// erfc elsewhere.
Value erf_inv(Value x) {
  const Value a = abs(x), rest = 1.0 - a;
  const Value w = -log(rest * (a + 1.0)), center = w - 2.5, tail = sqrt(max(w, 5.0)) - 3.0;
  Value y = a * where(w < 5.0,
                      polynomial(center, {1.50140941, 0.246640727, -0.00417768164, -0.00125372503, 0.00021858087,
                                          -4.39150654e-06, -3.5233877e-06, 3.43273939e-07, 2.81022636e-08}),
                      polynomial(tail, {2.83297682, 1.00167406, 0.00943887047, -0.0076224613, 0.00573950773,
                                        -0.00367342844, 0.00134934322, 0.000100950558, -0.000200214257}));
  for (int step = 0; step < 2; ++step) {
    const Value error = where(a < 0.5, erf(y) - a, rest - unary(Op::Erfc, y));
    const Value u = error / (exp(-(y * y)) * (2 / std::sqrt(kPi)));
    y = y - u / (y * u + 1.0);
  }
  y = where(a < 0x1p-40, a * (std::sqrt(kPi) / 2), y);
  y = where(a == 1.0, kInf, where(a > 1.0, kNan, y));
  return with_sign(y, x);
}

// --- Lanczos' approximation of the gamma function, g = 7

namespace {

constexpr double kBase = 0.99999999999980993227684700473478;
constexpr double kLanczos[] = {676.520368121885098567009190444019, -1259.13921672240287047156078755283,
                               771.3234287776530788486528258894,   -176.61502916214059906584551354,
                               12.507343278686904814458936853,     -0.13857109526572011689554707,
                               9.984369578019570859563e-6,         1.50563273514931155834e-7};
constexpr double kG = 7;

/// sin(pi x) of x >= 0, whose distance from the next whole number is exact.
Value sin_pi(Value x) {
  const Value f = x - floor(x);
  return sin(where(f > 0.5, 1.0 - f, f) * kPi);
}

}  // namespace

Value lgamma(Value x) {
  const Value reflected = x < 0.5, z = where(reflected, -x, x - 1.0);
  Value series = number(x, kBase);
  for (int i = 0; i < 8; ++i) series = series + kLanczos[i] / (z + (i + 1.0));
  // log t by its difference from log(g + 1/2): z may be small
  const Value t = z + (kG + 0.5), log_t = log1p(z / (kG + 0.5)) + std::log(kG + 0.5);
  const Value y = (z + 0.5 - t / log_t) * log_t + std::log(std::sqrt(2 * kPi)) + log(series);
  const Value mirrored = std::log(kPi) - log(sin_pi(abs(x))) - y;
  const Value whole = (x <= 0.0) & (floor(x) == x);
  return where(abs(x) == kInf, kInf, where(whole, kInf, where(reflected, mirrored, y)));
}

Value digamma(Value x) {
  const Value reflected = x < 0.5, z = where(reflected, -x, x - 1.0);
  Value series = number(x, kBase), slope = number(x, 0);
  for (int i = 0; i < 8; ++i) {
    const Value at = z + (i + 1.0);
    series = series + kLanczos[i] / at;
    slope = slope - kLanczos[i] / (at * at);
  }
  const Value t = z + (kG + 0.5), log_t = log1p(z / (kG + 0.5)) + std::log(kG + 0.5);
  const Value y = log_t + slope / series - kG / t;
  const Value f = x - unary(Op::Round, x);  // tan has the period 1 of it
  const Value mirrored = y - kPi / tan(f * kPi);
  const Value whole = (x <= 0.0) & (floor(x) == x);
  return where(whole, kNan, where(x == kInf, kInf, where(reflected, mirrored, y)));
}

// --- sums of powers

namespace {

/// Euler's and Maclaurin's formula behind ten terms. q > 0.
Value zeta_of_positive(Value s, Value q) {
  constexpr int kTerms = 10;
  // B(2j) / (2j)!
  constexpr double kBernoulli[] = {1.0 / 12,
                                   -1.0 / 720,
                                   1.0 / 30240,
                                   -1.0 / 1209600,
                                   1.0 / 47900160,
                                   -691 / 1.307674368e12,
                                   1.0 / 74724249600.,
                                   -3617 / 1.067062284288e16,
                                   43867 / 5.109094217170944e18};
  Value sum = number(q, 0);
  for (int k = 0; k < kTerms; ++k) sum = sum + pow(q + static_cast<double>(k), -s);
  const Value a = q + static_cast<double>(kTerms), power = pow(a, -s);
  sum = sum + power * a / (s - 1.0) + power * 0.5;
  Value term = power * s / a;
  double j = 1;
  for (const double c : kBernoulli) {
    sum = sum + term * c;
    term = term * ((s + j) / a) * ((s + (j + 1)) / a);
    j += 2;
  }
  return where(q == kInf, 0.0, sum);
}

}  // namespace

/// Left of 0 by the sum over all whole k, which has the period 1 of q.
Value zeta(Value s, Value q) {
  const Value f = q - floor(q), whole = floor(s) == s, odd = whole & (s - floor(s * 0.5) * 2.0 == 1.0);
  const Value rest = zeta_of_positive(s, 1.0 - f) - zeta_of_positive(s, 1.0 - q);
  const Value left = zeta_of_positive(s, f) + where(odd, -rest, rest);
  Value y = where(q > 0.0, zeta_of_positive(s, q), where(whole, left, kNan));
  y = where((q <= 0.0) & (floor(q) == q), where(whole & !odd, number(s, kInf), kNan), y);
  return where(s > 1.0, y, where(s == 1.0, kInf, number(s, kNan)));
}

Value polygamma(Value n, Value x) {
  const Value s = n + 1.0, sum = zeta(s, x), odd = n - floor(n * 0.5) * 2.0 == 1.0;
  const Value factor = lgamma(s);  // of n! and the sum, one may overflow where the product does not
  const Value y = where(n < 150.0, exp(factor) * sum, exp(factor + log(sum)));
  return where(n == 0.0, digamma(x), where((n < 0.0) | (floor(n) != n), kNan, where(odd, y, -y)));
}

// --- Bessel functions: Chebyshev series (coefficients by interpolation in 40 digits)

namespace {

constexpr std::array kBesselNear{0x1.02a63724a7ffap-3,   -0x1.694d10469192ep-3,  0x1.a46dad536f53cp-4,
                                 -0x1.b1bbc537c9ebcp-5,  0x1.951e3e7bb2349p-6,   -0x1.5a29f7913a26ap-7,
                                 0x1.1065349d3a1b4p-8,   -0x1.8cc620b3cd4a4p-10, 0x1.0c95db6c6df7dp-11,
                                 -0x1.533cad3d694fep-13, 0x1.911b542c70d0bp-15,  -0x1.bd5f9b8debbcfp-17,
                                 0x1.d1c4ed511afc5p-19,  -0x1.cc0798363992ap-21, 0x1.ae344b347d108p-23,
                                 -0x1.7dd3e24b8c3e8p-25, 0x1.4258e02395010p-27,  -0x1.0361b28ea67e6p-29,
                                 0x1.8ea34b43fdf6cp-32,  -0x1.2510397eb07dep-34, 0x1.9cee2b21d3154p-37,
                                 -0x1.173835fb70366p-39, 0x1.6af784779d955p-42,  -0x1.c628e1c8f0b3bp-45,
                                 0x1.11d7f0615290cp-47,  -0x1.3eaaa7e0d1573p-50, 0x1.663e3e593bfacp-53,
                                 -0x1.857d0c38a0576p-56};  // of e^-x I1(x) / x by x / 4 - 1, up to 8
constexpr std::array kBesselFar{
    0x1.8ea18b55b1514p-2,   -0x1.3fda053fcdb4cp-7,  -0x1.cfd7f804aa9a6p-14, -0x1.048df49ca0373p-18,
    -0x1.0dbfd2e9e5443p-22, -0x1.c415394bb46c1p-26, -0x1.0790b9ad53528p-28, -0x1.334ca5423dd80p-31,
    -0x1.4dcf9d4504c0cp-36, 0x1.1e1a1f1587865p-35,  0x1.f101f653c457bp-37,  0x1.1e7d3f6439fa3p-39,
    -0x1.953e1076ab493p-41, -0x1.cbc458e73e255p-42, -0x1.7a9482e6d22a0p-46, 0x1.80d3c26b3281ep-45,
    0x1.776e1762d31e8p-47,  -0x1.12db5138afbc7p-48, -0x1.0efcd8bc4d22ap-49, 0x1.7d68e5f04a2d1p-52,
    0x1.55915fceb588ap-52,  -0x1.2806c9c77331ap-55, -0x1.acea3b2532274p-55, 0x1.45b8aea87b87ep-58,
    0x1.1556db352e977p-57};  // of e^-x I1(x) sqrt(x) by 16 / x - 1, from 8 on

/// Clenshaw's.
Value chebyshev(Value t, std::span<const double> c) {
  Value last = number(t, 0), v = number(t, c.back());
  for (size_t i = c.size() - 1; i-- > 1;) {
    const Value next = t * 2.0 * v - last + c[i];
    last = v, v = next;
  }
  return t * v - last + c[0];
}

}  // namespace

Value bessel_i1e(Value x) {
  const Value a = abs(x), near = chebyshev(min(a, 8.0) * 0.25 - 1.0, kBesselNear) * a;
  const Value far = chebyshev(16.0 / max(a, 8.0) - 1.0, kBesselFar) / sqrt(a);
  return with_sign(where(a <= 8.0, near, far), x);
}

Value float_remainder(Value x, Value y) {
  const Value d = abs(y);
  Value rest = abs(x);
  // A quotient's bits from above, 28 at a time: times the 24 of the divisor they are exact, and so is what is left. An
  // inexact quotient may be one too large.
  for (int place = 252; place >= 0; place -= 28) {
    const Value divisor = d * std::ldexp(1.0, place);
    rest = rest - floor(rest / divisor) * divisor;
    rest = where(rest < 0.0, rest + divisor, rest);
  }
  rest = where(d == kInf, abs(x), rest);
  return with_sign(where((d == 0.0) | (abs(x) == kInf) | is_nan(y), kNan, rest), x);
}

}  // namespace trainc::formulas
