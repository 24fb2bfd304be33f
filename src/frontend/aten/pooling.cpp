// Max pools and the average pools whose windows tile the input. The others are the framework's.
#include "frontend/formulas/pooling.h"

#include "frontend/aten/table.h"

namespace trainc::frontend::aten {
namespace {

Outcome mean_of_tiles(const Call& c, Value x) {
  const Dims& shape = c.type().shape;
  const auto tiles = formulas::tiled(x.shape(), shape.at(shape.size() - 2), shape.at(shape.size() - 1));
  if (!tiles) return std::nullopt;
  const Value means = formulas::mean_of_tiles(x, *tiles);
  return c.give(reshape(from_zero(means, x.numel() / std::max<int64_t>(1, means.numel())), shape));
}

Outcome adaptive(const Call& c) { return mean_of_tiles(c, c.in(0, "self")); }

Outcome adaptive_backward(const Call& c) {
  Value dy = c.in(0, "grad_output");
  const auto tiles = formulas::tiled(c.type().shape, dy.size(dy.rank() - 2), dy.size(dy.rank() - 1));
  if (!tiles) return std::nullopt;
  return c.give(formulas::mean_of_tiles_backward(dy, *tiles));
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
  if (kernel != stride || pair(c.arg(3, "padding"), {0, 0}) != Dims{0, 0} || !c.arg(6, "divisor_override").none())
    return std::nullopt;
  if (n < 3 || x.shape()[n - 2] % kernel[0] != 0 || x.shape()[n - 1] % kernel[1] != 0) return std::nullopt;
  return mean_of_tiles(c, x);
}

/// `at`: the place of kernel_size.
std::optional<formulas::MaxPool> max_pool_of(const Call& c, int at, const Value& x) {
  const Dims kernel = pair(c.arg(at, "kernel_size"), {});
  formulas::MaxPool p{kernel, pair(c.arg(at + 1, "stride"), kernel), pair(c.arg(at + 2, "padding"), {0, 0}),
                      pair(c.arg(at + 3, "dilation"), {1, 1})};
  if (c.arg(at + 4, "ceil_mode").flag(false) || x.rank() != 4 || x.numel() == 0 || !is_float(x.dtype()))
    return std::nullopt;
  return p;
}

Outcome max_pool(const Call& c) {
  Value x = c.arg(0, "self").tensor();
  const auto p = max_pool_of(c, 1, x);
  if (!p) return std::nullopt;
  const formulas::Pooled y = formulas::max_pool(x, *p);
  return Results{c.give(y.value), c.give(y.index, 1)};
}

Outcome max_pool_backward(const Call& c) {
  Value dy = c.arg(0, "grad_output").tensor();
  if (dy.rank() != 4 || dy.numel() == 0) return std::nullopt;
  const Dims& shape = c.type().shape;
  return c.give(formulas::max_pool_backward(cast(dy, compute_dtype(dy.dtype())), c.arg(7, "indices").tensor(), shape[2],
                                            shape[3]));
}

}  // namespace

void add_pooling(Table& t) {
  t.add({"aten._adaptive_avg_pool2d.default"}, adaptive);
  t.add({"aten._adaptive_avg_pool2d_backward.default"}, adaptive_backward);
  t.add({"aten.avg_pool2d.default"}, average);
  t.add({"aten.max_pool2d_with_indices.default"}, max_pool);
  t.add({"aten.max_pool2d_with_indices_backward.default"}, max_pool_backward);
}

}  // namespace trainc::frontend::aten
