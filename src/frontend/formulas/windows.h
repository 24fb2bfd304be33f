// Channels last, [N, size..., C]: the order in which convolutions and pools are written (docs/frontend.md), and the
// movements they share.
#pragma once
#include <algorithm>

#include "frontend/formulas/shapes.h"

namespace trainc::formulas {

/// [N, C, size...] -> [N, size..., C]
inline Value channels_last(Value x) {
  Dims order{0};
  for (int64_t k = 2; k < x.rank(); ++k) order.push_back(k);
  order.push_back(1);
  return permute(x, order);
}
/// [N, size..., C] -> [N, C, size...]
inline Value channels_first(Value x) {
  Dims order{0, x.rank() - 1};
  for (int64_t k = 1; k + 1 < x.rank(); ++k) order.push_back(k);
  return permute(x, order);
}

/// [N, size..., C] with `low` and `high` more places of `value` along each spatial axis, of which `at` is the first;
/// negative numbers cut places off.
inline Value resized(Value x, const Dims& low, const Dims& high, double value, int64_t at = 1) {
  Dims start(x.rank(), 0), extent = x.shape(), before(x.rank(), 0), after(x.rank(), 0);
  for (size_t k = 0; k < low.size(); ++k) {
    const int64_t size = extent[k + at];
    start[k + at] = std::min(std::max<int64_t>(-low[k], 0), size);
    const int64_t end = std::max(std::min(size, size + high[k]), start[k + at]);
    extent[k + at] = end - start[k + at];
    // what was cut off is as many fewer places to add
    before[k + at] = std::max<int64_t>(low[k], 0);
    after[k + at] = std::max<int64_t>(size + low[k] + high[k] - before[k + at] - extent[k + at], 0);
  }
  x = with(x, x.b->slice(x.node, start, extent, Dims(x.rank(), 1)));
  return with(x, x.b->pad(x.node, number(x, value).node, before, after));
}

/// [N, size..., C] -> [N, windows..., kernel..., C]: all windows that lie within x. `at`: the first spatial axis.
inline Value windows(Value x, const Dims& kernel, const Dims& step, const Dims& dilation, int64_t at = 1) {
  WindowAttr attr{{}, kernel, step, dilation};
  const int64_t axes = kernel.size();
  Dims order = all_axes(at + axes);
  for (int64_t k = 0; k < axes; ++k) attr.axes.push_back(at + k), order.push_back(at + axes + 1 + k);
  order.push_back(at + axes);
  return permute(with(x, x.b->window(x.node, attr)), order);
}

}  // namespace trainc::formulas
