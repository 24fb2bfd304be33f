// reduce_window, running sums among it, and select_and_scatter: pools and their derivatives.
#include "frontend/stablehlo/monoid.h"
#include "frontend/stablehlo/parts.h"
#include "frontend/stablehlo/table.h"

namespace trainc::frontend::stablehlo {
namespace {

using formulas::broadcast;
using formulas::cast;
using formulas::where;

struct Windows {
  Dims size, step, base, dilation, low, high;

  Windows(const Call& c, size_t rank)
      : size(c.list("window_dimensions", rank, 1)),
        step(c.list("window_strides", rank, 1)),
        base(c.list("base_dilations", rank, 1)),
        dilation(c.list("window_dilations", rank, 1)) {
    const Dims padding = c.list("padding", 2 * rank, 0);
    for (size_t axis = 0; axis < rank; ++axis) low.push_back(padding[2 * axis]), high.push_back(padding[2 * axis + 1]);
  }
  Dims interior() const {
    Dims gaps = base;
    for (int64_t& gap : gaps) --gap;
    return gaps;
  }
  bool trivial(size_t axis) const {
    return size[axis] == 1 && step[axis] == 1 && base[axis] == 1 && low[axis] == 0 && high[axis] == 0;
  }
};

/// x moved along an axis by `by` places (negative: down), `fill` where nothing comes from.
Value moved(Value x, Value fill, int64_t axis, int64_t by) {
  Dims low(x.rank(), 0), high = low, none = low;
  low[axis] = by, high[axis] = -by;
  return padded(x, fill, low, high, none);
}

/// Windows over all that lies before an element, or behind it: sums are the graph's Scan; others combine what lies 1,
/// 2, 4, ... places away.
std::optional<Values> running(const Monoid& monoid, const Values& x, const Values& init, const Windows& w) {
  const auto neutral = monoid.neutral(x[0].dtype());
  if (!neutral) return std::nullopt;
  int64_t along = -1;
  for (size_t axis = 0; axis < w.size.size(); ++axis) {
    if (w.trivial(axis)) continue;
    const int64_t n = x[0].size(static_cast<int64_t>(axis));
    const bool plain = w.size[axis] == n && w.step[axis] == 1 && w.base[axis] == 1 && w.dilation[axis] == 1;
    const bool before = w.low[axis] == n - 1 && w.high[axis] == 0, behind = w.low[axis] == 0 && w.high[axis] == n - 1;
    if (along >= 0 || !plain || (!before && !behind)) return std::nullopt;
    along = static_cast<int64_t>(axis);
  }
  if (along < 0) return std::nullopt;
  const bool before = w.high[along] == 0;
  Values result = x;
  if (monoid.operation() == Op::Add && x[0].dtype() != DType::Bool) {
    Builder& b = monoid.call().b;
    const Dims flipped = before ? Dims{} : Dims{along};
    for (Value& v : result) {
      const Value wide = cast(v, compute_dtype(v.dtype()));
      v = cast(Value{&b, b.reverse(b.scan(b.reverse(wide.node, flipped), along), flipped)}, v.dtype());
    }
  } else {
    for (int64_t by = 1; by < x[0].size(along); by *= 2) {
      Values other;
      for (size_t i = 0; i < result.size(); ++i)
        other.push_back(moved(result[i], neutral->at(i), along, before ? by : -by));
      result = before ? monoid.combine(other, result) : monoid.combine(result, other);
    }
  }
  Values first;
  for (const Value& v : init) first.push_back(broadcast(v, x[0].shape()));
  return monoid.combine(first, result);
}

Values reduce_window(const Call& c) {
  const size_t n = c.in.size() / 2;
  Values x(c.in.begin(), c.in.begin() + static_cast<std::ptrdiff_t>(n));
  const Values init(c.in.begin() + static_cast<std::ptrdiff_t>(n), c.in.end());
  c.need(n > 0 && c.in.size() == 2 * n, "takes as many initial values as operands");
  const Windows w(c, x[0].shape().size());
  const Monoid monoid(c, c.region(0));
  if (x[0].numel() > 0)
    if (auto result = running(monoid, x, init, w)) return *result;
  WindowAttr attr;
  Dims axes;
  for (int64_t axis = 0; axis < x[0].rank(); ++axis) {
    if (w.size[axis] == 1 && w.step[axis] == 1) continue;
    axes.push_back(x[0].rank() + static_cast<int64_t>(attr.axes.size()));
    attr.axes.push_back(axis), attr.size.push_back(w.size[axis]);
    attr.step.push_back(w.step[axis]), attr.dilation.push_back(w.dilation[axis]);
  }
  const auto seen = [&](Value v, Value fill) {
    v = padded(v, fill, w.low, w.high, w.interior());
    return with(v, c.b.window(v.node, attr));
  };
  const auto neutral = monoid.neutral(x[0].dtype());
  const Value all = {&c.b, c.b.full(DType::Bool, x[0].shape(), 1)};
  std::optional<Value> inside;  // what is padded is not counted, whatever the initial value
  if (!neutral) inside = seen(all, number(all, 0));
  for (size_t i = 0; i < n; ++i) x[i] = seen(x[i], neutral ? neutral->at(i) : init[i]);
  return reduced(monoid, x, init, axes, inside);
}

// --- select_and_scatter

constexpr int64_t kMostPlaces = 256;  // of a window: each is a few nodes

/// Of each window the element that `select` keeps, window places in order, is given the window's source. Places in the
/// padding are no candidates.
Values select_and_scatter(const Call& c) {
  const Value x = c.operand(0), source = c.operand(1), init = c.operand(2);
  if (x.numel() == 0 || source.numel() == 0) return {broadcast(init, c.shape())};
  const Windows w(c, x.shape().size());
  const Monoid scatter(c, c.region(1));
  c.need(scatter.operation() == Op::Add, "with another function than a sum is not compiled");
  const int64_t places = formulas::product(w.size);
  if (places > kMostPlaces) c.fail("with windows of " + std::to_string(places) + " elements is not compiled");

  const Dims none(x.rank(), 0), grid = source.shape();
  Value padding = x, inside = {&c.b, c.b.full(DType::Bool, x.shape(), 1)};
  padding = padded(x, number(x, 0), w.low, w.high, none);
  inside = padded(inside, number(inside, 0), w.low, w.high, none);
  // The places of a window, the last axis fastest.
  const auto offset = [&](int64_t place) {
    Dims at(x.rank());
    for (int64_t axis = x.rank(); axis-- > 0; place /= w.size[axis]) at[axis] = place % w.size[axis];
    return at;
  };
  const auto taken = [&](Value v, int64_t place) { return with(v, c.b.slice(v.node, offset(place), grid, w.step)); };
  Value best, which, any;
  for (int64_t place = 0; place < places; ++place) {
    const Value now = taken(padding, place), there = taken(inside, place);
    const Value number_of = {&c.b, c.b.full(DType::I32, grid, static_cast<double>(place))};
    if (place == 0) {
      best = now, which = number_of, any = there;
      continue;
    }
    const Value kept = c.importer.map(c.region(0), {best, now}).at(0);
    const Value stays = formulas::unary(Op::Not, there) | (any & kept);
    best = where(stays, best, now), which = where(stays, which, number_of), any = any | there;
  }
  const DType sums = compute_dtype(x.dtype());
  const Value wide = cast(source, sums), zero = number(wide, 0);
  std::optional<Value> total;
  for (int64_t place = 0; place < places; ++place) {
    const Dims at = offset(place);
    Dims low(x.rank()), high(x.rank()), gaps(x.rank());
    for (int64_t axis = 0; axis < x.rank(); ++axis) {
      low[axis] = at[axis] - w.low[axis], gaps[axis] = w.step[axis] - 1;
      const int64_t length = (grid[axis] - 1) * w.step[axis] + 1;
      high[axis] = x.size(axis) - low[axis] - length;
    }
    const Value chosen = (which == static_cast<double>(place)) & any;
    const Value part = padded(where(chosen, wide, zero), zero, low, high, gaps);
    total = total ? *total + part : part;
  }
  return scatter.combine({broadcast(init, c.shape())}, {c.rounded(*total)});
}

}  // namespace

void add_windows(Table& t) {
  t.add({"stablehlo.reduce_window"}, reduce_window);
  t.add({"stablehlo.select_and_scatter"}, select_and_scatter);
}

}  // namespace trainc::frontend::stablehlo
