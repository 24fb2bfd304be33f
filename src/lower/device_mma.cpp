#include <algorithm>

#include "loop/mma.h"
#include "lower/device_block.h"
#include "lower/neighbours.h"

namespace trainc::lower {
namespace {

// With tensor cores, where a warp holds each_m x each_n tiles of 16 x 8 sums. Tiles of the operands lie in stages of
// Shared memory, and are filled some stages ahead of the one that is multiplied. The nest:
//
//   parallel block (batch, m tile, n tile)
//     sums = 0
//     for the first tiles of k, all stages but one
//       thread: both operands' tiles into their stage, zeros beyond the edges;   commit
//     for k tile
//       wait until it is there; barrier      <- also: nobody reads the stage of the last tile any more
//       where it exists, the tile that many ahead into that stage;   commit
//       thread: fragments of the stage, sums += a * b
//     thread: epilogue over the sums that exist
//
// A tile is lines: rows where the operand is contiguous along k, else steps of k. A line is pieces of 16 bytes, which
// is what a thread copies and what a matrix (LoadMatrix) has of a line; in each line they begin further on, so that the
// eight lines of a matrix, the same piece of each, fall on all banks.
class MmaBuilder : DeviceBlock {
 public:
  MmaBuilder(LoopNest& nest, const ContractionSpec& spec, const DeviceTile& tile, DType operands)
      : DeviceBlock(nest, spec, tile),
        dtype_(operands),
        piece_(kCopyBytes / size_of(operands)),
        tile_k_(tile.k * size_of(DType::BF16) / size_of(operands)),
        a_count_(mma_a_count(operands)),
        b_count_(mma_b_count(operands)),
        per_m_(kMmaM * tile.each_m),
        per_n_(kMmaN * tile.each_n),
        tiles_(ceil_div(spec.k, tile_k_)) {
    nest_.threads = static_cast<int>(t_.m / per_m_ * (t_.n / per_n_) * kWarp);
  }

  void run() {
    over_blocks([&] {
      lhs_ = panel(true), rhs_ = panel(false);
      const int64_t bytes = (lhs_.size() + rhs_.size()) * size_of(dtype_);
      const bool async = lhs_.async || rhs_.async;
      stages_ = std::min<int64_t>({async ? cost::kMmaStages : 2, kSharedBytes / bytes, std::max<int64_t>(tiles_, 1)});
      lhs_.buffer = buffer("lhs_tile", dtype_, stages_ * lhs_.size(), Space::Shared);
      rhs_.buffer = buffer("rhs_tile", dtype_, stages_ * rhs_.size(), Space::Shared);
      sums_ = buffer("sums", DType::F32, static_cast<int64_t>(t_.each_m) * t_.each_n * kMmaSums, Space::Register);
      a_ = buffer("a", dtype_, static_cast<int64_t>(t_.each_m) * a_count_, Space::Register);
      b_ = buffer("b", dtype_, static_cast<int64_t>(t_.each_n) * b_count_, Space::Register);
      std::vector<Stmt> body = {zero(sums_)};
      if (tiles_ > 0) multiply_all(async, body);
      body.push_back(finish());
      return body;
    });
  }

 private:
  struct Panel {
    bool left, along_k;
    int64_t lines, pieces, length;  // a line's pieces and elements
    bool async = false;             // copied 16 bytes at a time, while the threads go on
    int buffer = -1;
    int64_t size() const { return lines * length; }  // of a stage
  };
  Panel panel(bool left) {
    const bool along_k = left ? spec_.lhs_k_contiguous : spec_.rhs_k_contiguous;
    const int64_t rows = left ? t_.m : t_.n, length = along_k ? tile_k_ : rows;
    Panel p{left, along_k, along_k ? rows : tile_k_, length / piece_, length};
    // asked of any piece: all have this form
    const int line = nest_.add_var("line", p.lines), piece = nest_.add_var("piece", p.pieces),
              tile = nest_.add_var("k_tile", std::max<int64_t>(tiles_, 1));
    p.async = copied(p, nest_.var(line), nest_.var(piece), nest_.var(tile) * tile_k_) != nullptr;
    return p;
  }

  void multiply_all(bool async, std::vector<Stmt>& body) {
    const int64_t ahead = std::max<int64_t>(stages_ - 1, 1);
    const auto fill_both = [&](const Expr& tile, const Expr& stage) {
      return block({fill(lhs_, tile * tile_k_, stage), fill(rhs_, tile * tile_k_, stage)});
    };
    const auto committed = [&](std::vector<Stmt> s) {
      if (async) s.push_back(commit_copies());
      return s;
    };
    body.push_back(loop(LoopKind::Serial, "stage", ahead,
                        [&](const Expr& stage) { return block(committed({fill_both(stage, stage)})); }));
    body.push_back(loop(LoopKind::Serial, "k_tile", tiles_, [&](const Expr& tile) {
      std::vector<Stmt> step;
      if (async) step.push_back(wait_copies(static_cast<int>(ahead - 1)));
      step.push_back(barrier());
      if (tiles_ > ahead) {
        const Expr next = tile + integer(ahead);
        step.push_back(where(apply(Op::Lt, {next, integer(tiles_)}), fill_both(next, mod(next, stages_))));
        step = committed(std::move(step));
      }
      step.push_back(multiply(mod(tile, stages_)));
      return block(std::move(step));
    }));
  }

  // --- Shared memory

  Expr piece_at(const Panel& p, const Expr& line, const Expr& piece) const {
    // Lines that are shorter than all banks lie side by side; f32 that is not contiguous along k is read by single
    // elements, of two pieces and four lines at once.
    const int64_t all = kBanksBytes / kCopyBytes, step = dtype_ == DType::F32 && !p.along_k ? 2 : 1;
    const Expr turn = p.pieces < all ? floor_div(line, all / p.pieces) : line * step;
    return line * p.length + mod(piece + turn, p.pieces) * piece_;
  }
  Expr element_at(const Panel& p, const Expr& row, const Expr& k) const {
    const Expr &line = p.along_k ? row : k, &place = p.along_k ? k : row;
    return piece_at(p, line, floor_div(place, piece_)) + mod(place, piece_);
  }

  /// Where a piece comes from, if it lies side by side in an argument and begins at a multiple of 16 bytes, and no edge
  /// cuts it; else nothing. `guard`: whether it exists; nothing: always.
  Expr copied(const Panel& p, const Expr& line, const Expr& piece, const Expr& first_k, int* source = nullptr,
              Expr* guard = nullptr) {
    const int64_t extent = p.along_k ? spec_.k : p.left ? spec_.m : spec_.n;
    if (extent % piece_ != 0) return nullptr;
    const Expr first = piece * piece_, row = first_row(p.left) + (p.along_k ? line : first),
               k = first_k + (p.along_k ? first : line);
    const int along = nest_.add_var("along", extent);
    const Expr x = nest_.var(along);
    Expr value = (p.left ? spec_.lhs : spec_.rhs)(batch_, p.along_k ? row : x, p.along_k ? x : k);
    if (dtype_ == DType::BF16) value = narrow(value);
    if (value->kind != ExprKind::Load || value->args.size() != 1) return nullptr;
    const Buffer& from = nest_.buffers[static_cast<size_t>(value->id)];
    if (from.space != Space::Argument || from.written || from.bits || from.over >= 0) return nullptr;
    const auto beside = split_lanes(value->args[0], {along, p.along_k ? k : row, piece_});
    if (!beside || beside->step != 1 || divisor_of(beside->rest) % piece_ != 0) return nullptr;
    if (source) *source = value->id;
    if (guard) *guard = exists(p.left, row, k, tile_k_);
    return beside->rest;
  }

  Stmt fill(const Panel& p, const Expr& first_k, const Expr& stage) {
    const Expr begin = stage * p.size();
    if (p.async)
      return loop(LoopKind::Thread, "piece", p.lines * p.pieces, [&](const Expr& e) {
        const Expr line = floor_div(e, p.pieces), piece = mod(e, p.pieces);
        int source = -1;
        Expr guard;
        const Expr from = copied(p, line, piece, first_k, &source, &guard);
        return copy_async(p.buffer, begin + piece_at(p, line, piece), source, from, static_cast<int>(piece_), guard);
      });
    return loop(LoopKind::Thread, "element", p.size(), [&](const Expr& e) {
      const Expr line = floor_div(e, p.length), place = mod(e, p.length);
      const Expr &row = p.along_k ? line : place, &k = p.along_k ? place : line;
      return store(p.buffer, begin + element_at(p, row, k),
                   element(p.left, first_row(p.left) + row, first_k + k, dtype_, tile_k_));
    });
  }

  // --- fragments

  // its first row and column in the block's tile; the thread's lane, and its place in a fragment (mma.h)
  struct Warp { Expr m, n, lane, row, column; };
  Warp warp(const Expr& thread) const {
    const Expr w = floor_div(thread, kWarp), lane = mod(thread, kWarp);
    const int64_t across = t_.n / per_n_;
    return {floor_div(w, across) * per_m_, mod(w, across) * per_n_, lane, floor_div(lane, 4), mod(lane, 4)};
  }

  // 16 rows of a panel and a step of k, as four matrices: for a the rows' halves follow each other and then the step's;
  // for b, where they are two tiles of 8 rows, the other way around.
  Stmt matrices(const Panel& p, int to, const Expr& index, const Expr& begin, const Expr& row, const Expr& step,
                const Expr& lane) const {
    const Expr inner = mod(floor_div(lane, kMatrixRows), 2), outer = floor_div(lane, 2 * kMatrixRows);
    const Expr &row_half = p.left ? inner : outer, &k_half = p.left ? outer : inner, in = mod(lane, kMatrixRows);
    const Expr line = p.along_k ? row + row_half * kMatrixRows + in : step * mma_k(dtype_) + k_half * kMatrixRows + in,
               piece = p.along_k ? step * 2 + k_half : floor_div(row, piece_) + row_half;
    return load_matrix(to, index, p.buffer, begin + piece_at(p, line, piece), !p.along_k);
  }
  // The same element by element; f32 has no transposed matrices.
  template <class Place>
  Stmt elements(const Panel& p, int to, const Expr& index, int count, Place place, const Expr& begin, const Expr& row,
                const Expr& step, const Warp& w) const {
    std::vector<Stmt> all;
    for (int i = 0; i < count; ++i) {
      const MmaElement e = place(dtype_, i);
      const Expr k = step * mma_k(dtype_) + w.column * e.step + integer(e.column);
      all.push_back(
          store(to, index + integer(i), nest_.load(p.buffer, begin + element_at(p, row + w.row + integer(e.row), k))));
    }
    return block(std::move(all));
  }
  bool by_matrices(const Panel& p) const { return p.along_k || dtype_ == DType::BF16; }

  Stmt multiply(const Expr& stage) {
    return threads([&](const Expr& thread) {
      const Warp w = warp(thread);
      const Expr begin_a = stage * lhs_.size(), begin_b = stage * rhs_.size();
      return loop(LoopKind::Unroll, "k", tile_k_ / mma_k(dtype_), [&](const Expr& k) {
        const Stmt b =
            by_matrices(rhs_)
                ? loop(LoopKind::Unroll, "j", t_.each_n / 2,
                       [&](const Expr& j) {
                         return matrices(rhs_, b_, j * (2 * b_count_), begin_b, w.n + j * (2 * kMmaN), k, w.lane);
                       })
                : loop(LoopKind::Unroll, "j", t_.each_n, [&](const Expr& j) {
                    return elements(rhs_, b_, j * b_count_, b_count_, mma_b_place, begin_b, w.n + j * kMmaN, k, w);
                  });
        return block({
            loop(LoopKind::Unroll, "i", t_.each_m,
                 [&](const Expr& i) {
                   const Expr row = w.m + i * kMmaM;
                   return by_matrices(lhs_)
                              ? matrices(lhs_, a_, i * a_count_, begin_a, row, k, w.lane)
                              : elements(lhs_, a_, i * a_count_, a_count_, mma_a_place, begin_a, row, k, w);
                 }),
            b,
            loop(LoopKind::Unroll, "i", t_.each_m,
                 [&](const Expr& i) {
                   return loop(LoopKind::Unroll, "j", t_.each_n, [&](const Expr& j) {
                     return mma(sums_, (i * t_.each_n + j) * kMmaSums, nest_.load(a_, i * a_count_),
                                nest_.load(b_, j * b_count_));
                   });
                 }),
        });
      });
    });
  }

  Stmt finish() {
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

  const DType dtype_;    // of the operands' tiles
  const int64_t piece_;  // elements
  const int64_t tile_k_;
  const int a_count_, b_count_;
  const int64_t per_m_, per_n_;  // rows and columns of a warp
  const int64_t tiles_;          // of k
  int64_t stages_ = 1;
  Panel lhs_{}, rhs_{};
  int sums_ = -1, a_ = -1, b_ = -1;
};

}  // namespace

void build_mma_contraction(LoopNest& nest, const ContractionSpec& spec, const DeviceTile& tile, DType operands) {
  MmaBuilder(nest, spec, tile, operands).run();
}

}  // namespace trainc::lower
