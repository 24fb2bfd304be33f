#include "frontend/formulas/convolution.h"

#include <numeric>

#include "frontend/formulas/shapes.h"
#include "frontend/formulas/windows.h"

namespace trainc::formulas {
namespace {

/// Windows side by side (kernel as large as the step, no padding), not 1x1: the patches of a vision transformer. The
/// input is an image of few channels, whose rows are contiguous within a patch: read as it lies.
bool side_by_side(const Convolution& f) {
  for (size_t k = 0; k < f.axes(); ++k)
    if (f.stride[k] != f.kernel[k] || f.padding[k] != 0 || (f.kernel[k] > 1 && f.dilation[k] != 1) ||
        f.size[k] % f.kernel[k] != 0)
      return false;
  return product(f.kernel) > 1;
}

/// x [N, C, size...] -> [N, windows..., kernel..., C]
Value windows_of(Value x, const Convolution& f) {
  return windows(resized(channels_last(x), f.padding, f.padding, 0), f.kernel, f.stride, f.dilation);
}

// --- windows as the rows of a contraction; how the taps and channels of a window follow each other is this pair's own
// business
/// x [N, C, size...] -> [1, N * windows, taps * C]
Value rows_of(Value x, const Convolution& f) {
  const int64_t axes = f.axes();
  const Dims shape{1, f.images * product(f.grid), product(f.kernel) * f.channels};
  if (side_by_side(f)) {  // channels first
    Dims split{f.images, f.channels}, order{0};
    for (int64_t k = 0; k < axes; ++k)
      split.push_back(f.grid[k]), split.push_back(f.kernel[k]), order.push_back(2 + 2 * k);
    order.push_back(1);
    for (int64_t k = 0; k < axes; ++k) order.push_back(3 + 2 * k);
    return reshape(permute(reshape(x, split), order), shape);
  }
  return reshape(windows_of(x, f), shape);
}

/// w [O, C, kernel...] -> [1, O, taps * C]
Value rows_of_weight(Value w, const Convolution& f) {
  return reshape(side_by_side(f) ? w : channels_last(w), {1, f.out, product(f.kernel) * f.channels});
}
/// The way back.
Value weight_of_rows(Value rows, const Convolution& f) {
  if (side_by_side(f)) return reshape(rows, join({{f.out, f.channels}, f.kernel}));
  return channels_first(reshape(rows, join({{f.out}, f.kernel, {f.channels}})));
}
/// [1, N * windows, columns] -> [N, columns, grid...]
Value image_of_rows(Value rows, const Convolution& f, const Dims& grid) {
  return channels_first(reshape(rows, join({{f.images}, grid, {rows.size(2)}})));
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
  return reshape(permute(taps, join({{axes}, axes_from(0, axes)})), join({{f.channels, 1}, f.kernel}));
}

// --- the gradient of the weight
/// dy [1, N * windows, O], x as rows [1, N * windows, taps * C]; gives w's shape.
Value gradient_of_weight(Value dy, Value x, const Convolution& f) {
  const Value of_out = permute(dy, {0, 2, 1}), of_window = permute(x, {0, 2, 1});
  if (side_by_side(f) || product(f.kernel) == 1)
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
    if ((phase + f.padding[axis] - tap * dilation) % step == 0) ++p.count, p.first = tap;
  p.shift = (phase + f.padding[axis] - p.first * dilation) / step;
  return p;
}

/// The places of all axes' phases: [N, ceil(size / step)..., C] channels last; nothing where no tap reaches them.
std::optional<Value> gradient_of_phase(Value dy, Value w, const Convolution& f, const Dims& phase, const Dims& places,
                                       DType sums) {
  Dims low, high, taps, gap, start{0}, every{1}, reversed;
  for (size_t k = 0; k < f.axes(); ++k) {
    const Phase p = phase_of(f, k, phase[k]);
    if (p.count == 0) return std::nullopt;
    low.push_back((p.count - 1) * p.gap - p.shift);
    high.push_back(places[k] + (p.count - 1) * p.gap - low[k] - f.grid[k]);
    taps.push_back(p.count), gap.push_back(p.gap), start.push_back(p.first), every.push_back(p.every);
    reversed.push_back(1 + k);
  }
  start.push_back(0), every.push_back(1);
  // [N, places, taps, O]; later places are reached by earlier taps
  Value view = windows(resized(dy, low, high, 0), taps, Dims(f.axes(), 1), gap);
  const int64_t k = product(taps) * f.out;
  w = with(w, w.b->slice(channels_last(w).node, start, join({{f.out}, taps, {w.size(1)}}), every));
  w = with(w, w.b->reverse(w.node, reversed));  // not the view: a row of its taps lies in memory as it is read
  if (f.depthwise) return sum_over_taps(view, taps_of(w, f, taps), f, sums);
  Dims order{int64_t(f.axes()) + 1};  // [O, taps, C] -> [C, taps, O]
  for (size_t i = 0; i < f.axes(); ++i) order.push_back(i + 1);
  order.push_back(0);
  Value rows = cast(reshape(view, {1, f.images * product(places), k}), sums),
        columns = cast(reshape(permute(w, order), {1, f.channels, k}), sums);
  return reshape(with(rows, rows.b->contract(rows.node, columns.node)), join({{f.images}, places, {f.channels}}));
}

/// dy: [N, grid..., O] channels last; gives [N, C, size...].
Value gradient_of_input(Value dy, Value w, const Convolution& f, DType sums) {
  const int64_t axes = f.axes();
  Dims places, high;
  for (int64_t k = 0; k < axes; ++k)
    places.push_back((f.size[k] + f.stride[k] - 1) / f.stride[k]), high.push_back(f.size[k] - places[k] * f.stride[k]);
  // Recursion over the axes: all phases of the axes from `axis` on, interleaved: [N, places of the axes before...,
  // places * step of the others..., C].
  Dims phase(axes, 0);
  auto interleaved = [&](auto&& self, int64_t axis) -> std::optional<Value> {
    if (axis == axes) return gradient_of_phase(dy, w, f, phase, places, sums);
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

/// dy [N, O, grid...] -> [1, N * windows, O]
Value rows_of_result(Value dy, const Convolution& f, DType sums) {
  return cast(reshape(channels_last(dy), {1, f.images * product(f.grid), f.out}), sums);
}

}  // namespace

Convolution convolution_of(const Dims& x, const Dims& w, Dims stride, Dims padding, Dims dilation) {
  Convolution f{std::move(stride),
                std::move(padding),
                std::move(dilation),
                Dims(w.begin() + 2, w.end()),
                Dims(x.begin() + 2, x.end()),
                {},
                x[0],
                x[1],
                w[0],
                x[1] > 1 && w[1] == 1 && w[0] == x[1]};
  for (size_t k = 0; k < f.axes(); ++k)
    f.grid.push_back((f.size[k] + 2 * f.padding[k] - f.dilation[k] * (f.kernel[k] - 1) - 1) / f.stride[k] + 1);
  return f;
}

Value convolution(Value x, Value w, std::optional<Value> bias, const Convolution& f, DType sums) {
  if (f.depthwise) {
    Value y = sum_over_taps(windows_of(x, f), taps_of(w, f, f.kernel), f, sums);
    return channels_first(bias ? y + *bias : y);
  }
  const Value rows = cast(rows_of(x, f), sums), columns = cast(rows_of_weight(w, f), sums);
  Value y = with(rows, rows.b->contract(rows.node, columns.node));
  if (bias) y = y + reshape(*bias, {1, 1, f.out});
  return image_of_rows(y, f, f.grid);
}

Value convolution_input_gradient(Value dy, Value w, const Convolution& f, DType sums) {
  if (f.depthwise || !side_by_side(f)) return gradient_of_input(channels_last(dy), w, f, sums);
  Value columns = matmul(rows_of_result(dy, f, sums), cast(rows_of_weight(w, f), sums));
  const int64_t axes = f.axes();
  Dims order{0, axes + 1};
  for (int64_t k = 0; k < axes; ++k) order.push_back(1 + k), order.push_back(axes + 2 + k);
  return reshape(permute(reshape(columns, join({{f.images}, f.grid, {f.channels}, f.kernel})), order),
                 join({{f.images, f.channels}, f.size}));
}

Value convolution_weight_gradient(Value dy, Value x, const Convolution& f, DType sums) {
  if (f.depthwise) return depthwise_weight_gradient(dy, x, f, sums);
  const Value rows = rows_of_result(dy, f, sums);
  return gradient_of_weight(rows, cast(rows_of(x, f), sums), f);
}

Value convolution_bias_gradient(Value dy, const Convolution& f, DType sums) {
  return reshape(sum(rows_of_result(dy, f, sums), {1}), {f.out});
}

}  // namespace trainc::formulas
