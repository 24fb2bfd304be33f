// Contractions as loop nests: register tile, packed panels, cache blocks; one generator for NN, NT, TN, batched, odd sizes.
// Takes: sizes, how to read an element of each operand (prologue), what to do with a finished sum (epilogue). Gives: a LoopNest.
#pragma once
#include <functional>

#include "loop/loop.h"
#include "support/cpu.h"

namespace trainc::loop {

struct Blocking;

// out[b,m,n] = sum_k lhs[b,m,k] * rhs[b,n,k]
struct ContractionSpec {
  int64_t batch = 1, m = 0, n = 0, k = 0;
  // The element at (batch, row, k), f32, f64, or bf16 where the level has a dot product of it (has_bf16_dot), as an expression over the nest's buffers: loads, casts, any prologue. Called while
  // operands are packed; both are read more than once where a block is packed again.
  std::function<Expr(Expr b, Expr row, Expr k)> lhs, rhs;
  // Whether consecutive k (true) or consecutive rows (false) are neighbours in memory: the direction packing reads along.
  bool lhs_k_contiguous = true, rhs_k_contiguous = true;
  // Where those neighbours come in runs (a window's rows: some channels of some taps), and the next run lies elsewhere: the length of a run, and
  // the element at place `minor` of run `major`, with no division in it; `other` is the coordinate across. 0: one run. The lhs along k alone, the
  // rhs along its rows alone.
  int64_t lhs_run = 0, rhs_run = 0;
  std::function<Expr(Expr b, Expr other, Expr major, Expr minor)> lhs_in_run, rhs_in_run;
  // Not null: a nest whose form does not depend on the sizes (m, n, k, batch), so that nests of other sizes differ from it in numbers alone. Where
  // it leaves a choice, that is the one that was made for the first sizes; it is kept here.
  Blocking* pinned = nullptr;
  // Given coordinates and the finished sum (f32 for bf16 elements), the statement that stores it (bias, activation, residual, cast, ... inside). Called inside a
  // Vector loop over n; n's expression advances by one a lane.
  std::function<Stmt(Expr b, Expr m, Expr n, Expr sum)> epilogue;
};

/// Writes the loops of `spec` into `nest` (buffers for arguments already added, name set): body, parallel_extent, scratch buffers, flops.
/// The order of sums over k depends on k and the level alone: not on threads.
void build_contraction(LoopNest& nest, const ContractionSpec& spec, CpuLevel, const CacheSizes&);

}  // namespace trainc::loop
