// Convolutions of any layout, dilation and grouping, as contractions over windows: rows are (image, place), columns
// output channels, and k is (taps, input channels).
#include "frontend/formulas/windows.h"
#include "frontend/stablehlo/parts.h"
#include "frontend/stablehlo/products.h"
#include "frontend/stablehlo/table.h"

namespace trainc::frontend::stablehlo {
namespace {

using formulas::cast;
using formulas::join;
using formulas::product;

struct Convolution {
  Dims step, low, high, lhs_dilation, rhs_dilation;  // one number a spatial axis
  int64_t feature_groups, batch_groups;
};

Dims part(const Dims& d, size_t from, size_t end) {
  return Dims(d.begin() + static_cast<std::ptrdiff_t>(from), d.begin() + static_cast<std::ptrdiff_t>(end));
}

/// x: [N, size..., C], w: [O, kernel..., I]; [N / batch groups, grid..., O]. Both of the dtype that is summed in.
Value convolve(Value x, Value w, const Convolution& v) {
  const size_t axes = v.step.size();
  Dims low = join({{0}, v.low, {0}}), high = join({{0}, v.high, {0}}), gaps(axes + 2, 0);
  for (size_t k = 0; k < axes; ++k) gaps[k + 1] = v.lhs_dilation[k] - 1;
  x = padded(x, number(x, 0), low, high, gaps);
  const Dims kernel = part(w.shape(), 1, axes + 1);
  Value seen = formulas::windows(x, kernel, v.step, v.rhs_dilation);  // [N, grid..., kernel..., C]
  const Dims grid = part(seen.shape(), 1, axes + 1);
  const int64_t images = x.size(0) / v.batch_groups, channels = w.shape().back(), out = w.size(0);
  const int64_t groups = std::max(v.feature_groups, v.batch_groups), taps = product(kernel), places = product(grid);
  // the groups first: those of images, or those of input channels
  seen = reshape(seen, {v.batch_groups, images * places, taps, v.feature_groups, channels});
  seen = reshape(permute(seen, {0, 3, 1, 2, 4}), {groups, images * places, taps * channels});
  const Value columns = reshape(w, {groups, out / groups, taps * channels});
  const Value sums = contract(seen, columns);  // [groups, N * grid, O / groups]
  return reshape(permute(sums, {1, 0, 2}), join({{images}, grid, {out}}));
}

/// A step of the image's own (a transposed convolution): of each phase of the result only some taps meet elements, and
/// no product with an inserted zero is computed. Along `axis`, then along those after it.
Value by_phases(Value x, Value w, Convolution v, size_t axis) {
  while (axis < v.step.size() && (v.lhs_dilation[axis] == 1 || v.step[axis] != 1 || v.rhs_dilation[axis] != 1)) ++axis;
  if (axis == v.step.size()) return convolve(x, w, v);
  const auto at = static_cast<int64_t>(axis) + 1;
  const int64_t s = v.lhs_dilation[axis], taps = w.size(at), n = x.size(at);
  const int64_t grid = (n - 1) * s + 1 + v.low[axis] + v.high[axis] - taps + 1;
  // Result o meets element i by tap t where o + t - low = i * s.
  std::vector<const Node*> phases;
  const int64_t length = (grid + s - 1) / s;
  for (int64_t phase = 0; phase < s; ++phase) {
    const int64_t first = ((v.low[axis] - phase) % s + s) % s;  // its taps: first, first + s, ...
    const int64_t count = first < taps ? (taps - first + s - 1) / s : 0;
    const int64_t start =
        (phase + first - v.low[axis]) / s;  // the element that the first result meets by its first tap
    Convolution inner = v;
    inner.lhs_dilation[axis] = 1;
    inner.low[axis] = -start;
    inner.high[axis] = length + std::max<int64_t>(count, 1) - 1 + start - n;
    const Value some = count > 0 ? with(w, w.b->slice_axis(w.node, at, first, count, s))
                                 : with(w, w.b->full(
                                               w.dtype(),
                                               [&] {
                                                 Dims shape = w.shape();
                                                 shape[static_cast<size_t>(at)] = 1;
                                                 return shape;
                                               }(),
                                               0));
    const Value sums = by_phases(x, some, inner, axis + 1);
    Dims split = sums.shape();
    split.insert(split.begin() + at + 1, 1);
    phases.push_back(reshape(sums, split).node);
  }
  const Value all = with(x, x.b->concat(phases, at + 1));  // [N, ..., length, s, ...]
  Dims joined = all.shape();
  joined.erase(joined.begin() + at);
  joined[static_cast<size_t>(at)] = length * s;
  return with(x, x.b->slice_axis(reshape(all, joined).node, at, 0, grid));
}

Values convolution(const Call& c) {
  if (c.type().numel() == 0) return {{&c.b, c.b.full(c.dtype(), c.shape(), 0)}};
  const Json& dims = c.object("dimension_numbers");
  const auto order = [&](const char* first, const char* spatial, const char* last) {
    return join({field(dims, first), field(dims, spatial), field(dims, last)});
  };
  const DType sums = compute_dtype(c.dtype());
  const Value x = permute(cast(c.operand(0), sums),
                          order("input_batch_dimension", "input_spatial_dimensions", "input_feature_dimension"));
  Value w = permute(cast(c.operand(1), sums), order("kernel_output_feature_dimension", "kernel_spatial_dimensions",
                                                    "kernel_input_feature_dimension"));
  const auto axes = static_cast<size_t>(x.rank() - 2);
  if (x.numel() == 0 || w.numel() == 0) return {{&c.b, c.b.full(c.dtype(), c.shape(), 0)}};
  Convolution v{c.list("window_strides", axes, 1),
                {},
                {},
                c.list("lhs_dilation", axes, 1),
                c.list("rhs_dilation", axes, 1),
                c.integer("feature_group_count", 1),
                c.integer("batch_group_count", 1)};
  const Dims padding = c.list("padding", 2 * axes, 0);
  for (size_t k = 0; k < axes; ++k) v.low.push_back(padding[2 * k]), v.high.push_back(padding[2 * k + 1]);
  Dims reversed;
  if (c.attrs.contains("window_reversal")) {
    const Json& flags = c.attrs["window_reversal"];
    for (size_t k = 0; k < flags.size(); ++k)
      if (flags[k].is_boolean() ? flags[k].get<bool>() : flags[k].get<int64_t>() != 0)
        reversed.push_back(static_cast<int64_t>(k) + 1);
  }
  w = with(w, c.b.reverse(w.node, reversed));
  const Value result = by_phases(x, w, v, 0);  // [N, grid..., O]
  const Dims places = order("output_batch_dimension", "output_spatial_dimensions", "output_feature_dimension");
  return {c.rounded(formulas::permute_back(result, places))};
}

}  // namespace

void add_convolution(Table& t) { t.add({"stablehlo.convolution"}, convolution); }

}  // namespace trainc::frontend::stablehlo
