#include "frontend/stablehlo/segments.h"

#include "frontend/stablehlo/sort.h"

namespace trainc::frontend::stablehlo {
namespace {

Value of_columns(Value x, int64_t from, int64_t count) { return with(x, x.b->slice_axis(x.node, 1, from, count)); }
Value beside(Value x, Value y) {
  const std::vector<const Node*> both{x.node, y.node};
  return with(x, x.b->concat(both, 1));
}

}  // namespace

Scattered combined(const Monoid& monoid, Value place, Values source, int64_t nowhere) {
  const int64_t n = place.size(1);
  const Values ordered =
      sorted({place}, 1, [](const Values& x, const Values& y) { return x[0] < y[0]; }, /*with_places=*/true);
  place = ordered[0];
  for (Value& v : source) v = with(v, v.b->gather(v.node, formulas::broadcast(ordered[1], v.shape()).node, 1));
  // After a step each element holds all of its place among the 2 * apart that end with it.
  for (int64_t apart = 1; apart < n; apart *= 2) {
    const auto later = [&](Value x) { return of_columns(x, apart, n - apart); };
    const auto earlier = [&](Value x) { return of_columns(x, 0, n - apart); };
    const Value same = formulas::broadcast(later(place) == earlier(place), later(source[0]).shape());
    Values before, behind;
    for (const Value& v : source) before.push_back(earlier(v)), behind.push_back(later(v));
    const Values both = monoid.combine(before, behind);
    for (size_t i = 0; i < source.size(); ++i)
      source[i] = beside(of_columns(source[i], 0, apart), formulas::where(same, both[i], behind[i]));
  }
  if (n > 1) {
    const Value goes = of_columns(place, 0, n - 1), next = of_columns(place, 1, n - 1);
    const Value last = formulas::where(goes == next, number(goes, static_cast<double>(nowhere)), goes);
    place = beside(last, of_columns(place, n - 1, 1));
  }
  return {place, source};
}

}  // namespace trainc::frontend::stablehlo
