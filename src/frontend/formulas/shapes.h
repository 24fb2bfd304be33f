// Axes and shapes, as the formulas of several families count them.
#pragma once
#include <algorithm>
#include <functional>
#include <numeric>

#include "frontend/formulas/value.h"

namespace trainc::formulas {

inline Dims all_axes(int64_t rank) {
  Dims axes(rank);
  std::iota(axes.begin(), axes.end(), 0);
  return axes;
}
inline int64_t product(const Dims& d) { return std::accumulate(d.begin(), d.end(), int64_t{1}, std::multiplies<>()); }
inline Dims join(std::initializer_list<Dims> parts) {
  Dims all;
  for (const Dims& p : parts) all.insert(all.end(), p.begin(), p.end());
  return all;
}
/// Elements that a reduction over these axes takes together.
inline double count_of(Value x, const Dims& axes) {
  double n = 1;
  for (int64_t axis : axes) n *= x.size(axis);
  return n;
}

/// All axes in their order, those of `last` moved to the end.
inline Dims to_the_end(int64_t rank, const Dims& last) {
  Dims order;
  for (int64_t axis = 0; axis < rank; ++axis)
    if (std::find(last.begin(), last.end(), axis) == last.end()) order.push_back(axis);
  order.insert(order.end(), last.begin(), last.end());
  return order;
}
/// Undoes permute(x, order).
inline Value permute_back(Value x, const Dims& order) {
  Dims back(order.size());
  for (size_t i = 0; i < order.size(); ++i) back[order[i]] = static_cast<int64_t>(i);
  return permute(x, back);
}

}  // namespace trainc::formulas
