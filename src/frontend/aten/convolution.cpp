// Convolutions. Transposed ones, those of several groups that are not depthwise, and empty ones are left to the
// framework.
#include "frontend/formulas/convolution.h"

#include "frontend/aten/table.h"
#include "frontend/formulas/shapes.h"

namespace trainc::frontend::aten {
namespace {

/// `at`: the place of stride. Nothing where the form is one that the framework does.
std::optional<formulas::Convolution> form_of(const Dims& x, const Dims& w, const Call& c, int at) {
  if (x.size() != w.size() || x.size() < 3 || c.arg(at + 3, "transposed").flag(false)) return std::nullopt;
  const auto each = [&](int i, const char* name) {
    const Dims d = c.arg(at + i, name).ints();
    return d.size() == 1 ? Dims(w.size() - 2, d[0]) : d;
  };
  formulas::Convolution f = formulas::convolution_of(x, w, each(0, "stride"), each(1, "padding"), each(2, "dilation"));
  if (c.arg(at + 5, "groups").integer(1) != 1 && !f.depthwise) return std::nullopt;
  if (formulas::product(x) == 0 || formulas::product(w) == 0 || formulas::product(f.grid) <= 0) return std::nullopt;
  return f;
}

Outcome convolution(const Call& c) {
  const Value x = c.arg(0, "input").tensor(), w = c.arg(1, "weight").tensor();
  const auto f = form_of(x.shape(), w.shape(), c, 3);
  if (!f || !is_float(x.dtype())) return std::nullopt;  // products of integers are the framework's
  return c.give(formulas::convolution(x, w, c.optional(2, "bias", c.compute()), *f, c.compute()));
}

Outcome convolution_backward(const Call& c) {
  const Value dy = c.arg(0, "grad_output").tensor(), x = c.arg(1, "input").tensor(), w = c.arg(2, "weight").tensor();
  const DType d = compute_dtype(x.dtype());
  const auto f = form_of(x.shape(), w.shape(), c, 4);
  if (!f) return std::nullopt;
  const Dims mask = c.arg(10, "output_mask").ints();
  Results r(3, nullptr);
  if (mask.at(0)) r[0] = c.give(formulas::convolution_input_gradient(dy, w, *f, d), 0);
  if (mask.at(1)) r[1] = c.give(formulas::convolution_weight_gradient(dy, x, *f, d), 1);
  if (mask.at(2)) r[2] = c.give(formulas::convolution_bias_gradient(dy, *f, d), 2);
  return r;
}

}  // namespace

void add_convolutions(Table& t) {
  t.add({"aten.convolution.default"}, convolution);
  t.add({"aten.convolution_backward.default"}, convolution_backward);
}

}  // namespace trainc::frontend::aten
