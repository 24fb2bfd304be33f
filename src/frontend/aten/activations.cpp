// Activations and their backwards.
#include "frontend/formulas/activations.h"

#include "frontend/aten/table.h"

namespace trainc::frontend::aten {
namespace {

namespace f = formulas;

/// A formula of the first argument, or of the first two (a gradient, and what the forward took or gave).
Handler of(Value (*formula)(Value)) {
  return [formula](const Call& c) -> Outcome { return c.give(formula(c.in(0, "self"))); };
}
Handler of(Value (*formula)(Value, Value), const char* second = "self") {
  return [=](const Call& c) -> Outcome {
    Value dy = c.in(0, "grad_output"), x = c.in(1, second);
    return c.give(formula(dy, x));
  };
}

bool by_tanh(const Call& c, size_t position) { return c.arg(position, "approximate").text("none") == "tanh"; }
Outcome gelu(const Call& c) { return (by_tanh(c, 1) ? of(f::gelu_tanh) : of(f::gelu))(c); }
Outcome gelu_backward(const Call& c) { return (by_tanh(c, 2) ? of(f::gelu_tanh_backward) : of(f::gelu_backward))(c); }

/// A number that eager rounds to the dtype of the result; where it is not given, of x's.
Value rounded(const Call& c, size_t position, const char* name, Value x, double otherwise) {
  return c.arg(position, name).none() ? number(x, otherwise) : c.operand(position, name);
}

// --- piecewise linear
Outcome threshold(const Call& c) {
  if (!c.fits(1, "threshold") || !c.fits(2, "value")) return std::nullopt;
  return c.give(f::threshold(c.in(0, "self"), c.in(1, "threshold"), c.in(2, "value")));
}
Outcome threshold_backward(const Call& c) {
  return c.give(f::threshold_backward(c.in(0, "grad_output"), c.in(1, "self"), c.in(2, "threshold")));
}

Outcome leaky_relu(const Call& c) {
  return c.give(f::leaky_relu(c.in(0, "self"), c.arg(1, "negative_slope").number(0.01)));
}
Outcome leaky_relu_backward(const Call& c) {
  return c.give(f::leaky_relu_backward(c.in(0, "grad_output"), c.in(1, "self"), c.in(2, "negative_slope")));
}

Outcome hardshrink(const Call& c) {
  Value x = c.in(0, "self");
  return c.give(f::hardshrink(x, rounded(c, 1, "lambd", x, 0.5)));
}
/// Unlike hardshrink, eager leaves lambd unrounded beside bf16.
Outcome softshrink(const Call& c) {
  Value x = c.in(0, "self");
  return c.give(f::softshrink(x, c.arg(1, "lambd").none() ? number(x, 0.5) : c.in(1, "lambd")));
}
Outcome shrink_backward(const Call& c) {
  return c.give(f::shrink_backward(c.in(0, "grad_output"), c.in(1, "self"), c.operand(2, "lambd")));
}

Outcome hardtanh(const Call& c) {
  if (!c.fits(1, "min_val") || !c.fits(2, "max_val")) return std::nullopt;
  Value x = c.in(0, "self");
  return c.give(f::hardtanh(x, rounded(c, 1, "min_val", x, -1), rounded(c, 2, "max_val", x, 1)));
}
Outcome hardtanh_backward(const Call& c) {
  return c.give(f::hardtanh_backward(c.in(0, "grad_output"), c.in(1, "self"), c.in(2, "min_val"), c.in(3, "max_val")));
}

// --- smooth
/// `at`: the place of alpha.
f::Elu elu_of(const Call& c, int at) {
  return {c.arg(at, "alpha").number(1), c.arg(at + 1, "scale").number(1), c.arg(at + 2, "input_scale").number(1)};
}
Outcome elu(const Call& c) { return c.give(f::elu(c.in(0, "self"), elu_of(c, 1))); }
Outcome elu_backward(const Call& c) {
  Value dy = c.in(0, "grad_output"), x = c.in(5, "self_or_result");
  return c.give(c.arg(4, "is_result").flag(false) ? f::elu_backward_of_result(dy, x, elu_of(c, 1))
                                                  : f::elu_backward(dy, x, elu_of(c, 1)));
}

Outcome softplus(const Call& c) {
  return c.give(f::softplus(c.in(0, "self"), c.arg(1, "beta").number(1), c.arg(2, "threshold").number(20)));
}
Outcome softplus_backward(const Call& c) {
  return c.give(f::softplus_backward(c.in(0, "grad_output"), c.in(1, "self"), c.in(2, "beta"), c.in(3, "threshold")));
}

/// Eager's kernel keeps e^-|x| on the CPU: the second result, rounded to halves.
Outcome log_sigmoid(const Call& c) {
  Value x = c.in(0, "self"), z = exp(-abs(x));
  const Node* buffer = c.type(1).shape == x.shape() ? c.give(z, 1) : c.full(c.type(1).shape, c.type(1).dtype, 0).node;
  return Results{c.give(f::log_sigmoid(x, z)), buffer};
}
Outcome log_sigmoid_backward(const Call& c) {
  Value dy = c.in(0, "grad_output"), x = c.in(1, "self"), z = exp(-abs(x));
  if (c.arg(2, "buffer").tensor().shape() == x.shape()) z = cast(cast(z, c.dtype()), c.compute());
  return c.give(f::log_sigmoid_backward(dy, x, z));
}

}  // namespace

void add_activations(Table& t) {
  t.add({"aten.gelu.default"}, gelu);
  t.add({"aten.gelu_backward.default"}, gelu_backward);
  t.add({"aten.relu.default"}, of(f::relu));
  t.add({"aten.threshold.default"}, threshold);
  t.add({"aten.threshold_backward.default"}, threshold_backward);
  t.add({"aten.leaky_relu.default"}, leaky_relu);
  t.add({"aten.leaky_relu_backward.default"}, leaky_relu_backward);
  t.add({"aten.hardshrink.default"}, hardshrink);
  t.add({"aten.softshrink.default"}, softshrink);
  t.add({"aten.hardshrink_backward.default", "aten.softshrink_backward.default"}, shrink_backward);
  t.add({"aten.hardtanh.default"}, hardtanh);
  t.add({"aten.hardtanh_backward.default"}, hardtanh_backward);
  t.add({"aten.hardswish.default"}, of(f::hardswish));
  t.add({"aten.hardswish_backward.default"}, of(f::hardswish_backward));
  t.add({"aten.hardsigmoid.default"}, of(f::hardsigmoid));
  t.add({"aten.hardsigmoid_backward.default"}, of(f::hardsigmoid_backward));
  t.add({"aten.elu.default"}, elu);
  t.add({"aten.elu_backward.default"}, elu_backward);
  t.add({"aten.softplus.default"}, softplus);
  t.add({"aten.softplus_backward.default"}, softplus_backward);
  t.add({"aten.silu.default"}, of(f::silu));
  t.add({"aten.silu_backward.default"}, of(f::silu_backward));
  t.add({"aten.mish.default"}, of(f::mish));
  t.add({"aten.mish_backward.default"}, of(f::mish_backward));
  t.add({"aten.log_sigmoid_forward.default"}, log_sigmoid);
  t.add({"aten.log_sigmoid_backward.default"}, log_sigmoid_backward);
  t.add({"aten.sigmoid_backward.default"}, of(f::sigmoid_backward, "output"));
  t.add({"aten.tanh_backward.default"}, of(f::tanh_backward, "output"));
}

}  // namespace trainc::frontend::aten
