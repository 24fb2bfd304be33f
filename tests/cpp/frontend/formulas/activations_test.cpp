// Activations: each against its closed form in f64, its derivative against differences, its dtype, and what is not
// finite.
#include "frontend/formulas/activations.h"

#include "harness.h"

namespace trainc::formulas {
namespace {

constexpr double kInf = INFINITY;
double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

struct Activation {
  const char* name;
  std::function<Value(Value)> forward;
  std::function<Value(Value dy, Value x)> backward;
  std::function<double(double)> closed;
  double at_inf, at_minus_inf;  // NaN gives NaN
};
Value of(Value x, double v) { return number(x, v); }

const Elu kElu{.alpha = 1.5, .scale = 1.25, .input_scale = 0.5};
const std::vector<Activation> kActivations{
    {"gelu", gelu, gelu_backward, [](double x) { return x * 0.5 * std::erfc(-x / std::sqrt(2.0)); }, kInf, NAN},
    {"gelu_tanh", gelu_tanh, gelu_tanh_backward,
     [](double x) { return x * sigmoid_of(2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)); }, kInf, NAN},
    {"relu", relu, [](Value dy, Value x) { return threshold_backward(dy, x, of(x, 0)); },
     [](double x) { return std::max(x, 0.0); }, kInf, 0},
    {"threshold", [](Value x) { return threshold(x, of(x, 0.5), of(x, -2)); },
     [](Value dy, Value x) { return threshold_backward(dy, x, of(x, 0.5)); },
     [](double x) { return x <= 0.5 ? -2 : x; }, kInf, -2},
    {"leaky_relu", [](Value x) { return leaky_relu(x, 0.25); },
     [](Value dy, Value x) { return leaky_relu_backward(dy, x, of(x, 0.25)); },
     [](double x) { return x > 0 ? x : x / 4; }, kInf, -kInf},
    {"hardshrink", [](Value x) { return hardshrink(x, of(x, 0.5)); },
     [](Value dy, Value x) { return shrink_backward(dy, x, of(x, 0.5)); },
     [](double x) { return std::abs(x) > 0.5 ? x : 0; }, kInf, -kInf},
    {"softshrink", [](Value x) { return softshrink(x, of(x, 0.5)); },
     [](Value dy, Value x) { return shrink_backward(dy, x, of(x, 0.5)); },
     [](double x) { return std::copysign(std::max(std::abs(x) - 0.5, 0.0), x); }, kInf, -kInf},
    {"hardtanh", [](Value x) { return hardtanh(x, of(x, -2), of(x, 0.75)); },
     [](Value dy, Value x) { return hardtanh_backward(dy, x, of(x, -2), of(x, 0.75)); },
     [](double x) { return std::clamp(x, -2.0, 0.75); }, 0.75, -2},
    {"hardswish", hardswish, hardswish_backward, [](double x) { return x * std::clamp(x + 3, 0.0, 6.0) / 6; }, kInf,
     NAN},
    {"hardsigmoid", hardsigmoid, hardsigmoid_backward, [](double x) { return std::clamp(x + 3, 0.0, 6.0) / 6; }, 1, 0},
    {"elu", [](Value x) { return elu(x, kElu); }, [](Value dy, Value x) { return elu_backward(dy, x, kElu); },
     [](double x) { return 1.25 * (x > 0 ? x : 1.5 * std::expm1(x / 2)); }, kInf, -1.875},
    {"elu of the result", [](Value x) { return elu(x, kElu); },
     [](Value dy, Value x) { return elu_backward_of_result(dy, elu(x, kElu), kElu); },
     [](double x) { return 1.25 * (x > 0 ? x : 1.5 * std::expm1(x / 2)); }, kInf, -1.875},
    {"softplus", [](Value x) { return softplus(x, 2, 20); },
     [](Value dy, Value x) { return softplus_backward(dy, x, of(x, 2), of(x, 20)); },
     [](double x) { return 2 * x > 20 ? x : std::log1p(std::exp(2 * x)) / 2; }, kInf, 0},
    {"silu", silu, silu_backward, [](double x) { return x * sigmoid_of(x); }, kInf, NAN},
    {"mish", mish, mish_backward, [](double x) { return x * std::tanh(std::log1p(std::exp(x))); }, kInf, NAN},
    {"log_sigmoid", [](Value x) { return log_sigmoid(x, exp(-abs(x))); },
     [](Value dy, Value x) { return log_sigmoid_backward(dy, x, exp(-abs(x))); },
     [](double x) { return -std::log1p(std::exp(-x)); }, 0, -kInf},
    {"sigmoid", [](Value x) { return sigmoid(x); }, [](Value dy, Value x) { return sigmoid_backward(dy, sigmoid(x)); },
     sigmoid_of, 1, 0},
    {"tanh", [](Value x) { return tanh(x); }, [](Value dy, Value x) { return tanh_backward(dy, tanh(x)); },
     [](double x) { return std::tanh(x); }, 1, -1},
};

Formula forward_of(const Activation& a) {
  return [a](const Values& v) { return Values{a.forward(v[0])}; };
}
Formula backward_of(const Activation& a) {
  return [a](const Values& v) { return Values{a.backward(v[0], v[1])}; };
}

TEST(Activations, AreTheirClosedForms) {
  for (const Activation& a : kActivations)
    for (const Dims& shape : {Dims{}, Dims{0}, Dims{1}, Dims{3, 1, 5}, Dims{2, 0}, Dims{37}}) {
      SCOPED_TRACE(a.name);
      const Tensor x = random_tensor(shape, 1, -5, 5);
      std::vector<double> expected;
      for (double v : x.f) expected.push_back(a.closed(v));
      expect_near(numbers(forward_of(a), {x}), expected);
    }
}

TEST(Activations, TheirBackwardsAreTheirDerivatives) {
  for (const Activation& a : kActivations) {
    SCOPED_TRACE(a.name);
    expect_derivative(forward_of(a), backward_of(a), {random_tensor({41}, 2, -5, 5)}, 2e-7);
    expect_derivative(forward_of(a), backward_of(a), {random_tensor({0, 3}, 2)});
  }
}

TEST(Activations, ComputeInTheDtypeOfTheirArgument) {
  for (const Activation& a : kActivations)
    for (DType d : {DType::F64, DType::F32, DType::BF16}) {
      SCOPED_TRACE(a.name);
      const Tensor x = as_type(tensor({5}, {-2.5, -1, 0.25, 1, 3}), d);
      const Tensor y = values_of(forward_of(a), {x}, reference::Precision::Rounded).at(0);
      ASSERT_EQ(y.type.dtype, d);
      for (size_t i = 0; i < x.f.size(); ++i)
        EXPECT_TRUE(close(y.f[i], a.closed(x.f[i]),
                          d == DType::F64   ? 1e-14
                          : d == DType::F32 ? 1e-6
                                            : 4e-2))
            << y.f[i] << " of " << x.f[i];
    }
}

TEST(Activations, OfWhatIsNotFinite) {
  for (const Activation& a : kActivations) {
    SCOPED_TRACE(a.name);
    expect_near(numbers(forward_of(a), {tensor({3}, {kInf, -kInf, NAN})}), {a.at_inf, a.at_minus_inf, NAN}, 0);
  }
}

TEST(Activations, DoNotOverflow) {
  expect_near(numbers(forward_of(kActivations[15]), {tensor({2}, {-1e300, 1e300})}), {-1e300, 0}, 0);  // log_sigmoid
  expect_near(numbers([](const Values& v) { return Values{softplus(v[0], 1, 20)}; }, {tensor({2}, {1e300, -1e300})}),
              {1e300, 0}, 0);
}

}  // namespace
}  // namespace trainc::formulas
