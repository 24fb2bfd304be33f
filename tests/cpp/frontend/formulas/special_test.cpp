// Functions of single elements: distance from long double's in units of the last place of f64, over all magnitudes and
// near zeros and poles; zeros with their signs, infinities, NaN.
#include "frontend/formulas/special.h"

#include <limits>
#include <numbers>

#include "harness.h"

namespace trainc::formulas {
namespace {

constexpr double kInf = INFINITY, kTiny = std::numeric_limits<double>::denorm_min();
constexpr double kMost = std::numeric_limits<double>::max();

/// Distance in units of the last place of a result; what is below the smallest normal number counts in units of that.
double ulps(double got, long double truth) {
  const double rounded = static_cast<double>(truth);
  if (std::isnan(got) || std::isnan(rounded)) return std::isnan(got) == std::isnan(rounded) ? 0 : kInf;
  if (std::isinf(got) || std::isinf(rounded)) return got == rounded ? 0 : kInf;
  const int exponent = std::max(std::ilogb(std::max(std::abs(rounded), std::numeric_limits<double>::min())), -1022);
  return static_cast<double>(std::abs(static_cast<long double>(got) - truth) / std::ldexp(1.0L, exponent - 52));
}

struct Range { double low, high; };
/// Numbers of both signs, a hundred of each power of two, and the neighbours of `near`.
std::vector<double> numbers_in(Range range, const std::vector<double>& near = {}) {
  std::mt19937_64 rng(7);
  std::vector<double> x;
  for (int e = -60; e <= 60; ++e)
    for (int i = 0; i < 100; ++i) {
      const double m = std::ldexp(1 + static_cast<double>(rng() >> 12) * 0x1p-52, e);
      for (double v : {m, -m})
        if (v >= range.low && v <= range.high) x.push_back(v);
    }
  for (double center : near)
    for (int e = -50; e <= -2; ++e)
      for (double v : {center + std::ldexp(1.0, e), center - std::ldexp(1.0, e)})
        if (v >= range.low && v <= range.high) x.push_back(v);
  return x;
}

struct Function {
  const char* name;
  Value (*formula)(Value);
  long double (*truth)(long double);
  Range range;
  double bound;  // ulp
  std::vector<double> near;
};

const std::vector<Function> kFunctions{
    {"tan", tan, std::tan, {-100, 100}, 4, {0, M_PI / 4}},
    {"atan", atan, std::atan, {-kInf, kInf}, 2, {0, 1, 0.41421356237309503, 2.414213562373095}},
    {"asin", asin, std::asin, {-1, 1}, 3, {0, 0.5, 1, -1}},
    {"acos", acos, std::acos, {-1, 1}, 3, {0, 0.5, 1, -1}},
    {"sinh", sinh, std::sinh, {-700, 700}, 4, {0, 22, -22}},
    {"cosh", cosh, std::cosh, {-700, 700}, 4, {0, 22, -22}},
    {"asinh", asinh, std::asinh, {-kInf, kInf}, 4, {0, 1}},
    {"acosh", acosh, std::acosh, {1, kInf}, 4, {1, 2}},
    {"atanh", atanh, std::atanh, {-0.999999, 0.999999}, 4, {0, 0.5}},
    {"cbrt", cbrt, std::cbrt, {-kInf, kInf}, 2, {1, 8, -8}},
};

/// What a formula gives for each of these.
std::vector<double> of_all(Value (*f)(Value), const std::vector<double>& x) {
  return numbers([&](const Values& v) { return Values{f(v[0])}; }, {tensor({static_cast<int64_t>(x.size())}, x)});
}

TEST(Special, FunctionsOfOneNumber) {
  for (const Function& f : kFunctions) {
    const std::vector<double> x = numbers_in(f.range, f.near);
    const std::vector<double> got = numbers([&](const Values& v) { return Values{f.formula(v[0])}; },
                                            {tensor({static_cast<int64_t>(x.size())}, x)});
    double worst = 0, at = 0;
    for (size_t i = 0; i < x.size(); ++i)
      if (const double u = ulps(got[i], f.truth(x[i])); u > worst) worst = u, at = x[i];
    EXPECT_LE(worst, f.bound) << f.name << " of " << at;
    RecordProperty(f.name, std::to_string(worst));
  }
}

TEST(Special, Atan2IsOfAllQuadrants) {
  const std::vector<double> some{0.0, -0.0, 1, -1, 3e-300, -2e300, 0.41421356237309503, kInf, -kInf, NAN, kTiny, 7};
  std::vector<double> y, x;
  for (double a : some)
    for (double b : some) y.push_back(a), x.push_back(b);
  const auto n = static_cast<int64_t>(x.size());
  const std::vector<double> got =
      numbers([](const Values& v) { return Values{atan2(v[0], v[1])}; }, {tensor({n}, y), tensor({n}, x)});
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_LE(ulps(got[i], std::atan2(static_cast<long double>(y[i]), static_cast<long double>(x[i]))), 2)
        << y[i] << ", " << x[i];
    EXPECT_TRUE(std::isnan(got[i]) || std::signbit(got[i]) == std::signbit(std::atan2(y[i], x[i])))
        << y[i] << ", " << x[i];
  }
}

TEST(Special, ErfInvUndoesErf) {
  std::vector<double> y, x;
  for (double at = -5.5; at <= 5.5; at += 0.01) y.push_back(at), x.push_back(std::erf(at));
  const std::vector<double> got = of_all(erf_inv, x);
  for (size_t i = 0; i < y.size(); ++i) {
    // near 1 a unit of erf's own last place moves the result by more than its own
    const double slope = 2 / std::sqrt(M_PI) * std::exp(-y[i] * y[i]);
    EXPECT_NEAR(got[i], y[i], 4e-16 * (1 + std::abs(y[i])) + 2.3e-16 * std::abs(x[i]) / slope) << x[i];
  }
}

TEST(Special, Gamma) {
  std::vector<double> x = numbers_in({-20, 170}, {1, 2, 0.5, -0.5, -3.5});
  std::erase_if(x,
                [](double v) { return v < 0 && std::abs(v - std::round(v)) < 1e-3; });  // poles: rounding is left of x
  const std::vector<double> gamma = of_all(lgamma, x), slope = of_all(digamma, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const auto truth = static_cast<double>(std::lgamma(static_cast<long double>(x[i])));
    EXPECT_NEAR(gamma[i], truth, 4e-15 * (1 + std::abs(truth))) << x[i];
    // digamma by its recurrence, from where Stirling's series is exact
    long double z = x[i], sum = 0;
    for (; z < 30; ++z) sum -= 1 / z;
    const long double r = 1 / (z * z);
    sum += std::log(z) - 0.5L / z - r * (1.0L / 12 - r * (1.0L / 120 - r * (1.0L / 252 - r * (1.0L / 240 - r / 132))));
    EXPECT_NEAR(slope[i], static_cast<double>(sum),
                2e-14 * (1 + std::abs(static_cast<double>(sum)) + 1 / std::abs(x[i])))
        << x[i];
  }
}

/// Term by term, to where its tail is Euler's and Maclaurin's in three terms.
long double zeta_of(long double s, long double q) {
  long double sum = 0;
  for (; q < 300; ++q) sum += std::pow(q, -s);
  const long double power = std::pow(q, -s);
  return sum + power * q / (s - 1) + power / 2 + power * s / q / 12 - power * s * (s + 1) * (s + 2) / (q * q * q) / 720;
}

/// What is lost left of 0 is of the greatest term, which may be far above the sum.
long double greatest_term(long double s, long double q) {
  return q > 0 ? 0 : std::pow(std::abs(q - std::round(q)), -s);
}

TEST(Special, ZetaAndPolygamma) {
  std::vector<double> s, q;
  for (double at : {2.0, 3.0, 4.0, 7.0, 1.5, 1.01, 30.0, 170.25})
    for (double of : {1e-3, 0.5, 1.0, 2.75, 9.9, 40.0, 1e3, -0.5, -3.3, -8.75, -20.5, -101.25})
      if (of > 0 || at == std::floor(at)) s.push_back(at), q.push_back(of);
  const auto of_both = [](Value (*f)(Value, Value), const std::vector<double>& x, const std::vector<double>& y) {
    const auto n = static_cast<int64_t>(x.size());
    return numbers([&](const Values& v) { return Values{f(v[0], v[1])}; }, {tensor({n}, x), tensor({n}, y)});
  };
  const std::vector<double> got = of_both(zeta, s, q);
  for (size_t i = 0; i < s.size(); ++i) {
    const auto truth = static_cast<double>(zeta_of(s[i], q[i]));
    EXPECT_TRUE(got[i] == truth ||
                std::abs(got[i] - truth) <= 2e-13 * std::abs(truth) + 2e-15 * greatest_term(s[i], q[i]))
        << s[i] << " " << q[i] << ": " << got[i] << ", not " << truth;
  }
  std::vector<double> n = s;
  for (double& v : n) v -= 1;
  const std::vector<double> slopes = of_both(polygamma, n, q);
  for (size_t i = 0; i < s.size(); ++i) {
    if (n[i] != std::floor(n[i])) {
      EXPECT_TRUE(std::isnan(slopes[i])) << n[i];
      continue;
    }
    const long double sign = std::fmod(n[i], 2) == 1 ? 1 : -1, factor = std::tgamma(static_cast<long double>(s[i]));
    const auto truth = static_cast<double>(sign * factor * zeta_of(s[i], q[i]));
    EXPECT_TRUE(slopes[i] == truth ||
                std::abs(slopes[i] - truth) <= 1e-12 * std::abs(truth) + 2e-15 * factor * greatest_term(s[i], q[i]))
        << n[i] << " " << q[i] << ": " << slopes[i] << ", not " << truth;
  }
  const std::vector<double> edges =
      of_both(zeta, {1, 0.5, 2, 3, 2.5, 2, 2, NAN, 2}, {2, 2, -1, -1, -1.5, 0, kInf, 2, NAN});
  for (size_t i : {0, 2, 5}) EXPECT_EQ(edges[i], kInf) << i;
  for (size_t i : {1, 3, 4, 7, 8}) EXPECT_TRUE(std::isnan(edges[i])) << i;
  EXPECT_EQ(edges[6], 0);
  EXPECT_TRUE(std::isnan(of_both(polygamma, {-1}, {2})[0]));
  EXPECT_NEAR(of_both(polygamma, {200}, {10})[0] /
                  -static_cast<double>(std::exp(std::lgamma(201.0L) + std::log(zeta_of(201, 10)))),
              1, 1e-11);
}

TEST(Special, Bessel) {
  const std::vector<double> x = numbers_in({-1e9, 1e9}, {0, 8, -8});
  const std::vector<double> got = of_all(bessel_i1e, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const long double a = std::abs(static_cast<long double>(x[i]));
    long double truth = 0;
    if (a < 40) {
      truth = std::cyl_bessel_i(1.0L, a) * std::exp(-a);
    } else {  // the asymptotic series, whose terms vanish from here on
      long double term = 1, sum = 1;
      for (int k = 1; k < 20; ++k) sum += term *= -(4 - (2 * k - 1) * (2 * k - 1.0L)) / (k * 8 * a);
      truth = sum / std::sqrt(2 * std::numbers::pi_v<long double> * a);
    }
    EXPECT_LE(ulps(got[i], std::copysign(truth, static_cast<long double>(x[i]))), 12) << x[i];
  }
  const std::vector<double> edges = of_all(bessel_i1e, {0.0, -0.0, kInf, -kInf, NAN});
  EXPECT_EQ(edges[0], 0);
  EXPECT_TRUE(std::signbit(edges[1]));
  EXPECT_EQ(edges[2], 0);
  EXPECT_EQ(edges[3], 0);
  EXPECT_TRUE(std::isnan(edges[4]));
}

TEST(Special, FloatRemainderIsExact) {
  std::mt19937_64 rng(3);
  std::vector<double> x, y;
  const auto any = [&] {
    return std::ldexp(static_cast<float>(1 + static_cast<double>(rng() >> 41) * 0x1p-23),
                      static_cast<int>(rng() % 100) - 50);
  };
  for (int i = 0; i < 2000; ++i) x.push_back(rng() % 2 ? any() : -any()), y.push_back(rng() % 2 ? any() : -any());
  for (double v : {0.0, -0.0, 5.0, kInf, -kInf, static_cast<double>(NAN)})
    for (double w : {0.0, 3.0, -3.0, kInf, static_cast<double>(NAN)}) x.push_back(v), y.push_back(w);
  const auto n = static_cast<int64_t>(x.size());
  const std::vector<double> got =
      numbers([](const Values& v) { return Values{float_remainder(v[0], v[1])}; }, {tensor({n}, x), tensor({n}, y)});
  for (size_t i = 0; i < x.size(); ++i) {
    const double truth = std::fmod(x[i], y[i]);
    EXPECT_EQ(ulps(got[i], truth), 0) << x[i] << ", " << y[i];
    EXPECT_TRUE(std::isnan(truth) || std::signbit(got[i]) == std::signbit(truth)) << x[i] << ", " << y[i];
  }
}

struct Point {
  const char* name;
  Value (*formula)(Value);
  double x, y;
};
TEST(Special, Ends) {
  for (const Point& p : std::vector<Point>{{"tan", tan, -0.0, -0.0},
                                           {"tan", tan, kInf, NAN},
                                           {"atan", atan, kInf, M_PI / 2},
                                           {"atan", atan, -kInf, -M_PI / 2},
                                           {"atan", atan, -0.0, -0.0},
                                           {"asin", asin, 1.5, NAN},
                                           {"asin", asin, -0.0, -0.0},
                                           {"acos", acos, 1, 0},
                                           {"acos", acos, -1, M_PI},
                                           {"acos", acos, -1.5, NAN},
                                           {"sinh", sinh, kInf, kInf},
                                           {"sinh", sinh, -kInf, -kInf},
                                           {"sinh", sinh, -0.0, -0.0},
                                           {"sinh", sinh, 710, std::sinh(710.0)},
                                           {"cosh", cosh, -kInf, kInf},
                                           {"cosh", cosh, 0, 1},
                                           {"asinh", asinh, -kInf, -kInf},
                                           {"asinh", asinh, -0.0, -0.0},
                                           {"asinh", asinh, kMost, std::asinh(kMost)},
                                           {"acosh", acosh, 1, 0},
                                           {"acosh", acosh, kInf, kInf},
                                           {"acosh", acosh, 0.5, NAN},
                                           {"atanh", atanh, 1, kInf},
                                           {"atanh", atanh, -1, -kInf},
                                           {"atanh", atanh, 1.5, NAN},
                                           {"atanh", atanh, -0.0, -0.0},
                                           {"cbrt", cbrt, kInf, kInf},
                                           {"cbrt", cbrt, -kInf, -kInf},
                                           {"cbrt", cbrt, -0.0, -0.0},
                                           {"erf_inv", erf_inv, 1, kInf},
                                           {"erf_inv", erf_inv, -1, -kInf},
                                           {"erf_inv", erf_inv, 1.5, NAN},
                                           {"erf_inv", erf_inv, -0.0, -0.0},
                                           {"lgamma", lgamma, 0, kInf},
                                           {"lgamma", lgamma, -3, kInf},
                                           {"lgamma", lgamma, -kInf, kInf},
                                           {"lgamma", lgamma, kInf, kInf},
                                           {"digamma", digamma, -2, NAN},
                                           {"digamma", digamma, kInf, kInf}}) {
    const double got = of_all(p.formula, {p.x}).at(0);
    EXPECT_LE(ulps(got, p.y), 2) << p.name << " of " << p.x << " is " << got;
    EXPECT_TRUE(std::isnan(p.y) || std::signbit(got) == std::signbit(p.y)) << p.name << " of " << p.x << " is " << got;
    const double of_nan = of_all(p.formula, {NAN}).at(0);
    EXPECT_TRUE(std::isnan(of_nan)) << p.name << " of NaN";
  }
}

}  // namespace
}  // namespace trainc::formulas
