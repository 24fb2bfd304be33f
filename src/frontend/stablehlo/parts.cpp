#include "frontend/stablehlo/parts.h"

#include "cost/updates.h"
#include "frontend/formulas/slices.h"

namespace trainc::frontend::stablehlo {
namespace {

using formulas::cast;
using formulas::where;

/// The pieces that [start, start + extent) of an axis is of, where x is put together along it: a loop that writes its
/// results one after the other, and one that reads them so, never hold the whole.
void pieces(std::vector<const Node*>& found, Value x, int64_t axis, int64_t start, int64_t extent) {
  if (extent == 0) return;
  if (x.node->op != Op::Concat || x.node->as<AxisAttr>().axis != axis) {
    found.push_back(formulas::sliced(x, {axis, start, extent, 1}).node);
    return;
  }
  int64_t begin = 0;
  for (const Node* piece : x.node->inputs) {
    const int64_t end = begin + piece->shape()[axis];
    const int64_t from = std::max(start, begin), to = std::min(start + extent, end);
    if (from < to) pieces(found, with(x, piece), axis, from - begin, to - from);
    begin = end;
  }
}

Value joined(Value like, const std::vector<const Node*>& parts, int64_t axis) {
  return with(like, like.b->concat(parts, axis));
}

}  // namespace

Value padded(Value x, Value fill, const Dims& low, const Dims& high, const Dims& interior) {
  for (int64_t axis = 0; axis < x.rank(); ++axis) {
    if (const int64_t n = x.size(axis); n > 1 && interior[axis] > 0)
      x = formulas::unsliced(x, {axis, 0, n, interior[axis] + 1}, (n - 1) * (interior[axis] + 1) + 1, fill);
    // What is cut off may be what the other side adds.
    const int64_t size = x.size(axis) + low[axis] + high[axis];
    const int64_t below = std::max<int64_t>(-low[axis], 0), above = std::max<int64_t>(-high[axis], 0);
    Dims before(x.rank(), 0), after(x.rank(), 0);
    before[axis] = std::max<int64_t>(low[axis], 0), after[axis] = std::max<int64_t>(high[axis], 0);
    x = with(x, x.b->pad(x.node, fill.node, before, after));
    require(size >= 0 && below + size + above == x.size(axis), "pads to a negative size");
    x = formulas::sliced(x, {axis, below, size, 1});
  }
  return x;
}

Value clamped(Value start, int64_t most) {
  // As unsigned 64 bits, a large one would be negative.
  if (start.dtype() == DType::U64)
    start = formulas::min(start, with(start, start.b->constant_int(DType::U64, std::max<int64_t>(most, 0))));
  return formulas::min(formulas::max(cast(start, DType::I64), 0.0), static_cast<double>(most));
}

Value slice_from(Value x, int64_t axis, Value start, int64_t extent, Known& known) {
  const int64_t n = x.size(axis);
  if (extent == n) return x;
  if (const auto at = known.integer(start.node)) {
    std::vector<const Node*> parts;
    pieces(parts, x, axis, *at, extent);
    return parts.empty() ? formulas::sliced(x, {axis, *at, extent, 1}) : joined(x, parts, axis);
  }
  Dims shape = x.shape();
  shape[axis] = extent;
  const Value index = formulas::iota(*x.b, shape, axis) + start;
  return with(x, x.b->gather(x.node, index.node, axis));
}

namespace {

/// The tensor with the update's elements at their places, which lie within it. The axes along which they differ are
/// one.
Value scattered(Value x, Value update, const std::vector<Value>& starts) {
  int64_t first = 0, last = x.rank() - 1;
  while (update.size(first) == x.size(first)) ++first;
  while (update.size(last) == x.size(last)) --last;
  Dims within(update.shape().begin() + first, update.shape().begin() + last + 1);
  Value place = {x.b, x.b->full(DType::I64, within, 0)};
  int64_t before = 1, stride = 1, after = 1;
  for (int64_t axis = 0; axis < first; ++axis) before *= x.size(axis);
  for (int64_t axis = x.rank() - 1; axis > last; --axis) after *= x.size(axis);
  for (int64_t axis = last; axis >= first; stride *= x.size(axis--)) {
    const Value at = formulas::iota(*x.b, within, axis - first) + formulas::cast(starts[axis], DType::I64);
    place = place + at * static_cast<double>(stride);
  }
  const Dims rows = {before, place.numel(), after};
  const Value index = formulas::broadcast(formulas::reshape(place, {1, place.numel(), 1}), rows);
  const Value into = formulas::reshape(x, {before, stride, after});
  const Node* written = x.b->scatter(ScatterKind::Last, into.node, index.node, formulas::reshape(update, rows).node, 1);
  return formulas::reshape(with(x, written), x.shape());
}

}  // namespace

Value updated(Value x, Value update, const std::vector<Value>& starts, Known& known) {
  if (update.shape() == x.shape()) return update;
  if (update.numel() == 0) return x;
  // Along known places: what lies before and after stays as it is.
  for (int64_t axis = 0; axis < x.rank(); ++axis) {
    const int64_t extent = update.size(axis);
    const auto at = extent == x.size(axis) ? std::nullopt : known.integer(starts[axis].node);
    if (!at) continue;
    std::vector<const Node*> parts, inner;
    pieces(parts, x, axis, 0, *at);
    pieces(inner, x, axis, *at, extent);
    std::vector<Value> within = starts;  // along this axis the update is all that is left
    within[axis] = {x.b, x.b->constant_int(DType::I64, 0)};
    parts.push_back(updated(joined(x, inner, axis), update, within, known).node);
    pieces(parts, x, axis, *at + extent, x.size(axis) - *at - extent);
    return joined(x, parts, axis);
  }
  if (update.numel() <= x.numel() / cost::kFewOf) return scattered(x, update, starts);
  // Elsewhere each element asks whether it is written over, and by which one.
  Value inside, source = update;
  for (int64_t axis = 0; axis < x.rank(); ++axis) {
    const int64_t extent = update.size(axis);
    if (extent == x.size(axis)) continue;
    Dims line(x.rank(), 1);
    line[axis] = x.size(axis);
    const Value place = formulas::iota(*x.b, line, axis) - starts[axis];
    const Value here = (place >= 0.0) & (place < static_cast<double>(extent));
    inside = inside.node ? inside & here : here;
    Dims shape = source.shape();
    shape[axis] = x.size(axis);
    const Value index = formulas::min(formulas::max(place, 0.0), static_cast<double>(extent - 1));
    source = with(x, x.b->gather(source.node, formulas::broadcast(index, shape).node, axis));
  }
  return where(inside, source, x);
}

}  // namespace trainc::frontend::stablehlo
