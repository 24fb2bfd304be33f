// Softmax and log-softmax with their backwards.
#include "frontend/formulas/softmax.h"

#include "frontend/aten/table.h"

namespace trainc::frontend::aten {
namespace {

Handler forward(Value (*formula)(Value, const Dims&)) {
  return [formula](const Call& c) -> Outcome {
    Value x = c.in(0, "self");
    if (x.rank() == 0 || x.numel() == 0) return std::nullopt;
    return c.give(formula(x, {wrap_axis(c, c.arg(1, "dim").integer(), x.rank())}));
  };
}

Handler backward(Value (*formula)(Value, Value, const Dims&)) {
  return [formula](const Call& c) -> Outcome {
    const DType d = compute_dtype(c.arg(1, "output").tensor().dtype());
    Value dy = c.arg(0, "grad_output").as(d), y = c.arg(1, "output").as(d);
    if (y.rank() == 0 || y.numel() == 0) return std::nullopt;
    return c.give(formula(dy, y, {wrap_axis(c, c.arg(2, "dim").integer(), y.rank())}));
  };
}

}  // namespace

void add_softmax(Table& t) {
  t.add({"aten._softmax.default"}, forward(formulas::softmax));
  t.add({"aten._safe_softmax.default"}, forward(formulas::safe_softmax));
  t.add({"aten._log_softmax.default"}, forward(formulas::log_softmax));
  t.add({"aten._softmax_backward_data.default"}, backward(formulas::softmax_backward));
  t.add({"aten._log_softmax_backward_data.default"}, backward(formulas::log_softmax_backward));
}

}  // namespace trainc::frontend::aten
