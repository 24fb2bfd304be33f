// Tensors from nothing: fills, ranges, triangles. Uninitialised memory ("empty") is zero.
#include "frontend/aten/table.h"

namespace trainc::frontend::aten {
namespace {

Handler filled(double v) {
  return [v](const Call& c) -> Outcome { return c.give(c.full(c.type().shape, c.dtype(), v)); };
}

/// The value stands at this place of the arguments.
Handler filled_with(int at, const char* name) {
  return [=](const Call& c) -> Outcome {
    return c.fits(at, name) ? Outcome(c.give(c.arg(at, name).as(c.dtype()))) : std::nullopt;
  };
}

/// start + i * step: integers exactly, floats in f64 as eager.
Handler arange(int start_at, int step_at) {
  return [=](const Call& c) -> Outcome {
    const bool integral = !is_float(c.dtype());
    Value i = iota(c.b, c.type().shape, 0);
    if (integral) {
      const int64_t start = start_at < 0 ? 0 : c.arg(start_at, "start").integer(),
                    step = step_at < 0 ? 1 : c.arg(step_at, "step").integer(1);
      if (step != 1) i = i * with(i, c.b.constant_int(DType::I64, step));
      if (start != 0) i = i + with(i, c.b.constant_int(DType::I64, start));
      return c.give(i);
    }
    const double start = start_at < 0 ? 0 : c.arg(start_at, "start").number(),
                 step = step_at < 0 ? 1 : c.arg(step_at, "step").number(1);
    Value x = cast(i, DType::F64);
    if (step != 1) x = x * step;
    if (start != 0) x = x + start;
    return c.give(x);
  };
}

/// Keeps one side of a diagonal of the last two axes.
Handler triangle(bool lower) {
  return [lower](const Call& c) -> Outcome {
    Value x = c.arg(0, "self").tensor();
    if (x.rank() < 2) return std::nullopt;
    const Dims square{x.size(x.rank() - 2), x.size(x.rank() - 1)};
    Value offset = iota(c.b, square, 1) - iota(c.b, square, 0);  // column - row
    const double diagonal = c.arg(1, "diagonal").integer(0);
    Value keep = lower ? offset <= diagonal : offset >= diagonal;
    return c.give(where(keep, x, c.full({}, x.dtype(), 0)));
  };
}

Outcome eye(const Call& c) {
  const Dims& shape = c.type().shape;
  return c.give(cast(iota(c.b, shape, 0) == iota(c.b, shape, 1), c.dtype()));
}

}  // namespace

void add_creation(Table& t) {
  t.add({"aten._efficientzerotensor.default", "aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default",
         "aten.empty.memory_format", "aten.empty_like.default", "aten.new_empty.default", "aten.empty_strided.default",
         "aten.new_empty_strided.default"},
        filled(0));
  t.add({"aten.ones.default", "aten.ones_like.default", "aten.new_ones.default"}, filled(1));
  t.add({"aten.full.default"}, filled_with(1, "fill_value"));
  t.add({"aten.full_like.default"}, filled_with(1, "fill_value"));
  t.add({"aten.new_full.default"}, filled_with(2, "fill_value"));
  t.add({"aten.scalar_tensor.default"}, filled_with(0, "s"));
  t.add({"aten.arange.default"}, arange(-1, -1));
  t.add({"aten.arange.start"}, arange(0, -1));
  t.add({"aten.arange.start_step"}, arange(0, 2));
  t.add({"aten.tril.default"}, triangle(true));
  t.add({"aten.triu.default"}, triangle(false));
  t.add({"aten.eye.default", "aten.eye.m"}, eye);
}

}  // namespace trainc::frontend::aten
