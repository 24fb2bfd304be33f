// What the contractions of a device share: a block of threads has one tile of the result. Inside lower only.
#pragma once
#include "lower/device_contraction.h"
#include "support/division.h"

namespace trainc::lower {

using namespace loop;
using cost::DeviceTile;

/// x, where `e` is x widened from bf16 to f32.
inline Expr narrow(const Expr& e) {
  return e->kind == ExprKind::Apply && e->op == Op::Cast && e->dtype == DType::F32 && e->args[0]->dtype == DType::BF16
             ? e->args[0]
             : nullptr;
}

class DeviceBlock {
 protected:
  DeviceBlock(LoopNest& nest, const ContractionSpec& spec, const DeviceTile& tile)
      : nest_(nest), spec_(spec), t_(tile) {}

  /// The Parallel loop over blocks (batch, m tile, n tile), of what `body` gives.
  template <class Body> void over_blocks(Body body) {
    const int64_t m_tiles = ceil_div(spec_.m, t_.m), n_tiles = ceil_div(spec_.n, t_.n);
    nest_.parallel_extent = spec_.batch * m_tiles * n_tiles;
    const int p = nest_.add_var("block", nest_.parallel_extent);
    const Expr block_index = nest_.var(p);
    batch_ = floor_div(block_index, m_tiles * n_tiles);
    first_m_ = mod(floor_div(block_index, n_tiles), m_tiles) * t_.m;
    first_n_ = mod(block_index, n_tiles) * t_.n;
    nest_.body = for_loop(LoopKind::Parallel, p, integer(nest_.parallel_extent), block(body()));
  }

  int buffer(const char* name, DType dtype, int64_t numel, Space space) {
    return nest_.add_buffer({name, dtype, numel, space, true});
  }
  template <class Body> Stmt loop(LoopKind kind, const char* name, int64_t extent, Body body) {
    const int var = nest_.add_var(name, extent);
    return for_loop(kind, var, integer(extent), body(nest_.var(var)));
  }
  template <class Body> Stmt threads(Body body) { return loop(LoopKind::Thread, "thread", nest_.threads, body); }
  /// The language has no `if`: a loop of 0 or 1 iterations is one. Nothing as a condition is true.
  Stmt where(const Expr& condition, Stmt s) {
    return condition ? for_loop(LoopKind::Serial, nest_.add_var("exists", 1), cast(condition, DType::I64), std::move(s))
                     : s;
  }

  Stmt zero(int sums) {
    const Buffer& b = nest_.buffers[static_cast<size_t>(sums)];
    const DType dtype = b.dtype;
    return loop(LoopKind::Unroll, "i", b.numel, [&](const Expr& i) { return store(sums, i, real(0, dtype)); });
  }

  static Expr both(const Expr& a, const Expr& b) { return !a ? b : !b ? a : apply(Op::And, {a, b}); }
  static Expr below(const Expr& x, int64_t total, int64_t tile) {
    return total % tile == 0 ? nullptr : apply(Op::Lt, {x, integer(total)});
  }

  /// An operand's element; 0 beyond the edges. `tile_k`: of the tile that it is of.
  Expr element(bool left, const Expr& row, const Expr& k, DType dtype, int64_t tile_k) {
    Expr value = (left ? spec_.lhs : spec_.rhs)(batch_, row, k);
    if (dtype == DType::BF16) value = narrow(value);
    const Expr exists = this->exists(left, row, k, tile_k);
    return exists ? apply(Op::Select, {exists, guarded(value, exists), real(0, dtype)}) : value;
  }
  Expr exists(bool left, const Expr& row, const Expr& k, int64_t tile_k) const {
    return both(below(row, left ? spec_.m : spec_.n, left ? t_.m : t_.n), below(k, spec_.k, tile_k));
  }
  Expr first_row(bool left) const { return left ? first_m_ : first_n_; }

  Stmt epilogue(const Expr& m, const Expr& n, const Expr& sum) {
    return where(both(below(m, spec_.m, t_.m), below(n, spec_.n, t_.n)), spec_.epilogue(batch_, m, n, sum));
  }

  LoopNest& nest_;
  const ContractionSpec& spec_;
  const DeviceTile t_;
  Expr batch_, first_m_, first_n_;  // of the block
};

/// With tensor cores: operands in bf16, or in f32, which is rounded to tf32.
void build_mma_contraction(LoopNest&, const ContractionSpec&, const DeviceTile&, DType operands);

}  // namespace trainc::lower
