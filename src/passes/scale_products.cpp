#include "passes/scale_products.h"

#include <cmath>
#include <optional>

#include "cost/rewriting.h"
#include "passes/rewrite.h"
#include "passes/values.h"

namespace trainc {
namespace {

using N = const Node*;

/// The factor, where `n` multiplies by one: a number that is not 0, and finite.
std::optional<double> factor_of(N n, int which) {
  const N number = n->op == Op::Mul && n->dtype() == DType::F32 ? uniform_constant(n->in(which)) : nullptr;
  if (!number) return std::nullopt;
  const double factor = float_of(number);
  return std::isfinite(factor) && factor != 0 ? std::optional(factor) : std::nullopt;
}

/// Movements that only say where an element lies: no zeros come in, and there are no more elements than before.
bool keeps_elements(Op op) { return op == Op::Reshape || op == Op::Permute || op == Op::Slice; }

/// What all numbers over a cast of bf16 make together; none where it is something else.
std::optional<double> scale_of(N n) {
  double scale = 1;
  for (;;) {
    if (n->op == Op::Cast) {
      const bool of_bf16 = n->dtype() == DType::F32 && n->in(0)->dtype() == DType::BF16;
      return of_bf16 ? std::optional(scale) : std::nullopt;
    }
    if (keeps_elements(n->op)) {
      n = n->in(0);
    } else if (const auto factor = factor_of(n, 1)) {
      scale *= *factor, n = n->in(0);
    } else if (const auto other = factor_of(n, 0)) {
      scale *= *other, n = n->in(1);
    } else {
      return std::nullopt;
    }
  }
}

/// Whether a sum that is scaled by this much afterwards has the range of one whose terms are.
bool is_near(double scale) {
  return std::abs(scale) <= cost::kFarthestScale && std::abs(scale) >= 1 / cost::kFarthestScale;
}

/// `n`, which has a scale, without it.
N unscaled(Builder& b, N n) {
  if (n->op == Op::Cast) return n;
  if (keeps_elements(n->op)) {
    const N in = unscaled(b, n->in(0));
    return in == n->in(0) ? n : with_inputs(b, n, {in});
  }
  return unscaled(b, n->in(factor_of(n, 1) ? 0 : 1));
}

}  // namespace

Graph scale_products(const Graph& graph) {
  return rewrite(graph, [](Builder& b, N from, const std::vector<N>& inputs) -> N {
    if (from->op == Op::Contract && from->dtype() == DType::F32) {
      const std::optional<double> lhs = scale_of(inputs[0]), rhs = scale_of(inputs[1]);
      if (lhs && rhs && *lhs * *rhs != 1 && is_near(*lhs) && is_near(*rhs) && is_near(*lhs * *rhs))
        return b.mul(with_inputs(b, from, {unscaled(b, inputs[0]), unscaled(b, inputs[1])}),
                     b.full(DType::F32, from->shape(), *lhs * *rhs));
    }
    return with_inputs(b, from, inputs);
  });
}

}  // namespace trainc
