// Activations and their backwards, in the order of eager's formulas (ATen/native/cpu/Activation.cpp).
#include <numbers>

#include "frontend/table.h"

namespace trainc::frontend {
namespace {

constexpr double kSqrt1_2 = std::numbers::sqrt2 / 2;
constexpr double k2_SqrtPi = 2 * std::numbers::inv_sqrtpi;

// --- GELU: x * P(N(0,1) < x), exact by erf or by the tanh fit
constexpr double kTanhBeta = std::numbers::sqrt2 * k2_SqrtPi * 0.5, kKappa = 0.044715;

Outcome gelu(const Call& c) {
  Value x = c.in(0, "self");
  if (c.arg(1, "approximate").text("none") == "tanh") {
    Value inner = kTanhBeta * (x + kKappa * (x * x * x));
    return c.give(0.5 * x * (1.0 + tanh(inner)));
  }
  return c.give(x * 0.5 * (1.0 + erf(x * kSqrt1_2)));
}

Outcome gelu_backward(const Call& c) {
  Value dy = c.in(0, "grad_output"), x = c.in(1, "self");
  if (c.arg(2, "approximate").text("none") == "tanh") {
    Value square = x * x;
    Value t = tanh(kTanhBeta * (x + kKappa * (square * x)));
    Value left = 0.5 * x, right = 1.0 + t;
    Value dt = 1.0 - t * t;
    Value dinner = kTanhBeta * (1.0 + 3 * kKappa * square);
    return c.give(dy * (0.5 * right + left * dt * dinner));
  }
  Value cdf = 0.5 * (1.0 + erf(x * kSqrt1_2));
  Value pdf = k2_SqrtPi * kSqrt1_2 * 0.5 * exp(x * x * -0.5);
  return c.give(dy * (cdf + x * pdf));
}

// --- piecewise linear
Outcome relu(const Call& c) { return c.give(at_least(c.in(0, "self"), 0)); }

/// x <= threshold ? value : x; NaN stays.
Outcome threshold(const Call& c) {
  if (!c.fits(1, "threshold") || !c.fits(2, "value")) return std::nullopt;
  Value x = c.in(0, "self");
  return c.give(where(x <= c.in(1, "threshold"), c.in(2, "value"), x));
}
Outcome threshold_backward(const Call& c) { return c.give(where(c.in(1, "self") <= c.in(2, "threshold"), 0, c.in(0, "grad_output"))); }

Outcome leaky_relu(const Call& c) {
  Value x = c.in(0, "self");
  return c.give(where(x > 0, x, x * c.arg(1, "negative_slope").number(0.01)));
}
Outcome leaky_relu_backward(const Call& c) {
  Value dy = c.in(0, "grad_output");
  return c.give(where(c.in(1, "self") > 0, dy, dy * c.in(2, "negative_slope")));
}

/// 0 between -lambd and lambd; NaN stays.
Outcome hardshrink(const Call& c) {
  Value x = c.in(0, "self"), l = c.arg(1, "lambd").none() ? number(x, 0.5) : c.operand(1, "lambd");
  return c.give(where((-l <= x) & (x <= l), 0, x));
}

/// Unlike hardshrink, eager leaves lambd unrounded beside bf16.
Outcome softshrink(const Call& c) {
  Value x = c.in(0, "self"), l = c.arg(1, "lambd").none() ? number(x, 0.5) : c.in(1, "lambd");
  return c.give(where(l < x, x - l, where(x < -l, x + l, where(is_nan(x), x, 0))));
}

/// Of both; at NaN it is 0.
Outcome shrink_backward(const Call& c) {
  Value dy = c.in(0, "grad_output"), x = c.in(1, "self"), l = c.operand(2, "lambd");
  return c.give(where((x < -l) | (l < x), dy, 0));
}

Outcome hardtanh(const Call& c) {
  if (!c.fits(1, "min_val") || !c.fits(2, "max_val")) return std::nullopt;
  Value x = c.in(0, "self");
  const auto bound = [&](int at, const char* name, double otherwise) {
    return c.arg(at, name).none() ? number(x, otherwise) : c.operand(at, name);
  };
  return c.give(at_most(at_least(x, bound(1, "min_val", -1)), bound(2, "max_val", 1)));
}
Outcome hardtanh_backward(const Call& c) {
  Value x = c.in(1, "self");
  return c.give(where((x > c.in(2, "min_val")) & (x < c.in(3, "max_val")), c.in(0, "grad_output"), 0));
}

Outcome hardswish(const Call& c) {
  Value x = c.in(0, "self");
  return c.give(x * min(max(x + 3, 0), 6) / 6);
}
Outcome hardswish_backward(const Call& c) {
  Value dy = c.in(0, "grad_output"), x = c.in(1, "self");
  return c.give(where(x <= -3, 0, where(x >= 3, dy, dy * (x / 3 + 0.5))));
}
Outcome hardsigmoid(const Call& c) { return c.give(min(max(c.in(0, "self") + 3, 0), 6) / 6); }
Outcome hardsigmoid_backward(const Call& c) {
  Value dy = c.in(0, "grad_output"), x = c.in(1, "self");
  return c.give(where((x > -3) & (x < 3), dy * (1.0f / 6), 0));  // eager's sixth is a float for doubles, too
}

// --- smooth
Outcome elu(const Call& c) {
  Value x = c.in(0, "self");
  const double alpha = c.arg(1, "alpha").number(1), scale = c.arg(2, "scale").number(1), in = c.arg(3, "input_scale").number(1);
  return c.give(where(x < 0, expm1(x * in) * (alpha * scale), x * scale));
}
Outcome elu_backward(const Call& c) {
  Value dy = c.in(0, "grad_output"), x = c.in(5, "self_or_result");
  const double alpha = c.arg(1, "alpha").number(), scale = c.arg(2, "scale").number(), in = c.arg(3, "input_scale").number();
  Value below = c.arg(4, "is_result").flag(false) ? dy * in * (x + alpha * scale) : dy * (in * alpha * scale) * exp(x * in);
  return c.give(where(x > 0, dy * scale, below));  // NaN is below
}

/// log(1 + e^(beta x)) / beta, and x itself where beta x is above the threshold.
Outcome softplus(const Call& c) {
  Value x = c.in(0, "self");
  const double beta = c.arg(1, "beta").number(1);
  Value z = x * beta;
  return c.give(where(z > c.arg(2, "threshold").number(20), x, log1p(exp(z)) / beta));
}
Outcome softplus_backward(const Call& c) {
  Value dy = c.in(0, "grad_output"), z = c.in(1, "self") * c.in(2, "beta");
  return c.give(where(z > c.in(3, "threshold"), dy, dy * exp(z) / (exp(z) + 1)));
}

Outcome silu(const Call& c) {
  Value x = c.in(0, "self");
  return c.give(x / (1.0 + exp(-x)));
}
Outcome silu_backward(const Call& c) {
  Value dy = c.in(0, "grad_output"), x = c.in(1, "self"), s = sigmoid(x);
  return c.give(dy * s * (1.0 + x * (1.0 - s)));
}

Outcome mish(const Call& c) {
  Value x = c.in(0, "self");
  return c.give(x * tanh(log1p(exp(x))));
}
Outcome mish_backward(const Call& c) {
  Value dy = c.in(0, "grad_output"), x = c.in(1, "self"), t = tanh(log1p(exp(x)));
  return c.give(dy * (t + x * sigmoid(x) * (1.0 - t * t)));
}

/// min(0, x) - log1p(e^-|x|); eager keeps e^-|x| beside it.
Outcome log_sigmoid(const Call& c) {
  Value x = c.in(0, "self"), z = exp(-abs(x));
  const Node* buffer = c.type(1).shape == x.shape() ? c.give(z, 1) : c.full(c.type(1).shape, c.type(1).dtype, 0).node;
  return Results{c.give(min(x, 0) - log1p(z)), buffer};
}
Outcome log_sigmoid_backward(const Call& c) {
  Value dy = c.in(0, "grad_output"), x = c.in(1, "self"), z = exp(-abs(x));
  // On the CPU eager's forward has kept it, rounded to halves.
  if (c.arg(2, "buffer").tensor().shape() == x.shape()) z = cast(cast(z, c.dtype()), c.compute());
  Value part = z / (1.0 + z);
  return c.give(where(x < 0, 1.0 - part, part) * dy);
}

Outcome sigmoid_backward(const Call& c) {
  Value y = c.in(1, "output");
  return c.give(c.in(0, "grad_output") * (1.0 - y) * y);
}
Outcome tanh_backward(const Call& c) {
  Value y = c.in(1, "output");
  return c.give(c.in(0, "grad_output") * (1.0 - y * y));
}

}  // namespace

void add_activations(Table& t) {
  t.add({"aten.gelu.default"}, gelu);
  t.add({"aten.gelu_backward.default"}, gelu_backward);
  t.add({"aten.relu.default"}, relu);
  t.add({"aten.threshold.default"}, threshold);
  t.add({"aten.threshold_backward.default"}, threshold_backward);
  t.add({"aten.leaky_relu.default"}, leaky_relu);
  t.add({"aten.leaky_relu_backward.default"}, leaky_relu_backward);
  t.add({"aten.hardshrink.default"}, hardshrink);
  t.add({"aten.softshrink.default"}, softshrink);
  t.add({"aten.hardshrink_backward.default", "aten.softshrink_backward.default"}, shrink_backward);
  t.add({"aten.hardtanh.default"}, hardtanh);
  t.add({"aten.hardtanh_backward.default"}, hardtanh_backward);
  t.add({"aten.hardswish.default"}, hardswish);
  t.add({"aten.hardswish_backward.default"}, hardswish_backward);
  t.add({"aten.hardsigmoid.default"}, hardsigmoid);
  t.add({"aten.hardsigmoid_backward.default"}, hardsigmoid_backward);
  t.add({"aten.elu.default"}, elu);
  t.add({"aten.elu_backward.default"}, elu_backward);
  t.add({"aten.softplus.default"}, softplus);
  t.add({"aten.softplus_backward.default"}, softplus_backward);
  t.add({"aten.silu.default"}, silu);
  t.add({"aten.silu_backward.default"}, silu_backward);
  t.add({"aten.mish.default"}, mish);
  t.add({"aten.mish_backward.default"}, mish_backward);
  t.add({"aten.log_sigmoid_forward.default"}, log_sigmoid);
  t.add({"aten.log_sigmoid_backward.default"}, log_sigmoid_backward);
  t.add({"aten.sigmoid_backward.default"}, sigmoid_backward);
  t.add({"aten.tanh_backward.default"}, tanh_backward);
}

}  // namespace trainc::frontend
