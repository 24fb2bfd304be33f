// Matmul chains (attention), whose matrix goes block by block instead of being in memory as a whole.
#pragma once
#include <cstdint>

namespace trainc::cost {

// --- which contractions
// Elements: operands wider than an attention head are read from memory too often, once a block of rows.
constexpr int64_t kWidestHead = 256;
// Entries of the batch: where k runs over the rows, one task takes all rows of an entry, and fewer tasks than this keep
// too few cores busy.
constexpr int64_t kLeastEntries = 8;
// Bytes of one packed operand that a thread keeps.
constexpr int64_t kPackedOperand = 8 << 20;

// --- and their blocks of rows
// Rows of a block, at most: a block of 256 columns stays in L1d, and a causal mask hides more of it.
constexpr int64_t kMostRows = 32;
// Rows of a block, at least, for the sake of more tasks.
constexpr int64_t kLeastRows = 16;
// Rows of a block where memory is short: what a register tile needs.
constexpr int64_t kFewestRows = 8;
// Rows that blocks are multiples of, if they have as many; columns that a causal mask hides likewise: one vector, and
// two tiles of eight rows.
constexpr int64_t kRowsOfTiles = 16;
// Tasks for each core: they take different times.
constexpr int64_t kTasksOfCore = 4;
// A block takes one part of so many of the target's L2; the rest is for packed operands.
constexpr int64_t kBlockOfL2 = 2;
// Elements: a row's pitch that is a multiple of this falls on the same cache sets as the next one's.
constexpr int64_t kSetsPitch = 128;
// Elements beyond a row: room for a tile that begins within it.
constexpr int64_t kRowTail = 32;
// Nodes: a mask that is made of more is not looked into.
constexpr int64_t kLargestMask = 400;

}  // namespace trainc::cost
