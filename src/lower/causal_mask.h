// Causal masks, proven from the graph: which elements of a matrix are known to contribute nothing. Inside lower only.
#pragma once
#include <optional>

#include "schedule/matmul_chain.h"

namespace trainc::lower {

using schedule::Matrix;

/// The smaller offset d of the two that are tried (0, and columns - rows) for which every element with column > row + d
/// is provably masked: each of `wanted` is zero there, and each sum over a row among `values` adds its neutral element;
/// as long as all other numbers are finite (so masked elements whose operands are not are passed over nevertheless, as
/// the framework's own kernel does). Nothing where there is none. `values`: the chain's elements and rows, each of them
/// read aligned.
std::optional<int64_t> masked_above(const Matrix&, const std::vector<const Node*>& values,
                                    const std::vector<const Node*>& wanted);
/// A selection among the elements that `wanted` are made of by positions, or by an argument: a mask that might be
/// causal. nullptr where there is none.
const Node* mask_in(const std::vector<const Node*>& wanted);

}  // namespace trainc::lower
