// Sorting, for rows beside sort itself.
#pragma once
#include "frontend/stablehlo/call.h"

namespace trainc::frontend::stablehlo {

/// Of two tuples of tensors, for each element: whether the first goes before the second.
using Before = std::function<Value(const Values&, const Values&)>;

/// `x`, tensors of one shape, sorted along `axis`; equals stay in their order. `with_places`: and where along it each
/// element was (i64).
Values sorted(Values x, int64_t axis, const Before& before, bool with_places = false);

}  // namespace trainc::frontend::stablehlo
