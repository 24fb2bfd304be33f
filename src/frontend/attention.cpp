// The CPU's fused attention (_scaled_dot_product_flash_attention_for_cpu), put together from contractions and a softmax:
// the schedule finds the pattern again, as it does for a model that writes its own.
// q: [B, H, L, E]; k, v: [B, G, S, E], H a multiple of G (grouped queries). logsumexp: [B, H, L].
#include <cmath>

#include "frontend/table.h"

namespace trainc::frontend {
namespace {

struct Attention {
  const Call& c;
  DType d;
  int64_t batch, heads, groups, rows, columns, width;
  double scale;
  bool causal;
  Arg mask;

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
  Value transposed(Value x) const { return permute(x, {0, 2, 1}); }

  /// scale q k^T, with what may not be seen at -inf: [B H, L, S]
  Value scores(Value q, Value k) const {
    Value s = matmul(batched(q), transposed(spread(k))) * scale;
    if (!mask.none()) {
      Value m = mask.tensor();
      const Dims full{batch, heads, rows, columns};
      s = reshape(s, full);
      s = m.dtype() == DType::Bool ? where(m, s, -INFINITY) : s + cast(m, d);
      s = reshape(s, {batch * heads, rows, columns});
    }
    if (causal) {
      const Dims square{1, rows, columns};
      s = where(iota(c.b, square, 2) <= iota(c.b, square, 1), s, -INFINITY);
    }
    return s;
  }
};

/// Nothing where this form is not compiled. `at`: the place of query.
std::optional<Attention> attention_of(const Call& c, int at, int dropout_at) {
  Value q = c.arg(at, "query").tensor(), k = c.arg(at + 1, "key").tensor();
  if (c.arg(dropout_at, "dropout_p").number(0) != 0 || q.rank() != 4 || q.numel() == 0 || k.numel() == 0) return std::nullopt;
  return Attention{c, compute_dtype(q.dtype()), q.size(0), q.size(1), k.size(1), q.size(2), k.size(2), q.size(3),
                   c.arg(dropout_at + 3, "scale").number(1 / std::sqrt(static_cast<double>(q.size(3)))),
                   c.arg(dropout_at + 1, "is_causal").flag(false), c.arg(dropout_at + 2, "attn_mask")};
}

/// Rows that see nothing give 0 and a logsumexp of -inf, as eager.
Outcome forward(const Call& c) {
  auto a = attention_of(c, 0, 3);
  if (!a) return std::nullopt;
  Value q = c.arg(0, "query").as(a->d), k = c.arg(1, "key").as(a->d), v = c.arg(2, "value").as(a->d);
  Value s = a->scores(q, k), m = amax(s, {2});
  Value e = exp(s - where(m == -INFINITY, 0, m)), total = sum(e, {2});
  total = where(total == 0, 1, total);
  return Results{c.give(reshape(matmul(e / total, a->spread(v)), c.type().shape)),
                 c.give(reshape(m + log(total), c.type(1).shape), 1)};
}

Outcome backward(const Call& c) {
  auto a = attention_of(c, 1, 6);
  if (!a) return std::nullopt;
  auto in = [&](int at, const char* name) { return c.arg(at, name).as(a->d); };
  Value q = in(1, "query"), k = in(2, "key"), v = in(3, "value");
  Value dy = a->batched(in(0, "grad_out")), y = a->batched(in(4, "out"));
  Value lse = reshape(in(5, "logsumexp"), {a->batch * a->heads, a->rows, 1});
  Value p = where(lse == -INFINITY, 0, exp(a->scores(q, k) - lse));
  Value dp = matmul(dy, a->transposed(a->spread(v)));
  Value ds = p * (dp - sum(dy * y, {2})) * a->scale;
  Value dq = matmul(ds, a->spread(k)), dk = matmul(a->transposed(ds), a->batched(q)), dv = matmul(a->transposed(p), dy);
  return Results{c.give(reshape(dq, c.type(0).shape), 0), c.give(a->gathered(dk), 1), c.give(a->gathered(dv), 2)};
}

}  // namespace

void add_attention(Table& t) {
  t.add({"aten._scaled_dot_product_flash_attention_for_cpu.default"}, forward);
  t.add({"aten._scaled_dot_product_flash_attention_for_cpu_backward.default"}, backward);
}

}  // namespace trainc::frontend
