#include "passes/channels_last.h"

#include <algorithm>
#include <optional>

#include "passes/rewrite.h"

namespace trainc {
namespace {

using N = const Node*;

/// [0, rank-1, 1, 2, ...]: channels last -> channels first.
Dims to_first(int64_t rank) {
  Dims order{0, rank - 1};
  for (int64_t k = 1; k + 1 < rank; ++k) order.push_back(k);
  return order;
}
/// [0, 2, 3, ..., 1]: channels first -> channels last.
Dims to_last(int64_t rank) {
  Dims order{0};
  for (int64_t k = 2; k < rank; ++k) order.push_back(k);
  order.push_back(1);
  return order;
}
Dims permuted(const Dims& d, const Dims& order) {
  Dims out;
  for (int64_t axis : order) out.push_back(d[axis]);
  return out;
}
/// Where `n` is a tensor seen channels first that lies channels last: that tensor.
N under(N n) {
  const int64_t rank = n->type.rank();
  return n->op == Op::Permute && rank >= 4 && n->as<AxesAttr>().axes == to_first(rank) ? n->in(0) : nullptr;
}

/// The same values as `n`, channels last. Of a broadcast, what it repeats is permuted; two permutes become one.
N in_last(Builder& b, N n) {
  if (N x = under(n)) return x;
  const Dims order = to_last(n->type.rank());
  if (n->op == Op::Broadcast) return b.broadcast(in_last(b, n->in(0)), permuted(n->shape(), order));
  if (n->op == Op::Iota) {
    const auto at = std::find(order.begin(), order.end(), n->as<AxisAttr>().axis) - order.begin();
    return b.iota(n->dtype(), permuted(n->shape(), order), at);
  }
  if (n->op == Op::Reshape && n->in(0)->type.rank() == 0) return b.reshape(n->in(0), permuted(n->shape(), order));
  if (n->op == Op::Permute) return b.permute(n->in(0), permuted(n->as<AxesAttr>().axes, order));
  return b.permute(n, order);
}

/// `from` over inputs of which one at least lies channels last, done in that order; nullptr for what does not go.
N moved(Builder& b, N from, const std::vector<N>& inputs) {
  const int64_t rank = inputs[0]->type.rank();
  const auto first = [&](N n) { return b.permute(n, to_first(rank)); };
  if (is_elementwise(from->op)) {
    std::vector<N> last;
    for (N in : inputs) last.push_back(in_last(b, in));
    return first(
        b.graph.make(from->op, from->attrs, last, {from->dtype(), permuted(from->shape(), to_last(rank))}, b.origin));
  }
  N x = under(inputs[0]);
  if (!x) return nullptr;
  const Dims order = to_last(rank);
  switch (from->op) {
    case Op::Pad: {
      const auto& [low, high] = from->as<PadAttr>();
      return first(b.pad(x, inputs[1], permuted(low, order), permuted(high, order)));
    }
    case Op::Slice: {
      const auto& [start, step] = from->as<SliceAttr>();
      return first(b.slice(x, permuted(start, order), permuted(from->shape(), order), permuted(step, order)));
    }
    case Op::Permute: {
      Dims axes = from->as<AxesAttr>().axes;
      for (int64_t& axis : axes) axis = to_first(rank)[axis];
      return b.permute(x, axes);
    }
    case Op::Reduce: {
      const auto& [kind, folded] = from->as<ReduceAttr>();
      if (kind == ReduceKind::ArgMax || kind == ReduceKind::ArgMin) return nullptr;
      Dims axes, kept, kept_in_order;
      for (int64_t axis = 0; axis < rank; ++axis) {
        const int64_t at = to_first(rank)[axis];
        if (std::binary_search(folded.begin(), folded.end(), axis)) axes.push_back(at);
        else kept.push_back(at);
      }
      kept_in_order = kept;
      std::sort(kept_in_order.begin(), kept_in_order.end());
      for (int64_t& axis : kept)
        axis = std::find(kept_in_order.begin(), kept_in_order.end(), axis) - kept_in_order.begin();
      return b.permute(b.reduce(kind, x, axes), kept);
    }
    default: return nullptr;
  }
}

}  // namespace

Graph channels_last(const Graph& graph) {
  return rewrite(graph, [](Builder& b, N from, const std::vector<N>& inputs) -> N {
    const bool any = std::any_of(inputs.begin(), inputs.end(), [](N n) { return under(n) != nullptr; });
    if (any && from->type.numel() > 0)
      if (N n = moved(b, from, inputs)) return n;
    return with_inputs(b, from, inputs);
  });
}

}  // namespace trainc
