// The product of two tensors of rank 3, of any dtype.
#pragma once
#include "frontend/stablehlo/call.h"

namespace trainc::frontend::stablehlo {

/// [b, m, k] and [b, n, k] of one dtype, in which it is summed: [b, m, n]. The graph's contraction is of floats;
/// integers are multiplied and summed.
Value contract(Value x, Value y);

}  // namespace trainc::frontend::stablehlo
