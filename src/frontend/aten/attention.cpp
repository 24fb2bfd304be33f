// The CPU's fused attention (_scaled_dot_product_flash_attention_for_cpu). logsumexp: [B, H, L].
#include "frontend/formulas/attention.h"

#include <cmath>

#include "frontend/aten/table.h"

namespace trainc::frontend::aten {
namespace {

/// Nothing where this form is not compiled. `at`: the place of query.
std::optional<formulas::Attention> attention_of(const Call& c, int at, int dropout_at) {
  Value q = c.arg(at, "query").tensor(), k = c.arg(at + 1, "key").tensor();
  if (c.arg(dropout_at, "dropout_p").number(0) != 0 || q.rank() != 4 || q.numel() == 0 || k.numel() == 0)
    return std::nullopt;
  const Arg mask = c.arg(dropout_at + 2, "attn_mask");
  return formulas::Attention{c.arg(dropout_at + 3, "scale").number(1 / std::sqrt(static_cast<double>(q.size(3)))),
                             c.arg(dropout_at + 1, "is_causal").flag(false),
                             mask.none() ? std::nullopt : std::optional(mask.tensor()), q.dtype()};
}

Outcome forward(const Call& c) {
  const auto form = attention_of(c, 0, 3);
  if (!form) return std::nullopt;
  const DType d = compute_dtype(c.arg(0, "query").tensor().dtype());
  Value q = c.arg(0, "query").as(d), k = c.arg(1, "key").as(d), v = c.arg(2, "value").as(d);
  const formulas::AttentionResult y = formulas::attention(q, k, v, *form);
  return Results{c.give(reshape(y.value, c.type().shape)), c.give(reshape(y.logsumexp(), c.type(1).shape), 1)};
}

Outcome backward(const Call& c) {
  const auto form = attention_of(c, 1, 6);
  if (!form) return std::nullopt;
  const DType d = compute_dtype(c.arg(1, "query").tensor().dtype());
  auto in = [&](int at, const char* name) { return c.arg(at, name).as(d); };
  Value q = in(1, "query"), k = in(2, "key"), v = in(3, "value"), dy = in(0, "grad_out"), y = in(4, "out");
  // PyTorch 2.11 says that its logsumexp is of f32, which f64's kernel does not keep to: one rounded to f32 is made
  // anew.
  const bool rounded = d == DType::F64 && c.arg(5, "logsumexp").tensor().dtype() != d;
  const Value logsumexp = rounded ? formulas::attention(q, k, v, *form).logsumexp() : in(5, "logsumexp");
  const formulas::AttentionGradients g = formulas::attention_backward(dy, q, k, v, y, logsumexp, *form);
  return Results{c.give(g.q, 0), c.give(g.k, 1), c.give(g.v, 2)};
}

}  // namespace

void add_attention(Table& t) {
  t.add({"aten._scaled_dot_product_flash_attention_for_cpu.default"}, forward);
  t.add({"aten._scaled_dot_product_flash_attention_for_cpu_backward.default"}, backward);
}

}  // namespace trainc::frontend::aten
