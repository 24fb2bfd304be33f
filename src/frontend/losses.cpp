// Losses and their backwards. reduction: 0 none, 1 mean, 2 sum.
#include "frontend/table.h"
#include "support/rounding.h"

namespace trainc::frontend {
namespace {

enum Reduction : int64_t { None, Mean, Sum };

const Node* reduced(const Call& c, Value loss, int64_t reduction) {
  if (reduction == None) return c.give(loss);
  Value total = sum(loss, all_axes(loss.rank()), false);
  return c.give(reduction == Mean ? total / static_cast<double>(loss.numel()) : total);
}

/// What a backward multiplies by, besides the gradient: 1/n for the mean.
double share(Value x, int64_t reduction) { return reduction == Mean ? 1.0 / static_cast<double>(x.numel()) : 1.0; }

// --- negative log-likelihood; the classes are axis 1, or axis 0 of a single sample
struct Classes {
  Value target;   // i64, the shape of self with 1 for the classes
  Value counted;  // bool, the same: not ignore_index
  std::optional<Value> weight;  // the target's class weight, 0 where ignored
  int64_t axis;
};

/// `at`: place of target; self is before it, weight after.
Classes classes_of(const Call& c, int at, DType d) {
  Value x = c.arg(at - 1, "self").tensor();
  Classes k;
  k.axis = x.rank() == 1 ? 0 : 1;
  Dims one = x.shape();
  one[k.axis] = 1;
  Value target = reshape(c.arg(at, "target").as(DType::I64), one);
  k.counted = target != with(target, c.b.constant_int(DType::I64, c.arg(at + 3, "ignore_index").integer()));
  k.target = where(k.counted, target, 0);
  if (const Arg weight = c.arg(at + 1, "weight"); !weight.none()) {
    Value table = weight.as(d);
    Value w = with(table, c.b.gather(table.node, reshape(k.target, {target.numel()}).node, 0));
    k.weight = where(k.counted, reshape(w, one), 0);
  }
  return k;
}

Outcome nll_loss(const Call& c) {
  Value x = c.in(0, "self");
  const int64_t reduction = c.arg(3, "reduction").integer();
  if (x.numel() == 0) return std::nullopt;
  Classes k = classes_of(c, 1, x.dtype());
  Value picked = with(x, c.b.gather(x.node, k.target.node, k.axis, Failure::Target));
  Value loss = where(k.counted, -(k.weight ? picked * *k.weight : picked), 0);
  if (reduction == None) return Results{c.give(reshape(loss, c.type().shape)), c.give(c.full({}, c.type(1).dtype, 0), 1)};
  const Dims all = all_axes(x.rank());
  Value total = sum(loss, all, false);
  Value weight = sum(k.weight ? *k.weight : cast(k.counted, x.dtype()), all, false);
  return Results{c.give(reduction == Mean ? total / weight : total), c.give(weight, 1)};
}

/// One value per sample, in the place of its class: a comparison with the class number, not a scatter, so that it fuses.
Outcome nll_loss_backward(const Call& c) {
  const DType d = c.compute();
  Value dy = c.arg(0, "grad_output").as(d), x = c.arg(1, "self").tensor();
  const int64_t reduction = c.arg(4, "reduction").integer();
  if (x.numel() == 0) return std::nullopt;
  Classes k = classes_of(c, 2, d);
  if (reduction == Mean) dy = dy / c.arg(6, "total_weight").as(d);
  if (reduction == None) dy = reshape(dy, k.target.shape());
  Value g = k.weight ? -dy * *k.weight : -dy;
  return c.give(where((iota(c.b, x.shape(), k.axis) == k.target) & k.counted, g, 0));
}

// --- regression
Outcome mse_loss(const Call& c) {
  Value d = c.in(0, "self") - c.in(1, "target");
  return reduced(c, d * d, c.arg(2, "reduction").integer(Mean));
}
Outcome mse_loss_backward(const Call& c) {
  Value d = c.in(1, "self") - c.in(2, "target");
  return c.give(2 * share(d, c.arg(3, "reduction").integer()) * d * c.in(0, "grad_output"));
}

Outcome smooth_l1_loss(const Call& c) {
  Value z = abs(c.in(0, "self") - c.in(1, "target"));
  const double beta = c.arg(3, "beta").number(1);
  return reduced(c, beta == 0 ? z : where(z < beta, 0.5 * z * z / beta, z - 0.5 * beta), c.arg(2, "reduction").integer(Mean));
}
Outcome smooth_l1_loss_backward(const Call& c) {
  Value d = c.in(1, "self") - c.in(2, "target"), dy = c.in(0, "grad_output");
  const double beta = c.arg(4, "beta").number(), norm = share(d, c.arg(3, "reduction").integer());
  Value outside = where(d > 0, number(d, 1), number(d, -1));  // -1 at 0, too: there where beta is 0
  return c.give(norm * (beta == 0 ? where(is_nan(d), d, outside) : where(abs(d) >= beta, outside, d / beta)) * dy);
}

Outcome huber_loss(const Call& c) {
  Value z = abs(c.in(0, "self") - c.in(1, "target"));
  const double delta = c.arg(3, "delta").number(1);
  return reduced(c, where(z < delta, 0.5 * z * z, delta * (z - 0.5 * delta)), c.arg(2, "reduction").integer(Mean));
}
Outcome huber_loss_backward(const Call& c) {
  Value d = c.in(1, "self") - c.in(2, "target"), dy = c.in(0, "grad_output");
  const double delta = c.arg(4, "delta").number(), norm = share(d, c.arg(3, "reduction").integer());
  return c.give(where(d <= -delta, -norm * dy * delta, where(d >= delta, norm * dy * delta, norm * d * dy)));
}

// --- binary cross-entropy; the logarithms are not let below -100
Outcome bce(const Call& c) {
  Value x = c.in(0, "self"), t = c.in(1, "target");
  const auto within = [](Value p, Failure failure) { return checked(p, (p >= 0) & (p <= 1), failure); };  // NaN is not
  x = within(x, Failure::Probability);
  t = within(t, Failure::Likelihood);
  Value loss = (t - 1) * max(log1p(-x), -100) - t * max(log(x), -100);
  if (!c.arg(2, "weight").none()) loss = loss * c.in(2, "weight");
  return reduced(c, loss, c.arg(3, "reduction").integer(Mean));
}
Outcome bce_backward(const Call& c) {
  Value dy = c.in(0, "grad_output"), x = c.in(1, "self"), t = c.in(2, "target");
  Value dx = dy * (x - t) / max((1.0 - x) * x, round_to(c.dtype(), 1e-12f));  // a float, of halves 0
  if (!c.arg(3, "weight").none()) dx = dx * c.in(3, "weight");
  const int64_t reduction = c.arg(4, "reduction").integer(Mean);
  return c.give(reduction == Mean ? dx / static_cast<double>(x.numel()) : dx);
}

/// (1 - t) x - w log(sigmoid(x)), w = (pos_weight - 1) t + 1
Outcome bce_with_logits(const Call& c) {
  Value x = c.in(0, "self"), t = c.in(1, "target");
  Value log_sigmoid = min(x, 0) - log1p(exp(-abs(x)));
  if (!c.arg(3, "pos_weight").none()) log_sigmoid = ((c.in(3, "pos_weight") - 1) * t + 1) * log_sigmoid;
  Value loss = (1.0 - t) * x - log_sigmoid;
  if (!c.arg(2, "weight").none()) loss = loss * c.in(2, "weight");
  return reduced(c, loss, c.arg(4, "reduction").integer(Mean));
}

}  // namespace

void add_losses(Table& t) {
  t.add({"aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default"}, nll_loss);
  t.add({"aten.nll_loss_backward.default", "aten.nll_loss2d_backward.default"}, nll_loss_backward);
  t.add({"aten.mse_loss.default"}, mse_loss);
  t.add({"aten.mse_loss_backward.default"}, mse_loss_backward);
  t.add({"aten.smooth_l1_loss.default"}, smooth_l1_loss);
  t.add({"aten.smooth_l1_loss_backward.default"}, smooth_l1_loss_backward);
  t.add({"aten.huber_loss.default"}, huber_loss);
  t.add({"aten.huber_loss_backward.default"}, huber_loss_backward);
  t.add({"aten.binary_cross_entropy.default"}, bce);
  t.add({"aten.binary_cross_entropy_backward.default"}, bce_backward);
  t.add({"aten.binary_cross_entropy_with_logits.default"}, bce_with_logits);
}

}  // namespace trainc::frontend
