// gather and scatter, in their general form, as the graph's lookups along one axis.
#include "frontend/stablehlo/monoid.h"
#include "frontend/stablehlo/parts.h"
#include "frontend/stablehlo/segments.h"
#include "frontend/stablehlo/table.h"

namespace trainc::frontend::stablehlo {
namespace {

using formulas::cast;
using formulas::join;
using formulas::product;
using formulas::where;

bool is_among(const Dims& axes, int64_t axis) { return std::find(axes.begin(), axes.end(), axis) != axes.end(); }
Dims at(const Dims& sizes, const Dims& axes) {
  Dims found;
  for (int64_t axis : axes) found.push_back(sizes.at(axis));
  return found;
}

/// The attributes of gather, and of scatter, which has the same under other names.
struct Numbers {
  Dims window;            // axes of the slices' tensor (gather's result, scatter's updates) that run within a slice
  Dims absent;            // axes of the operand that slices have not
  Dims batching;          // axes of the operand that go along with
  Dims indices_batching;  // these of the indices
  Dims indexed;           // axes of the operand that the index vectors say
  int64_t vector_axis;    // of the indices
};

/// What both do: the operand as [batch, places, rest], where a place is where an element of a slice lies along the axes
/// that are not taken whole, and the slices' tensor as [batch, slices * places of a slice, rest].
class Addresses {
 public:
  /// `window`: a slice's size along each axis of the operand. `slices`: the shape of the slices' tensor.
  Addresses(const Call& c, const Numbers& n, Value indices, const Dims& operand, const Dims& window, const Dims& slices)
      : n_(n), operand_(operand), window_(window) {
    for (int64_t axis = 0; axis < static_cast<int64_t>(operand.size()); ++axis) {
      if (is_among(n.batching, axis)) continue;
      const bool whole = !is_among(n.indexed, axis) && window[axis] == operand[axis];
      (whole ? whole_ : part_).push_back(axis);
    }
    order_ = join({n.batching, part_, whole_});

    // the slices' axes: those of the batch, of the slices, of the places within one, of the rest
    Dims batch_axes;
    for (int64_t axis = 0; axis < static_cast<int64_t>(slices.size()); ++axis)
      if (!is_among(n.window, axis)) batch_axes.push_back(axis);
    Dims index_axes;  // of the indices, without the vector
    for (int64_t axis = 0; axis < indices.rank(); ++axis)
      if (axis != n.vector_axis) index_axes.push_back(axis);
    Dims along, free, index_free;
    for (int64_t axis : n.indices_batching)
      along.push_back(batch_axes.at(std::find(index_axes.begin(), index_axes.end(), axis) - index_axes.begin()));
    for (size_t i = 0; i < index_axes.size(); ++i)
      if (!is_among(n.indices_batching, index_axes[i]))
        free.push_back(batch_axes.at(i)), index_free.push_back(index_axes[i]);
    const auto axis_of = [&](int64_t operand_axis) -> int64_t {  // of the slices; -1: absent
      int64_t place = 0;
      for (int64_t axis = 0; axis < operand_axis; ++axis)
        place += !is_among(n.absent, axis) && !is_among(n.batching, axis);
      return is_among(n.absent, operand_axis) ? -1 : n.window.at(place);
    };
    Dims within, rest;
    for (int64_t axis : part_)
      if (axis_of(axis) >= 0) within.push_back(axis_of(axis));
    for (int64_t axis : whole_)
      if (axis_of(axis) >= 0) rest.push_back(axis_of(axis));
    slices_order_ = join({along, free, within, rest});
    slices_sizes_ = at(slices, slices_order_);

    batch_ = product(at(operand, n.batching)), places_ = product(at(operand, part_)),
    rest_ = product(at(operand, whole_));
    const int64_t count = product(at(slices, free));
    Dims vectors_order = join({n.indices_batching, index_free});
    if (n.vector_axis < indices.rank()) vectors_order.push_back(n.vector_axis);
    // The counter of places within 64 bits: an index of u64 is clamped by its own row.
    const Value vectors =
        reshape(permute(indices, vectors_order), {batch_, count, static_cast<int64_t>(n.indexed.size())});
    Builder& b = c.b;
    const int64_t inside = product(at(window, part_));
    place_ = {&b, b.full(DType::I64, {batch_, count, inside}, 0)};
    fits_ = {&b, b.full(DType::Bool, {batch_, count, 1}, 1)};
    const Value offset = formulas::iota(b, {1, 1, inside}, 2);
    int64_t stride = places_, step = inside;
    for (int64_t axis : part_) {
      stride /= std::max<int64_t>(operand[axis], 1), step /= std::max<int64_t>(window[axis], 1);
      Value position =
          formulas::binary(Op::Mod, formulas::binary(Op::FloorDiv, offset, number(offset, static_cast<double>(step))),
                           number(offset, static_cast<double>(window[axis])));
      const auto named = std::find(n.indexed.begin(), n.indexed.end(), axis);
      if (named != n.indexed.end()) {
        const Value start = with(vectors, b.slice_axis(vectors.node, 2, named - n.indexed.begin(), 1));
        const Value bounded = clamped(start, operand[axis] - window[axis]);
        fits_ = fits_ & (cast(start, DType::I64) == bounded);
        position = position + bounded;
      }
      place_ = place_ + position * static_cast<double>(stride);
    }
    place_ = reshape(place_, {batch_, count * inside});
    fits_ = reshape(formulas::broadcast(fits_, {batch_, count, inside}), {batch_, count * inside});
  }

  Value operand(Value x) const { return reshape(permute(x, order_), {batch_, places_, rest_}); }
  Value operand_back(Value x) const { return formulas::permute_back(reshape(x, at(operand_, order_)), order_); }
  Value slices(Value x) const { return reshape(permute(x, slices_order_), {batch_, place_.size(1), rest_}); }
  Value slices_back(Value x) const { return formulas::permute_back(reshape(x, slices_sizes_), slices_order_); }
  /// Of each element of the slices, i64 and bool: its place, and whether its slice lies within the operand.
  Value place() const { return each(place_); }
  Value fits() const { return each(fits_); }
  int64_t places() const { return places_; }

 private:
  Value each(Value x) const {
    return formulas::broadcast(reshape(x, {x.size(0), x.size(1), 1}), {x.size(0), x.size(1), rest_});
  }

  const Numbers& n_;
  Dims operand_, window_;
  Dims part_, whole_;  // axes of the operand of which a slice has a part, and those it has whole
  Dims order_, slices_order_, slices_sizes_;
  int64_t batch_, places_, rest_;
  Value place_, fits_;  // [batch, slices * places of a slice]
};

Values gather(const Call& c) {
  const Json& dims = c.object("dimension_numbers");
  Numbers n{field(dims, "offset_dims"),           field(dims, "collapsed_slice_dims"),
            field(dims, "operand_batching_dims"), field(dims, "start_indices_batching_dims"),
            field(dims, "start_index_map"),       dims.value("index_vector_dim", int64_t{0})};
  const Value x = c.operand(0), indices = c.operand(1);
  if (c.type().numel() == 0) return {{&c.b, c.b.full(c.dtype(), c.shape(), 0)}};
  const Addresses addresses(c, n, indices, x.shape(), c.list("slice_sizes"), c.shape());
  const Value found = {&c.b, c.b.gather(addresses.operand(x).node, addresses.place().node, 1)};
  return {addresses.slices_back(found)};
}

Values scatter(const Call& c) {
  const Json& dims = c.object("scatter_dimension_numbers");
  Numbers n{field(dims, "update_window_dims"),           field(dims, "inserted_window_dims"),
            field(dims, "input_batching_dims"),          field(dims, "scatter_indices_batching_dims"),
            field(dims, "scatter_dims_to_operand_dims"), dims.value("index_vector_dim", int64_t{0})};
  c.need(c.in.size() == 3, "of several operands is not compiled");
  const Value x = c.operand(0), indices = c.operand(1), updates = c.operand(2);
  if (updates.numel() == 0 || x.numel() == 0) return {x};
  Dims window;
  for (int64_t axis = 0, place = 0; axis < x.rank(); ++axis) {
    const bool one = is_among(n.absent, axis) || is_among(n.batching, axis);
    window.push_back(one ? 1 : updates.size(n.window.at(place++)));
  }
  const Addresses addresses(c, n, indices, x.shape(), window, updates.shape());
  const DType sums = compute_dtype(x.dtype());
  Value into = cast(addresses.operand(x), sums), source = cast(addresses.slices(updates), sums);
  // What lies outside goes to a row of its own, which is cut off.
  const Value outside = number(addresses.place(), static_cast<double>(addresses.places()));
  Value place = where(addresses.fits(), addresses.place(), outside);
  into = with(into, into.b->pad(into.node, number(into, 0).node, {0, 0, 0}, {0, 1, 0}));

  const Json& region = c.region(0);
  const Monoid monoid(c, region);
  const auto op = monoid.operation();
  ScatterKind kind = ScatterKind::Last;
  if (op == Op::Add && x.dtype() != DType::Bool) {
    kind = ScatterKind::Sum;
  } else if (monoid.subtracts()) {
    kind = ScatterKind::Sum;
    source = formulas::unary(Op::Neg, source);
  } else if (region.at("returns").at(0) != region.at("args").at(1).at("name")) {
    const bool once =
        c.attrs.value("unique_indices", false) || indices.numel() == static_cast<int64_t>(n.indexed.size());
    if (!once) {
      c.need(op.has_value(), "with this function, of places that may come twice, is not compiled");
      const Value column = with(place, c.b.slice_axis(place.node, 2, 0, 1));
      const Scattered each = combined(monoid, column, cast(source, x.dtype()), addresses.places());
      place = formulas::broadcast(each.place, place.shape()), source = each.source;
    }
    const Value there = with(into, c.b.gather(into.node, place.node, 1));
    source = cast(monoid.combine({cast(there, x.dtype())}, {cast(source, x.dtype())})[0], sums);
  }
  const Value result = with(into, c.b.scatter(kind, into.node, place.node, source.node, 1));
  const Value cut = with(result, c.b.slice_axis(result.node, 1, 0, addresses.places()));
  return {cast(addresses.operand_back(cut), x.dtype())};
}

}  // namespace

void add_indexing(Table& t) {
  t.add({"stablehlo.gather"}, gather);
  t.add({"stablehlo.scatter"}, scatter);
}

}  // namespace trainc::frontend::stablehlo
