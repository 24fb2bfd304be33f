// Where the joint graph is cut into forward and backward: what is saved, what is computed again.
#pragma once
#include <unordered_set>
#include <vector>

#include "cost/cutting.h"
#include "graph/graph.h"

namespace trainc::schedule {

struct Cut {
  Graph forward;   // inputs: the primals; outputs: the forward outputs, then the saved values
  Graph backward;  // inputs: saved_inputs, all tangents, then the saved values; outputs: the gradients
  // What the backward reads of what the caller holds anyway: i < primals is that primal, primals + j the forward output
  // j.
  std::vector<int64_t> saved_inputs;
  std::vector<Type> saved;               // values that lie in the arena of the handle
  std::vector<const Node*> saved_nodes;  // of saved: the nodes of the joint graph
  std::vector<bool> saved_as_bits;       // of saved: masks that lie there as bits (bits.h)
  // Forward outputs that `forward` does not compute (it gives none there), and the graph that does. Its inputs are the
  // saved values alone, which nobody else can write: computed later, or never, they are the same.
  std::vector<int64_t> deferred_outputs;
  Graph deferred;
};

/// Cuts `joint` (inputs: `primals` primals, then tangents; outputs: `forward_outputs` of the forward, then gradients).
/// The saved set is a minimum cut by bytes (Chen et al., "Min-Cut Recomputation", as functorch does): contractions,
/// sums, random draws, externs and indexed operations are never computed again; elementwise operations and movements
/// may be, bit for bit. So may attention's scores, where `fuse_chains` says that kernels are a CPU's, which never keep
/// them (see matmul_chain.h): the rows' maxima and sums are kept instead. `masks_as_bits`: masks may take a bit an
/// element (bits.h). `price`: bytes that it must save to compute a contraction of one FLOP again; 0: none is, whatever
/// it saves. The cut is then the least of bytes saved plus price x FLOPs done again. All equal layers would be computed
/// again from one price on; so earlier ones are up to a quarter cheaper: when the backward comes to them, little else
/// is in memory. The rest of what is never computed again stays so. `must_recompute`: values that the user's
/// checkpointing forbids to keep. An output of at least `deferred_bytes` that neither half computes for itself, and
/// that elementwise operations and movements make of saved values, is deferred. So is one that the backward wants,
/// where a loss (a number) stands beside it: it is saved in the arena, where the backward may overwrite it, and the
/// caller gets a copy if he looks. `late_draws_from`: draws from this place on are the backward's, and so are those
/// behind a draw that depends on a tangent: each half makes its draws in the program's order, and the backward after
/// the forward. All draws are made, whether they are read or not (Graph::effects). A primal that contractions of
/// `vendor_flops` or more have in a narrower dtype is made so once, by the forward, and kept, unless memory has a
/// price: the vendor's library wants it in memory. A primal of at most `copied_bytes` that is not multiplied costs its
/// bytes where a value of the forward is computed again of it: the backward reads a copy then, as the forward read it,
/// for the caller may write to what autograd does not keep. Throws InternalError where a forward output depends on a
/// tangent, or on such a draw.
Cut cut_joint(const Graph& joint, int64_t primals, int64_t forward_outputs,
              const std::vector<const Node*>& must_recompute, int64_t deferred_bytes = cost::kDeferredBytes,
              bool fuse_chains = true, bool masks_as_bits = true, double price = 0, int64_t late_draws_from = INT64_MAX,
              int64_t vendor_flops = 0, int64_t copied_bytes = 0);

/// The inputs that contractions read as they are, moved or scaled: weights, attention's queries and keys. A kernel that
/// multiplies by one again, and a product beside it, are to read one operand.
std::unordered_set<int64_t> multiplied_inputs(const Graph&);

/// FLOPs of a contraction.
int64_t flops_of(const Node* contraction);

}  // namespace trainc::schedule
