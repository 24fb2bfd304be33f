// Losses and their backwards.
#include "frontend/formulas/losses.h"

#include "frontend/aten/table.h"
#include "support/rounding.h"

namespace trainc::frontend::aten {
namespace {

namespace f = formulas;
using f::Reduction;

/// ATen's number: 0 none, 1 mean (where none is given), 2 sum.
Reduction reduction_of(const Call& c, int at) { return static_cast<Reduction>(c.arg(at, "reduction").integer(1)); }

// --- negative log-likelihood
/// `at`: place of target; self is before it, weight after.
f::Classes classes_of(const Call& c, int at, DType d) {
  Value target = c.arg(at, "target").as(DType::I64);
  return f::classes_of(c.arg(at - 1, "self").tensor().shape(), target, c.arg(at + 3, "ignore_index").integer(),
                       c.optional(at + 1, "weight", d));
}

Outcome nll_loss(const Call& c) {
  Value x = c.in(0, "self");
  if (x.numel() == 0) return std::nullopt;
  const f::Classes k = classes_of(c, 1, x.dtype());
  Value loss = f::nll_loss(x, k);
  const Reduction reduction = reduction_of(c, 3);
  if (reduction == Reduction::None)
    return Results{c.give(reshape(loss, c.type().shape)), c.give(c.full({}, c.type(1).dtype, 0), 1)};
  Value total = f::reduced(loss, Reduction::Sum), weight = f::nll_total_weight(x, k);
  return Results{c.give(reduction == Reduction::Mean ? total / weight : total), c.give(weight, 1)};
}

Outcome nll_loss_backward(const Call& c) {
  const DType d = c.compute();
  Value dy = c.arg(0, "grad_output").as(d), x = c.arg(1, "self").tensor();
  const Reduction reduction = reduction_of(c, 4);
  if (x.numel() == 0) return std::nullopt;
  const f::Classes k = classes_of(c, 2, d);
  if (reduction == Reduction::Mean) dy = dy / c.arg(6, "total_weight").as(d);
  if (reduction == Reduction::None) dy = reshape(dy, k.target.shape());
  return c.give(f::nll_loss_backward(dy, x.shape(), k));
}

// --- regression
Outcome mse_loss(const Call& c) {
  return c.give(f::reduced(f::mse_loss(c.in(0, "self"), c.in(1, "target")), reduction_of(c, 2)));
}
Outcome mse_loss_backward(const Call& c) {
  Value x = c.in(1, "self"), t = c.in(2, "target"), dy = c.in(0, "grad_output");
  return c.give(f::mse_loss_backward(dy, x, t, f::share_of(c.type().numel(), reduction_of(c, 3))));
}

using Loss = Value (*)(Value x, Value t, double bound);
Handler loss_within(Loss loss, const char* name) {
  return [=](const Call& c) -> Outcome {
    return c.give(f::reduced(loss(c.in(0, "self"), c.in(1, "target"), c.arg(3, name).number(1)), reduction_of(c, 2)));
  };
}
using LossBackward = Value (*)(Value dy, Value x, Value t, double bound, double share);
Handler loss_within_backward(LossBackward backward, const char* name) {
  return [=](const Call& c) -> Outcome {
    Value x = c.in(1, "self"), t = c.in(2, "target"), dy = c.in(0, "grad_output");
    return c.give(backward(dy, x, t, c.arg(4, name).number(), f::share_of(c.type().numel(), reduction_of(c, 3))));
  };
}

// --- binary cross-entropy
Outcome bce(const Call& c) {
  Value loss = f::binary_cross_entropy(c.in(0, "self"), c.in(1, "target"));
  if (!c.arg(2, "weight").none()) loss = loss * c.in(2, "weight");
  return c.give(f::reduced(loss, reduction_of(c, 3)));
}
Outcome bce_backward(const Call& c) {
  Value dy = c.in(0, "grad_output"), x = c.in(1, "self"), t = c.in(2, "target");
  // eager's is a float, of halves 0
  Value dx = f::binary_cross_entropy_backward(dy, x, t, round_to(c.dtype(), 1e-12f));
  if (!c.arg(3, "weight").none()) dx = dx * c.in(3, "weight");
  return c.give(reduction_of(c, 4) == Reduction::Mean ? dx / static_cast<double>(x.numel()) : dx);
}
Outcome bce_with_logits(const Call& c) {
  Value x = c.in(0, "self"), t = c.in(1, "target");
  Value loss = f::binary_cross_entropy_of_logits(x, t, c.optional(3, "pos_weight", c.compute()));
  if (!c.arg(2, "weight").none()) loss = loss * c.in(2, "weight");
  return c.give(f::reduced(loss, reduction_of(c, 4)));
}

}  // namespace

void add_losses(Table& t) {
  t.add({"aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default"}, nll_loss);
  t.add({"aten.nll_loss_backward.default", "aten.nll_loss2d_backward.default"}, nll_loss_backward);
  t.add({"aten.mse_loss.default"}, mse_loss);
  t.add({"aten.mse_loss_backward.default"}, mse_loss_backward);
  t.add({"aten.smooth_l1_loss.default"}, loss_within(f::smooth_l1_loss, "beta"));
  t.add({"aten.smooth_l1_loss_backward.default"}, loss_within_backward(f::smooth_l1_loss_backward, "beta"));
  t.add({"aten.huber_loss.default"}, loss_within(f::huber_loss, "delta"));
  t.add({"aten.huber_loss_backward.default"}, loss_within_backward(f::huber_loss_backward, "delta"));
  t.add({"aten.binary_cross_entropy.default"}, bce);
  t.add({"aten.binary_cross_entropy_backward.default"}, bce_backward);
  t.add({"aten.binary_cross_entropy_with_logits.default"}, bce_with_logits);
}

}  // namespace trainc::frontend::aten
