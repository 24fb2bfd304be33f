#include "frontend/formulas/losses.h"

#include "frontend/formulas/shapes.h"
#include "frontend/formulas/softmax.h"

namespace trainc::formulas {

Value reduced(Value loss, Reduction reduction) {
  if (reduction == Reduction::None) return loss;
  Value total = sum(loss, all_axes(loss.rank()), false);
  return reduction == Reduction::Mean ? total / static_cast<double>(loss.numel()) : total;
}
double share_of(int64_t elements, Reduction reduction) {
  return reduction == Reduction::Mean ? 1.0 / static_cast<double>(elements) : 1.0;
}

Classes classes_of(const Dims& x, Value target, int64_t ignored, std::optional<Value> weight) {
  Classes k{};
  k.axis = x.size() == 1 ? 0 : 1;
  Dims one = x;
  one[k.axis] = 1;
  target = reshape(target, one);
  k.counted = target != with(target, target.b->constant_int(DType::I64, ignored));
  k.target = where(k.counted, target, 0);
  if (weight) {
    Value w = with(*weight, weight->b->gather(weight->node, reshape(k.target, {target.numel()}).node, 0));
    k.weight = where(k.counted, reshape(w, one), 0);
  }
  return k;
}

Value nll_loss(Value x, const Classes& k) {
  Value picked = with(x, x.b->gather(x.node, k.target.node, k.axis, Failure::Target));
  return where(k.counted, -(k.weight ? picked * *k.weight : picked), 0);
}
Value nll_total_weight(Value x, const Classes& k) {
  return sum(k.weight ? *k.weight : cast(k.counted, x.dtype()), all_axes(x.rank()), false);
}
Value nll_loss_backward(Value dy, const Dims& x, const Classes& k) {
  Value g = k.weight ? -dy * *k.weight : -dy;
  return where((iota(*dy.b, x, k.axis) == k.target) & k.counted, g, 0);
}
Value cross_entropy(Value logits, const Classes& k) { return nll_loss(log_softmax(logits, {k.axis}), k); }

Value mse_loss(Value x, Value t) {
  Value d = x - t;
  return d * d;
}
Value mse_loss_backward(Value dy, Value x, Value t, double share) {
  Value d = x - t;
  return 2 * share * d * dy;
}
Value smooth_l1_loss(Value x, Value t, double beta) {
  Value z = abs(x - t);
  return beta == 0 ? z : where(z < beta, 0.5 * z * z / beta, z - 0.5 * beta);
}
Value smooth_l1_loss_backward(Value dy, Value x, Value t, double beta, double share) {
  Value d = x - t;
  Value outside = where(d > 0, number(d, 1), number(d, -1));  // -1 at 0, too: there where beta is 0
  return share * (beta == 0 ? where(is_nan(d), d, outside) : where(abs(d) >= beta, outside, d / beta)) * dy;
}
Value huber_loss(Value x, Value t, double delta) {
  Value z = abs(x - t);
  return where(z < delta, 0.5 * z * z, delta * (z - 0.5 * delta));
}
Value huber_loss_backward(Value dy, Value x, Value t, double delta, double share) {
  Value d = x - t;
  return where(d <= -delta, -share * dy * delta, where(d >= delta, share * dy * delta, share * d * dy));
}

Value binary_cross_entropy(Value x, Value t) {
  const auto within = [](Value p, Failure failure) { return checked(p, (p >= 0) & (p <= 1), failure); };  // NaN is not
  x = within(x, Failure::Probability);
  t = within(t, Failure::Likelihood);
  return (t - 1) * max(log1p(-x), -100) - t * max(log(x), -100);
}
Value binary_cross_entropy_backward(Value dy, Value x, Value t, double least) {
  return dy * (x - t) / max((1.0 - x) * x, least);
}
Value binary_cross_entropy_of_logits(Value x, Value t, std::optional<Value> positive) {
  Value log_sigmoid = min(x, 0) - log1p(exp(-abs(x)));
  if (positive) log_sigmoid = ((*positive - 1) * t + 1) * log_sigmoid;
  return (1.0 - t) * x - log_sigmoid;
}

}  // namespace trainc::formulas
