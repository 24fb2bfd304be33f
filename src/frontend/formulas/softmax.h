// Softmax and log-softmax over `axes` of x, and their derivatives. Floats, computed in their dtype; every axis has
// elements.
#pragma once
#include "frontend/formulas/value.h"

namespace trainc::formulas {

/// e^(x - max) / sum: no overflow. A row of -inf alone, or with an inf or a NaN, is NaN.
Value softmax(Value x, const Dims& axes);
/// The same where a row of -inf alone (nothing to attend to) is 0.
Value safe_softmax(Value x, const Dims& axes);
/// x - max - log(sum): in this order; a sum with a large maximum would lose the logarithm.
Value log_softmax(Value x, const Dims& axes);
/// `y`: the forward's result.
Value softmax_backward(Value dy, Value y, const Dims& axes);
Value log_softmax_backward(Value dy, Value y, const Dims& axes);

}  // namespace trainc::formulas
