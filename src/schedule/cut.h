// Where the joint graph is cut into forward and backward: what is saved, what is computed again.
#pragma once
#include <vector>

#include "graph/graph.h"

namespace trainc::schedule {

struct Cut {
  Graph forward;   // inputs: the primals; outputs: the forward outputs, then the saved values
  Graph backward;  // inputs: saved_inputs, all tangents, then the saved values; outputs: the gradients
  // What the backward reads of what the caller holds anyway: i < primals is that primal, primals + j the forward output j.
  std::vector<int64_t> saved_inputs;
  std::vector<Type> saved;  // values that lie in the arena of the handle
};

/// Cuts `joint` (inputs: `primals` primals, then tangents; outputs: `forward_outputs` of the forward, then gradients).
/// The saved set is a minimum cut by bytes (Chen et al., "Min-Cut Recomputation", as functorch does): contractions, sums, random
/// draws, externs and indexed operations are never computed again; elementwise operations and movements may be, bit for bit.
/// `must_recompute`: values that the user's checkpointing forbids to keep.
/// Throws InternalError where a forward output depends on a tangent.
Cut cut_joint(const Graph& joint, int64_t primals, int64_t forward_outputs, const std::vector<const Node*>& must_recompute);

}  // namespace trainc::schedule
