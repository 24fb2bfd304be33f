#include "schedule/variance.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "schedule/schedule.h"

namespace trainc::schedule {
namespace {

const Node* below_reshapes(const Node* n) {
  while (n->op == Op::Reshape) n = n->in(0);
  return n;
}

bool is_sum_of_f32(const Node* n) {
  return n->op == Op::Reduce && n->as<ReduceAttr>().kind == ReduceKind::Sum && n->dtype() == DType::F32;
}

/// The number that `n` repeats; none where it is another value.
std::optional<double> repeated_number(const Node* n) {
  while (n->op == Op::Broadcast || n->op == Op::Reshape) n = n->in(0);
  if (n->op != Op::Constant || !is_float(n->dtype())) return {};
  return std::bit_cast<double>(n->as<ConstantAttr>().bits);
}

/// What is repeated along the axes that `squares` sums, all others being as they are; nullptr: `n` is no such thing.
const Node* repeated_along(const Node* n, const Node* squares) {
  if (n->op != Op::Broadcast) return nullptr;
  Dims kept = n->shape();
  for (int64_t axis : squares->as<ReduceAttr>().axes) kept[static_cast<size_t>(axis)] = 1;
  return n->in(0)->shape() == kept ? n->in(0) : nullptr;
}

std::optional<Variance> variance_of(const Node* squares) {
  if (!is_sum_of_f32(squares) || squares->type.numel() == 0) return {};
  const Node* terms = squares->in(0);
  const Dims &axes = squares->as<ReduceAttr>().axes, &shape = terms->shape();
  if (terms->op != Op::Mul || terms->in(0) != terms->in(1) || terms->in(0)->op != Op::Sub || terms->type.numel() == 0)
    return {};
  const bool leading = shape.back() > 1 && !std::ranges::binary_search(axes, terms->type.rank() - 1);
  if (!leading) return {};
  const Node *x = terms->in(0)->in(0), *mean = repeated_along(terms->in(0)->in(1), squares);
  if (!mean || (mean = below_reshapes(mean))->op != Op::Div) return {};
  const Node* sum = below_reshapes(mean->in(0));
  const double count = static_cast<double>(x->type.numel() / squares->type.numel());
  if (!is_sum_of_f32(sum) || sum->in(0) != x || sum->as<ReduceAttr>().axes != axes ||
      repeated_number(mean->in(1)) != count)
    return {};
  return Variance{x, sum, squares, count};
}

}  // namespace

std::unordered_map<const Node*, Variance> variances_of(const Graph& graph) {
  std::unordered_map<const Node*, Variance> found;
  for (const Node* n : graph.live())
    if (const std::optional<Variance> v = variance_of(n)) found.emplace(v->sum, *v), found.emplace(n, *v);
  return found;
}

}  // namespace trainc::schedule
