// Products that are read in another order of their axes than they are computed in, and are written in that order.
// Inside schedule and lower only.
#pragma once
#include <unordered_set>
#include <vector>

#include "graph/graph.h"

namespace trainc::schedule {

/// What a permute moves, down to the contraction whose kernel can write it in the permute's order: reshapes, casts and
/// scaling by numbers, and the contraction last. Its columns are the innermost axis before and after, so that each row
/// of a tile is stored as a row. Empty: there is none.
std::vector<const Node*> down_to_product(const Node* permute);
/// That contraction, or nullptr.
const Node* product_of(const Node* permute);

/// The permutes of a graph that are worth writing so: a result of attention, [batch, heads, tokens, width], is read
/// by the next product as rows of all heads, which it would find in pieces only. Needs: for a CPU, whose contractions
/// have such epilogues.
std::unordered_set<const Node*> permutes_to_write(const Graph&);

/// Whether `n` is a copy (schedule.h) of such a permute, which is how `prepare` says that the contraction's kernel
/// writes it.
bool is_written_in_order(const Node* n);
/// Of such a copy what its elements are made as, in the contraction's order; any other node itself.
const Node* made_as(const Node* n);

}  // namespace trainc::schedule
