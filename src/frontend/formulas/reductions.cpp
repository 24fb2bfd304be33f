#include "frontend/formulas/reductions.h"

#include <algorithm>
#include <cmath>

#include "frontend/formulas/shapes.h"

namespace trainc::formulas {

Value mean(Value x, const Dims& axes) { return sum(x, axes) / count_of(x, axes); }

Spread variance(Value x, const Dims& axes, double correction) {
  Value mean = formulas::mean(x, axes), d = x - mean;
  return {sum(d * d, axes) / std::max(0.0, count_of(x, axes) - correction), mean};
}

Value logsumexp(Value x, const Dims& axes) {
  Value m = amax(x, axes);
  m = where(abs(m) == INFINITY, 0, m);  // inf - inf is NaN
  return log(sum(exp(x - m), axes)) + m;
}

std::optional<Value> vector_norm(Value x, double order, const Dims& axes) {
  if (order == 2) return sqrt(sum(x * x, axes));
  if (order == 1) return sum(abs(x), axes);
  if (order == INFINITY) return amax(abs(x), axes);
  return std::nullopt;
}

}  // namespace trainc::formulas
