// Looking ahead: while one packed block of an operand is multiplied, the cache lines of the one that is packed next are asked for.
#pragma once
#include <functional>
#include <vector>

#include "loop/loop.h"

namespace trainc::loop {

/// A block of `rows` x `depth` elements of an operand; `element` is what packing reads at (row, k) of it.
struct BlockAhead {
  int64_t rows = 0, depth = 0;
  bool along_k = true;  // whether neighbouring k, rather than rows, are neighbours in memory
  std::function<Expr(Expr row, Expr k)> element;
};

/// Prefetches to L2 of one share of the block's lines. With slot = 0 ... slots-1 all lines are asked for, in the order of packing, unless that
/// takes more than eight lines a slot: then the first ones. Buffers that stay in cache anyway and gathered elements are left out.
std::vector<Stmt> prefetch_share(const LoopNest&, const BlockAhead&, const Expr& slot, int64_t slots);

}  // namespace trainc::loop
