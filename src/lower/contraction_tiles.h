// The micro-kernel of a contraction on AMX tiles: packed operands transposed (and, f32, split) into tiles, and their
// product.
#pragma once
#include <functional>

#include "loop/loop.h"
#include "schedule/contraction_blocking.h"

namespace trainc::lower {

using loop::Expr;
using loop::LoopNest;
using loop::Stmt;
using schedule::Blocking;

/// What is packed of each operand: one tile of rows and one panel where they are placed as tiles (below), else a block.
/// k counts pairs where they are of bf16, elements where they are of f32.
struct PackedOperands {
  int lhs = -1, rhs = -1;   // buffers; rhs: [panel][k][tile_n]
  bool lhs_along_k = true;  // lhs: [row][k], of bf16 as such; or [k][row]
  bool places_rows = true;  // f32 and rows along vectors; else tiles are loaded from the rows as they are packed
  int64_t lhs_pitch = 0;    // from a row, or a k, to the next: without a gap where rows are placed
  bool of_part = false;     // buffers and registers are shared with the other parts of the nest
};

/// Where the blocks of operands begin in their buffers, in pairs: of a part the rhs has all blocks of k in one, and the
/// lhs may be where the caller keeps it.
struct OperandsBegin { Expr lhs = loop::integer(0), rhs = loop::integer(0); };

/// sums = lhs . rhs, by tiles of 16 x 16 sums. bf16 operands are multiplied as they are. f32 operands are split, a = a1
/// + a2 + a3 with each part in bf16, and six products stand for a * b: 11, 12, 21, 22, 13, 31. What is left out is
/// 2^-27 of |a b| or so, 2^-24 at most. Denormals count as zero in the instruction, and parts of huge numbers overflow:
/// so `fits` says of a tile and a panel whether all of their numbers are far from both, and the caller multiplies the
/// others as they are packed.
class TileKernel {
 public:
  /// Adds scratch buffers and tile registers to the nest. Needs: blocking.tiles. `block_k`: the depth that packed
  /// blocks have room for; `k`: the whole sum's, -1 where it is known only as the nest runs.
  TileKernel(LoopNest&, const Blocking&, const PackedOperands&, bool in_parts, int64_t block_k, int64_t k);

  /// f32, and rows along vectors: once rows are packed, `depth` of k deep, as the tiles of the block's `tile`, one
  /// after the other as they are multiplied, so that what comes from L2 is a stream.
  Stmt place_rows(const Expr& tile, const Expr& depth);
  /// bf16 along k is loaded as it is packed: zeros up to a whole tile in the rows of so many tiles.
  Stmt pad_rows(const Expr& tiles, const Expr& depth, const OperandsBegin& = {});
  /// The same for the rhs: in parts, the panel that is packed as the block's `panel`; bf16, zeros in the panels.
  Stmt place_panel(const Expr& panel, const Expr& depth);
  Stmt pad_panels(const Expr& panels, const Expr& depth, const OperandsBegin& = {});
  /// In parts only: whether `multiply` may be used for this tile of the block and this panel, a bool.
  Expr fits(const Expr& tile, const Expr& panel) const;
  /// Adds to the sums of one tile of the block and one panel, in tile registers; ahead(step) is put in before each step
  /// of `step()` of k.
  Stmt multiply(const Expr& tile, const Expr& panel, const Expr& depth,
                const std::function<std::vector<Stmt>(const Expr& step)>& ahead, const OperandsBegin& = {});
  /// sums = 0
  Stmt zero_sums() const;
  /// sums = buffer[at + row * pitch + column], and the other way round.
  Stmt load_sums(int buffer, const Expr& at, int64_t pitch) const;
  Stmt store_sums(int buffer, const Expr& at, int64_t pitch) const;

  int64_t step() const { return (in_parts_ ? 2 : 1) * loop::kTileSide; }

 private:
  int scratch(const char* name, DType, int64_t numel);
  Expr whole_steps(const Expr& depth) const { return loop::floor_div(depth + loop::integer(step() - 1), step()); }
  // Steps that are placed of a block: all of them, but of bf16 whose k is not known those that there are.
  Expr placed_steps(const Expr& depth) const {
    return k_ < 0 && !in_parts_ ? whole_steps(depth) : loop::integer(steps_);
  }
  Expr missing(const Expr& depth) const { return whole_steps(depth) * step() - depth; }  // of a whole step
  bool fills(int64_t depth) const { return k_ >= 0 && k_ % depth == 0; }  // whether k is made of such depths
  // Where a tile of 16 x 16 pairs begins in lhs_, and a row of such tiles in rhs_.
  Expr lhs_tile(const Expr& tile, const Expr& step, int part, const Expr& rows) const;
  Expr rhs_tile(const Expr& panel, const Expr& step, int part) const;
  // buffer[2 at] = the least magnitude that is not 0, buffer[2 at + 1] = the greatest, and 1 where 1 is beyond.
  Stmt find_range(int buffer, const Expr& at, int source, int64_t count);
  std::vector<Expr> split(std::vector<Stmt>& body, const Expr& x);
  Stmt split_pairs(const Expr& pair, const std::function<Expr(const Expr& k)>& at, int source, int target,
                   const std::function<Expr(int part)>& to);
  Stmt split_along_k(const Expr& tile);
  Stmt place_across_k(const Expr& tile, const Expr& depth);
  template <class Each>
  Stmt each_sum(const Expr& at, int64_t pitch, Each each) const;
  Stmt pad(int buffer, const Expr& depth, int64_t rows, bool along_k);

  LoopNest& nest_;
  const Blocking b_;
  const PackedOperands packed_;
  const bool in_parts_;
  const int64_t block_k_, k_;
  const int parts_, down_, across_;  // tiles of 16 x 16 in a tile of the blocking
  const int64_t steps_;              // in a block of k
  const int64_t elements_;           // of lhs_ in a pair
  int lhs_ = -1, rhs_;               // buffers that tiles are loaded from
  int stage_ = -1, lhs_range_ = -1, rhs_range_ = -1;
  std::vector<int> sums_;  // tile registers
  int lhs_register_ = -1, rhs_register_ = -1;
};

}  // namespace trainc::lower
