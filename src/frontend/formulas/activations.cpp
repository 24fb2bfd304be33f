#include "frontend/formulas/activations.h"

#include <numbers>

namespace trainc::formulas {
namespace {

constexpr double kSqrt1_2 = std::numbers::sqrt2 / 2;
constexpr double k2_SqrtPi = 2 * std::numbers::inv_sqrtpi;
constexpr double kTanhBeta = std::numbers::sqrt2 * k2_SqrtPi * 0.5, kKappa = 0.044715;  // of the tanh fit

}  // namespace

Value gelu(Value x) { return x * 0.5 * (1.0 + erf(x * kSqrt1_2)); }
Value gelu_backward(Value dy, Value x) {
  Value cdf = 0.5 * (1.0 + erf(x * kSqrt1_2));
  Value pdf = k2_SqrtPi * kSqrt1_2 * 0.5 * exp(x * x * -0.5);
  return dy * (cdf + x * pdf);
}
Value gelu_tanh(Value x) {
  Value inner = kTanhBeta * (x + kKappa * (x * x * x));
  return 0.5 * x * (1.0 + tanh(inner));
}
Value gelu_tanh_backward(Value dy, Value x) {
  Value square = x * x;
  Value t = tanh(kTanhBeta * (x + kKappa * (square * x)));
  Value left = 0.5 * x, right = 1.0 + t;
  Value dt = 1.0 - t * t;
  Value dinner = kTanhBeta * (1.0 + 3 * kKappa * square);
  return dy * (0.5 * right + left * dt * dinner);
}

Value relu(Value x) { return at_least(x, 0); }
Value threshold(Value x, Value bound, Value value) { return where(x <= bound, value, x); }
Value threshold_backward(Value dy, Value x, Value bound) { return where(x <= bound, 0, dy); }
Value leaky_relu(Value x, double slope) { return where(x > 0, x, x * slope); }
Value leaky_relu_backward(Value dy, Value x, Value slope) { return where(x > 0, dy, dy * slope); }
Value hardshrink(Value x, Value bound) { return where((-bound <= x) & (x <= bound), 0, x); }
Value softshrink(Value x, Value bound) {
  return where(bound < x, x - bound, where(x < -bound, x + bound, where(is_nan(x), x, 0)));
}
Value shrink_backward(Value dy, Value x, Value bound) { return where((x < -bound) | (bound < x), dy, 0); }
Value hardtanh(Value x, Value low, Value high) { return at_most(at_least(x, low), high); }
Value hardtanh_backward(Value dy, Value x, Value low, Value high) { return where((x > low) & (x < high), dy, 0); }
Value hardswish(Value x) { return x * min(max(x + 3, 0), 6) / 6; }
Value hardswish_backward(Value dy, Value x) { return where(x <= -3, 0, where(x >= 3, dy, dy * (x / 3 + 0.5))); }
Value hardsigmoid(Value x) { return min(max(x + 3, 0), 6) / 6; }
Value hardsigmoid_backward(Value dy, Value x) {
  return where((x > -3) & (x < 3), dy * (1.0f / 6), 0);  // PyTorch's sixth is a float for doubles, too
}

Value elu(Value x, const Elu& e) { return where(x < 0, expm1(x * e.input_scale) * (e.alpha * e.scale), x * e.scale); }
Value elu_backward(Value dy, Value x, const Elu& e) {
  Value below = dy * (e.input_scale * e.alpha * e.scale) * exp(x * e.input_scale);
  return where(x > 0, dy * e.scale, below);  // NaN is below
}
Value elu_backward_of_result(Value dy, Value y, const Elu& e) {
  Value below = dy * e.input_scale * (y + e.alpha * e.scale);
  return where(y > 0, dy * e.scale, below);
}
Value softplus(Value x, double beta, double threshold) {
  Value z = x * beta;
  return where(z > threshold, x, log1p(exp(z)) / beta);
}
Value softplus_backward(Value dy, Value x, Value beta, Value threshold) {
  Value z = x * beta;
  return where(z > threshold, dy, dy * exp(z) / (exp(z) + 1));
}
Value silu(Value x) { return x / (1.0 + exp(-x)); }
Value silu_backward(Value dy, Value x) {
  Value s = sigmoid(x);
  return dy * s * (1.0 + x * (1.0 - s));
}
Value mish(Value x) { return x * tanh(log1p(exp(x))); }
Value mish_backward(Value dy, Value x) {
  Value t = tanh(log1p(exp(x)));
  return dy * (t + x * sigmoid(x) * (1.0 - t * t));
}
Value log_sigmoid(Value x, Value z) { return min(x, 0) - log1p(z); }
Value log_sigmoid_backward(Value dy, Value x, Value z) {
  Value part = z / (1.0 + z);
  return where(x < 0, 1.0 - part, part) * dy;
}
Value sigmoid_backward(Value dy, Value y) { return dy * (1.0 - y) * y; }
Value tanh_backward(Value dy, Value y) { return dy * (1.0 - y * y); }

}  // namespace trainc::formulas
