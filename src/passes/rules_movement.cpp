// Rules of movements: chains become one, and what moves nothing goes.
#include <algorithm>
#include <iterator>

#include "passes/rules.h"
#include "passes/values.h"

namespace trainc {
namespace {

using N = const Node*;

bool all_are(const Dims& dims, int64_t value) {
  return std::all_of(dims.begin(), dims.end(), [&](int64_t d) { return d == value; });
}

/// A whole slice of a slice: a copy that somebody wants, so that what reads it need not know where it was cut out.
bool is_copy_of_part(N n) { return n->op == Op::Slice && n->in(0)->op == Op::Slice && n->type == n->in(0)->type; }

bool moves_nothing(N n) {
  switch (n->op) {
    // concat: the rest is empty
    case Op::Reshape:
    case Op::Broadcast:
    case Op::Pad:
    case Op::Concat: return n->type == n->in(0)->type;
    case Op::Window: return n->as<WindowAttr>().axes.empty();
    case Op::Permute: return std::is_sorted(n->as<AxesAttr>().axes.begin(), n->as<AxesAttr>().axes.end());
    case Op::Slice:
      return n->type == n->in(0)->type && !is_copy_of_part(n) && all_are(n->as<SliceAttr>().start, 0) &&
             all_are(n->as<SliceAttr>().step, 1);
    case Op::Reverse: {
      const Dims& axes = n->as<AxesAttr>().axes;
      return std::all_of(axes.begin(), axes.end(), [&](int64_t a) { return n->shape()[a] <= 1; });
    }
    default: return false;
  }
}
N identity(Builder&, N n) { return moves_nothing(n) ? n->in(0) : nullptr; }

N reshape_reshape(Builder& b, N n) {
  return n->in(0)->op == Op::Reshape ? b.reshape(n->in(0)->in(0), n->shape()) : nullptr;
}
N broadcast_broadcast(Builder& b, N n) {
  return n->in(0)->op == Op::Broadcast ? b.broadcast(n->in(0)->in(0), n->shape()) : nullptr;
}

N permute_permute(Builder& b, N n) {
  if (n->in(0)->op != Op::Permute) return nullptr;
  Dims order = n->as<AxesAttr>().axes;
  for (int64_t& axis : order) axis = n->in(0)->as<AxesAttr>().axes[axis];
  return b.permute(n->in(0)->in(0), order);
}

/// Down to where it meets another: gradients of weights under autocast are transposed, cast and transposed back.
N cast_of_permute(Builder& b, N n) {
  return n->in(0)->op == Op::Permute ? b.permute(b.cast(n->in(0)->in(0), n->dtype()), n->in(0)->as<AxesAttr>().axes)
                                     : nullptr;
}

/// Axes of size 1 move for nothing: when the others keep their order, the elements do.
N permute_of_ones(Builder& b, N n) {
  int64_t last = -1;
  for (int64_t axis : n->as<AxesAttr>().axes) {
    if (n->in(0)->shape()[axis] == 1) continue;
    if (axis < last) return nullptr;
    last = axis;
  }
  return b.reshape(n->in(0), n->shape());
}

N slice_slice(Builder& b, N n) {
  if (n->in(0)->op != Op::Slice || is_copy_of_part(n)) return nullptr;
  const auto &outer = n->as<SliceAttr>(), &inner = n->in(0)->as<SliceAttr>();
  Dims start = inner.start, step = inner.step;
  for (size_t i = 0; i < start.size(); ++i) {
    start[i] += outer.start[i] * inner.step[i];
    step[i] *= outer.step[i];
    if (n->shape()[i] <= 1) step[i] = 1;  // one way to write a slice of one; of none: anywhere within the input
    if (n->shape()[i] == 0) start[i] = 0;
  }
  return b.slice(n->in(0)->in(0), start, n->shape(), step);
}

N slice_pad(Builder& b, N n) {
  if (n->in(0)->op != Op::Pad || n->type.numel() == 0) return nullptr;
  N x = n->in(0)->in(0);
  const auto& [start, step] = n->as<SliceAttr>();
  Dims from = start;
  for (size_t i = 0; i < from.size(); ++i) {
    from[i] -= n->in(0)->as<PadAttr>().low[i];
    if (from[i] < 0 || from[i] + (n->shape()[i] - 1) * step[i] >= x->shape()[i]) return nullptr;
  }
  return b.slice(x, from, n->shape(), step);
}

N slice_concat(Builder& b, N n) {
  if (n->in(0)->op != Op::Concat || n->type.numel() == 0) return nullptr;
  const int64_t axis = n->in(0)->as<AxisAttr>().axis;
  const auto& [start, step] = n->as<SliceAttr>();
  const int64_t first = start[axis], last = first + (n->shape()[axis] - 1) * step[axis];
  int64_t begin = 0;
  for (N part : n->in(0)->inputs) {
    const int64_t end = begin + part->shape()[axis];
    if (first >= begin && last < end) {
      Dims from = start;
      from[axis] -= begin;
      return b.slice(part, from, n->shape(), step);
    }
    begin = end;
  }
  return nullptr;
}

N concat_empty(Builder& b, N n) {
  std::vector<N> parts;
  for (N part : n->inputs)
    if (part->type.numel() > 0) parts.push_back(part);
  return parts.empty() || parts.size() == n->inputs.size() ? nullptr : b.concat(parts, n->as<AxisAttr>().axis);
}

N reverse_reverse(Builder& b, N n) {
  if (n->in(0)->op != Op::Reverse) return nullptr;
  const Dims &outer = n->as<AxesAttr>().axes, &inner = n->in(0)->as<AxesAttr>().axes;
  Dims axes;
  std::set_symmetric_difference(outer.begin(), outer.end(), inner.begin(), inner.end(), std::back_inserter(axes));
  return b.reverse(n->in(0)->in(0), axes);
}

/// The movement of a broadcast scalar is another broadcast of it.
N move_scalar(Builder& b, N n) {
  N wide = n->in(0);
  if (wide->op != Op::Broadcast || wide->in(0)->type.numel() != 1) return nullptr;
  return b.broadcast(b.reshape(wide->in(0), Dims(n->shape().size(), 1)), n->shape());
}

/// Compute before repeating: f(broadcast(x), broadcast(y), constant) -> broadcast(f(x, y, constant)).
N elementwise_of_broadcasts(Builder& b, N n) {
  const Dims* narrow = nullptr;
  for (N in : n->inputs) {
    if (uniform_constant(in)) continue;
    if (in->op != Op::Broadcast || (narrow && in->in(0)->shape() != *narrow)) return nullptr;
    narrow = &in->in(0)->shape();
  }
  if (!narrow || n->type.numel() == 0) return nullptr;
  std::vector<const Node*> inputs;
  for (N in : n->inputs) {
    N c = uniform_constant(in);
    inputs.push_back(c ? b.broadcast(c, *narrow) : in->in(0));
  }
  return b.broadcast(b.graph.make(n->op, n->attrs, inputs, {n->dtype(), *narrow}, b.origin), n->shape());
}

/// Folding an axis of size 1 is no folding. (Arg*: the result would be 0, in another dtype; nobody writes that.)
N reduce_of_ones(Builder& b, N n) {
  const auto& [kind, axes] = n->as<ReduceAttr>();
  if (kind == ReduceKind::ArgMax || kind == ReduceKind::ArgMin) return nullptr;
  N x = n->in(0);
  Dims shape, kept;
  for (int64_t i = 0; i < x->type.rank(); ++i) {
    const bool reduced = std::binary_search(axes.begin(), axes.end(), i);
    if (reduced && x->shape()[i] == 1) continue;
    if (reduced) kept.push_back(shape.size());
    shape.push_back(x->shape()[i]);
  }
  if (kept.size() == axes.size() && !axes.empty()) return nullptr;
  x = b.reshape(x, shape);
  return kept.empty() ? x : b.reduce(kind, x, kept);
}

/// Exact for max, min and integers; a sum of floats would lose a rounding that eager has.
N reduce_reduce(Builder& b, N n) {
  N inner = n->in(0);
  if (inner->op != Op::Reduce || inner->as<ReduceAttr>().kind != n->as<ReduceAttr>().kind) return nullptr;
  const ReduceKind kind = n->as<ReduceAttr>().kind;
  const bool chooses = kind == ReduceKind::Max || kind == ReduceKind::Min;
  const bool adds = kind == ReduceKind::Sum || kind == ReduceKind::Prod;
  if (!chooses && !(adds && !is_float(n->dtype()))) return nullptr;
  Dims kept, axes = inner->as<ReduceAttr>().axes;
  for (int64_t i = 0; i < inner->in(0)->type.rank(); ++i)
    if (!std::binary_search(axes.begin(), axes.end(), i)) kept.push_back(i);
  for (int64_t axis : n->as<ReduceAttr>().axes) axes.push_back(kept[axis]);
  return b.reduce(kind, inner->in(0), axes);
}

}  // namespace

std::span<const Rule> movement_rules() {
  static const std::vector<Rule> rules = {
      {"identity",
       "a movement that moves nothing -> x",
       {Op::Reshape, Op::Permute, Op::Broadcast, Op::Slice, Op::Pad, Op::Window, Op::Concat, Op::Reverse},
       identity},
      {"reshape_reshape", "reshape(reshape(x)) -> reshape(x)", {Op::Reshape}, reshape_reshape},
      {"broadcast_broadcast", "broadcast(broadcast(x)) -> broadcast(x)", {Op::Broadcast}, broadcast_broadcast},
      {"permute_permute", "permute(permute(x)) -> permute(x)", {Op::Permute}, permute_permute},
      {"cast_of_permute", "cast(permute(x)) -> permute(cast(x))", {Op::Cast}, cast_of_permute},
      {"permute_of_ones", "a permute that moves only axes of size 1 -> reshape", {Op::Permute}, permute_of_ones},
      {"slice_slice", "slice(slice(x)) -> slice(x)", {Op::Slice}, slice_slice},
      {"slice_pad", "slice(pad(x)) within x -> slice(x)", {Op::Slice}, slice_pad},
      {"slice_concat", "slice(concat(x, y)) within x -> slice(x)", {Op::Slice}, slice_concat},
      {"concat_empty", "concat(x, empty) -> concat(x)", {Op::Concat}, concat_empty},
      {"reverse_reverse", "reverse(reverse(x)) -> reverse of the axes that differ", {Op::Reverse}, reverse_reverse},
      {"move_scalar",
       "a movement of a broadcast scalar -> broadcast(scalar)",
       {Op::Reshape, Op::Permute, Op::Slice, Op::Window, Op::Reverse},
       move_scalar},
      {"elementwise_of_broadcasts", "f(broadcast(x), broadcast(y)) -> broadcast(f(x, y))", elementwise_ops(),
       elementwise_of_broadcasts},
      {"reduce_of_ones", "folding axes of size 1 (or none) -> reshape", {Op::Reduce}, reduce_of_ones},
      {"reduce_reduce",
       "max(max(x)) -> max(x), and so min, and sums and products of integers",
       {Op::Reduce},
       reduce_reduce},
  };
  return rules;
}

}  // namespace trainc
