// Softmax and log-softmax with their backwards, from exp, max and sums (ATen/native/cpu/SoftMaxKernel.cpp).
#include <cmath>

#include "frontend/table.h"

namespace trainc::frontend {
namespace {

struct Row { Value x; Dims axes; };
std::optional<Row> row_of(const Call& c, int at, const char* name) {
  Value x = c.in(at, name);
  if (x.rank() == 0 || x.numel() == 0) return std::nullopt;
  return Row{x, {wrap_axis(c, c.arg(at + 1, "dim").integer(), x.rank())}};
}

Outcome softmax(const Call& c) {
  auto r = row_of(c, 0, "self");
  if (!r) return std::nullopt;
  Value e = exp(r->x - amax(r->x, r->axes));
  return c.give(e / sum(e, r->axes));
}

/// Rows that are all -inf (nothing to attend to) give 0, not NaN.
Outcome safe_softmax(const Call& c) {
  auto r = row_of(c, 0, "self");
  if (!r) return std::nullopt;
  Value m = amax(r->x, r->axes);
  Value e = exp(r->x - m);
  return c.give(where(m == -INFINITY, 0, e / sum(e, r->axes)));
}

/// x - max - log(sum): in this order, a sum with a large maximum would lose the logarithm.
Outcome log_softmax(const Call& c) {
  auto r = row_of(c, 0, "self");
  if (!r) return std::nullopt;
  Value d = r->x - amax(r->x, r->axes);
  return c.give(d - log(sum(exp(d), r->axes)));
}

std::optional<Dims> backward_axes(const Call& c, Value y) {
  if (y.rank() == 0 || y.numel() == 0) return std::nullopt;
  return Dims{wrap_axis(c, c.arg(2, "dim").integer(), y.rank())};
}

Outcome softmax_backward(const Call& c) {
  const DType d = compute_dtype(c.arg(1, "output").tensor().dtype());
  Value dy = c.arg(0, "grad_output").as(d), y = c.arg(1, "output").as(d);
  auto axes = backward_axes(c, y);
  if (!axes) return std::nullopt;
  return c.give((dy - sum(dy * y, *axes)) * y);
}

Outcome log_softmax_backward(const Call& c) {
  const DType d = compute_dtype(c.arg(1, "output").tensor().dtype());
  Value dy = c.arg(0, "grad_output").as(d), y = c.arg(1, "output").as(d);
  auto axes = backward_axes(c, y);
  if (!axes) return std::nullopt;
  return c.give(dy - exp(y) * sum(dy, *axes));
}

}  // namespace

void add_softmax(Table& t) {
  t.add({"aten._softmax.default"}, softmax);
  t.add({"aten._safe_softmax.default"}, safe_softmax);
  t.add({"aten._log_softmax.default"}, log_softmax);
  t.add({"aten._softmax_backward_data.default"}, softmax_backward);
  t.add({"aten._log_softmax_backward_data.default"}, log_softmax_backward);
}

}  // namespace trainc::frontend
