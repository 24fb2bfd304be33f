// Which nodes are values of their own, and which values share a kernel.
#pragma once
#include <cstddef>
#include <cstdint>

namespace trainc::cost {

// --- what is inlined rather than kept
// Work, in additions, that is cheaper to do again at each use than to keep: a few additions, never a division or worse.
constexpr int64_t kCheapAgain = 3;
// The same for a contraction's operand, which is read some times while it is packed.
constexpr int64_t kCheapOperand = 4;
// An expression of this much work, in additions, becomes a value in any case: code must stay readable and compile
// quickly.
constexpr int64_t kMostInlined = 160;
// The same of what costs nothing to compute, but is index arithmetic: nodes, counted as often as they are used.
constexpr int64_t kLargestExpression = 512;
// Reshapes of what has been reordered, one over another, in one expression: each divides the index that the one above
// it has made, several times over, so that index arithmetic doubles with each that cuts across the axes below (64 bytes
// of it to 2 MB in eight steps).
constexpr int64_t kMostReorderings = 4;
// A gather of one element of so many of a contraction's result (a label's of a row of logits) is a value: read at once,
// for the result is to be overwritten.
constexpr int64_t kPicked = 64;

// --- what becomes one kernel
// Work, in additions, that one kernel may hold. A split costs a store and a load of what is wanted behind it, which is
// little beside this many operations; but the code generator's time for one function grows with the square of its
// length. Layers of a network have up to 300: attention's backward.
constexpr int64_t kLargestKernel = 1000;
// Tensors of one size that a device's kernel makes. Its threads hold 16 bytes of each, and of what they are made of, at
// a time: beyond that, so few threads fit that memory waits for them.
constexpr int64_t kMostMade = 8;
// Groups that become one matmul chain: attention's backward has six.
constexpr size_t kMostChained = 16;
// Sums over columns that may be one loop are looked for among so many that read the same: what shares it is made close
// together, and all pairs of a long program would be too many.
constexpr size_t kNearSums = 64;
// Sums over columns that are one loop: each has its own vectors of partial sums.
constexpr size_t kMostSums = 4;
// Neighbours of a group that are looked at for a remark, at most.
constexpr size_t kMostNeighbours = 64;
// On a device, one value's row may take one part of so many of kSharedRows: a kernel with longer rows is taken to
// compute its values again in each loop.
constexpr int64_t kShareOfSharedRows = 8;

}  // namespace trainc::cost
