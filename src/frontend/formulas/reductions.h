// Reductions over axes that are more than one primitive. The axes are kept, of size 1; the dtype is that of x, in which
// it is summed.
#pragma once
#include <optional>

#include "frontend/formulas/value.h"

namespace trainc::formulas {

/// sum / n; NaN of nothing.
Value mean(Value x, const Dims& axes);
/// The sum of squared deviations from the mean, in two passes, divided by n - correction (0 at least).
struct Spread { Value var, mean; };
Spread variance(Value x, const Dims& axes, double correction);
/// log(sum(e^x)) without overflow; -inf and inf stay. Every axis has elements.
Value logsumexp(Value x, const Dims& axes);
/// (sum |x|^order)^(1/order) for order 1, 2 and infinity; nothing for others. Every axis has elements.
std::optional<Value> vector_norm(Value x, double order, const Dims& axes);

}  // namespace trainc::formulas
