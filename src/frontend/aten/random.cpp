// Dropout and masks, drawn as eager draws them.
#include "frontend/formulas/random.h"

#include "frontend/aten/table.h"
#include "support/rounding.h"

namespace trainc::frontend::aten {
namespace {

/// 1/(1-p), as eager multiplies with it: on the CPU its mask holds the inverse already, which it divided in the type
/// that it computes in and rounded to the type of what is dropped (1.109375 for p = 0.1 in bf16).
double inverse_of(const Call& c, double scale) {
  if (c.philox || scale == 0) return scale;
  const DType d = c.type(0).dtype, computed = compute_dtype(d);
  return round_to(d, round_to(computed, 1 / round_to(computed, 1 / scale)));
}

/// x * mask * 1/(1-p), in eager's order; p = 1 gives zeros without dividing by 0.
Outcome dropout(const Call& c) {
  Value x = c.in(0, "input");
  const bool training = c.arg(2, "train").flag(true);
  const double keep = 1 - c.arg(1, "p").number();
  if (c.philox && c.threads == 0) return std::nullopt;
  if (!training || x.numel() == 0) return Results{c.give(x), c.give(c.full({}, DType::Bool, 1), 1)};
  // On the device p is rounded to what eager computes in before anything is made of it, and its inverse then once more.
  const bool single = c.philox && c.compute() == DType::F32;
  const double p = single ? static_cast<float>(keep) : keep, scale = keep == 0 ? 0.0
                                                                     : single  ? static_cast<float>(1 / p)
                                                                               : 1 / p;
  Value mask = c.random_mask(x.shape(), c.strides.at(1), p);
  return Results{c.give(formulas::dropout(x, mask, inverse_of(c, scale))), c.give(mask, 1)};
}

Outcome dropout_backward(const Call& c) {
  Value dy = c.arg(0, "grad_output").tensor(), mask = c.arg(1, "mask").tensor();
  // What is dropped of integers is no -0.0.
  if (!is_float(dy.dtype()) && dy.dtype() != DType::Bool) dy = dy * cast(mask, dy.dtype());
  return c.give(formulas::dropout(cast(dy, c.compute()), mask, inverse_of(c, c.arg(2, "scale").number())));
}

Outcome bernoulli(const Call& c) {
  if (c.philox) return std::nullopt;
  const double p = c.arg(1, "p").number(0.5);
  // Where the answer is known, eager's `bernoulli_` draws nevertheless, unlike its dropout: a mask that nobody reads.
  if (p <= 0 || p >= 1) c.random_mask(c.type().shape, {}, 0.5);
  return c.give(c.random_mask(c.type().shape, c.strides.at(0), p));
}

}  // namespace

void add_random(Table& t) {
  t.add({"aten.native_dropout.default"}, dropout);
  t.add({"aten.native_dropout_backward.default"}, dropout_backward);
  t.add({"aten.bernoulli.p"}, bernoulli);
}

}  // namespace trainc::frontend::aten
