#include "schedule/prepare.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <unordered_set>

#include "graph/build.h"
#include "schedule/schedule.h"

namespace trainc::schedule {
namespace {

// A sum with fewer results than this keeps too few cores busy ...
constexpr int64_t kFewResults = 16;
// ... which matters from this many elements on.
constexpr int64_t kLongSum = 1 << 15;

const Node* keep_dims(Builder& b, const Node* reduced, const Dims& shape, const Dims& axes) {
  Dims kept = shape;
  for (int64_t axis : axes) kept[axis] = 1;
  return b.broadcast(b.reshape(reduced, kept), shape);
}

const Node* arg_reduce(Builder& b, const Node* x, const ReduceAttr& attr) {
  const Dims& shape = x->shape();
  const ReduceKind kind = attr.kind == ReduceKind::ArgMax ? ReduceKind::Max : ReduceKind::Min;
  if (x->dtype() == DType::Bool) x = b.cast(x, DType::I32);
  const Node* best = keep_dims(b, b.reduce(kind, x, attr.axes), shape, attr.axes);
  const Node* here = b.binary(Op::Eq, x, best);
  if (is_float(x->dtype())) here = b.binary(Op::Or, here, b.unary(Op::IsNan, x));
  const Node* position = b.iota(DType::I64, shape, attr.axes.at(0));
  const Node* none = b.broadcast(b.constant_int(DType::I64, std::numeric_limits<int64_t>::max()), shape);
  return b.reduce(ReduceKind::Min, b.select(here, position, none), attr.axes);
}

/// Sums over the first `kept` ... in two steps: reshape the longest reduced axis to [parts, rest], fold rest, then parts.
const Node* split_sum(Builder& b, const Node* x, const ReduceAttr& attr) {
  const Dims& shape = x->shape();
  int64_t axis = attr.axes.at(0);
  for (int64_t a : attr.axes)
    if (shape[a] > shape[axis]) axis = a;
  int64_t parts = 0;
  for (int64_t p : {32, 64, 16, 24, 12, 8, 49, 7, 10, 9, 6, 5, 4, 3, 2})
    if (shape[axis] % p == 0 && shape[axis] > p) { parts = p; break; }
  if (!parts) return nullptr;
  Dims split = shape;
  split[axis] = parts;
  split.insert(split.begin() + axis + 1, shape[axis] / parts);
  Dims inner, outer;
  int64_t removed = 0;
  for (int64_t a : attr.axes) {
    if (a == axis) { inner.push_back(axis + 1); outer.push_back(axis - removed); }
    else { inner.push_back(a < axis ? a : a + 1); if (a < axis) ++removed; }
  }
  std::sort(inner.begin(), inner.end());
  return b.reduce(attr.kind, b.reduce(attr.kind, b.reshape(x, split), inner), outer);
}

const Node* reduce(Builder& b, const Node* x, const ReduceAttr& attr, const Type& type) {
  if (attr.kind == ReduceKind::ArgMax || attr.kind == ReduceKind::ArgMin) return arg_reduce(b, x, attr);
  if (x->type.numel() == 0 && type.numel() > 0) return b.full(type.dtype, type.shape, attr.kind == ReduceKind::Prod ? 1 : 0);
  if (x->dtype() == DType::Bool) return b.cast(b.reduce(attr.kind, b.cast(x, DType::I32), attr.axes), DType::Bool);
  if (type.numel() < kFewResults && x->type.numel() >= kLongSum)
    if (const Node* split = split_sum(b, x, attr)) return split;
  return b.reduce(attr.kind, x, attr.axes);
}

/// The order of axes in which `strides` are row-major over the permuted shape; empty where there is none.
Dims memory_order(const Dims& shape, const Dims& strides) {
  Dims order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    if ((shape[a] == 1) != (shape[b] == 1)) return shape[a] == 1;  // axes of size 1 anywhere: put them first
    return shape[a] != 1 && strides[a] > strides[b];
  });
  int64_t expected = 1;
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    if (shape[*it] == 1) continue;
    if (strides[*it] != expected) return {};
    expected *= shape[*it];
  }
  return order;
}

/// A whole slice is a copy by another name: a node of its own that no rule sees any more.
const Node* whole(Graph& graph, const Node* x) {
  return graph.make(Op::Slice, SliceAttr{Dims(x->shape().size(), 0), Dims(x->shape().size(), 1)}, {x}, x->type);
}

}  // namespace

Graph prepare(const Graph& from, int64_t caller_inputs, int64_t caller_outputs) {
  Graph to;
  to.input_count = from.input_count;
  std::unordered_map<const Node*, const Node*> made;
  for (const Node* n : from.live()) {
    std::vector<const Node*> inputs;
    for (const Node* i : n->inputs) inputs.push_back(made.at(i));
    // A call gets its tensors in the shapes that it was written for, each a value of its own.
    if (n->op == Op::Extern)
      for (const Node*& i : inputs)
        if (i->op == Op::Reshape) i = whole(to, i);
    const auto& origins = from.origins(n);
    Builder b{to, origins.empty() ? std::string() : origins[0]};
    const Node* copy = n->op == Op::Reduce ? reduce(b, inputs[0], n->as<ReduceAttr>(), n->type) : to.make(n->op, n->attrs, inputs, n->type);
    for (const std::string& origin : origins) to.add_origin(copy, origin);
    made[n] = copy;
  }

  std::unordered_set<const Node*> given;  // bases that are some output's memory already
  for (const Output& o : from.outputs) {
    if (!o.value) { to.outputs.push_back(o); continue; }
    const Node* v = made.at(o.value);
    Dims strides = o.strides;
    Builder b{to, {}};
    const bool callers = v->op == Op::Input && v->as<InputAttr>().index < caller_inputs && static_cast<int64_t>(to.outputs.size()) < caller_outputs;
    if (callers && strides == v->as<InputAttr>().strides) {  // handed through: the caller gets his own tensor
      to.outputs.push_back({v, strides});
      continue;
    }
    if (!strides.empty()) {
      const Dims order = memory_order(v->shape(), strides);
      if (order.empty() && v->type.rank() > 0) strides.clear();
      else if (!std::is_sorted(order.begin(), order.end())) v = b.permute(v, order);
    }
    if (v->op == Op::Permute && v->in(0)->op == Op::Permute) {  // undone at once, more often than not
      const Dims &outer = v->as<AxesAttr>().axes, &inner = v->in(0)->as<AxesAttr>().axes;
      Dims both;
      for (int64_t axis : outer) both.push_back(inner[axis]);
      const Node* x = v->in(0)->in(0);
      v = std::is_sorted(both.begin(), both.end()) ? x : b.permute(x, both);
    }
    if (base_of(v)->op == Op::Input || base_of(v)->op == Op::Result) v = whole(to, v);
    while (!given.insert(base_of(v)).second) v = whole(to, v);
    to.outputs.push_back({v, strides});
  }
  return to;
}

}  // namespace trainc::schedule
