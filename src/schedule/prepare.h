#pragma once
#include <limits>
#include <unordered_map>

#include "graph/graph.h"
#include "schedule/vendor_library.h"

namespace trainc::schedule {

/// Rewrites what no kernel does directly, so that the schedule need not know it.
/// Gives: no ArgMax/ArgMin (a maximum, then the least position that holds it); no sums over bool or over nothing; long
/// sums with few results in two steps with a fixed split (on a device, whose `sum_threads` they are to keep busy, in as
/// many stages as that takes, but for those that the vendor's library makes as it multiplies; so scatters' sums into
/// few places there); variances over leading axes as two sums that one loop takes (variance.h, on a CPU); contractions
/// of a vector with rows that lie along memory as sums (on a CPU); a matrix that is multiplied with few rows again and
/// again in the order in which its rows are neighbours (likewise); operands of contractions that have neighbours in
/// memory along k or along their rows (a copy in another order where a permute leaves none), results of contractions in
/// the order in which the next one reads them (product_order.h, on a CPU), and operands of the vendor's library as
/// matrices (vendor_operands.h); outputs that are row-major in memory (a permutation before the output where the
/// caller's strides are permuted), each with memory of its own (a copy where two share it, an input would be given out,
/// or a call reads it in another layout). Outputs whose strides are not a permutation of row-major become row-major. An
/// input that is an output is handed through as it is where both are the caller's: inputs before `caller_inputs`,
/// outputs before `caller_outputs`; the others lie in an arena, and are copied. `made`: what stands for each live node
/// afterwards, outputs' new order aside.
Graph prepare(const Graph&, int64_t caller_inputs = std::numeric_limits<int64_t>::max(),
              int64_t caller_outputs = std::numeric_limits<int64_t>::max(),
              std::unordered_map<const Node*, const Node*>* made = nullptr, const VendorLibrary& = {},
              int64_t sum_threads = 0);

}  // namespace trainc::schedule
