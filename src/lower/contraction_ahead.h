// Looking ahead: while one packed block of an operand is multiplied, the cache lines of the one that is packed next are
// asked for, and those that the next tile's epilogue reads and writes.
#pragma once
#include <functional>
#include <vector>

#include "loop/loop.h"

namespace trainc::lower {

using loop::Expr;
using loop::LoopNest;
using loop::Stmt;

/// A block of `rows` x `depth` elements of an operand; `element` is what packing reads at (row, k) of it.
struct BlockAhead {
  int64_t rows = 0, depth = 0;
  bool along_k = true;  // whether neighbouring k, rather than rows, are neighbours in memory
  std::function<Expr(Expr row, Expr k)> element;
  int order = -1;  // a buffer that says which row, or which k, is read: near enough to be asked
};

/// Prefetches to L2 of one share of the block's lines. With slot = 0 ... slots-1 all lines are asked for, in the order
/// of packing and as late as is safe, unless that takes more than eight lines a slot: then the first ones. Buffers that
/// stay in cache anyway and gathered elements are left out.
std::vector<Stmt> prefetch_share(const LoopNest&, const BlockAhead&, const Expr& slot, int64_t slots);

/// What a tile's epilogue reads of the arguments, and writes to them where `writes` are asked for: `rows` x `columns`
/// elements of each.
class EpilogueAhead {
 public:
  /// `element`: the epilogue of one element, at row `row_var` and column `column_var`.
  EpilogueAhead(const LoopNest&, const Stmt& element, int row_var, int column_var, int64_t rows, int64_t columns,
                bool writes);
  /// Prefetches of the slot's share of the lines of the tile that begins at (row, column); eight a buffer at most.
  /// `row_of`: which row that is.
  std::vector<Stmt> share(const Expr& row, const Expr& column, const Expr& slot, int64_t slots,
                          const std::function<Expr(const Expr&)>& row_of) const;

 private:
  struct Access {
    int buffer;
    Expr index;
    int64_t line;  // elements of a cache line
  };
  std::vector<Access> accesses_;
  int row_var_, column_var_;
  int64_t rows_, columns_;
};

}  // namespace trainc::lower
