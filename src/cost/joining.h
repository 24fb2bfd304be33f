// Which sums of products become fewer products.
#pragma once

namespace trainc::cost {

// k of a product that summands are joined to: at most so many times the root of all their k. Errors of a sum of n terms
// in chains of b, whose sums are added in turn, have squares of n b / 2 + n^2 / 2b: least at the root of n, 1.05 times
// as large in the mean at 1.6 times that, and much the same on the other side of it, where the summands are.
constexpr double kJoinedRoots = 1.6;
// The same, at most: a block of k. Their operands are in memory at once, and there is little left to gain.
constexpr double kJoinedDepth = 192;

}  // namespace trainc::cost
