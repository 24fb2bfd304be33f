// Products that are made as they are read: a product that is only read transposed has its operands exchanged.
#pragma once
#include "graph/graph.h"

namespace trainc {

/// Where a contraction's result goes nowhere but through a permute whose innermost axis is the innermost of the
/// result's rows, makes the transposed result, lhs and rhs exchanged, so that the kernels after it read neighbours. JAX
/// asks for it: its gradient of a weight [k, n] is the product [n, k], transposed. Casts, scaling by numbers and one
/// reshape may lie in between, of one use each; convolutions stay as they are. Needs: any graph; after `simplify`,
/// which brings permutes together. Gives: the same bits (the terms of each sum are the same products in the same
/// order).
Graph turn_products(const Graph&);

}  // namespace trainc
