// sort and top_k as a network of comparisons: as many of them whatever the values are, each on whole tensors. The
// comparator is any region; each element carries its place, which decides between equals.
#include "frontend/stablehlo/sort.h"

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
    x_.back() = formulas::broadcast(
        formulas::iota(*x_[0].b, with_last({x_[0].shape().size(), 1}, size), x_[0].rank() - 1), x_[0].shape());
    // Runs of `run` are sorted: two of them, one of them backwards, are one that rises and falls.
    for (int64_t run = 1; run < size; run *= 2) {
      exchange(run, /*backwards=*/true);
      for (int64_t apart = run / 2; apart >= 1; apart /= 2) exchange(apart, false);
    }
    for (Value& v : x_) v = with(v, v.b->slice_axis(v.node, v.rank() - 1, 0, n_));
    return x_;
  }

 private:
  static Dims with_last(std::pair<size_t, int64_t> ones, int64_t last) {
    Dims shape(ones.first, ones.second);
    shape.back() = last;
    return shape;
  }

  /// Compares each element of a block of 2 * apart with that `apart` further (`backwards`: the block's mirrored one),
  /// and puts the one that goes before into the first half.
  void exchange(int64_t apart, bool backwards) {
    const Dims shape = x_[0].shape();
    Dims blocks(shape.begin(), shape.end() - 1);
    blocks.insert(blocks.end(), {shape.back() / (2 * apart), 2, apart});
    const auto axis = static_cast<int64_t>(blocks.size()) - 2;
    const auto half = [&](Value v, int64_t i) { return with(v, v.b->slice_axis(reshape(v, blocks).node, axis, i, 1)); };
    const auto turned = [&](Value v) { return backwards ? with(v, v.b->reverse(v.node, {axis + 1})) : v; };
    Values first, second;
    for (const Value& v : x_) first.push_back(half(v, 0)), second.push_back(turned(half(v, 1)));
    const Value swaps = goes_before(second, first);
    for (size_t i = 0; i < x_.size(); ++i) {
      const Value low = where(swaps, second[i], first[i]), high = turned(where(swaps, first[i], second[i]));
      const std::vector<const Node*> halves{low.node, high.node};
      x_[i] = reshape(with(low, low.b->concat(halves, axis)), shape);
    }
  }

  Value goes_before(const Values& x, const Values& y) const {
    const Values x_values(x.begin(), x.end() - 1), y_values(y.begin(), y.end() - 1);
    const Value xy = before_(x_values, y_values), yx = before_(y_values, x_values);
    const double end = static_cast<double>(n_);
    const Value earlier = where(xy == yx, x.back() < y.back(), xy);
    return (x.back() < end) & ((y.back() >= end) | earlier);
  }

  Values x_;
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

/// The greatest first, of equals the earlier one; NaN is the greatest.
Values top_k(const Call& c) {
  const Value x = c.operand(0);
  const int64_t axis = x.rank() - 1, k = c.integer("k");
  Values found = {x, formulas::broadcast(formulas::iota(c.b, {x.size(axis)}, 0), x.shape())};
  if (x.numel() > 0)
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
