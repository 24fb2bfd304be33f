// Complex functions: distance from long double's in units of the last place of f64, of each part or of the whole; all
// magnitudes, near branch points, cuts from both sides, and C's results for infinities, NaN and zeros.
#include "frontend/formulas/complex.h"

#include <complex>
#include <limits>
#include <set>

#include "harness.h"

namespace trainc::formulas {
namespace {

using Number = std::complex<double>;
using Truth = std::complex<long double>;
constexpr double kInf = INFINITY, kNan = NAN;

std::vector<Number> all_of(const std::function<Complex(Complex)>& f, const std::vector<Number>& z) {
  std::vector<double> re, im;
  for (Number v : z) re.push_back(v.real()), im.push_back(v.imag());
  const auto n = static_cast<int64_t>(z.size());
  const std::vector<Tensor> got = values_of(
      [&](const Values& v) {
        const Complex w = f({v[0], v[1]});
        return Values{w.re, w.im};
      },
      {tensor({n}, re), tensor({n}, im)});
  std::vector<Number> w;
  for (size_t i = 0; i < z.size(); ++i) w.emplace_back(got[0].f[i], got[1].f[i]);
  return w;
}

/// In units of the last place of `size`.
double distance(double got, long double truth, long double size) {
  const auto rounded = static_cast<double>(truth);
  if (std::isnan(got) || std::isnan(rounded)) return std::isnan(got) == std::isnan(rounded) ? 0 : kInf;
  if (std::isinf(got) || std::isinf(rounded)) return got == rounded ? 0 : kInf;
  const long double least = std::numeric_limits<double>::min();
  const int exponent = std::ilogb(std::max(size, least));
  return static_cast<double>(std::abs(got - truth) / std::ldexp(1.0L, exponent - 52));
}

struct Function {
  const char* name;
  Complex (*formula)(Complex);
  Truth (*truth)(const Truth&);
  double reach;  // greatest magnitude of a part
  double whole;  // ulp of |f(z)|
  double parts;  // ulp of each part; 0: parts lose digits where they vanish
};

Truth expm1_of(const Truth& z) {
  const long double h = std::sin(z.imag() / 2);
  return {std::expm1(z.real()) * std::cos(z.imag()) - 2 * h * h, std::exp(z.real()) * std::sin(z.imag())};
}
Truth log1p_of(const Truth& z) {
  const long double s = z.real() * (2 + z.real()) + z.imag() * z.imag();
  const long double re = std::abs(z) < 0.5L ? std::log1p(s) / 2 : std::log(std::hypot(1 + z.real(), z.imag()));
  return {re, std::atan2(z.imag(), 1 + z.real())};
}
Truth cbrt_of(const Truth& z) { return std::polar(std::cbrt(std::abs(z)), std::arg(z) / 3); }
Truth rsqrt_of(const Truth& z) { return 1.0L / std::sqrt(z); }
Truth sigmoid_of(const Truth& z) { return 1.0L / (1.0L + std::exp(-z)); }

const std::vector<Function> kFunctions{
    {"exp", exp, std::exp, 700, 8, 8},         {"expm1", expm1, expm1_of, 700, 8, 0},
    {"log", log, std::log, 1e300, 4, 4},       {"log1p", log1p, log1p_of, 1e300, 4, 0},
    {"sqrt", sqrt, std::sqrt, 1e300, 4, 4},    {"rsqrt", rsqrt, rsqrt_of, 1e150, 8, 8},
    {"cbrt", cbrt, cbrt_of, 1e300, 6, 0},      {"sin", sin, std::sin, 600, 8, 8},
    {"cos", cos, std::cos, 600, 8, 8},         {"tan", tan, std::tan, 300, 12, 12},
    {"sinh", sinh, std::sinh, 600, 8, 8},      {"cosh", cosh, std::cosh, 600, 8, 8},
    {"tanh", tanh, std::tanh, 300, 12, 12},    {"asin", asin, std::asin, 1e300, 8, 8},
    {"acos", acos, std::acos, 1e300, 8, 8},    {"atan", atan, std::atan, 1e300, 8, 8},
    {"asinh", asinh, std::asinh, 1e300, 8, 8}, {"acosh", acosh, std::acosh, 1e300, 8, 8},
    {"atanh", atanh, std::atanh, 1e300, 8, 8}, {"sigmoid", sigmoid, sigmoid_of, 600, 10, 0},
};

/// Where -0 is 0, as the header says.
Truth on_its_side(const Function& f, Number z) {
  static const std::set<std::string> above{"sqrt", "asin", "acos", "acosh"}, right{"asinh"};
  return {right.contains(f.name) ? z.real() + 0.0 : z.real(), above.contains(f.name) ? z.imag() + 0.0 : z.imag()};
}

/// Parts of all magnitudes and signs; near 1, i and their opposites; one part of them 0.
std::vector<Number> numbers_within(double reach) {
  std::mt19937_64 rng(11);
  const auto magnitude = [&](double most) {
    const double low = -60, high = std::min(std::log2(most), 1000.0);
    const double e = rng() % 2 ? low + (high - low) * static_cast<double>(rng() >> 11) * 0x1p-53
                               : -3 + static_cast<double>(rng() % 5);
    return std::exp2(e) * (1 + static_cast<double>(rng() >> 12) * 0x1p-53) * (rng() % 2 ? 1 : -1);
  };
  std::vector<Number> z;
  const auto keep = [&](Number v) {
    if (std::abs(v.real()) <= reach && std::abs(v.imag()) <= reach) z.push_back(v);
  };
  for (int i = 0; i < 4000; ++i) {
    const Number v{magnitude(reach), magnitude(reach)};
    keep(v), keep({v.real(), 0}), keep({v.real(), -0.0}), keep({0, v.imag()}), keep({-0.0, v.imag()});
  }
  for (Number center : {Number(1, 0), Number(-1, 0), Number(0, 1), Number(0, -1), Number(0.6, 0.8), Number(-0.8, 0.6)})
    for (int e = -60; e <= -1; ++e)
      for (Number by : {Number(1, 0), Number(0, 1), Number(-1, 1), Number(1, -3)})
        keep(center + std::ldexp(1.0, e) * by);
  return z;
}

TEST(Complex, FunctionsOfOneNumber) {
  for (const Function& f : kFunctions) {
    const std::vector<Number> z = numbers_within(f.reach), got = all_of(f.formula, z);
    double whole = 0, parts = 0;
    Number at, part_at;
    for (size_t i = 0; i < z.size(); ++i) {
      const Truth truth = f.truth(on_its_side(f, z[i]));
      const long double size = std::abs(truth);
      const double w =
          std::max(distance(got[i].real(), truth.real(), size), distance(got[i].imag(), truth.imag(), size));
      const double p = std::max(distance(got[i].real(), truth.real(), std::abs(truth.real())),
                                distance(got[i].imag(), truth.imag(), std::abs(truth.imag())));
      if (w > whole) whole = w, at = z[i];
      if (p > parts) parts = p, part_at = z[i];
    }
    EXPECT_LE(whole, f.whole) << f.name << " of " << at;
    EXPECT_LE(parts, f.parts > 0 ? f.parts : kInf) << f.name << " of " << part_at << ", a part";
    RecordProperty(f.name, std::to_string(whole) + " " + std::to_string(parts));
  }
}

const std::vector<double> kEdges{0.0, -0.0, 0.5, -2, 1, -1, kInf, -kInf, kNan};

/// Of the functions that C has: its results, but that a NaN part or an infinity beside one may make all NaN, and that
/// -0 lies on 0's side of a cut, where the header says so.
TEST(Complex, EdgesAreC) {
  std::vector<Number> z;
  for (double re : kEdges)
    for (double im : kEdges) z.emplace_back(re, im);
  const auto same = [](Number got, Number wanted) {
    const auto part = [](double x, double y) {
      return (std::isnan(x) && std::isnan(y)) || x == y || std::abs(x - y) <= 1e-14 * std::abs(y);
    };
    return part(got.real(), wanted.real()) && part(got.imag(), wanted.imag());
  };
  const auto is_nan = [](Number v) { return std::isnan(v.real()) || std::isnan(v.imag()); };
  const std::set<std::string> not_of_c{"cbrt", "sigmoid", "rsqrt", "log1p", "expm1"};
  for (const Function& f : kFunctions) {
    if (not_of_c.contains(f.name)) continue;
    const std::vector<Number> got = all_of(f.formula, z);
    for (size_t i = 0; i < z.size(); ++i) {
      const auto wanted = static_cast<Number>(f.truth(on_its_side(f, z[i])));
      const bool open = is_nan(z[i]) || (is_nan(wanted) && !std::isfinite(std::abs(z[i])));
      EXPECT_TRUE(same(got[i], wanted) || (is_nan(got[i]) && (open || f.name == std::string("exp"))))
          << f.name << " of " << z[i] << ": " << got[i] << ", not " << wanted;
    }
  }
}

TEST(Complex, DivisionNeitherOverflowsNorMissesAnInfinity) {
  const auto divided = [](Number x, Number y) {
    return all_of([&](Complex z) { return divide(z, {number(z.re, y.real()), number(z.re, y.imag())}); }, {x})[0];
  };
  std::mt19937_64 rng(5);
  const auto any = [&] {
    return std::ldexp(1 + static_cast<double>(rng() >> 12) * 0x1p-52, static_cast<int>(rng() % 800) - 400) *
           (rng() % 2 ? 1 : -1);
  };
  for (int i = 0; i < 300; ++i) {
    const Number x{any(), any()}, y{any(), any()};
    const Truth truth = Truth(x.real(), x.imag()) / Truth(y.real(), y.imag());
    const Number got = divided(x, y);
    EXPECT_LE(distance(got.real(), truth.real(), std::abs(truth)), 4) << x << " / " << y;
    EXPECT_LE(distance(got.imag(), truth.imag(), std::abs(truth)), 4) << x << " / " << y;
  }
  const auto is = [&](Number x, Number y, double re, double im) {
    const Number got = divided(x, y);
    const auto same = [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); };
    EXPECT_TRUE(same(got.real(), re) && same(got.imag(), im)) << x << " / " << y << " = " << got;
  };
  is({1, -2}, {0, 0}, kInf, -kInf);
  is({1, -2}, {-0.0, 0}, -kInf, kInf);
  is({0, 0}, {0, 0}, kNan, kNan);
  is({kInf, 1}, {2, 0}, kInf, kNan);
  is({kInf, kInf}, {1, 1}, kInf, kNan);
  is({kInf, kNan}, {1, 1}, kInf, -kInf);
  is({1, 1}, {kInf, 1}, 0, 0);
  is({1, 1}, {kInf, kInf}, 0, 0);
  is({1e300, 1e300}, {1e300, 1e300}, 1, 0);
  is({1e-300, 1e-300}, {1e-300, 1e-300}, 1, 0);
}

TEST(Complex, PowersOfZeroAndOfOthers) {
  const auto power = [](Number x, Number y) {
    return all_of([&](Complex z) { return pow(z, {number(z.re, y.real()), number(z.re, y.imag())}); }, {x})[0];
  };
  EXPECT_EQ(power({0, 0}, {0, 0}), Number(1, 0));
  EXPECT_EQ(power({0, 0}, {2, 0}), Number(0, 0));
  EXPECT_TRUE(std::isnan(power({0, 0}, {2, 5}).real()));
  EXPECT_TRUE(std::isnan(power({0, 0}, {-1, 0}).real()));
  EXPECT_EQ(power({3, -4}, {0, 0}), Number(1, 0));
  EXPECT_EQ(power({1, 0}, {kInf, kNan}), Number(1, 0));
  EXPECT_EQ(power({kInf, 0}, {0.5, 0}), Number(kInf, 0));
  EXPECT_EQ(power({kInf, 0}, {-2, 0}), Number(0, 0));
  EXPECT_TRUE(std::isnan(power({kInf, 0}, {kNan, 0}).real()));
  std::mt19937_64 rng(9);
  const auto any = [&] { return -4 + 8 * static_cast<double>(rng() >> 11) * 0x1p-53; };
  for (int i = 0; i < 300; ++i) {
    const Number x{any(), any()}, y{any(), any()};
    const Truth truth = std::pow(Truth(x.real(), x.imag()), Truth(y.real(), y.imag()));
    const Number got = power(x, y);
    EXPECT_LE(static_cast<double>(std::abs(Truth(got.real(), got.imag()) - truth)),
              1e-14 * static_cast<double>(std::abs(truth)))
        << x << " ^ " << y;
  }
}

TEST(Complex, AtTheEndsOfTheRange) {
  const auto of = [](Complex (*f)(Complex), Number z) { return all_of(f, {z})[0]; };
  const Number root = of(sqrt, {1.6e308, 1.6e308});
  const Truth truth = std::sqrt(Truth(1.6e308L, 1.6e308L));
  EXPECT_NEAR(root.real() / static_cast<double>(truth.real()), 1, 1e-15);
  EXPECT_NEAR(root.imag() / static_cast<double>(truth.imag()), 1, 1e-15);
  EXPECT_NEAR(of(atanh, {1, 1e-200}).real(), std::log(2e200) / 2, 1e-13);
  EXPECT_NEAR(of(sin, {1e-300, 1000}).real() / 9.850355570085235e133, 1, 1e-12);  // e^1000 alone overflows
}

TEST(Complex, LengthsAndSigns) {
  const auto length = [](Number x) { return all_of([](Complex z) { return Complex{abs(z), z.im}; }, {x})[0].real(); };
  for (double v : {1e-320, 1e-300, 1.0, 1e300})
    EXPECT_NEAR(length({3 * v, -4 * v}) / (5 * v), 1, 1e-3 * (v < 1e-310) + 4e-16);
  EXPECT_EQ(length({1, -kInf}), kInf);
  EXPECT_TRUE(std::isnan(length({kInf, kNan})));
  EXPECT_TRUE(std::isnan(length({kNan, 1})));
  EXPECT_EQ(length({-0.0, 0}), 0);
  const std::vector<Number> signs = all_of([](Complex z) { return sign(z); }, {{3, -4}, {0, 0}, {-1e-300, 0}});
  EXPECT_NEAR(std::abs(signs[0] - Number(0.6, -0.8)), 0, 2e-16);
  EXPECT_EQ(signs[1], Number(0, 0));
  EXPECT_EQ(signs[2], Number(-1, 0));
}

}  // namespace
}  // namespace trainc::formulas
