// Losses, element by element, and their derivatives; the caller takes the mean or the sum (`reduced`). Floats, computed
// in their dtype. x: what the model gives, t: the target, of the same shape or broadcast. `share`: what the mean
// divides by, as a factor (`share_of`).
#pragma once
#include <optional>

#include "frontend/formulas/value.h"

namespace trainc::formulas {

enum class Reduction { None, Mean, Sum };
/// loss, or its mean or sum over all axes: a scalar then.
Value reduced(Value loss, Reduction);
/// What the derivative of `reduced` multiplies by beside the gradient: 1/n for the mean.
double share_of(int64_t elements, Reduction);

// --- negative log-likelihood of classes
/// Targets beside log-probabilities x: [N, C, ...] or [C]. All have x's shape with 1 for the classes.
struct Classes {
  int64_t axis;                 // of the classes: 1, or 0 of a single sample
  Value target;                 // i64; 0 where it does not count
  Value counted;                // bool: the target is not `ignored`
  std::optional<Value> weight;  // of the target's class, 0 where it does not count
};
/// target: i64, [N, ...] or []; weight: [C], of the dtype to compute in.
Classes classes_of(const Dims& x, Value target, int64_t ignored, std::optional<Value> weight);
/// -x at the target times its weight, 0 where it does not count. A target that is no class fails when it runs.
Value nll_loss(Value x, const Classes&);
/// What the mean divides by: the weights that count, summed: a scalar.
Value nll_total_weight(Value x, const Classes&);
/// d loss / d x, of x's shape, for dy that broadcasts against Classes::target. A comparison with the class's number,
/// not a scatter: it fuses.
Value nll_loss_backward(Value dy, const Dims& x, const Classes&);
/// Cross-entropy of logits: nll_loss of log_softmax over the classes.
Value cross_entropy(Value logits, const Classes&);

// --- regression
/// (x - t)^2
Value mse_loss(Value x, Value t);
Value mse_loss_backward(Value dy, Value x, Value t, double share);
/// z^2 / (2 beta) where z = |x - t| is below beta, z - beta / 2 above; beta 0: z.
Value smooth_l1_loss(Value x, Value t, double beta);
Value smooth_l1_loss_backward(Value dy, Value x, Value t, double beta, double share);
/// z^2 / 2 below delta, delta (z - delta / 2) above.
Value huber_loss(Value x, Value t, double delta);
Value huber_loss_backward(Value dy, Value x, Value t, double delta, double share);

// --- binary cross-entropy
/// -(t log x + (1 - t) log(1 - x)), x and t in [0, 1]: anything else fails when it runs. Logarithms are not let below
/// -100.
Value binary_cross_entropy(Value x, Value t);
/// `least`: what the divisor (1 - x) x is not let below.
Value binary_cross_entropy_backward(Value dy, Value x, Value t, double least);
/// (1 - t) x - w log(sigmoid(x)), w = (positive - 1) t + 1; `positive`: the weight of t = 1.
Value binary_cross_entropy_of_logits(Value x, Value t, std::optional<Value> positive);

}  // namespace trainc::formulas
