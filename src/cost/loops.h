// How kernels loop over elements: pieces, what is kept from one loop over a row to the next, how a tensor is
// transposed, a device's blocks.
#pragma once
#include <cstdint>

namespace trainc::cost {

// --- rows
// Bytes of scratch for one value's row that a loop over it keeps for the next one rather than computes again, on a CPU.
constexpr int64_t kScratchRow = 256 << 10;
// Bytes of Shared memory for all kept rows of a block, on a device: what every device gives (loop.h, kSharedBytes),
// less what sums are combined in.
constexpr int64_t kSharedRows = 40 << 10;
// Work, in additions, of a value from which on it is kept: less is done again.
constexpr int64_t kWorthKeeping = 4;
// Work, in additions, at which counting it may stop.
constexpr int64_t kCountedWork = 100;
// Elements of an unbroken run that one parallel iteration takes.
constexpr int64_t kPiece = 4096;
// Pieces that a run must have more of than this to be cut into them.
constexpr int64_t kFewPieces = 2;
// Elements behind a padded axis from which on they are a loop of their own, which asks once whether they are padding;
// fewer are read one by one, with a division each.
constexpr int64_t kRunOfItsOwn = 64;
// Parallel iterations, from which on outer loops need not be joined to one: enough for any number of threads we expect;
// more would only cost divisions.
constexpr int64_t kEnoughTasks = 64;

// Elements of a tensor that one parallel iteration of an optimizer's step takes (plan::Foreach::chunk).
constexpr int64_t kForeachPiece = 4096;

// --- a tensor in another order
// Elements of a side of the square that is transposed in registers: a vector of AVX-512. `prepare` asks it of both
// axes.
constexpr int64_t kTransposedSquare = 16;
// Elements of a tensor that is worth transposing by squares.
constexpr int64_t kWorthTransposing = 4096;
// Squares side by side: a quarter of a page's lines of the side that jumps.
constexpr int64_t kAbreast = 4;
// Squares one after another whose lines are asked for together, before they are read and written.
constexpr int64_t kSquaresAhead = 4;
// Bytes side by side that a device reads and writes of a tile on its way through Shared memory: a line of its cache ...
constexpr int64_t kTransposedRun = 128;
// ... of which it fetches such sectors.
constexpr int64_t kSectorBytes = 32;

// --- a device's blocks
// Threads of a block whose elements do not depend on each other.
constexpr int64_t kBlockThreads = 256;
// Elements that such a thread takes where there are many: as many as 16 bytes hold, but no fewer than this ...
constexpr int64_t kElementsOfThread = 4;
// ... and no more than this; so many are read or written by one access, at most.
constexpr int64_t kWideElements = 8;
// Elements that a thread holds in registers for accesses of 16 bytes, of all buffers of a loop together.
constexpr int64_t kWideRegisters = 128;
// Blocks for each multiprocessor of the target from which on there are many.
constexpr int64_t kManyBlocks = 2;
// Columns up to which a row's block has one thread a column.
constexpr int64_t kNarrowRow = 256;
// Columns up to which it has kBlockThreads ...
constexpr int64_t kWideRow = 8192;
// ... and threads beyond.
constexpr int64_t kWideRowThreads = 512;
// Columns that are taken for a row whose length is not known.
constexpr int64_t kUnknownRow = 4096;

}  // namespace trainc::cost
