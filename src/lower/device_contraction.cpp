#include "lower/device_contraction.h"

#include "loop/mma.h"
#include "support/division.h"

namespace trainc::lower {

using namespace loop;
using cost::DeviceTile;
using schedule::choose_device_tile;
namespace {

/// x, where `e` is x widened from bf16 to f32.
Expr narrow(const Expr& e) {
  return e->kind == ExprKind::Apply && e->op == Op::Cast && e->dtype == DType::F32 && e->args[0]->dtype == DType::BF16
             ? e->args[0]
             : nullptr;
}

// The nest:
//
//   parallel block (batch, m tile, n tile)
//     sums = 0
//     for k tile
//       thread: both operands' tiles into Shared memory, zeros beyond the edges
//       barrier
//       thread: sums += tile of the lhs * tile of the rhs       <- FMA on registers, or Mma on fragments
//       barrier
//     thread: epilogue over the sums that exist
class Builder {
 public:
  Builder(LoopNest& nest, const ContractionSpec& spec, DType sums, DType operands, const DeviceTile& tile, bool mma)
      : nest_(nest), spec_(spec), dtype_(operands), t_(tile), mma_(mma) {
    per_m_ = mma ? kMmaM * t_.each_m : t_.each_m;  // rows of a warp or a thread
    per_n_ = mma ? kMmaN * t_.each_n : t_.each_n;
    nest_.threads = t_.m / per_m_ * (t_.n / per_n_) * (mma ? kWarp : 1);
    pitch_lhs_ = mma ? t_.k + cost::kMmaPad : t_.m + cost::kFmaPad;
    pitch_rhs_ = mma ? t_.k + cost::kMmaPad : t_.n + cost::kFmaPad;
    lhs_ = buffer("lhs_tile", dtype_, mma ? t_.m * pitch_lhs_ : t_.k * pitch_lhs_, Space::Shared);
    rhs_ = buffer("rhs_tile", dtype_, mma ? t_.n * pitch_rhs_ : t_.k * pitch_rhs_, Space::Shared);
    sums_ = buffer("sums", sums, static_cast<int64_t>(t_.each_m) * t_.each_n * (mma ? kMmaSums : 1), Space::Register);
    a_ = buffer("a", dtype_, static_cast<int64_t>(t_.each_m) * (mma ? mma_a_count(dtype_) : 1), Space::Register);
    b_ = buffer("b", dtype_, static_cast<int64_t>(t_.each_n) * (mma ? mma_b_count(dtype_) : 1), Space::Register);
  }

  void run() {
    const int64_t m_tiles = ceil_div(spec_.m, t_.m), n_tiles = ceil_div(spec_.n, t_.n);
    nest_.parallel_extent = spec_.batch * m_tiles * n_tiles;
    const int p = nest_.add_var("block", nest_.parallel_extent);
    const Expr block_index = nest_.var(p);
    batch_ = floor_div(block_index, m_tiles * n_tiles);
    first_m_ = mod(floor_div(block_index, n_tiles), m_tiles) * t_.m;
    first_n_ = mod(block_index, n_tiles) * t_.n;
    const int64_t sums = nest_.buffers[static_cast<size_t>(sums_)].numel;
    std::vector<Stmt> body = {loop(LoopKind::Unroll, "i", sums, [&](const Expr& i) {
      return store(sums_, i, real(0, nest_.buffers[static_cast<size_t>(sums_)].dtype));
    })};
    if (spec_.k > 0)
      body.push_back(loop(LoopKind::Serial, "k_tile", ceil_div(spec_.k, t_.k), [&](const Expr& k_tile) {
        const Expr first_k = k_tile * t_.k;
        return block(
            {fill(true, first_k), fill(false, first_k), barrier(), mma_ ? multiply_mma() : multiply_fma(), barrier()});
      }));
    body.push_back(mma_ ? finish_mma() : finish_fma());
    nest_.body = for_loop(LoopKind::Parallel, p, integer(nest_.parallel_extent), block(std::move(body)));
  }

 private:
  int buffer(const char* name, DType dtype, int64_t numel, Space space) {
    return nest_.add_buffer({name, dtype, numel, space, true});
  }

  template <class Body> Stmt loop(LoopKind kind, const char* name, int64_t extent, Body body) {
    const int var = nest_.add_var(name, extent);
    return for_loop(kind, var, integer(extent), body(nest_.var(var)));
  }
  template <class Body> Stmt threads(Body body) { return loop(LoopKind::Thread, "thread", nest_.threads, body); }

  static Expr both(const Expr& a, const Expr& b) { return !a ? b : !b ? a : apply(Op::And, {a, b}); }
  static Expr below(const Expr& x, int64_t total, int64_t tile) {
    return total % tile == 0 ? nullptr : apply(Op::Lt, {x, integer(total)});
  }

  // An operand's tile, read along the direction in which it is contiguous; neighbouring threads read neighbours.
  Stmt fill(bool left, const Expr& first_k) {
    const int64_t rows = left ? t_.m : t_.n;
    const bool along_k = left ? spec_.lhs_k_contiguous : spec_.rhs_k_contiguous;
    return loop(LoopKind::Thread, "element", rows * t_.k, [&](const Expr& element) {
      const Expr row = along_k ? floor_div(element, t_.k) : mod(element, rows),
                 k = along_k ? mod(element, t_.k) : floor_div(element, rows);
      const Expr at_row = (left ? first_m_ : first_n_) + row, at_k = first_k + k;
      Expr value = (left ? spec_.lhs : spec_.rhs)(batch_, at_row, at_k);
      if (dtype_ == DType::BF16) value = narrow(value);
      if (const Expr exists = both(below(at_row, left ? spec_.m : spec_.n, rows), below(at_k, spec_.k, t_.k)))
        value = apply(Op::Select, {exists, guarded(value, exists), real(0, dtype_)});
      return store(left ? lhs_ : rhs_, left ? lhs_index(row, k) : rhs_index(row, k), value);
    });
  }
  Expr lhs_index(const Expr& row, const Expr& k) const { return mma_ ? row * pitch_lhs_ + k : k * pitch_lhs_ + row; }
  Expr rhs_index(const Expr& row, const Expr& k) const { return mma_ ? row * pitch_rhs_ + k : k * pitch_rhs_ + row; }

  // --- FMA. A thread's rows and columns are spread over the tile: neighbouring threads hold neighbouring columns.
  int64_t down() const { return t_.m / t_.each_m; }    // threads a column of the tile
  int64_t across() const { return t_.n / t_.each_n; }  // threads a row

  Stmt multiply_fma() {
    return threads([&](const Expr& thread) {
      const Expr y = floor_div(thread, across()), x = mod(thread, across());
      return loop(LoopKind::Serial, "k", t_.k, [&](const Expr& k) {
        return block({
            loop(LoopKind::Unroll, "i", t_.each_m,
                 [&](const Expr& i) { return store(a_, i, nest_.load(lhs_, lhs_index(y + i * down(), k))); }),
            loop(LoopKind::Unroll, "j", t_.each_n,
                 [&](const Expr& j) { return store(b_, j, nest_.load(rhs_, rhs_index(x + j * across(), k))); }),
            loop(LoopKind::Unroll, "i", t_.each_m,
                 [&](const Expr& i) {
                   return loop(LoopKind::Unroll, "j", t_.each_n, [&](const Expr& j) {
                     const Expr at = i * t_.each_n + j;
                     return store(sums_, at, fma(nest_.load(a_, i), nest_.load(b_, j), nest_.load(sums_, at)));
                   });
                 }),
        });
      });
    });
  }

  Stmt finish_fma() {
    return threads([&](const Expr& thread) {
      const Expr y = floor_div(thread, across()), x = mod(thread, across());
      return loop(LoopKind::Unroll, "i", t_.each_m, [&](const Expr& i) {
        return loop(LoopKind::Unroll, "j", t_.each_n, [&](const Expr& j) {
          return epilogue(first_m_ + y + i * down(), first_n_ + x + j * across(), nest_.load(sums_, i * t_.each_n + j));
        });
      });
    });
  }

  // --- tensor cores. A warp holds each_m x each_n tiles of 16 x 8 sums.
  // its first row and column in the block's tile; the thread's place in a fragment (mma.h)
  struct Warp { Expr m, n, row, column; };
  Warp warp(const Expr& thread) const {
    const Expr w = floor_div(thread, kWarp), lane = mod(thread, kWarp);
    const int64_t across = t_.n / per_n_;
    return {floor_div(w, across) * per_m_, mod(w, across) * per_n_, floor_div(lane, 4), mod(lane, 4)};
  }

  Stmt multiply_mma() {
    return threads([&](const Expr& thread) {
      const Warp w = warp(thread);
      const int a_count = mma_a_count(dtype_), b_count = mma_b_count(dtype_);
      return loop(LoopKind::Serial, "k", t_.k / mma_k(dtype_), [&](const Expr& step) {
        const Expr k = step * mma_k(dtype_);
        auto fragment = [&](int buffer, const Expr& tile, int count, auto place, auto load) {
          std::vector<Stmt> all;
          for (int i = 0; i < count; ++i) {
            const MmaElement p = place(dtype_, i);
            all.push_back(store(buffer, tile * count + integer(i),
                                load(w.row + integer(p.row), k + w.column * p.step + integer(p.column))));
          }
          return block(std::move(all));
        };
        return block({
            loop(LoopKind::Unroll, "i", t_.each_m,
                 [&](const Expr& i) {
                   return fragment(a_, i, a_count, mma_a_place, [&](const Expr& row, const Expr& x) {
                     return nest_.load(lhs_, lhs_index(w.m + i * kMmaM + row, x));
                   });
                 }),
            loop(LoopKind::Unroll, "j", t_.each_n,
                 [&](const Expr& j) {
                   return fragment(b_, j, b_count, mma_b_place, [&](const Expr& row, const Expr& x) {
                     return nest_.load(rhs_, rhs_index(w.n + j * kMmaN + row, x));
                   });
                 }),
            loop(LoopKind::Unroll, "i", t_.each_m,
                 [&](const Expr& i) {
                   return loop(LoopKind::Unroll, "j", t_.each_n, [&](const Expr& j) {
                     return mma(sums_, (i * t_.each_n + j) * kMmaSums, nest_.load(a_, i * a_count),
                                nest_.load(b_, j * b_count));
                   });
                 }),
        });
      });
    });
  }

  Stmt finish_mma() {
    return threads([&](const Expr& thread) {
      const Warp w = warp(thread);
      return loop(LoopKind::Unroll, "i", t_.each_m, [&](const Expr& i) {
        return loop(LoopKind::Unroll, "j", t_.each_n, [&](const Expr& j) {
          return loop(LoopKind::Unroll, "s", kMmaSums, [&](const Expr& s) {  // mma_sum_place, in s
            return epilogue(first_m_ + w.m + i * kMmaM + w.row + floor_div(s, 2) * 8,
                            first_n_ + w.n + j * kMmaN + w.column * 2 + mod(s, 2),
                            nest_.load(sums_, (i * t_.each_n + j) * kMmaSums + s));
          });
        });
      });
    });
  }

  // The language has no `if`: a loop of 0 or 1 iterations is one.
  Stmt epilogue(const Expr& m, const Expr& n, const Expr& sum) {
    const Expr exists = both(below(m, spec_.m, t_.m), below(n, spec_.n, t_.n));
    Stmt stored = spec_.epilogue(batch_, m, n, sum);
    return exists ? for_loop(LoopKind::Serial, nest_.add_var("exists", 1), cast(exists, DType::I64), std::move(stored))
                  : stored;
  }

  LoopNest& nest_;
  const ContractionSpec& spec_;
  const DType dtype_;  // of the operands' tiles
  const DeviceTile t_;
  const bool mma_;
  int64_t per_m_ = 0, per_n_ = 0, pitch_lhs_ = 0, pitch_rhs_ = 0;
  int lhs_ = -1, rhs_ = -1, sums_ = -1, a_ = -1, b_ = -1;
  Expr batch_, first_m_, first_n_;  // of the block
};

}  // namespace

void build_device_contraction(LoopNest& nest, const ContractionSpec& spec, const Target& target, bool tf32) {
  require(spec.batch >= 0 && spec.m >= 0 && spec.n >= 0 && spec.k >= 0, "contraction of negative size");
  nest.flops += 2 * spec.batch * spec.m * spec.n * spec.k;
  if (spec.batch == 0 || spec.m == 0 || spec.n == 0) {
    nest.parallel_extent = 1;
    nest.threads = kWarp;
    nest.body = block({});
    return;
  }
  // The dtype of the sums is the operands'; asked with coordinates that exist, or are not read (k = 0).
  const Expr lhs = spec.lhs(integer(0), integer(0), integer(0)), rhs = spec.rhs(integer(0), integer(0), integer(0));
  const DType sums = lhs->dtype;
  require(sums == DType::F32 || sums == DType::F64,
          "contraction of " + std::string(name_of(sums)) + " operands: cast them to f32");
  const bool bf16 = narrow(lhs) && narrow(rhs), mma = bf16 || (tf32 && sums == DType::F32);
  Builder(nest, spec, sums, bf16 ? DType::BF16 : sums, choose_device_tile(shape_of(spec), target, mma), mma).run();
}

}  // namespace trainc::lower
