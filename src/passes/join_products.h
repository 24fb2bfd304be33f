// Sums of many small products that are fewer, deeper ones: the gradient of a weight that a program uses many times.
#pragma once
#include "cost/joining.h"
#include "graph/graph.h"

namespace trainc {

/// Where a sum adds up contractions of few k each, and nobody else reads them (a recurrent layer's weight has a product
/// for each step), makes one contraction of several: a_1 b_1 + a_2 b_2 is [a_1 a_2] [b_1 b_2], one sum over all their
/// k. So the sum so far is read and written less often. How many: as leaves the error what it is, for many short chains
/// are nearer to the truth than a long one (cost/joining.h). Sums over leading axes of what is put together for that,
/// or anyway (a bias's gradient), become one sum. Where the operands, or neighbours among them, are put together
/// already, that is what is read. Needs: any graph; after `turn_products`, for a product that is read transposed is no
/// summand. Gives: each sum with the same terms, not in the same order; under
/// autocast, not each rounded to bf16 by itself. Leaves: products whose operands take more to
/// put together than the sums take to be read and written.
Graph join_products(const Graph&, double roots = cost::kJoinedRoots);

}  // namespace trainc
