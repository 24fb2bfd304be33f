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

/// What is packed of each operand: of bf16 one block, of f32 one tile of rows and one panel. k counts pairs where they
/// are of bf16, elements where they are of f32.
struct PackedBlocks {
  int lhs = -1, rhs = -1;   // buffers; rhs: [panel][k][tile_n]
  bool lhs_along_k = true;  // lhs: [row][k], of bf16 as such; or [k][row]
  int64_t lhs_pitch = 0;    // from a row, or a k, to the next
};

/// sums = lhs . rhs, by tiles of 16 x 16 sums. bf16 operands are multiplied as they are. f32 operands are split, a = a1
/// + a2 + a3 with each part in bf16, and six products stand for a * b: 11, 12, 21, 22, 13, 31. What is left out is
/// 2^-27 of |a b| or so, 2^-24 at most. Denormals count as zero in the instruction, and parts of huge numbers overflow:
/// so `fits` says of a tile and a panel whether all of their numbers are far from both, and the caller multiplies the
/// others as they are packed.
class TileKernel {
 public:
  /// Adds scratch buffers and tile registers to the nest. Needs: blocking.tiles; `k` is the whole sum's.
  TileKernel(LoopNest&, const Blocking&, const PackedBlocks&, bool in_parts, int64_t k);

  /// bf16: once a block of an operand is packed, `depth` of k deep: what tiles are loaded from. Both end in zeros up to
  /// a whole tile.
  Stmt prepare_lhs(const Expr& tiles, const Expr& depth);
  Stmt prepare_rhs(const Expr& panels, const Expr& depth);
  /// In parts: the same for the rows, or the panel, that are packed, which are the block's `tile`, or its `panel`.
  Stmt split_rows(const Expr& tile, const Expr& depth);
  Stmt split_panel(const Expr& panel, const Expr& depth);
  /// In parts only: whether `multiply` may be used for this tile of the block and this panel, a bool.
  Expr fits(const Expr& tile, const Expr& panel) const;
  /// The sums of one tile of the block and one panel, in tile registers; ahead(step) is put in before each step of
  /// `step()` of k.
  Stmt multiply(const Expr& tile, const Expr& panel, const Expr& depth,
                const std::function<std::vector<Stmt>(const Expr& step)>& ahead);
  /// buffer[at + row * tile_n + column] = sums
  Stmt store_sums(int buffer, const Expr& at) const;

  int64_t step() const { return (in_parts_ ? 2 : 1) * loop::kTileSide; }

 private:
  // locals: the least magnitude that is not 0, the greatest; both start at 1
  struct Range { int low = -1, high = -1; };

  int scratch(const char* name, DType, int64_t numel);
  Expr whole_steps(const Expr& depth) const { return loop::floor_div(depth + loop::integer(step() - 1), step()); }
  bool ragged() const { return k_ % step() != 0; }
  Range start_range(std::vector<Stmt>& body);
  void widen_range(std::vector<Stmt>& body, const Range&, const Expr& x);
  void store_range(std::vector<Stmt>& body, int buffer, const Expr& at, const Range&);
  std::vector<Expr> split(std::vector<Stmt>& body, const Expr& x);
  Stmt split_pairs(const Expr& pair, const Expr& depth, const std::function<Expr(const Expr& k)>& at, int source,
                   int target, const std::function<Expr(int part)>& to, const Range&);
  // `first`: the row of the block that the packed rows begin at
  Stmt split_along_k(const Expr& first, const Expr& row, const Expr& depth, const Range&);
  Stmt split_across_k(const Expr& first, const Expr& rows, const Expr& depth, const Range&);

  LoopNest& nest_;
  const Blocking b_;
  const PackedBlocks packed_;
  const bool in_parts_;
  const int64_t k_;
  const int down_, across_;       // tiles of 16 x 16 in a tile of the blocking
  int64_t lhs_rows_, lhs_pitch_;  // what lhs tiles are loaded from: [part][row][pair], rows and pairs a row
  int lhs_, rhs_;                 // buffers that tiles are loaded from
  int stage_ = -1, lhs_range_ = -1, rhs_range_ = -1;
  std::vector<int> sums_, lhs_tiles_, rhs_tiles_;
};

}  // namespace trainc::lower
