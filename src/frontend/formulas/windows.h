// Channels last, [N, size..., C]: the order in which convolutions and pools are written (docs/frontend.md), and the
// movements they share.
#pragma once
#include <algorithm>

#include "frontend/formulas/value.h"

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

/// [N, size..., C] with `low` and `high` more places of `value` along each spatial axis; negative numbers cut places
/// off.
inline Value resized(Value x, const Dims& low, const Dims& high, double value) {
  Dims start(x.rank(), 0), extent = x.shape(), before(x.rank(), 0), after(x.rank(), 0);
  for (size_t k = 0; k < low.size(); ++k) {
    const int64_t size = extent[k + 1];
    start[k + 1] = std::min(std::max<int64_t>(-low[k], 0), size);
    const int64_t end = std::max(std::min(size, size + high[k]), start[k + 1]);
    extent[k + 1] = end - start[k + 1];
    // what was cut off is as many fewer places to add
    before[k + 1] = std::max<int64_t>(low[k], 0);
    after[k + 1] = std::max<int64_t>(size + low[k] + high[k] - before[k + 1] - extent[k + 1], 0);
  }
  x = with(x, x.b->slice(x.node, start, extent, Dims(x.rank(), 1)));
  return with(x, x.b->pad(x.node, number(x, value).node, before, after));
}

/// [N, size..., C] -> [N, windows..., kernel..., C]: all windows that lie within x.
inline Value windows(Value x, const Dims& kernel, const Dims& step, const Dims& dilation) {
  WindowAttr attr{{}, kernel, step, dilation};
  const int64_t axes = kernel.size();
  Dims order{0};
  for (int64_t k = 0; k < axes; ++k) attr.axes.push_back(k + 1), order.push_back(k + 1);
  for (int64_t k = 0; k < axes; ++k) order.push_back(axes + 2 + k);
  order.push_back(axes + 1);
  return permute(with(x, x.b->window(x.node, attr)), order);
}

}  // namespace trainc::formulas
