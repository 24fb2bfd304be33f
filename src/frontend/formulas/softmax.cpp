#include "frontend/formulas/softmax.h"

#include <cmath>

namespace trainc::formulas {

Value softmax(Value x, const Dims& axes) {
  Value e = exp(x - amax(x, axes));
  return e / sum(e, axes);
}
Value safe_softmax(Value x, const Dims& axes) {
  Value m = amax(x, axes);
  Value e = exp(x - m);
  return where(m == -INFINITY, 0, e / sum(e, axes));
}
Value log_softmax(Value x, const Dims& axes) {
  Value d = x - amax(x, axes);
  return d - log(sum(exp(d), axes));
}
Value softmax_backward(Value dy, Value y, const Dims& axes) { return (dy - sum(dy * y, axes)) * y; }
Value log_softmax_backward(Value dy, Value y, const Dims& axes) { return dy - exp(y) * sum(dy, axes); }

}  // namespace trainc::formulas
