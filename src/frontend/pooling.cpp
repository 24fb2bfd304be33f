// Max pools: a maximum over windows, and its first place. Average pools whose windows tile the input: plain means. The others are the framework's.
#include <cmath>

#include "frontend/channels_last.h"
#include "frontend/table.h"

namespace trainc::frontend {
namespace {

/// [..., H, W] -> [..., h, H/h, w, W/w]; nothing where it does not divide.
std::optional<Dims> tiled(const Dims& in, int64_t h, int64_t w) {
  const size_t n = in.size();
  if (n < 3 || h <= 0 || w <= 0 || in[n - 2] % h != 0 || in[n - 1] % w != 0 || Type{DType::Bool, in}.numel() == 0) return std::nullopt;
  Dims shape(in.begin(), in.end() - 2);
  shape.insert(shape.end(), {h, in[n - 2] / h, w, in[n - 1] / w});
  return shape;
}

Outcome mean_of_tiles(const Call& c, Value x) {
  const size_t n = c.type().shape.size();
  auto shape = tiled(x.shape(), c.type().shape.at(n - 2), c.type().shape.at(n - 1));
  if (!shape) return std::nullopt;
  const int64_t rank = shape->size();
  const double count = static_cast<double>((*shape)[rank - 3] * (*shape)[rank - 1]);
  return c.give(reshape(sum(reshape(x, *shape), {rank - 3, rank - 1}, false) / count, c.type().shape));
}

Outcome adaptive(const Call& c) { return mean_of_tiles(c, c.in(0, "self")); }

Outcome adaptive_backward(const Call& c) {
  Value dy = c.in(0, "grad_output");
  auto shape = tiled(c.type().shape, dy.size(dy.rank() - 2), dy.size(dy.rank() - 1));
  if (!shape) return std::nullopt;
  const int64_t rank = shape->size();
  Dims one = *shape;
  one[rank - 3] = one[rank - 1] = 1;
  const double count = static_cast<double>((*shape)[rank - 3] * (*shape)[rank - 1]);
  return c.give(reshape(broadcast(reshape(dy / count, one), *shape), c.type().shape));
}

/// A pair given as one number or two; the kernel where empty.
Dims pair(const Arg& a, const Dims& otherwise) {
  if (a.none()) return otherwise;
  Dims d = a.ints();
  if (d.empty()) return otherwise;
  return d.size() == 1 ? Dims{d[0], d[0]} : d;
}

Outcome average(const Call& c) {
  Value x = c.in(0, "self");
  const Dims kernel = pair(c.arg(1, "kernel_size"), {}), stride = pair(c.arg(2, "stride"), kernel);
  const size_t n = x.shape().size();
  if (kernel != stride || pair(c.arg(3, "padding"), {0, 0}) != Dims{0, 0} || !c.arg(6, "divisor_override").none()) return std::nullopt;
  if (n < 3 || x.shape()[n - 2] % kernel[0] != 0 || x.shape()[n - 1] % kernel[1] != 0) return std::nullopt;
  return mean_of_tiles(c, x);
}

/// A max pool over two axes, one number each.
struct MaxPool { Dims kernel, step, padding, dilation; };

std::optional<MaxPool> max_pool_of(const Call& c, int at, const Value& x) {
  const Dims kernel = pair(c.arg(at, "kernel_size"), {});
  MaxPool p{kernel, pair(c.arg(at + 1, "stride"), kernel), pair(c.arg(at + 2, "padding"), {0, 0}), pair(c.arg(at + 3, "dilation"), {1, 1})};
  if (c.arg(at + 4, "ceil_mode").flag(false) || x.rank() != 4 || x.numel() == 0 || !is_float(x.dtype())) return std::nullopt;
  return p;
}

/// As eager (ATen's max_pool kernels): the first of equals, but the last NaN; the place counts within the whole image.
Outcome max_pool(const Call& c) {
  Value x = c.arg(0, "self").tensor();
  const auto p = max_pool_of(c, 1, x);
  if (!p) return std::nullopt;
  const int64_t width = x.size(3), taps = p->kernel[0] * p->kernel[1];
  Value view = windows(resized(channels_last(x), p->padding, p->padding, -INFINITY), p->kernel, p->step, p->dilation);  // [N, OH, OW, KH, KW, C]
  const Dims seen = view.shape();
  Value best = amax(view, {3, 4});
  // One number tells the place: NaN before all, the later the greater; then those that equal the maximum, the earlier the greater.
  Builder& b = *x.b;
  const auto counter = [&](int64_t axis) { return Value{&b, b.iota(DType::I32, seen, axis)}; };
  const Value tap = counter(3) * number(counter(3), p->kernel[1]) + counter(4);
  // Padding is no candidate: an image of -inf has its first place, not one outside.
  const auto inside = [&](int which) {
    const Value at = counter(1 + which) * number(counter(1), p->step[which]) + counter(3 + which) * number(counter(1), p->dilation[which]);
    return (at >= double(p->padding[which])) & (at < double(p->padding[which] + x.size(2 + which)));
  };
  Value rank = where((view == best) & inside(0) & inside(1), double(taps) - 1 - tap, number(tap, -1));
  rank = amax(where(is_nan(view), tap + double(taps), rank), {3, 4});
  const Value first = where(rank >= double(taps), rank - double(taps), double(taps) - 1 - rank);
  const Dims out = first.shape();
  const auto place = [&](int which, Value tap_of) {  // i64, along one axis of the image
    return iota(b, out, 1 + which) * double(p->step[which]) + tap_of * double(p->dilation[which]) - double(p->padding[which]);
  };
  const Value tap64 = cast(first, DType::I64), kernel_width = number(tap64, p->kernel[1]);
  const Value row = place(0, binary(Op::FloorDiv, tap64, kernel_width)), column = place(1, tap64 % kernel_width);
  const Dims flat{seen[0], seen[1], seen[2], seen[5]};
  return Results{c.give(channels_first(reshape(best, flat))), c.give(channels_first(reshape(row * double(width) + column, flat)), 1)};
}

/// Each window gives its gradient to the place it took its maximum from, windows in order, as eager adds them.
Outcome max_pool_backward(const Call& c) {
  const DType d = compute_dtype(c.arg(0, "grad_output").tensor().dtype());
  Value dy = channels_last(c.arg(0, "grad_output").as(d)), at = channels_last(c.arg(7, "indices").tensor());
  const Dims shape = c.type().shape;
  if (dy.rank() != 4 || dy.numel() == 0) return std::nullopt;
  const int64_t images = shape[0], channels = shape[1], places = shape[2] * shape[3], windows = dy.size(1) * dy.size(2);
  const Value zero = c.full({images, places, channels}, d, 0);
  const Node* sums = dy.b->scatter(ScatterKind::Sum, zero.node, reshape(at, {images, windows, channels}).node, reshape(dy, {images, windows, channels}).node, 1);
  return c.give(channels_first(reshape(with(dy, sums), {images, shape[2], shape[3], channels})));
}

}  // namespace

void add_pooling(Table& t) {
  t.add({"aten._adaptive_avg_pool2d.default"}, adaptive);
  t.add({"aten._adaptive_avg_pool2d_backward.default"}, adaptive_backward);
  t.add({"aten.avg_pool2d.default"}, average);
  t.add({"aten.max_pool2d_with_indices.default"}, max_pool);
  t.add({"aten.max_pool2d_with_indices_backward.default"}, max_pool_backward);
}

}  // namespace trainc::frontend
