// Contractions as loop nests: register tile, packed panels, cache blocks; one generator for NN, NT, TN, batched, odd
// sizes.
// Takes: sizes, how to read an element of each operand (prologue), what to do with a finished sum (epilogue). Gives: a
// LoopNest.
#pragma once
#include <functional>

#include "loop/loop.h"
#include "schedule/contraction_blocking.h"
#include "support/target.h"

namespace trainc::lower {

using loop::Expr;
using loop::LoopNest;
using loop::Stmt;
using schedule::Blocking;
using schedule::ContractionShape;

// out[b,m,n] = sum_k lhs[b,m,k] * rhs[b,n,k]
struct ContractionSpec {
  int64_t batch = 1, m = 0, n = 0, k = 0;
  // The element at (batch, row, k), f32, f64, or bf16 where the target has a dot product of it (has_bf16_dot), as an
  // expression over the nest's buffers: loads, casts, any prologue. Called while operands are packed; both are read
  // more than once where a block is packed again.
  std::function<Expr(Expr b, Expr row, Expr k)> lhs, rhs;
  // Whether consecutive k (true) or consecutive rows (false) are neighbours in memory: the direction packing reads
  // along.
  bool lhs_k_contiguous = true, rhs_k_contiguous = true;
  // Neighbours may come in runs: in a window's row, some channels of one tap lie side by side, and those of the next
  // tap elsewhere. `lhs_run` is the length of a run (0: all are one run), and `lhs_in_run` gives element `minor` of run
  // `major`, with no division in it; `other` is the coordinate across. The rhs has runs along its rows, which are to be
  // whole panels, and runs along k.
  int64_t lhs_run = 0, rhs_run = 0, rhs_k_run = 0;
  // Rows of the rhs lie in panels of a cache line (schedule/prepare.cpp): a tile of few rows reads them there.
  bool rhs_in_panels = false;
  std::function<Expr(Expr b, Expr other, Expr major, Expr minor)> lhs_in_run, rhs_in_run, rhs_in_k_run;
  // An lhs that may be multiplied from where it lies, without packing: it is memory, in runs both ways. Rows come
  // `row_run` at a time, `row_stride` elements apart in `buffer`, k likewise; first(b, i, j) is where run i of the rows
  // and run j of k begin. So a window over an image in memory: a row of places, and a row of taps. The micro-kernel may
  // then read it there; `lhs` and `lhs_in_run` say the same.
  struct UnpackedOperand {
    int buffer = -1;
    int64_t row_run = 0, row_stride = 0, k_run = 0, k_stride = 0;
    std::function<Expr(Expr b, Expr row_run, Expr k_run)> first;
  };
  UnpackedOperand lhs_unpacked;
  // f32 operands may be multiplied as three parts in bf16, where the target has tiles: as near to the truth, but not
  // the bits of FMAs (docs/contraction.md).
  bool f32_in_parts = false;
  // Where it is set, one kernel is to serve several sizes: the nest's template must not depend on m, n, k or batch, so
  // that nests of other sizes differ from it in numbers alone. The blocking that was chosen for the first sizes is kept
  // here and used for all. (A ContractionPart keeps the register tile alone.)
  Blocking* fixed_blocking = nullptr;
  // Rows, or terms, that are passed over: m, or k, counts the first `count[0]` numbers of `order`, which are the rows,
  // or terms, that are multiplied; all numbers are in it. Of the other rows, `zeros` stores an element; the other terms
  // are 0. Both are buffers of i64. What is not a nest of its own has none.
  struct Listed {
    int order = -1, count = -1;
    bool terms = false;  // of k; else of m
    std::function<Stmt(Expr m, Expr n)> zeros;
  };
  Listed listed;
  // Given coordinates and the finished sum (f32 for bf16 elements), the statement that stores it (bias, activation,
  // residual, cast, ... inside). Called inside a Vector loop over n; n's expression advances by one a lane.
  std::function<Stmt(Expr b, Expr m, Expr n, Expr sum)> epilogue;
  // Of a part. Rows of a block in scratch of the caller's, row r from element r * pitch on.
  struct Block {
    int buffer = -1;
    int64_t pitch = 0;
    // The block's number of rows that hold something (of columns, where its rows run along k) is a multiple of this.
    int64_t granule = 1;
  };
  Block lhs_block;  // what `lhs` reads, element by element: taken from there unpacked if tiles divide the granule
  // Takes f32 sums in the epilogue's place if its pitch has room for whole tiles; what lies beyond the last row and
  // column is then overwritten.
  Block sums_block;
};

/// What its blocking is chosen from.
ContractionShape shape_of(const ContractionSpec&);

/// Writes the loops of `spec` into `nest` (buffers for arguments already added, name set): body, parallel_extent,
/// scratch buffers, flops. The order of sums over k depends on k and the target alone, and with tiles on the sizes: not
/// on threads, and not on `variant`, which is below kBlockingVariants (0: by the cost model).
void build_contraction(LoopNest& nest, const ContractionSpec& spec, const Target&, int variant = 0);

/// How far a part goes, where that is not all: index expressions, at least 1 and at most the spec's extent. nullptr:
/// all.
struct Extents { Expr m, n, k; };

/// A contraction as part of a nest that the caller writes around it: its statements run once a parallel iteration or
/// more often, keep what they pack in scratch of their own, and ask for nothing ahead. Sums are those of
/// build_contraction, bit for bit, where k is not cut otherwise and both are made on tiles or neither is: parts of bf16
/// are wherever the target has tiles, parts of f32 never.
class ContractionPart {
 public:
  /// `k_block` 0: m is a block of rows, whose coordinate the spec's functions are given; the same rhs serves all
  /// blocks. Else k comes in blocks of `k_block` (an even number), one a call, and the sums are kept in scratch until
  /// the last of them. The batch is one entry a call.
  ContractionPart(LoopNest& nest, const ContractionSpec&, int64_t k_block, const Target&);
  ContractionPart(ContractionPart&&) noexcept;
  ~ContractionPart();
  /// Rows: packs the whole rhs.
  Stmt pack_rhs(const Expr& batch);
  /// Rows: one block, after pack_rhs; beyond `here` nothing of the lhs is read and nothing stored.
  Stmt multiply(const Expr& batch, const Extents& here);
  /// Depth: adds block `k_block` of k, from 0 on in order; with the last one, the epilogue. To the rows and columns of
  /// `here`, of which those of `before` have been added to by the block before (nullptr: all), and the others not yet;
  /// the last block is added to all.
  Stmt add_k_block(const Expr& batch, const Expr& k_block, const Extents& here = {}, const Extents& before = {});
  int64_t block_k() const;  // elements of k that are summed from zero before they are added to the sum

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainc::lower
