// How contractions are cut up. Slots are half cycles on a machine with two FMA units: what one FMA of a full vector
// takes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>

namespace trainc::cost {

// --- register tiles, on a CPU
// Rows and vectors of a tile of sums; on AMX tiles; for an lhs that is read where it lies.
struct Tile {
  int rows, vectors;
  bool amx = false, unpacked = false;
};

// rows * vectors sums, `vectors` of the rhs and one broadcast of the lhs live in registers: at most 32. Ordered by
// preference where the costs are equal: 8 x 3 loads 11 vectors for 24 FMAs, 12 x 2 loads 14.
constexpr Tile kAvx512Tiles[] = {{8, 3}, {12, 2}, {6, 4}, {8, 2}, {4, 4}, {24, 1}, {20, 1}, {16, 1},
                                 {8, 1}, {2, 8},  {2, 4}, {2, 2}, {1, 8}, {1, 4},  {1, 2}};
// The same with 16 registers. 4 x 3 reads the lhs out of L2 for 24 columns at a time, 6 x 2 for 16.
constexpr Tile kAvx2Tiles[] = {{4, 3}, {6, 2}, {12, 1}, {8, 1}, {4, 2}, {2, 4}, {2, 2}, {1, 8}, {1, 4}, {1, 2}};
// For an lhs that is read unpacked: the rows divide what a row of an image may be. An element of it is loaded where it
// is multiplied.
constexpr Tile kAvx512UnpackedTiles[] = {{8, 3}, {12, 2}, {14, 2}, {10, 2}, {6, 4},  {7, 3},  {5, 4}, {4, 4},
                                         {8, 2}, {7, 2},  {5, 2},  {16, 1}, {14, 1}, {10, 1}, {8, 1}};
// The same with 16 registers.
constexpr Tile kAvx2UnpackedTiles[] = {{6, 2}, {5, 2}, {4, 3}, {4, 2}, {7, 1}, {12, 1}, {10, 1}, {8, 1}};

// Whether a tile's sums, its vectors of the rhs and a broadcast are no more than these registers; else sums would go to
// memory and back at each step. One row multiplies each of its vectors once, as it is loaded.
template <size_t N> constexpr bool fit_registers(const Tile (&tiles)[N], int registers) {
  for (const Tile& t : tiles)
    if (t.rows * t.vectors + (t.rows > 1 ? t.vectors : 1) + 1 > registers) return false;
  return true;
}
static_assert(fit_registers(kAvx512Tiles, 32) && fit_registers(kAvx512UnpackedTiles, 32));
static_assert(fit_registers(kAvx2Tiles, 16) && fit_registers(kAvx2UnpackedTiles, 16));

// Rows and vectors on AMX, where bf16 is multiplied as it is. Their sums and two operands are registers of which there
// are eight; the fewer, the quicker where another program runs on the core's second hardware thread. 16 x 4 asks L2 for
// one tile of rows in four products, 32 x 2 for two.
constexpr Tile kAmxTiles[] = {{16, 4, true}, {32, 2, true}, {16, 3, true}, {48, 1, true},
                              {16, 2, true}, {32, 1, true}, {16, 1, true}};
// The same for f32 in parts. Of the six products of a step each keeps an operand of the one before: so one sum asks for
// hardly more loads than four would. A second tile would not fit into the vector registers, which multiply what parts
// cannot hold.
constexpr Tile kAmxTileOfParts = {16, 1, true};

// --- what a step of k takes
// Slots from an FMA to the next on the same sum: four cycles.
constexpr double kFmaLatency = 8;
// Slots of a step beside its FMAs and loads.
constexpr double kStepOverhead = 1;
// Vectors of a tile from which on a step waits for its part of the rhs panel, where L1d does not hold the panel: L2
// gives a line in two cycles, and is asked for the lhs as well.
constexpr int kWideTile = 4;
// Slots that it waits for each of these vectors.
constexpr double kWaitsForPanel = 0.4;
// Cycles, of the clock that FMAs run at, of a product of two AMX tiles in its place: 16 of its own clock, which is
// three quarters as fast, and the waits for what comes from L2.
constexpr double kTileProduct = 30;
// The same of a tile load: what a step on tiles takes beside its products.
constexpr double kTileLoad = 10;
// Slots to pack an element out of L2 along the contiguous direction.
constexpr double kCopy = 0.4;
// Slots to pack it through a staging tile that is transposed.
constexpr double kTranspose = 0.7;
// k of f32 below which it is not multiplied in parts: a step on tiles is so deep, whatever k is, and where few products
// are added, the sums of six of each are further from the truth than theirs.
constexpr int64_t kShallow = 32;
// Slots to split a packed element into its three parts in bf16.
constexpr double kSplit = 2.2;
// Slots that waking threads takes.
constexpr double kWake = 10000;
// Costs are equal where the smaller is more than this part of the other: the earlier one is taken.
constexpr double kNearlyEqual = 0.999;

// --- cache blocks
// Steps of k in a block at most: the order of sums that eager's own product was found to use (its error came out equal
// for k = 256, 768, 3072; deeper blocks lose). A rhs panel of 32 f32 columns is then 24 KiB, and stays in L1d.
constexpr int64_t kBlock = 192;
// Pairs of bf16 in a block on AMX tiles: a panel of 64 columns is 32 KiB then, and stays in L1d beside the rows that
// pass.
constexpr int64_t kBlockOnTiles = 128;
// Rows from which on bf16 on AMX tiles has panels of 64 columns: eight tiles, which pass each panel.
constexpr int64_t kRowsOfWidePanel = 128;
// Steps of f32 in parts in a block on AMX tiles: kPanelsOfParts panels of parts (12 KiB each) and the tile of rows that
// they are multiplied by stay in L1d.
constexpr int64_t kBlockOfParts = 128;
// Panels that a tile of rows in parts is multiplied by, one after the other: the parts of its rows come from L2 once
// for all of them.
constexpr int64_t kPanelsOfParts = 2;
// The packed block of the lhs takes one part of so many of the target's L2: it is read once a panel, while the next one
// is on its way.
constexpr int64_t kLhsBlockOfL2 = 10;
// The same of bf16 on AMX tiles: L2 is full of partial sums there.
constexpr int64_t kLhsBlockOfL2OnTiles = 20;
// The packed block of the rhs takes one part of so many at most: the next one on its way should stay as well.
constexpr double kRhsBlockOfL2 = 2;
// Partial sums of a task may take so many times the target's L2: they are asked for long before they are read.
constexpr double kSumsOfL2 = 2;
// Rows, and columns, of a task at most.
constexpr int64_t kLargestTask = 2048;
// Cores that tasks are made for where the target has fewer.
constexpr int kLeastCores = 2;
// Sizes, relative to the first ones, that the blocking of a kernel for several sizes should suit.
constexpr double kOtherSizes[] = {0.75, 1.0, 1.25, 1.5};
// The same for the tile of a part of a nest: tenths.
constexpr int64_t kOtherTenths[] = {7, 13, 15};

// --- one row, or one column
// Elements of a row of the matrix: of shorter ones, adding up the vector of sums at the end of each costs more than a
// tile's sums that nobody wants.
constexpr int64_t kLeastRow = 64;

// --- few rows, again and again
// Rows at most: the largest tile's, which reads the rhs where it lies.
constexpr int64_t kFewRows = 24;
// Products of a matrix with so few rows from which on it is copied into panels once, rather than by each of them.
constexpr int64_t kMultipliedAgain = 8;

// --- operands as they lie
// Steps of k: finding where a run begins costs as much as some steps, and of shorter runs packing is the cheaper.
constexpr int64_t kShortRun = 16;
// Bytes from a row to the next of a matrix that is read as it lies: further apart they meet in few sets of L1, and
// packing is the cheaper.
constexpr int64_t kNearRows = 1024;
// Elements: shorter runs are not worth a loop each, and their operand is packed by divisions.
constexpr int64_t kShortestRun = 4;

// --- what a measurement may find better (tune="max")
// The tile by rank, the number of tasks relative to the default's, the m block likewise.
struct BlockingVariant {
  size_t tile;
  double least_tasks, most_tasks, block_m;
};
constexpr double kAny = std::numeric_limits<double>::infinity();
// Variants: the default, then another tile, more tasks or fewer, other m blocks.
constexpr BlockingVariant kVariants[] = {{0, 0, kAny, 1},   {1, 0, kAny, 1}, {2, 0, kAny, 1},
                                         {0, 1.5, 3, 1},    {0, 3.5, 8, 1},  {0, 0, 0.7, 1},
                                         {0, 0, kAny, 0.5}, {0, 0, kAny, 2}, {1, 1.5, 3, 1}};

// --- the loops themselves
// Steps of k that the micro-kernel writes out.
constexpr int64_t kUnrolledSteps = 8;
// The same in runs: the first of these that divides a run.
constexpr int64_t kRunSteps[] = {8, 10, 7, 6, 5, 4};
// Steps of k in the staging tile of a pack that transposes.
constexpr int64_t kStagedSteps = 64;
// Bytes of a cache line.
constexpr int64_t kCacheLine = 64;
// Groups of steps from one asking to the next, at most. With 16 vector registers a tile has half of the FMAs, so that
// finding the lines in each group would keep the core from them.
constexpr int64_t kGroupsOfAskingAvx2 = 12, kGroupsOfAskingAvx512 = 1;
// Cache lines that are asked for at a time, at most: the loads of the multiplication itself must not wait.
constexpr int64_t kLinesAhead = 8;
// Eighths of the askings that have nothing to ask for that pass before the first line of a block is asked for:
// a line that comes early is often gone from L2 before it is packed. The last eighth is for lines that come from far.
constexpr int64_t kWaitsAhead = 7;
// Bytes of a buffer that is read all the time (a bias, scales) and need not be asked for.
constexpr int64_t kStaysCached = 32 << 10;

// --- a device's tiles
// A block's tile and a thread's part of it: each_m x each_n sums (FMA), or a warp's 16 x 8 tiles, each_m x each_n of
// them (tensor cores).
struct DeviceTile { int m, n, k, each_m, each_n; };
// With FMA: the largest that still gives every multiprocessor of the target a block and throws little away.
constexpr DeviceTile kFmaTiles[] = {{128, 128, 16, 8, 8}, {64, 64, 16, 4, 4}, {32, 32, 16, 2, 2}};
// With tensor cores, likewise; k in bf16: of f32 half as much.
constexpr DeviceTile kMmaTiles[] = {{128, 128, 32, 4, 8}, {128, 64, 32, 4, 4}, {64, 64, 32, 2, 4}, {32, 32, 32, 1, 2}};
// Tiles along k that lie in Shared memory at once, at most, where operands are copied while others are multiplied.
constexpr int64_t kMmaStages = 4;
// Sums that are computed, for each that is wanted, at most: what little is thrown away.
constexpr int64_t kMostWaste = 2;
// Elements that a row of an FMA tile is padded by: a warp writes two rows of kFmaTiles' 16 columns, each a pitch apart,
// and they fall on 32 banks so.
constexpr int kFmaPad = 2;

}  // namespace trainc::cost
