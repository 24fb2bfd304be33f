// gather and scatter, in their general form, as the graph's lookups along one axis.
#include "cost/updates.h"
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

// --- scatter. into: [batch, places + 1, rest]; place, source: [batch, slices * places of a slice, rest].

Value written(ScatterKind kind, Value into, Value place, Value source) {
  const DType dtype = into.dtype(), sums = compute_dtype(dtype);
  const Node* result = into.b->scatter(kind, cast(into, sums).node, place.node, cast(source, sums).node, 1);
  return cast(with(into, result), dtype);
}

/// Whether the region gives the updates as they are.
bool replaces(const Json& region) {
  const Json &args = region.at("args"), &returns = region.at("returns");
  for (size_t i = 0; i < returns.size(); ++i)
    if (returns[i] != args.at(returns.size() + i).at("name")) return false;
  return true;
}

/// The function of what is there and what comes, of places that differ (or beside all others).
Values applied(const Monoid& monoid, Values into, Value place, const Values& source) {
  Values there;
  for (const Value& v : into) there.push_back(with(v, v.b->gather(v.node, place.node, 1)));
  const Values next = monoid.combine(there, source);
  for (size_t i = 0; i < into.size(); ++i) into[i] = written(ScatterKind::Last, into[i], place, next[i]);
  return into;
}

/// The same of any function and any places: one after the other, as XLA does.
Values one_by_one(const Monoid& monoid, Values into, Value place, const Values& source) {
  const int64_t n = place.size(1);
  if (n > kMostInOrder)
    monoid.call().fail("of " + std::to_string(n) +
                       " elements with this function, of places that may come twice, is not compiled");
  const auto one = [](Value v, int64_t i) { return with(v, v.b->slice_axis(v.node, 1, i, 1)); };
  for (int64_t i = 0; i < n; ++i) {
    Values update;
    for (const Value& v : source) update.push_back(one(v, i));
    into = applied(monoid, std::move(into), one(place, i), update);
  }
  return into;
}

/// Of one slice: what it makes of what is there is an update where it lies, and where it does not lie within the
/// operand, what is there is written again. So nothing has to be copied beside it.
Values one_slice(const Monoid& monoid, const Numbers& n, Value indices, const Values& x, const Values& updates,
                 const Dims& window) {
  const Call& c = monoid.call();
  const Value vector = reshape(indices, {indices.numel()});
  std::vector<Value> starts(window.size(), {&c.b, c.b.constant_int(DType::I64, 0)});
  Value fits = {&c.b, c.b.constant_int(DType::Bool, 1)};
  for (size_t i = 0; i < n.indexed.size(); ++i) {
    const int64_t axis = n.indexed[i];
    const Value said = reshape(with(vector, c.b.slice_axis(vector.node, 0, static_cast<int64_t>(i), 1)), {});
    const Value start = clamped(said, x[0].size(axis) - window[axis]);
    fits = fits & (cast(said, DType::I64) == start);
    starts[axis] = start;
  }
  Values there = x, source;
  for (Value& v : there)
    for (size_t axis = 0; axis < window.size(); ++axis)
      v = slice_from(v, static_cast<int64_t>(axis), starts[axis], window[axis], c.known);
  for (const Value& v : updates) source.push_back(reshape(v, window));
  const Values next = monoid.combine(there, source);
  Values results;
  for (size_t i = 0; i < x.size(); ++i)
    results.push_back(updated(x[i], where(fits, next[i], there[i]), starts, c.known));
  return results;
}

Values scatter(const Call& c) {
  const Json& dims = c.object("scatter_dimension_numbers");
  Numbers n{field(dims, "update_window_dims"),           field(dims, "inserted_window_dims"),
            field(dims, "input_batching_dims"),          field(dims, "scatter_indices_batching_dims"),
            field(dims, "scatter_dims_to_operand_dims"), dims.value("index_vector_dim", int64_t{0})};
  const size_t operands = c.in.size() / 2;
  c.need(c.in.size() == 2 * operands + 1, "takes as many updates as operands");
  const Value indices = c.in[operands];
  const Values x(c.in.begin(), c.in.begin() + static_cast<std::ptrdiff_t>(operands));
  const Values updates(c.in.begin() + static_cast<std::ptrdiff_t>(operands) + 1, c.in.end());
  if (updates[0].numel() == 0 || x[0].numel() == 0) return x;
  Dims window;
  for (int64_t axis = 0, place = 0; axis < x[0].rank(); ++axis) {
    const bool one = is_among(n.absent, axis) || is_among(n.batching, axis);
    window.push_back(one ? 1 : updates[0].size(n.window.at(place++)));
  }
  const Monoid monoid(c, c.region(0));
  if (n.batching.empty() && !n.indexed.empty() && indices.numel() == static_cast<int64_t>(n.indexed.size()))
    return one_slice(monoid, n, indices, x, updates, window);
  // What lies outside makes a copy, of each trip: XLA has none.
  if (c.importer.in_loop() && x[0].numel() >= cost::kCopiedEachTrip &&
      updates[0].numel() <= x[0].numel() / cost::kFewOf)
    c.fail("writes few elements of a large tensor, in each trip of a loop whose trips are not known");
  const Addresses addresses(c, n, indices, x[0].shape(), window, updates[0].shape());
  // What lies outside goes to a row of its own, which is cut off.
  const Value outside = number(addresses.place(), static_cast<double>(addresses.places()));
  Value place = where(addresses.fits(), addresses.place(), outside);
  Values into, source;
  for (const Value& v : x) {
    const Value rows = addresses.operand(v);
    into.push_back(with(v, c.b.pad(rows.node, number(rows, 0).node, {0, 0, 0}, {0, 1, 0})));
  }
  for (const Value& v : updates) source.push_back(addresses.slices(v));

  const bool adds = monoid.operation() == Op::Add && x[0].dtype() != DType::Bool, subtracts = monoid.subtracts();
  if (adds || subtracts) {
    for (size_t i = 0; i < operands; ++i)
      into[i] = written(ScatterKind::Sum, into[i], place, subtracts ? -source[i] : source[i]);
  } else if (replaces(c.region(0))) {
    for (size_t i = 0; i < operands; ++i) into[i] = written(ScatterKind::Last, into[i], place, source[i]);
  } else {
    const bool once =
        c.attrs.value("unique_indices", false) || indices.numel() == static_cast<int64_t>(n.indexed.size());
    if (!once && !monoid.operation()) {
      into = one_by_one(monoid, into, place, source);
    } else {
      if (!once) {
        const Value column = with(place, c.b.slice_axis(place.node, 2, 0, 1));
        const Scattered each = combined(monoid, column, source, addresses.places());
        place = formulas::broadcast(each.place, place.shape()), source = each.source;
      }
      into = applied(monoid, into, place, source);
    }
  }
  Values results;
  for (size_t i = 0; i < operands; ++i) {
    const Value cut = with(into[i], c.b.slice_axis(into[i].node, 1, 0, addresses.places()));
    results.push_back(addresses.operand_back(cut));
  }
  return results;
}

}  // namespace

void add_indexing(Table& t) {
  t.add({"stablehlo.gather"}, gather);
  t.add({"stablehlo.scatter"}, scatter);
}

}  // namespace trainc::frontend::stablehlo
