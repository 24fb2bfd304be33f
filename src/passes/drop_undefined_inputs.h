#pragma once
#include "graph/graph.h"

namespace trainc {

/// Takes out what only serves `undefined` arguments: gradients that autograd never defined count as zero without being
/// read.
/// Gives: the same outputs for zero arguments, except that a zero is a zero whatever it is multiplied with (0 * NaN is
/// 0 here: eager does not run the operation either) and that y + 0 is y; no undefined input is left; an output that is
/// nothing but zero is a constant. Argument indices stay as they are.
Graph drop_undefined_inputs(const Graph&, const std::vector<int64_t>& undefined);

}  // namespace trainc
