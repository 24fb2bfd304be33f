// sort as a network of comparisons: as many of them whatever the values are, each on whole tensors. The comparator is
// any region; each element carries its place, which decides between equals. top_k of few without one.
#include "frontend/stablehlo/sort.h"

#include <limits>

#include "frontend/formulas/indexing.h"
#include "frontend/stablehlo/bits.h"
#include "frontend/stablehlo/table.h"

namespace trainc::frontend::stablehlo {
namespace {

using formulas::cast;
using formulas::where;

/// Sorts along the last axis; the tuple's last tensor counts the places of the elements.
class Network {
 public:
  Network(Values x, int64_t n, Before before) : x_(std::move(x)), n_(n), before_(std::move(before)) {}

  Values run() {
    int64_t size = 1;
    while (size < n_) size *= 2;
    for (Value& v : x_) {
      Dims none(v.rank(), 0), more = none;
      more.back() = size - n_;
      v = with(v, v.b->pad(v.node, number(v, 0).node, none, more));
    }
    // places beside the tensor sort behind all others
    x_.back() = place_ = formulas::broadcast(formulas::iota(*x_[0].b, {size}, 0), x_[0].shape());
    // Runs of `run` are sorted: two of them, one of them backwards, are one that rises and falls.
    for (int64_t run = 1; run < size; run *= 2) {
      exchange(2 * run - 1);
      for (int64_t apart = run / 2; apart >= 1; apart /= 2) exchange(apart);
    }
    for (Value& v : x_) v = with(v, v.b->slice_axis(v.node, v.rank() - 1, 0, n_));
    return x_;
  }

 private:
  /// Compares each element with the one whose place differs in the bits of `mask`: of a block the mirrored one, where
  /// these are all that places in it have. The one that goes before gets the lower place. The other one is gathered:
  /// cut out and put together again, the elements of several steps would become one kernel, of thousands of pieces.
  void exchange(int64_t mask) {
    const Value partner = place_ ^ integer(place_, mask);
    Values there;
    for (const Value& v : x_) there.push_back(with(v, v.b->gather(v.node, partner.node, v.rank() - 1)));
    const Value keep = goes_before(x_, there) == (place_ < partner);
    for (size_t i = 0; i < x_.size(); ++i) x_[i] = where(keep, x_[i], there[i]);
  }

  Value goes_before(const Values& x, const Values& y) const {
    const Values x_values(x.begin(), x.end() - 1), y_values(y.begin(), y.end() - 1);
    const Value xy = before_(x_values, y_values), yx = before_(y_values, x_values);
    const Value first = x.back() < y.back(), end = number(x.back(), static_cast<double>(n_));
    return where((xy == yx) | (x.back() >= end) | (y.back() >= end), first, xy);
  }

  Values x_;
  Value place_;
  int64_t n_;
  Before before_;
};

}  // namespace

Values sorted(Values x, int64_t axis, const Before& before, bool with_places) {
  const int64_t n = x[0].size(axis);
  const Dims order = formulas::to_the_end(x[0].rank(), {axis});
  for (Value& v : x) v = permute(v, order);
  x.push_back(formulas::broadcast(formulas::iota(*x[0].b, {n}, 0), x[0].shape()));
  if (n > 1) x = Network(std::move(x), n, before).run();
  if (!with_places) x.pop_back();
  for (Value& v : x) v = formulas::permute_back(v, order);
  return x;
}

namespace {

Values sort(const Call& c) {
  const Value x = c.operand(0);
  if (x.numel() == 0) return c.in;
  const int64_t axis = c.integer("dimension", x.rank() - 1);
  return sorted(c.in, axis < 0 ? axis + x.rank() : axis, [&](const Values& x, const Values& y) {
    Values pairs;  // the comparator takes them operand by operand
    auto left = x.begin(), right = y.begin();
    for (const int parts : c.operands) {
      pairs.insert(pairs.end(), left, left + parts), pairs.insert(pairs.end(), right, right + parts);
      left += parts, right += parts;
    }
    return c.importer.map(c.region(0), pairs).at(0);
  });
}

/// How many steps a network of n elements has.
int64_t steps_of(int64_t n) {
  int64_t bits = 0;
  while ((int64_t{1} << bits) < n) ++bits;
  return bits * (bits + 1) / 2;
}

/// The first k of a row (the last axis) from the greatest down, and their places: one after the other, each the
/// greatest of what comes behind the one before it.
Values greatest(Value x, int64_t k) {
  const int64_t axis = x.rank() - 1;
  const Value key = cast(total_order(x), DType::I64);
  const Value place = formulas::broadcast(formulas::iota(*x.b, {x.size(axis)}, 0), x.shape());
  const Value none = integer(key, std::numeric_limits<int64_t>::min());  // no key of 32 bits is that
  std::vector<const Node*> places;
  Value left = key;
  for (int64_t i = 0; i < k; ++i) {
    const Value at = formulas::reduce(ReduceKind::ArgMax, left, {axis});
    places.push_back(at.node);
    const Value found = formulas::gathered(key, at, axis);
    left = where((key < found) | ((key == found) & (at < place)), key, none);
  }
  const Value at = with(key, x.b->concat(places, axis));
  return {formulas::gathered(x, at, axis), at};
}

/// The greatest first, of equals the earlier one; NaN is the greatest.
Values top_k(const Call& c) {
  const Value x = c.operand(0);
  const int64_t axis = x.rank() - 1, n = x.size(axis), k = c.integer("k");
  Values found = {x, formulas::broadcast(formulas::iota(c.b, {n}, 0), x.shape())};
  if (x.numel() > 0 && k > 0 && 2 * k <= steps_of(n) && size_of(x.dtype()) <= 4) found = greatest(x, k);
  else if (x.numel() > 0)
    found = sorted(
        {x}, axis, [](const Values& x, const Values& y) { return total_order(y[0]) < total_order(x[0]); },
        /*with_places=*/true);
  for (Value& v : found) v = with(v, c.b.slice_axis(v.node, axis, 0, k));
  return {found[0], cast(found[1], c.type(1).dtype)};
}

}  // namespace

void add_sort(Table& t) {
  t.add({"stablehlo.sort"}, sort);
  t.add({"chlo.top_k"}, top_k);
}

}  // namespace trainc::frontend::stablehlo
