// Products of the vendor's library whose rows begin at no multiple of 16 bytes (logits over 50,257 words).
#pragma once
#include <optional>

#include "cost/memory.h"
#include "graph/graph.h"

namespace trainc::schedule {

/// The library reads and writes 16 bytes at a time, and has its quick kernels, where the rows of each matrix begin at
/// multiples of that. So a matrix that a large product reads or writes has its rows made longer: what a product reads
/// gets zeros behind, and of what it writes there, nobody makes anything. Views, elementwise operations and sums go
/// along with the longer rows (a sum over a row passes over what is behind), so that what stands between two products
/// is one loop over them; whatever else reads such a matrix reads the part of it that was there before. Takes: a graph
/// before the cut, so that what the forward keeps is the longer matrix. Gives: the same outputs; sums over k have zeros
/// added; nothing where no product is padded. `vendor_flops`: contractions of so many operations are the library's; 0:
/// none is. Leaves: batches of products, and those of fewer than `worth` FLOPs for a byte of an operand that would be
/// longer.
std::optional<Graph> pad_products(const Graph&, int64_t vendor_flops, int64_t worth = cost::kWorthPadding);

}  // namespace trainc::schedule
