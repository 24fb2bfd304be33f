// Channels last over the whole graph: the order in which convolutions compute is kept between them.
#pragma once
#include "graph/graph.h"

namespace trainc {

/// Moves permutes from channels last to channels first ([N, size..., C] -> [N, C, size...], rank 4 or more) down to
/// their uses, through elementwise operations, sums, padding and slices, so that those of neighbouring convolutions
/// meet and vanish.
/// Needs: any graph. Gives: the same bits (sums fold the same elements; their order is the schedule's in either case).
/// Leaves: reshapes, externs and outputs, which want the framework's order: there the permute stays. An operand that is
/// channels first for another reason (an argument, an extern's result) is permuted the other way, so that one operand
/// out of a convolution decides.
Graph channels_last(const Graph&);

}  // namespace trainc
