// A loss in chunks of rows, whose logits are never in memory as a whole.
#pragma once
#include <cstdint>

namespace trainc::cost {

// Rows of a chunk, at most: each reads and writes the weight's gradient once, 8 bytes an element for 6 FLOPs x rows.
// Fewer rows make that traffic felt, more make the chunk large.
constexpr int64_t kChunkRows = 512;
// Bytes that it must save: below, the kernels that copy rows in and out are not worth compiling.
constexpr int64_t kWorthChunks = int64_t{64} << 20;
// Operations (products of all its rows) from which on a loss passes over rows without a label: below, the kernels for
// parts of several sizes are not worth compiling.
constexpr int64_t kWorthSkipping = int64_t{1} << 32;
// The smallest part of rows is so much of the largest chunk: half of it, on average, is computed for nothing, and each
// part reads and writes the weight's gradient once more.
constexpr int64_t kPartsOfChunk = 8;
// The contractions of a head, forward and backward, which cost the same.
constexpr int64_t kContractionsOfHead = 3;
// Masks that are tried: a loss has one or two.
constexpr size_t kMostMasks = 16;
// Operations of a mask, one above another, that are compared with another's: a comparison of labels has two or three.
constexpr int kDeepestLabel = 8;
// Nodes one above another that the rewriting looks through by recursion, at most: a program may be deeper than the
// stack.
constexpr int kDeepestChunk = 1000;

}  // namespace trainc::cost
