// Average pools whose windows tile the input: plain means. The others are the framework's.
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

}  // namespace

void add_pooling(Table& t) {
  t.add({"aten._adaptive_avg_pool2d.default"}, adaptive);
  t.add({"aten._adaptive_avg_pool2d_backward.default"}, adaptive_backward);
  t.add({"aten.avg_pool2d.default"}, average);
}

}  // namespace trainc::frontend
