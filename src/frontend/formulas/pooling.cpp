#include "frontend/formulas/pooling.h"

#include <cmath>

#include "frontend/formulas/shapes.h"
#include "frontend/formulas/windows.h"

namespace trainc::formulas {

std::optional<Dims> tiled(const Dims& image, int64_t h, int64_t w) {
  const size_t n = image.size();
  if (n < 3 || h <= 0 || w <= 0 || image[n - 2] % h != 0 || image[n - 1] % w != 0 || product(image) == 0)
    return std::nullopt;
  Dims tiles(image.begin(), image.end() - 2);
  tiles.insert(tiles.end(), {h, image[n - 2] / h, w, image[n - 1] / w});
  return tiles;
}

Value mean_of_tiles(Value x, const Dims& tiles) {
  const int64_t rank = tiles.size();
  const double count = static_cast<double>(tiles[rank - 3] * tiles[rank - 1]);
  return sum(reshape(x, tiles), {rank - 3, rank - 1}, false) / count;
}

Value mean_of_tiles_backward(Value dy, const Dims& tiles) {
  const int64_t rank = tiles.size();
  Dims one = tiles, image(tiles.begin(), tiles.end() - 4);
  one[rank - 3] = one[rank - 1] = 1;
  image.insert(image.end(), {tiles[rank - 4] * tiles[rank - 3], tiles[rank - 2] * tiles[rank - 1]});
  const double count = static_cast<double>(tiles[rank - 3] * tiles[rank - 1]);
  return reshape(broadcast(reshape(dy / count, one), tiles), image);
}

Pooled max_pool(Value x, const MaxPool& p) {
  const int64_t width = x.size(3), taps = p.kernel[0] * p.kernel[1];
  // [N, OH, OW, KH, KW, C]
  Value view = windows(resized(channels_last(x), p.padding, p.padding, -INFINITY), p.kernel, p.stride, p.dilation);
  const Dims seen = view.shape();
  Value best = amax(view, {3, 4});
  // One number tells the place: NaN before all, the later the greater; then those that equal the maximum, the earlier
  // the greater.
  Builder& b = *x.b;
  const auto counter = [&](int64_t axis) { return Value{&b, b.iota(DType::I32, seen, axis)}; };
  const Value tap = counter(3) * number(counter(3), p.kernel[1]) + counter(4);
  // Padding is no candidate: an image of -inf has its first place, not one outside.
  const auto inside = [&](int which) {
    const Value at = counter(1 + which) * number(counter(1), p.stride[which]) +
                     counter(3 + which) * number(counter(1), p.dilation[which]);
    return (at >= double(p.padding[which])) & (at < double(p.padding[which] + x.size(2 + which)));
  };
  Value rank = where((view == best) & inside(0) & inside(1), double(taps) - 1 - tap, number(tap, -1));
  rank = amax(where(is_nan(view), tap + double(taps), rank), {3, 4});
  const Value first = where(rank >= double(taps), rank - double(taps), double(taps) - 1 - rank);
  const Dims out = first.shape();
  const auto place = [&](int which, Value tap_of) {  // i64, along one axis of the image
    return iota(b, out, 1 + which) * double(p.stride[which]) + tap_of * double(p.dilation[which]) -
           double(p.padding[which]);
  };
  const Value tap64 = cast(first, DType::I64), kernel_width = number(tap64, p.kernel[1]);
  const Value row = place(0, binary(Op::FloorDiv, tap64, kernel_width)), column = place(1, tap64 % kernel_width);
  const Dims flat{seen[0], seen[1], seen[2], seen[5]};
  return {channels_first(reshape(best, flat)), channels_first(reshape(row * double(width) + column, flat))};
}

Value max_pool_backward(Value dy, Value index, int64_t height, int64_t width) {
  dy = channels_last(dy), index = channels_last(index);
  const int64_t images = dy.size(0), channels = dy.size(3), places = height * width, windows = dy.size(1) * dy.size(2);
  const Value zero = with(dy, dy.b->full(dy.dtype(), {images, places, channels}, 0));
  const Node* sums = dy.b->scatter(ScatterKind::Sum, zero.node, reshape(index, {images, windows, channels}).node,
                                   reshape(dy, {images, windows, channels}).node, 1);
  return channels_first(reshape(with(dy, sums), {images, height, width, channels}));
}

}  // namespace trainc::formulas
