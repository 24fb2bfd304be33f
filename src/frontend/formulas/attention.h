// Scaled dot-product attention, put together from contractions and a softmax: the schedule finds the pattern again, as
// it does for a model that writes its own. q: [B, H, L, E]; k, v: [B, G, S, E], H a multiple of G (grouped queries).
// Floats, computed in their dtype; no size is 0.
#pragma once
#include <optional>

#include "frontend/formulas/value.h"

namespace trainc::formulas {

struct Attention {
  double scale;         // usually 1 / sqrt(E)
  bool causal = false;  // row i sees the columns up to i
  // broadcast to [B, H, L, S]: bool, true where a row sees a column; or a number added to the score
  std::optional<Value> mask = {};
  // What q, k and v were rounded to. Of bf16, the probabilities, and the gradient of the scores, are rounded so as well
  // before they are multiplied: products of bf16 run at twice f32's rate.
  DType rounded = DType::F32;
};
/// Rows that see nothing give 0 and a logsumexp of -inf.
struct AttentionResult {
  Value value;       // [B H, L, E]
  Value max, total;  // [B H, L, 1], of the scores: the largest, and the sum of e^(score - max), 1 where that is 0
  Value logsumexp() const { return max + log(total); }  // what the backward needs
};
AttentionResult attention(Value q, Value k, Value v, const Attention&);

/// `y`: the forward's value, of q's shape; logsumexp: of B H L elements. Forward and backward make the same score
/// nodes, so that keeping or recomputing them is the schedule's choice.
struct AttentionGradients { Value q, k, v; };  // of their shapes
AttentionGradients attention_backward(Value dy, Value q, Value k, Value v, Value y, Value logsumexp, const Attention&);

}  // namespace trainc::formulas
