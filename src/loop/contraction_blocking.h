// How a contraction is cut up: register tile, K block, tasks. Decided from sizes and the target; never from the thread count,
// so that results do not depend on it.
#pragma once
#include "loop/contraction.h"

namespace trainc::loop {

struct Blocking {
  int lanes = 0;               // elements of one vector
  bool tiles = false;          // multiplied on AMX tiles: tile_m and tile_n are multiples of kTileSide, block_k of what a tile is deep
  int tile_m = 0, tile_n = 0;  // the register tile; tile_n is a multiple of lanes
  bool lhs_in_place = false;   // read by the micro-kernel where it lies (spec.lhs_place), not packed: a tile's rows are of one run
  int fma_rows = 0;            // rows of it at a time in vector registers: tile_m, but with `tiles`
  int64_t block_k = 0;         // depth of a packed block; its sums start at zero and are added block by block
  int64_t block_m = 0;         // tiles of the lhs packed at a time
  int64_t task_m = 0, task_n = 0;  // tiles of a task, down and across
  int64_t room_m = 0, room_n = 0;  // that there is room for; the task's own, but where a blocking is pinned
  int64_t k_blocks = 1, m_tasks = 1, n_tasks = 1;
  bool in_place = false;  // the rhs is read where it lies, not packed
};

// The depth of every block of k at most, but of bf16 on AMX tiles (docs/contraction.md says why).
constexpr int64_t kBlock = 192;

/// `block_k` and `k_blocks` depend on k and `tiles` alone: they are the order of the sums; `tiles`, tile_m and tile_n with it, on the sizes. Of bf16, spec.k counts pairs.
/// `variant`: 0 is the best by the cost model; others, up to kBlockingVariants, are what a measurement may find better (another tile, more tasks or
/// fewer, other m blocks). Where one does not exist it is a repetition.
Blocking choose_blocking(const ContractionSpec&, DType, const Target&, int variant = 0);

/// The blocking for other sizes with the register tile, the m blocks and the room for tasks that `first` has; an empty `first` is given what suits sizes like these.
/// Not on AMX tiles.
Blocking pinned_blocking(const ContractionSpec&, DType, const Target&, Blocking& first);

/// All of m and n in one task, not on AMX tiles; blocks of `block_k` where that is not 0.
Blocking block_part(const ContractionSpec&, DType, const Target&, int64_t block_k);

}  // namespace trainc::loop
