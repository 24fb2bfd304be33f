// Accuracy of the functions over the whole range, in ulp, against libm in a wider type. Prints the table of
// docs/emit.md.
#include <cfloat>
#include <cmath>
#include <functional>

#include "harness.h"

namespace trainc::emit::test {
namespace {

using namespace loop;

template <class T> constexpr DType dtype_of() { return sizeof(T) == 4 ? DType::F32 : DType::F64; }
template <class T> using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

// |got - truth| in units of the last place of the correctly rounded result; 0 where both are NaN, or the same infinity.
template <class T> double ulps(T got, long double truth) {
  if (std::isnan(truth) || std::isnan(got)) return std::isnan(truth) && std::isnan(got) ? 0 : INFINITY;
  const T rounded = static_cast<T>(truth);
  if (got == 0 && rounded == 0 && std::signbit(got) != std::signbit(rounded)) return INFINITY;
  if (got == rounded && (got != 0 || std::signbit(got) == std::signbit(rounded)))
    return std::isinf(got) ? 0
                           : std::abs(static_cast<double>(
                                 (got - truth) / (std::nextafter(std::abs(got), T(INFINITY)) - std::abs(got))));
  if (std::isinf(got) || std::isinf(rounded)) {
    // Overflow may come one step early or late, no more.
    const T edge = std::numeric_limits<T>::max();
    return std::signbit(got) == std::signbit(rounded) && std::min(std::abs(got), std::abs(rounded)) == edge ? 1
                                                                                                            : INFINITY;
  }
  int exponent;
  std::frexp(std::abs(truth), &exponent);
  const int smallest = std::numeric_limits<T>::min_exponent;
  return static_cast<double>(std::abs(got - truth) /
                             std::ldexp(1.0L, std::max(exponent, smallest) - std::numeric_limits<T>::digits));
}

template <class T> std::vector<T> evaluate(Op op, const std::vector<T>& x, const std::vector<T>* y = nullptr) {
  const auto n = static_cast<int64_t>(x.size());
  LoopNest nest;
  nest.name = "function";
  const int a = nest.add_buffer({"a", dtype_of<T>(), n}), b = nest.add_buffer({"b", dtype_of<T>(), n});
  const int out = nest.add_buffer({"out", dtype_of<T>(), n, Space::Argument, true});
  const int i = nest.add_var("i", n);
  std::vector<Expr> operands = {nest.load(a, nest.var(i))};
  if (y) operands.push_back(nest.load(b, nest.var(i)));
  nest.body = for_loop(LoopKind::Vector, i, integer(n), store(out, nest.var(i), apply(op, operands)), 16);
  std::vector<Memory> arguments = {interpret::memory_of(x), interpret::memory_of(y ? *y : x),
                                   interpret::output_of(n * static_cast<int64_t>(sizeof(T)))};
  run(nest, machine_cpu_level(), arguments);
  return interpret::values_of<T>(arguments[2]);
}

// Bit patterns from all exponents, both signs, and the special values; `dense` more within [-dense_to, dense_to].
template <class T> std::vector<T> samples(size_t count, double dense_to) {
  std::vector<T> x;
  const Bits<T> step = std::numeric_limits<Bits<T>>::max() / count | 1;
  Bits<T> bits = 0;
  for (size_t i = 0; i < count; ++i, bits += step) {
    T v;
    std::memcpy(&v, &bits, sizeof(T));
    x.push_back(v);
  }
  for (size_t i = 0; i < count; ++i)
    x.push_back(static_cast<T>(dense_to * (2.0 * static_cast<double>(i) / static_cast<double>(count) - 1)));
  for (double s : {0.0,
                   -0.0,
                   1.0,
                   -1.0,
                   double(INFINITY),
                   -double(INFINITY),
                   double(NAN),
                   88.72283935546875,
                   88.7229,
                   -87.33655,
                   -103.97208,
                   -104.5,
                   709.78,
                   709.79,
                   -745.1,
                   -745.2,
                   0.625,
                   0.93,
                   0.85,
                   2.15,
                   6.0})
    x.push_back(static_cast<T>(s));
  for (T s : {std::numeric_limits<T>::min(), std::numeric_limits<T>::denorm_min(), std::numeric_limits<T>::max(),
              std::numeric_limits<T>::lowest()})
    x.push_back(s);
  return x;
}

struct Function {
  Op op;
  long double (*truth)(long double);
  double dense_to, f32_bound, f64_bound;
};
const Function functions[] = {
    {Op::Exp, std::exp, 105, 1.1, 1.1},    {Op::Expm1, std::expm1, 20, 0.51, 3.0}, {Op::Log, std::log, 4, 0.51, 1.5},
    {Op::Log1p, std::log1p, 2, 0.51, 2.0}, {Op::Sin, std::sin, 30, 0.51, 1.1},     {Op::Cos, std::cos, 30, 0.51, 1.1},
    {Op::Tanh, std::tanh, 10, 1.5, 4.0},   {Op::Erf, std::erf, 4, 1.5, 2.0},       {Op::Erfc, std::erfc, 28, 6.0, 6.0},
};

struct Worst { double error = 0, at = 0; };
template <class T> Worst worst(const Function& f, size_t count) {
  const std::vector<T> x = samples<T>(count, f.dense_to);
  const std::vector<T> y = evaluate(f.op, x);
  Worst w;
  for (size_t i = 0; i < x.size(); ++i) {
    const long double truth = sizeof(T) == 4 ? f.truth(static_cast<long double>(x[i])) : f.truth(x[i]);
    const double e = ulps(y[i], truth);
    if (e > w.error) w = {e, x[i]};
  }
  return w;
}

TEST(Math, ErrorsInUlp) {
  std::printf("| function | f32 | worst at | f64 | worst at |\n|---|---|---|---|---|\n");
  for (const Function& f : functions) {
    const Worst w32 = worst<float>(f, 1 << 20), w64 = worst<double>(f, 1 << 18);
    std::printf("| %s | %.3f | %.9g | %.3f | %.17g |\n", std::string(name_of(f.op)).c_str(), w32.error, w32.at,
                w64.error, w64.at);
    EXPECT_LE(w32.error, f.f32_bound) << name_of(f.op) << " f32 at " << w32.at;
    EXPECT_LE(w64.error, f.f64_bound) << name_of(f.op) << " f64 at " << w64.at;
  }
}

template <class T> Worst worst_power(size_t count) {
  std::mt19937_64 generator(3);
  std::vector<T> x, y;
  const std::vector<T> special = {0,
                                  T(-0.0),
                                  1,
                                  -1,
                                  2,
                                  -2,
                                  T(0.5),
                                  T(-0.5),
                                  3,
                                  -3,
                                  T(INFINITY),
                                  T(-INFINITY),
                                  T(NAN),
                                  T(1e30),
                                  T(-1e30),
                                  T(16777215),
                                  T(-16777217),
                                  7,
                                  T(1e-40),
                                  T(0x1p53),
                                  T(0x1p53) - 1};
  for (T a : special)
    for (T b : special) {
      x.push_back(a);
      y.push_back(b);
    }
  const double reach = sizeof(T) == 4 ? 88 : 709;
  for (size_t i = 0; i < count; ++i) {
    Bits<T> bits = static_cast<Bits<T>>(generator());
    T a, b;
    std::memcpy(&a, &bits, sizeof(T));
    if (i % 2) a = static_cast<T>(0.5 + static_cast<double>(generator() % 1000000) * 2e-6);
    // an exponent that uses the whole range of results, or a small whole one
    const double u = static_cast<double>(generator() % 2000001) * 1e-6 - 1;
    b = i % 3 == 0 ? static_cast<T>(static_cast<int>(generator() % 41) - 20)
                   : static_cast<T>(u * reach / std::abs(std::log(std::abs(static_cast<double>(a)))));
    x.push_back(a);
    y.push_back(b);
  }
  const std::vector<T> z = evaluate(Op::Pow, x, &y);
  Worst w;
  for (size_t i = 0; i < x.size(); ++i) {
    const double e = ulps(z[i], std::pow(static_cast<long double>(x[i]), static_cast<long double>(y[i])));
    if (e > w.error) w = {e, x[i]};
    EXPECT_LE(e, 2) << "pow(" << x[i] << ", " << y[i] << ") = " << z[i];
    if (::testing::Test::HasFailure()) break;
  }
  return w;
}

TEST(Math, PowErrorsInUlp) {
  const Worst w32 = worst_power<float>(1 << 20), w64 = worst_power<double>(1 << 18);
  std::printf("| pow | %.3f | %.9g | %.3f | %.17g |\n", w32.error, w32.at, w64.error, w64.at);
  EXPECT_LE(w32.error, 0.51);
  EXPECT_LE(w64.error, 1.25);
}

}  // namespace
}  // namespace trainc::emit::test
