// A loss in chunks of rows, whose logits are never in memory as a whole.
#pragma once
#include <cstdint>

namespace trainc::cost {

// Rows of a chunk, at most: each reads and writes the weight's gradient once, 8 bytes an element for 6 FLOPs x rows.
// Fewer rows make that traffic felt, more make the chunk large.
constexpr int64_t kChunkRows = 512;
// Bytes that it must save: below, the kernels that copy rows in and out are not worth compiling.
constexpr int64_t kWorthChunks = int64_t{64} << 20;
// Nodes one above another that the rewriting looks through by recursion, at most: a program may be deeper than the
// stack.
constexpr int kDeepestChunk = 1000;

}  // namespace trainc::cost
