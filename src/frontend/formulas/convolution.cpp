#include "frontend/formulas/convolution.h"

#include <limits>
#include <numeric>

#include "frontend/formulas/shapes.h"
#include "frontend/formulas/windows.h"

namespace trainc::formulas {
namespace {

/// Windows side by side that are the whole image, not 1x1, of one group: patches of a vision transformer, the doubled
/// sides of a U-Net, an image that is a single window.
bool side_by_side(const Convolution& f) {
  for (size_t k = 0; k < f.axes(); ++k)
    if ((f.grid[k] > 1 && f.stride[k] != f.kernel[k]) || f.low[k] != 0 || f.high[k] != 0 ||
        (f.kernel[k] > 1 && f.dilation[k] != 1) || f.size[k] != f.grid[k] * f.kernel[k])
      return false;
  return product(f.kernel) > 1 && f.groups == 1;
}
/// Such patches of few channels are read as the image lies, channels first: in rows of a patch.
bool patches(const Convolution& f) { return side_by_side(f) && f.channels < product(f.kernel); }

/// The first spatial axis of an image by groups.
int64_t first_place(const Convolution& f) { return f.groups == 1 || f.depthwise() ? 1 : 2; }
/// [N, places..., C] -> [groups, N, places..., C / groups], of one group, or depthwise, as it is. Padding comes
/// afterwards: it makes a copy in this order, in which rows of taps lie as they are read.
Value by_groups(Value image, const Convolution& f) {
  if (first_place(f) == 1) return image;
  Dims split = image.shape(), order = all_axes(image.rank() + 1);
  split.back() /= f.groups, split.insert(split.end() - 1, f.groups);
  std::rotate(order.begin(), order.end() - 2, order.end() - 1);
  return permute(reshape(image, split), order);
}
/// x [N, C, size...] -> by groups [N, windows..., kernel..., C / groups]
Value windows_of(Value x, const Convolution& f) {
  const int64_t at = first_place(f);
  return windows(resized(by_groups(channels_last(x), f), f.low, f.high, 0, at), f.kernel, f.stride, f.dilation, at);
}
/// [groups, N * places, C / groups] -> [N, places..., C]
Value image_of_rows(Value rows, const Convolution& f, const Dims& places) {
  return reshape(permute(rows, {1, 0, 2}), join({{f.images}, places, {f.groups * rows.size(2)}}));
}

// --- windows as the rows of a contraction; how the taps and channels of a window follow each other is this pair's own
// business
/// x [N, C, size...] -> [groups, N * windows, taps * C / groups]
Value rows_of(Value x, const Convolution& f) {
  const int64_t axes = f.axes();
  const Dims shape{f.groups, f.images * product(f.grid), product(f.kernel) * f.channels / f.groups};
  if (!patches(f)) return reshape(windows_of(x, f), shape);
  Dims split{f.images, f.channels}, order{0};
  for (int64_t k = 0; k < axes; ++k)
    split.push_back(f.grid[k]), split.push_back(f.kernel[k]), order.push_back(2 + 2 * k);
  order.push_back(1);
  for (int64_t k = 0; k < axes; ++k) order.push_back(3 + 2 * k);
  return reshape(permute(reshape(x, split), order), shape);
}

/// w [O, C / groups, kernel...] -> [groups, O / groups, taps * C / groups]
Value rows_of_weight(Value w, const Convolution& f) {
  return reshape(patches(f) ? w : channels_last(w),
                 {f.groups, f.out / f.groups, product(f.kernel) * f.channels / f.groups});
}
/// The way back.
Value weight_of_rows(Value rows, const Convolution& f) {
  const int64_t channels = f.channels / f.groups;
  if (patches(f)) return reshape(rows, join({{f.out, channels}, f.kernel}));
  return channels_first(reshape(rows, join({{f.out}, f.kernel, {channels}})));
}

// --- depthwise: sums over taps
/// Axes from..from+count-1.
Dims axes_from(int64_t from, int64_t count) {
  Dims axes(count);
  std::iota(axes.begin(), axes.end(), from);
  return axes;
}

/// x [N, places..., taps..., C], w [taps..., C] -> [N, places..., C]: the sums over the taps of the products.
Value sum_over_taps(Value x, Value w, const Convolution& f, DType sums) {
  return sum(cast(x, sums) * cast(w, sums), axes_from(1 + f.axes(), f.axes()), false);
}

/// w, a channel's taps after those of another -> [taps..., C]
Value taps_of(Value w, const Convolution& f, const Dims& taps) {
  return permute(reshape(w, join({{f.channels}, taps})), join({axes_from(1, f.axes()), {0}}));
}

/// dy [N, C, grid...] -> [C, 1, kernel...]
Value depthwise_weight_gradient(Value dy, Value x, const Convolution& f, DType sums) {
  const int64_t axes = f.axes();
  const Value of_taps = reshape(channels_last(dy), join({{f.images}, f.grid, Dims(axes, 1), {f.channels}}));
  // Of each image by itself first: what it sums over stays in a near cache from one tap to the next.
  Value each = sum(cast(windows_of(x, f), sums) * cast(of_taps, sums), axes_from(1, axes), false);  // [N, kernel..., C]
  const Value taps = sum(each, {0}, false);
  return reshape(permute(taps, join({{axes}, all_axes(axes)})), join({{f.channels, 1}, f.kernel}));
}

// --- the gradient of the weight
/// dy [groups, N * windows, O / groups], x as rows [groups, N * windows, taps * C / groups]; gives w's shape.
Value gradient_of_weight(Value dy, Value x, const Convolution& f) {
  const Value of_out = permute(dy, {0, 2, 1}), of_window = permute(x, {0, 2, 1});
  if (patches(f) || product(f.kernel) == 1)
    return weight_of_rows(with(dy, dy.b->contract(of_out.node, of_window.node)), f);
  // The window's elements down, the output's channels across: the contraction reads the lhs where it lies, and packs dy
  // alone.
  return weight_of_rows(permute(with(dy, dy.b->contract(of_window.node, of_out.node)), {0, 2, 1}), f);
}

// --- the gradient of the input
/// Along one axis, the places h = step * t + phase of the input take tap first + j * every, j < count, from place t +
/// shift - j * gap of the output.
struct Phase { int64_t first, every, count, shift, gap; };

Phase phase_of(const Convolution& f, size_t axis, int64_t phase) {
  const int64_t step = f.stride[axis], dilation = f.dilation[axis], common = std::gcd(step, dilation);
  Phase p{0, step / common, 0, 0, dilation / common};
  for (int64_t tap = f.kernel[axis]; tap-- > 0;)
    if ((phase + f.low[axis] - tap * dilation) % step == 0) ++p.count, p.first = tap;
  p.shift = (phase + f.low[axis] - p.first * dilation) / step;
  return p;
}

/// How many places more than the output has they look at, before it and behind it.
Dims beyond(const Phase& p, int64_t places, int64_t grid) {
  const int64_t reach = (p.count - 1) * p.gap, low = reach - p.shift;
  return {low, places + reach - low - grid};
}

/// The places of all axes' phases: [N, places..., C] channels last; nothing where no tap reaches them. dy: by
/// groups. Along an axis where it looks beyond the output, the output has `before` and `behind` more places, as for
/// all phases: one copy.
std::optional<Value> gradient_of_phase(Value dy, const Dims& before, const Dims& behind, Value w, const Convolution& f,
                                       const Dims& phase, const Dims& places, DType sums) {
  const auto at = static_cast<size_t>(first_place(f));
  Dims low, high, taps, gap, first, every, reversed, from(dy.rank(), 0), seen = dy.shape();
  for (size_t k = 0; k < f.axes(); ++k) {
    const Phase p = phase_of(f, k, phase[k]);
    if (p.count == 0) return std::nullopt;
    const Dims more = beyond(p, places[k], f.grid[k]);
    const bool reaches = more[0] > 0 || more[1] > 0;
    low.push_back(reaches ? before[k] : more[0]), high.push_back(reaches ? behind[k] : more[1]);
    from[at + k] = low[k] - more[0];
    seen[at + k] = places[k] + (p.count - 1) * p.gap;
    taps.push_back(p.count), gap.push_back(p.gap), first.push_back(p.first), every.push_back(p.every);
    reversed.push_back(1 + k);
  }
  first.insert(first.begin(), 0), first.push_back(0), every.insert(every.begin(), 1), every.push_back(1);
  dy = resized(dy, low, high, 0, first_place(f));
  dy = with(dy, dy.b->slice(dy.node, from, seen, Dims(dy.rank(), 1)));
  // [N, places, taps, O]; later places are reached by earlier taps
  const Value view = windows(dy, taps, Dims(f.axes(), 1), gap, first_place(f));
  w = with(w, w.b->slice(channels_last(w).node, first, join({{f.out}, taps, {w.size(1)}}), every));
  w = with(w, w.b->reverse(w.node, reversed));  // not the view: a row of its taps lies in memory as it is read
  if (f.depthwise()) return sum_over_taps(view, taps_of(w, f, taps), f, sums);
  const int64_t channels = f.channels / f.groups;
  if (f.groups > 1) w = reshape(w, join({{f.groups, f.out / f.groups}, taps, {channels}}));
  Dims order = all_axes(w.rank());  // [O, taps, C] -> [C, taps, O]
  std::swap(order[f.groups > 1], order.back());
  const Dims shape{f.groups, f.images * product(places), product(taps) * f.out / f.groups};
  const Value rows = cast(reshape(view, shape), sums),
              columns = cast(reshape(permute(w, order), {f.groups, channels, shape[2]}), sums);
  return image_of_rows(with(rows, rows.b->contract(rows.node, columns.node)), f, places);
}

/// dy: [N, grid..., O] channels last; gives [N, C, size...].
Value gradient_of_input(Value dy, Value w, const Convolution& f, DType sums) {
  const int64_t axes = f.axes();
  Dims places, high, before, behind;
  for (int64_t k = 0; k < axes; ++k) {
    places.push_back((f.size[k] + f.stride[k] - 1) / f.stride[k]), high.push_back(f.size[k] - places[k] * f.stride[k]);
    before.push_back(std::numeric_limits<int64_t>::min()), behind.push_back(before[k]);
    for (int64_t phase = 0; phase < f.stride[k]; ++phase) {
      const Phase p = phase_of(f, k, phase);
      if (p.count == 0) continue;
      const Dims more = beyond(p, places[k], f.grid[k]);
      before[k] = std::max(before[k], more[0]), behind[k] = std::max(behind[k], more[1]);
    }
  }
  dy = by_groups(dy, f);
  // Recursion over the axes: all phases of the axes from `axis` on, interleaved: [N, places of the axes before...,
  // places * step of the others..., C].
  Dims phase(axes, 0);
  auto interleaved = [&](auto&& self, int64_t axis) -> std::optional<Value> {
    if (axis == axes) return gradient_of_phase(dy, before, behind, w, f, phase, places, sums);
    std::vector<std::optional<Value>> parts;
    for (phase[axis] = 0; phase[axis] < f.stride[axis]; ++phase[axis]) parts.push_back(self(self, axis + 1));
    phase[axis] = 0;
    const auto made = std::find_if(parts.begin(), parts.end(), [](const auto& p) { return p.has_value(); });
    if (made == parts.end() || parts.size() == 1) return parts[0] ? parts[0] : std::nullopt;
    Value x = **made;
    Dims shape = x.shape(), wide = shape;
    shape.insert(shape.begin() + axis + 2, 1);
    wide[axis + 1] *= f.stride[axis];
    const Value zero = number(x, 0);
    // zeros around it
    if (std::count_if(parts.begin(), parts.end(), [](const auto& p) { return p.has_value(); }) == 1) {
      const int64_t at = made - parts.begin();
      Dims before(shape.size(), 0), after(shape.size(), 0);
      before[axis + 2] = at, after[axis + 2] = f.stride[axis] - 1 - at;
      return reshape(with(x, x.b->pad(reshape(x, shape).node, zero.node, before, after)), wide);
    }
    std::vector<const Node*> nodes;
    for (const auto& p : parts) nodes.push_back(reshape(p ? *p : broadcast(zero, x.shape()), shape).node);
    return reshape(with(x, x.b->concat(nodes, axis + 2)), wide);
  };
  std::optional<Value> dx = interleaved(interleaved, 0);
  if (!dx) return broadcast(cast(number(dy, 0), sums), join({{f.images, f.channels}, f.size}));
  return channels_first(resized(*dx, Dims(axes, 0), high, 0));
}

/// dy [N, O, grid...] -> [groups, N * windows, O / groups]
Value rows_of_result(Value dy, const Convolution& f, DType sums) {
  return cast(reshape(by_groups(channels_last(dy), f), {f.groups, f.images * product(f.grid), f.out / f.groups}), sums);
}

}  // namespace

Convolution convolution_of(const Dims& x, const Dims& w, Dims stride, Dims low, Dims high, Dims dilation) {
  Convolution f{std::move(stride),
                std::move(low),
                std::move(high),
                std::move(dilation),
                Dims(w.begin() + 2, w.end()),
                Dims(x.begin() + 2, x.end()),
                {},
                x[0],
                x[1],
                w[0],
                w[1] ? x[1] / w[1] : 0};
  for (size_t k = 0; k < f.axes(); ++k)
    f.grid.push_back((f.size[k] + f.low[k] + f.high[k] - f.dilation[k] * (f.kernel[k] - 1) - 1) / f.stride[k] + 1);
  return f;
}

Value convolution(Value x, Value w, std::optional<Value> bias, const Convolution& f, DType sums) {
  if (f.depthwise()) {
    Value y = sum_over_taps(windows_of(x, f), taps_of(w, f, f.kernel), f, sums);
    return channels_first(bias ? y + *bias : y);
  }
  const Value rows = cast(rows_of(x, f), sums), columns = cast(rows_of_weight(w, f), sums);
  Value y = with(rows, rows.b->contract(rows.node, columns.node));
  if (bias) y = y + reshape(*bias, {f.groups, 1, f.out / f.groups});
  return channels_first(image_of_rows(y, f, f.grid));
}

Value convolution_input_gradient(Value dy, Value w, const Convolution& f, DType sums) {
  if (!side_by_side(f)) return gradient_of_input(channels_last(dy), w, f, sums);
  const bool first = patches(f);
  const int64_t axes = f.axes(), channel = first ? 1 + axes : 1 + 2 * axes;
  Dims places;  // along each axis the window, then the tap
  for (int64_t k = 0; k < axes; ++k) places.push_back(1 + k), places.push_back(1 + axes + first + k);
  const Value windows = reshape(
      matmul(rows_of_result(dy, f, sums), cast(rows_of_weight(w, f), sums)),
      first ? join({{f.images}, f.grid, {f.channels}, f.kernel}) : join({{f.images}, f.grid, f.kernel, {f.channels}}));
  if (first) return reshape(permute(windows, join({{0, channel}, places})), join({{f.images, f.channels}, f.size}));
  return channels_first(
      reshape(permute(windows, join({{0}, places, {channel}})), join({{f.images}, f.size, {f.channels}})));
}

Value convolution_weight_gradient(Value dy, Value x, const Convolution& f, DType sums) {
  if (f.depthwise()) return depthwise_weight_gradient(dy, x, f, sums);
  return gradient_of_weight(rows_of_result(dy, f, sums), cast(rows_of(x, f), sums), f);
}

Value convolution_bias_gradient(Value dy, DType sums) {
  const int64_t channels = dy.size(1);
  return reshape(sum(cast(reshape(channels_last(dy), {1, dy.numel() / channels, channels}), sums), {1}), {channels});
}

}  // namespace trainc::formulas
