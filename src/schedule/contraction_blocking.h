// How a contraction is cut up: register tile, K block, tasks. Decided from sizes and the target; never from the thread
// count, so that results do not depend on it.
#pragma once
#include <cstdint>
#include <iterator>
#include <optional>

#include "cost/blocking.h"
#include "support/dtype.h"
#include "support/target.h"

namespace trainc::schedule {

struct Blocking;

/// What the choice is made from: the numbers of a ContractionSpec, which says what each means.
struct ContractionShape {
  int64_t batch = 1, m = 0, n = 0, k = 0;
  bool lhs_k_contiguous = true, rhs_k_contiguous = true;
  int64_t rhs_run = 0;
  bool rhs_in_panels = false;
  struct UnpackedLhs { int64_t row_run = 0, row_stride = 0, k_run = 0; };
  std::optional<UnpackedLhs> lhs_unpacked = {};  // where the lhs may be read as it lies
  bool f32_in_parts = false;
  Blocking* fixed_blocking = nullptr;
};

struct Blocking {
  int lanes = 0;  // elements of one vector
  // multiplied on AMX tiles: tile_m and tile_n are multiples of kTileSide, block_k of what a tile is deep
  bool tiles = false;
  int tile_m = 0, tile_n = 0;  // the register tile; tile_n is a multiple of lanes
  // read by the micro-kernel where it lies (spec.lhs_unpacked), not packed: a tile's rows are of one run
  bool lhs_unpacked = false;
  int64_t block_k = 0;             // depth of a packed block; its sums start at zero and are added block by block
  int64_t block_m = 0;             // tiles of the lhs packed at a time
  int64_t task_m = 0, task_n = 0;  // tiles of a task, down and across
  int64_t room_m = 0,
          room_n = 0;  // the largest task that scratch has room for; larger than task_* with a fixed blocking
  int64_t k_blocks = 1, m_tasks = 1, n_tasks = 1;
  bool rhs_unpacked = false;     // the rhs is read where it lies, not packed
  int64_t groups_of_asking = 1;  // groups of steps from one asking for cache lines to the next
};

/// Ways to cut a contraction up that are worth measuring; some repeat others.
constexpr int kBlockingVariants = static_cast<int>(std::size(cost::kVariants));

/// `block_k` and `k_blocks` fix the order of the sums: they depend on k and `tiles` alone. `tiles`, and so tile_m and
/// tile_n, depend on all sizes. Of bf16, spec.k counts pairs. `variant`: 0 is the best by the cost model; others, up to
/// kBlockingVariants, are what a measurement may find better (another tile, more tasks or fewer, other m blocks). Where
/// one does not exist it is a repetition.
Blocking choose_blocking(const ContractionShape&, DType, const Target&, int variant = 0);

/// The blocking for other sizes with the register tile, the m blocks and the room for tasks that `first` has; an empty
/// `first` is given what suits sizes like these. On AMX tiles bf16 alone: whether f32 is multiplied in parts is a
/// matter of its sizes.
Blocking fixed_blocking(const ContractionShape&, DType, const Target&, Blocking& first);

/// All of m and n in one task; blocks of `block_k` where that is not 0. Of bf16 on AMX tiles where the target has them,
/// of f32 never.
Blocking block_part(const ContractionShape&, DType, const Target&, int64_t block_k);

/// The largest tile that still gives every multiprocessor a block and throws little away; else the smallest.
cost::DeviceTile choose_device_tile(const ContractionShape&, const Target&, bool tensor_cores);

}  // namespace trainc::schedule
