// Indexing by tensors: all forms become one Gather or Scatter along one axis. Negative indices are wrapped where eager
// wraps them; an index out of bounds stays out of bounds, so that running raises IndexError.
#include <algorithm>

#include "frontend/table.h"

namespace trainc::frontend {
namespace {

// Eager raises an IndexError in some of these operations, a RuntimeError in others (Failure::Bounds).
Value gathered(Value x, Value index, int64_t axis, Failure failure = Failure::Index) {
  return with(x, x.b->gather(x.node, index.node, axis, failure));
}
Value scattered(ScatterKind kind, Value init, Value index, Value src, int64_t axis, Failure failure = Failure::Index) {
  return with(init, init.b->scatter(kind, init.node, index.node, src.node, axis, failure));
}

/// A vector of indices for `axis`, repeated over the other axes of `shape`.
Value along(Value index, const Dims& shape, int64_t axis) {
  Dims one(shape.size(), 1);
  one.at(axis) = index.numel();
  return broadcast(reshape(index, one), shape);
}

// --- embedding
Outcome embedding(const Call& c) {
  Value weight = c.arg(0, "weight").tensor(), index = c.arg(1, "indices").as(DType::I64);
  const int64_t n = index.numel(), width = weight.size(1);
  return c.give(reshape(gathered(weight, along(index, {n, width}, 0), 0), c.type().shape));
}

Outcome embedding_backward(const Call& c) {
  if (c.arg(4, "scale_grad_by_freq").flag(false)) return std::nullopt;
  Value index = c.arg(1, "indices").as(DType::I64), dy = c.in(0, "grad_output");
  const int64_t n = index.numel(), width = c.type().shape[1], padding = c.arg(3, "padding_idx").integer();
  dy = reshape(dy, {n, width});
  index = reshape(index, {n, 1});
  if (padding >= 0) dy = where(index == static_cast<double>(padding), 0, dy);
  return c.give(scattered(ScatterKind::Sum, c.full(c.type().shape, dy.dtype(), 0), broadcast(index, {n, width}), dy, 0));
}

// --- along one axis
Outcome gather(const Call& c) {
  Value x = c.arg(0, "self").tensor(), index = c.arg(2, "index").as(DType::I64);
  if (x.rank() == 0 || index.rank() != x.rank()) return std::nullopt;
  return c.give(gathered(x, index, wrap_axis(c, c.arg(1, "dim").integer(), x.rank()), Failure::Bounds));
}

/// Classes that one_hot was given (trace.py), each in [0, num_classes).
Outcome classes(const Call& c) {
  Value x = c.arg(0, "classes").as(c.dtype());
  if (x.numel() == 0) return c.give(x);
  return c.give(checked(x, (x >= 0) & (x < static_cast<double>(c.arg(1, "num_classes").integer())), Failure::Class));
}

Outcome index_select(const Call& c) {
  Value x = c.arg(0, "self").tensor(), index = c.arg(2, "index").as(DType::I64);
  if (x.rank() == 0) return std::nullopt;
  const int64_t axis = wrap_axis(c, c.arg(1, "dim").integer(), x.rank());
  return c.give(gathered(x, along(index, c.type().shape, axis), axis));
}

/// scatter.src, scatter.value, scatter_add: the index may be smaller than src.
Handler scatter(ScatterKind kind) {
  return [kind](const Call& c) -> Outcome {
    const DType d = kind == ScatterKind::Sum ? c.compute() : c.dtype();
    Value x = c.arg(0, "self").as(d), index = c.arg(2, "index").as(DType::I64), src = c.arg(3, "src").as(d);
    if (x.rank() == 0 || index.rank() != x.rank() || (kind == ScatterKind::Sum && d == DType::Bool)) return std::nullopt;
    if (src.rank() == 0) src = broadcast(src, index.shape());
    else if (src.rank() != index.rank()) return std::nullopt;
    else src = with(src, c.b.slice(src.node, Dims(src.rank(), 0), index.shape(), Dims(src.rank(), 1)));
    return c.give(scattered(kind, x, index, src, wrap_axis(c, c.arg(1, "dim").integer(), x.rank()), Failure::Bounds));
  };
}

/// index_add, index_copy: a vector of indices along one axis of source.
Handler index_rows(ScatterKind kind) {
  return [kind](const Call& c) -> Outcome {
    const DType d = kind == ScatterKind::Sum ? c.compute() : c.dtype();
    Value x = c.arg(0, "self").as(d), index = c.arg(2, "index").as(DType::I64), src = c.arg(3, "source").as(d);
    if (x.rank() == 0 || src.rank() != x.rank() || (kind == ScatterKind::Sum && d == DType::Bool)) return std::nullopt;
    const int64_t axis = wrap_axis(c, c.arg(1, "dim").integer(), x.rank());
    if (const Arg alpha = c.arg(4, "alpha"); alpha.number(1) != 1) src = src * alpha.as(src.dtype());
    return c.give(scattered(kind, x, along(index, src.shape(), axis), src, axis, kind == ScatterKind::Sum ? Failure::Bounds : Failure::Index));
  };
}

// --- x[i, :, j]: the indexed axes become one, in place where they are neighbours and in front where they are not
struct Indexed {
  Dims order;         // of x's axes: before, indexed, after
  Dims before, many, after;  // sizes of the three; `many` is the common shape of the indices
  int64_t places = 1;  // product of the indexed axes
  Value index;         // [numel of many]: places counted row-major; wrapped; -1 where any is out of bounds
};

std::optional<Indexed> indexed(Value x, const Arg& indices) {
  const auto list = indices.tensors();
  Indexed r;
  Dims axes, rest;
  std::vector<Value> given;
  for (int64_t axis = 0; axis < x.rank(); ++axis) {
    const bool here = axis < static_cast<int64_t>(list.size()) && list[axis];
    if (!here) {
      rest.push_back(axis);
      continue;
    }
    const DType d = list[axis]->dtype();
    if (d == DType::Bool || d == DType::U8) return std::nullopt;  // a mask: as many results as it has trues
    axes.push_back(axis);
    given.push_back(cast(*list[axis], DType::I64));
    r.many = broadcast_shape(r.many, given.back().shape());
    r.places *= x.size(axis);
  }
  if (axes.empty() || r.places == 0) return std::nullopt;

  const bool neighbours = axes.back() - axes.front() + 1 == static_cast<int64_t>(axes.size());
  const int64_t front = neighbours ? axes.front() : 0;
  for (int64_t axis : rest) (axis < front ? r.before : r.after).push_back(x.size(axis));
  r.order = rest;
  r.order.insert(r.order.begin() + front, axes.begin(), axes.end());

  std::optional<Value> flat, outside;
  for (size_t i = 0; i < given.size(); ++i) {
    const double n = x.size(axes[i]);
    Value v = where(given[i] < 0, given[i] + n, given[i]);
    if (given.size() > 1) {  // a place of two axes could hide that one of them is out of bounds
      Value bad = (v < 0) | (v >= n);
      outside = outside ? *outside | bad : bad;
    }
    flat = flat ? *flat * n + v : v;
  }
  if (outside) flat = where(*outside, -1, *flat);
  r.index = broadcast(*flat, r.many);
  r.index = reshape(r.index, {r.index.numel()});
  return r;
}

int64_t product(const Dims& d) { return Type{DType::Bool, d}.numel(); }

Outcome index(const Call& c) {
  Value x = c.arg(0, "self").tensor();
  auto r = indexed(x, c.arg(1, "indices"));
  if (!r) return std::nullopt;
  const int64_t before = product(r->before), after = product(r->after);
  x = reshape(permute(x, r->order), {before, r->places, after});
  return c.give(reshape(gathered(x, along(r->index, {before, r->index.numel(), after}, 1), 1), c.type().shape));
}

/// x[mask] = scalar, a choice; anything else with a mask is the framework's.
Outcome put_by_mask(const Call& c, Value x, const Arg& indices, Value values) {
  const auto list = indices.tensors();
  if (list.size() != 1 || !list[0] || list[0]->dtype() != DType::Bool || list[0]->shape() != x.shape() || values.numel() != 1) return std::nullopt;
  return c.give(where(*list[0], reshape(values, {}), x));
}

Outcome index_put(const Call& c) {
  const bool accumulate = c.arg(3, "accumulate").flag(false);
  const DType d = accumulate ? c.compute() : c.dtype();
  Value x = c.arg(0, "self").as(d), values = c.arg(2, "values").as(d);
  auto r = indexed(x, c.arg(1, "indices"));
  if (!r) return accumulate ? Outcome(std::nullopt) : put_by_mask(c, x, c.arg(1, "indices"), values);
  if (accumulate && d == DType::Bool) return std::nullopt;
  const int64_t before = product(r->before), after = product(r->after), many = r->index.numel();
  Dims full = r->before;
  full.insert(full.end(), r->many.begin(), r->many.end());
  full.insert(full.end(), r->after.begin(), r->after.end());
  Value moved = permute(x, r->order);
  Value y = scattered(accumulate ? ScatterKind::Sum : ScatterKind::Last, reshape(moved, {before, r->places, after}),
                      along(r->index, {before, many, after}, 1), reshape(broadcast(values, full), {before, many, after}), 1);
  Dims back(r->order.size());
  for (size_t i = 0; i < r->order.size(); ++i) back[r->order[i]] = i;
  return c.give(permute(reshape(y, moved.shape()), back));
}

}  // namespace

void add_indexing(Table& t) {
  t.add({"aten.embedding.default"}, embedding);
  t.add({"aten.embedding_dense_backward.default"}, embedding_backward);
  t.add({"aten.gather.default"}, gather);
  t.add({"aten.index_select.default"}, index_select);
  t.add({"trainc.classes.default"}, classes);
  t.add({"aten.scatter.src"}, scatter(ScatterKind::Last));
  t.add({"aten.scatter.value"}, scatter(ScatterKind::Last));
  t.add({"aten.scatter_add.default"}, scatter(ScatterKind::Sum));
  t.add({"aten.index_add.default"}, index_rows(ScatterKind::Sum));
  t.add({"aten.index_copy.default"}, index_rows(ScatterKind::Last));
  t.add({"aten.index.Tensor", "aten._unsafe_index.Tensor"}, index);
  t.add({"aten.index_put.default", "aten._unsafe_index_put.default", "aten._index_put_impl.default"}, index_put);
}

}  // namespace trainc::frontend
