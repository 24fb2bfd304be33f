// Convolutions, and transposed ones: the gradient of a convolution whose input has the shape of their result. Empty
// ones, and those of narrow groups, are left to the framework.
#include "frontend/formulas/convolution.h"

#include "cost/convolutions.h"
#include "frontend/aten/table.h"
#include "frontend/formulas/shapes.h"

namespace trainc::frontend::aten {
namespace {

/// `at`, here and below: the place of stride.
bool is_transposed(const Call& c, int at) { return c.arg(at + 3, "transposed").flag(false); }

/// Windows of `image`, the result of a transposed convolution, else the input. Nothing where the form is
/// one that the framework does.
std::optional<formulas::Convolution> form_of(const Dims& image, const Dims& w, const Call& c, int at) {
  if (image.size() != w.size() || image.size() < 3 || formulas::product(image) == 0 || formulas::product(w) == 0)
    return std::nullopt;
  const auto each = [&](int i, const char* name) {
    const Dims d = c.arg(at + i, name).ints();
    return d.size() == 1 ? Dims(w.size() - 2, d[0]) : d;
  };
  const Dims low = each(1, "padding");
  Dims high = low;
  if (is_transposed(c, at)) {
    const Dims more = each(4, "output_padding");  // places that no window begins at
    for (size_t k = 0; k < high.size(); ++k) high[k] -= more[k];
  }
  auto f = formulas::convolution_of(image, w, each(0, "stride"), low, high, each(2, "dilation"));
  const bool narrow = std::min(f.channels, f.out) < cost::kLeastGroup * f.groups;
  if (formulas::product(f.grid) <= 0 || (f.groups > 1 && narrow && !f.depthwise())) return std::nullopt;
  return f;
}

Outcome convolution(const Call& c) {
  const Value x = c.arg(0, "input").tensor(), w = c.arg(1, "weight").tensor();
  const bool transposed = is_transposed(c, 3);
  const auto f = form_of(transposed ? c.type().shape : x.shape(), w.shape(), c, 3);
  if (!f || !is_float(x.dtype())) return std::nullopt;  // products of integers are the framework's
  const DType d = c.compute();
  const auto bias = c.optional(2, "bias", d);
  if (!transposed) return c.give(formulas::convolution(x, w, bias, *f, d));
  const Value y = formulas::convolution_input_gradient(x, w, *f, d);
  Dims of_channels(y.rank(), 1);
  of_channels[1] = f->channels;
  return c.give(bias ? y + reshape(*bias, of_channels) : y);
}

Outcome convolution_backward(const Call& c) {
  const Value dy = c.arg(0, "grad_output").tensor(), x = c.arg(1, "input").tensor(), w = c.arg(2, "weight").tensor();
  const DType d = compute_dtype(x.dtype());
  const bool transposed = is_transposed(c, 4);
  const Value image = transposed ? dy : x, result = transposed ? x : dy;
  const auto f = form_of(image.shape(), w.shape(), c, 4);
  if (!f) return std::nullopt;
  const Dims mask = c.arg(10, "output_mask").ints();
  Results r(3, nullptr);
  if (mask.at(0))
    r[0] = c.give(transposed ? formulas::convolution(dy, w, std::nullopt, *f, d)
                             : formulas::convolution_input_gradient(dy, w, *f, d),
                  0);
  if (mask.at(1)) r[1] = c.give(formulas::convolution_weight_gradient(result, image, *f, d), 1);
  if (mask.at(2)) r[2] = c.give(formulas::convolution_bias_gradient(dy, d), 2);
  return r;
}

}  // namespace

void add_convolutions(Table& t) {
  t.add({"aten.convolution.default"}, convolution);
  t.add({"aten.convolution_backward.default"}, convolution_backward);
}

}  // namespace trainc::frontend::aten
