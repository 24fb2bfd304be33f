#include "frontend/formulas/indexing.h"

#include "frontend/formulas/shapes.h"

namespace trainc::formulas {

Value gathered(Value x, Value index, int64_t axis, Failure failure) {
  return with(x, x.b->gather(x.node, index.node, axis, failure));
}
Value scattered(ScatterKind kind, Value init, Value index, Value src, int64_t axis, Failure failure) {
  return with(init, init.b->scatter(kind, init.node, index.node, src.node, axis, failure));
}

Value along(Value index, const Dims& shape, int64_t axis) {
  Dims one(shape.size(), 1);
  one.at(axis) = index.numel();
  return broadcast(reshape(index, one), shape);
}

Value take_rows(Value table, Value index) {
  return gathered(table, along(index, {index.numel(), table.size(1)}, 0), 0);
}

Value take_rows_backward(Value dy, Value index, int64_t rows, int64_t padding) {
  const int64_t n = dy.size(0), width = dy.size(1);
  index = reshape(index, {n, 1});
  if (padding >= 0) dy = where(index == static_cast<double>(padding), 0, dy);
  Value zero = with(dy, dy.b->full(dy.dtype(), {rows, width}, 0));
  return scattered(ScatterKind::Sum, zero, broadcast(index, {n, width}), dy, 0);
}

std::optional<Indexed> indexed(Value x, const std::vector<std::optional<Value>>& list) {
  Indexed r;
  Dims axes, rest;
  std::vector<Value> given;
  for (int64_t axis = 0; axis < x.rank(); ++axis) {
    const bool here = axis < static_cast<int64_t>(list.size()) && list[axis];
    if (!here) {
      rest.push_back(axis);
      continue;
    }
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

Value indexed_read(Value x, const Indexed& r) {
  const int64_t before = product(r.before), after = product(r.after);
  x = reshape(permute(x, r.order), {before, r.places, after});
  return gathered(x, along(r.index, {before, r.index.numel(), after}, 1), 1);
}

Value indexed_write(ScatterKind kind, Value x, const Indexed& r, Value values) {
  const int64_t before = product(r.before), after = product(r.after), many = r.index.numel();
  Value moved = permute(x, r.order);
  Value y = scattered(kind, reshape(moved, {before, r.places, after}), along(r.index, {before, many, after}, 1),
                      reshape(broadcast(values, join({r.before, r.many, r.after})), {before, many, after}), 1);
  return permute_back(reshape(y, moved.shape()), r.order);
}

}  // namespace trainc::formulas
