// Convolutions whose windows lie side by side (kernel as large as the step, no padding): the patches of a vision transformer. They are
// contractions over patches. All others are left to the framework, 1x1 ones too: they stand among others, whose layout they share.
#include "frontend/table.h"

namespace trainc::frontend {
namespace {

struct Patches {
  int64_t n, channels, out;  // batch, input channels, output channels
  Dims grid, kernel;         // windows and window size along each spatial axis
  int64_t windows = 1, window = 1;
};

/// nullopt where windows overlap or leave gaps, or the form is another.
std::optional<Patches> patches_of(const Dims& x, const Dims& w, const Call& c, int at) {
  const Dims stride = c.arg(at, "stride").ints(), padding = c.arg(at + 1, "padding").ints(), dilation = c.arg(at + 2, "dilation").ints();
  const size_t axes = w.size() - 2;
  if (x.size() != w.size() || c.arg(at + 3, "transposed").flag(false) || c.arg(at + 5, "groups").integer(1) != 1) return std::nullopt;
  auto each = [](const Dims& d, size_t k) { return d.size() == 1 ? d[0] : d.at(k); };
  Patches p{x[0], x[1], w[0], {}, {}};
  for (size_t k = 0; k < axes; ++k) {
    const int64_t kernel = w[k + 2], size = x[k + 2];
    if (each(stride, k) != kernel || each(padding, k) != 0 || (kernel > 1 && each(dilation, k) != 1) || size % kernel != 0) return std::nullopt;
    p.grid.push_back(size / kernel);
    p.kernel.push_back(kernel);
    p.windows *= size / kernel;
    p.window *= kernel;
  }
  if (p.n == 0 || p.windows == 0 || p.channels == 0 || p.out == 0 || p.window == 1) return std::nullopt;
  return p;
}

/// [N, C, g0 * k0, ...] -> [1, N * windows, C * window]
Value unfold(Value x, const Patches& p) {
  const size_t axes = p.grid.size();
  Dims split{p.n, p.channels}, order{0};
  for (size_t k = 0; k < axes; ++k) split.push_back(p.grid[k]), split.push_back(p.kernel[k]);
  for (size_t k = 0; k < axes; ++k) order.push_back(static_cast<int64_t>(2 + 2 * k));
  order.push_back(1);
  for (size_t k = 0; k < axes; ++k) order.push_back(static_cast<int64_t>(3 + 2 * k));
  return reshape(permute(reshape(x, split), order), {1, p.n * p.windows, p.channels * p.window});
}

/// The way back.
Value fold(Value rows, const Patches& p, const Dims& shape) {
  const int64_t axes = static_cast<int64_t>(p.grid.size());
  Dims split{p.n};
  split.insert(split.end(), p.grid.begin(), p.grid.end());
  split.push_back(p.channels);
  split.insert(split.end(), p.kernel.begin(), p.kernel.end());
  Dims order{0, axes + 1};
  for (int64_t k = 0; k < axes; ++k) order.push_back(1 + k), order.push_back(axes + 2 + k);
  return reshape(permute(reshape(rows, split), order), shape);
}

/// [N, O, grid...] -> [1, N * windows, O]
Value channels_last(Value y, const Patches& p) {
  return reshape(permute(reshape(y, {p.n, p.out, p.windows}), {0, 2, 1}), {1, p.n * p.windows, p.out});
}

Outcome convolution(const Call& c) {
  Value x = c.in(0, "input"), w = c.in(1, "weight");
  const auto p = patches_of(x.shape(), w.shape(), c, 3);
  if (!p) return std::nullopt;
  Value rows = with(x, x.b->contract(unfold(x, *p).node, reshape(w, {1, p->out, p->channels * p->window}).node));
  if (!c.arg(2, "bias").none()) rows = rows + reshape(c.in(2, "bias"), {1, 1, p->out});
  return c.give(reshape(permute(reshape(rows, {p->n, p->windows, p->out}), {0, 2, 1}), c.type().shape));
}

Outcome convolution_backward(const Call& c) {
  const DType d = compute_dtype(c.arg(1, "input").tensor().dtype());
  Value dy = c.arg(0, "grad_output").as(d), x = c.arg(1, "input").as(d), w = c.arg(2, "weight").as(d);
  const auto p = patches_of(x.shape(), w.shape(), c, 4);
  if (!p) return std::nullopt;
  const Dims mask = c.arg(10, "output_mask").ints();
  Value rows = channels_last(dy, *p);
  Results r(3, nullptr);
  if (mask.at(0)) r[0] = c.give(fold(matmul(rows, reshape(w, {1, p->out, p->channels * p->window})), *p, x.shape()), 0);
  if (mask.at(1)) r[1] = c.give(reshape(matmul(permute(rows, {0, 2, 1}), unfold(x, *p)), w.shape()), 1);
  if (mask.at(2)) r[2] = c.give(reshape(sum(rows, {1}), {p->out}), 2);
  return r;
}

}  // namespace

void add_convolutions(Table& t) {
  t.add({"aten.convolution.default"}, convolution);
  t.add({"aten.convolution_backward.default"}, convolution_backward);
}

}  // namespace trainc::frontend
