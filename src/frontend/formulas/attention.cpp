#include "frontend/formulas/attention.h"

#include <cmath>

namespace trainc::formulas {
namespace {

/// The sizes, and heads as the batch of a contraction.
struct Heads {
  int64_t batch, heads, groups, rows, columns;
  Heads(Value q, Value k)
      : batch(q.size(0)), heads(q.size(1)), groups(k.size(1)), rows(q.size(2)), columns(k.size(2)) {}

  Value batched(Value x) const { return reshape(x, {batch * heads, x.size(2), x.size(3)}); }
  /// k or v, each head beside its queries: [B, G, S, E] -> [B H, S, E]
  Value spread(Value x) const {
    if (groups == heads) return batched(x);
    const int64_t s = x.size(2), e = x.size(3);
    x = broadcast(reshape(x, {batch, groups, 1, s, e}), {batch, groups, heads / groups, s, e});
    return reshape(x, {batch * heads, s, e});
  }
  /// The backward of spread.
  Value gathered(Value x) const {
    const int64_t s = x.size(1), e = x.size(2);
    if (groups == heads) return reshape(x, {batch, heads, s, e});
    return sum(reshape(x, {batch, groups, heads / groups, s, e}), {2}, false);
  }

  /// scale q k^T, with what may not be seen at -inf: [B H, L, S]
  Value scores(Value q, Value k, const Attention& form) const;
};

/// An operand of a product, as wide as q, k and v are.
Value operand(Value x, const Attention& form) {
  return form.rounded == DType::BF16 ? cast(cast(x, DType::BF16), x.dtype()) : x;
}

Value transposed(Value x) { return permute(x, {0, 2, 1}); }

Value Heads::scores(Value q, Value k, const Attention& form) const {
  Value s = matmul(batched(q), transposed(spread(k))) * form.scale;
  if (form.mask) {
    const Value m = *form.mask;
    s = reshape(s, {batch, heads, rows, columns});
    s = m.dtype() == DType::Bool ? where(m, s, -INFINITY) : s + cast(m, s.dtype());
    s = reshape(s, {batch * heads, rows, columns});
  }
  if (form.causal) {
    const Dims square{1, rows, columns};
    s = where(iota(*q.b, square, 2) <= iota(*q.b, square, 1), s, -INFINITY);
  }
  return s;
}

}  // namespace

AttentionResult attention(Value q, Value k, Value v, const Attention& form) {
  const Heads h(q, k);
  Value s = h.scores(q, k, form), m = amax(s, {2});
  Value e = exp(s - where(m == -INFINITY, 0, m)), total = sum(e, {2});
  total = where(total == 0, 1, total);
  // a product rounds once more than a quotient, which bf16 does not show, and takes a tenth of its time
  const Value p = form.rounded == DType::BF16 ? e * (1 / total) : e / total;
  return {matmul(operand(p, form), h.spread(v)), m, total};
}

AttentionGradients attention_backward(Value dy, Value q, Value k, Value v, Value y, Value logsumexp,
                                      const Attention& form) {
  const Heads h(q, k);
  dy = h.batched(dy), y = h.batched(y);
  const Value lse = reshape(logsumexp, {h.batch * h.heads, h.rows, 1});
  Value p = where(lse == -INFINITY, 0, exp(h.scores(q, k, form) - lse));
  Value dp = matmul(dy, transposed(h.spread(v)));
  Value ds = operand(p * (dp - sum(dy * y, {2})) * form.scale, form);
  p = operand(p, form);
  Value dq = matmul(ds, h.spread(k)), dk = matmul(transposed(ds), h.batched(q)), dv = matmul(transposed(p), dy);
  return {reshape(dq, q.shape()), h.gathered(dk), h.gathered(dv)};
}

}  // namespace trainc::formulas
