// Masks as bits: an eighth of the memory that bools take. A draw's mask may be kept so where only kernels read it.
#pragma once
#include <unordered_set>

#include "graph/graph.h"

namespace trainc::schedule {

/// Masks (Op::Random) that nobody but kernels sees: no output and no operand of an extern call is made of them by
/// operations on bools alone, which a rewriting might take away. They may lie in memory as bits. Those of a device's
/// generator do where its threads draw neighbours (RandomAttr::vector): a thread that draws one here and one there
/// could not write a byte alone. Outputs from `arena_from` on go to the arena, where only kernels of other plans read
/// them: they count as seen by kernels alone. -1: there are none such.
std::unordered_set<const Node*> masks_as_bits(const Graph&, int64_t arena_from = -1);

}  // namespace trainc::schedule
