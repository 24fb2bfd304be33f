#include "lower/contraction_tiles.h"

#include "lower/contraction_loops.h"

namespace trainc::lower {

using namespace loop;
using schedule::Blocking;
namespace {

constexpr int kParts = 3;
constexpr int64_t kSquare = kTileSide * kTileSide;
// Pairs of parts, in an order in which each product keeps an operand of the one before in its registers.
struct Product { int lhs, rhs; };
constexpr Product kSixProducts[] = {{2, 0}, {1, 0}, {1, 1}, {0, 1}, {0, 0}, {0, 2}};
constexpr Product kOneProduct[] = {{0, 0}};
// Products of numbers between these bounds (and the numbers: the other operand's range holds 1) have parts whose
// products are no denormals but for what is below 2^-26 of a product, and no sum of fewer than 2^27 of them overflows.
const double kLeast = 0x1p-100, kGreatest = 0x1p100;
const double kVeltkamp = 0x1p16 + 1;

}  // namespace

TileKernel::TileKernel(LoopNest& nest, const Blocking& blocking, const PackedBlocks& packed, bool in_parts, int64_t k)
    : nest_(nest),
      b_(blocking),
      packed_(packed),
      in_parts_(in_parts),
      k_(k),
      down_(b_.tile_m / kTileSide),
      across_(b_.tile_n / kTileSide),
      lhs_rows_(b_.block_m * b_.tile_m),
      lhs_pitch_(packed.lhs_pitch),
      lhs_(packed.lhs),
      rhs_(packed.rhs) {
  require(b_.tiles && b_.tile_m % kTileSide == 0 && b_.tile_n % kTileSide == 0 && b_.block_k % step() == 0,
          "a contraction's tiles are no whole ones");
  const int parts = in_parts ? kParts : 1;
  if (in_parts || !packed.lhs_along_k) {
    lhs_pitch_ = b_.block_k * kTileSide / step() + kTileSide;  // pairs; one tile more than the data: see Builder
    const bool elements = in_parts && packed.lhs_along_k;      // else whole pairs are written
    lhs_ =
        scratch("lhs_tiles", elements ? DType::BF16 : DType::I32, parts * lhs_rows_ * lhs_pitch_ * (elements ? 2 : 1));
  }
  if (in_parts) {
    rhs_ = scratch("rhs_tiles", DType::I32, b_.task_n * kParts * b_.block_k / 2 * b_.tile_n);
    if (!packed.lhs_along_k) stage_ = scratch("lhs_stage", DType::I32, kParts * kSquare);
    lhs_range_ = scratch("lhs_range", DType::F32, 2 * b_.block_m);
    rhs_range_ = scratch("rhs_range", DType::F32, 2 * b_.task_n);
  }
  const auto tile = [&](const char* name, DType dtype) {
    return nest_.add_buffer({name, dtype, kSquare, Space::Tile, true});
  };
  for (int i = 0; i < down_ * across_; ++i) sums_.push_back(tile("tile_sums", DType::F32));
  for (int i = 0; i < down_; ++i) lhs_tiles_.push_back(tile("tile_lhs", DType::I32));
  for (int i = 0; i < across_; ++i) rhs_tiles_.push_back(tile("tile_rhs", DType::I32));
}

int TileKernel::scratch(const char* name, DType dtype, int64_t numel) {
  return nest_.add_buffer({name, dtype, numel, Space::Scratch, true});
}

// --- preparing

TileKernel::Range TileKernel::start_range(std::vector<Stmt>& body) {
  const Range range{nest_.add_local("least", DType::F32), nest_.add_local("greatest", DType::F32)};
  body.push_back(let(range.low, real(1, DType::F32)));
  body.push_back(let(range.high, real(1, DType::F32)));
  return range;
}

void TileKernel::widen_range(std::vector<Stmt>& body, const Range& range, const Expr& x) {
  const int magnitude = nest_.add_local("magnitude", DType::F32);
  body.push_back(let(magnitude, apply(Op::Abs, {x})));
  const Expr m = nest_.local(magnitude);
  body.push_back(reduce(range.low, ReduceKind::Min,
                        apply(Op::Select, {apply(Op::Eq, {m, real(0, DType::F32)}), real(1, DType::F32), m})));
  body.push_back(reduce(range.high, ReduceKind::Max, m));  // NaN stays
}

void TileKernel::store_range(std::vector<Stmt>& body, int buffer, const Expr& at, const Range& range) {
  body.push_back(store(buffer, at * 2, nest_.local(range.low)));
  body.push_back(store(buffer, at * 2 + integer(1), nest_.local(range.high)));
}

// x as three bf16: each is what is left, rounded to nearest; the subtractions are exact. Rounding is Veltkamp's (Dekker,
// "A floating-point technique for extending the available precision", 1971): with factor 2^16 + 1, 8 of f32's 24 bits
// stay. It takes three instructions, a rounding cast and its way back seven. Above 2^111 it overflows: `fits` sees to it.
std::vector<Expr> TileKernel::split(std::vector<Stmt>& body, const Expr& x) {
  const auto named = [&](const char* name, const Expr& value) {
    const int local = nest_.add_local(name, DType::F32);
    body.push_back(let(local, value));
    return nest_.local(local);
  };
  std::vector<Expr> parts;
  Expr left = x;
  for (int part = 0; part + 1 < kParts; ++part) {
    const Expr scaled = named("scaled", apply(Op::Mul, {left, real(kVeltkamp, DType::F32)}));
    const Expr rounded = named("part", apply(Op::Sub, {scaled, apply(Op::Sub, {scaled, left})}));
    parts.push_back(cast(rounded, DType::BF16));
    left = named("left", apply(Op::Sub, {left, rounded}));
  }
  parts.push_back(cast(left, DType::BF16));
  return parts;
}

// One row of the packed lhs, k along vectors.
Stmt TileKernel::split_along_k(const Expr& first, const Expr& row, const Expr& depth, const Range& range) {
  const auto at = [&](int part, const Expr& k) {
    return (first + row + integer(part * lhs_rows_)) * (2 * lhs_pitch_) + k;
  };
  const int lanes = 2 * b_.lanes;
  Stmt parts = loop_over(
      nest_, LoopKind::Vector, "k", depth,
      [&](const Expr& k) {
        std::vector<Stmt> body;
        const int x = nest_.add_local("x", DType::F32);
        body.push_back(let(x, nest_.load(packed_.lhs, row * packed_.lhs_pitch + k)));
        const std::vector<Expr> values = split(body, nest_.local(x));
        for (int part = 0; part < kParts; ++part) body.push_back(store(lhs_, at(part, k), values[size_t(part)]));
        widen_range(body, range, nest_.local(x));
        return block(std::move(body));
      },
      lanes);
  if (!ragged()) return parts;
  return block({parts, loop_over(
                           nest_, LoopKind::Vector, "k", whole_steps(depth) * step() - depth,
                           [&](const Expr& k) {
                             std::vector<Stmt> body;
                             for (int part = 0; part < kParts; ++part)
                               body.push_back(store(lhs_, at(part, depth + k), real(0, DType::BF16)));
                             return block(std::move(body));
                           },
                           lanes)});
}

// Within a Vector loop across k: elements 2 * pair and the one after it of `source` (zero beyond depth), as one pair a
// part.
Stmt TileKernel::split_pairs(const Expr& pair_at, const Expr& depth, const std::function<Expr(const Expr& k)>& at,
                             int source, int target, const std::function<Expr(int part)>& to, const Range& range) {
  std::vector<Stmt> body;
  std::vector<Expr> halves[2];
  for (int half = 0; half < 2; ++half) {
    const Expr k = pair_at * 2 + integer(half);
    const int x = nest_.add_local("x", DType::F32);
    body.push_back(let(x, nest_.load(source, at(k), ragged() ? apply(Op::Lt, {k, depth}) : nullptr)));
    halves[half] = split(body, nest_.local(x));
    widen_range(body, range, nest_.local(x));
  }
  for (int part = 0; part < kParts; ++part)
    body.push_back(store(target, to(part), pair(halves[0][size_t(part)], halves[1][size_t(part)])));
  return block(std::move(body));
}

// 16 rows of a packed lhs that has the rows along vectors: squares of pairs, transposed.
Stmt TileKernel::split_across_k(const Expr& first, const Expr& rows, const Expr& depth, const Range& range) {
  return loop_over(nest_, LoopKind::Serial, "square", whole_steps(depth), [&](const Expr& square) {
    std::vector<Stmt> body;
    body.push_back(loop_over(nest_, LoopKind::Serial, "pair", integer(kTileSide), [&](const Expr& pair) {
      return loop_over(
          nest_, LoopKind::Vector, "row", integer(kTileSide),
          [&](const Expr& row) {
            return split_pairs(
                square * kTileSide + pair, depth,
                [&](const Expr& k) { return k * packed_.lhs_pitch + rows * kTileSide + row; }, packed_.lhs, stage_,
                [&](int part) { return pair * kTileSide + row + integer(part * kSquare); }, range);
          },
          b_.lanes);
    }));
    for (int part = 0; part < kParts; ++part)
      body.push_back(transpose(
          lhs_, (first + rows * kTileSide + integer(part * lhs_rows_)) * lhs_pitch_ + square * kTileSide, lhs_pitch_,
          stage_, integer(part * kSquare), kTileSide, kTileSide));
    return block(std::move(body));
  });
}

Stmt TileKernel::split_rows(const Expr& tile, const Expr& depth) {
  std::vector<Stmt> body;
  const Range range = start_range(body);
  const Expr first = tile * b_.tile_m;
  if (packed_.lhs_along_k)
    body.push_back(loop_over(nest_, LoopKind::Serial, "row", integer(b_.tile_m),
                             [&](const Expr& row) { return split_along_k(first, row, depth, range); }));
  else
    body.push_back(loop_over(nest_, LoopKind::Serial, "rows", integer(down_),
                             [&](const Expr& rows) { return split_across_k(first, rows, depth, range); }));
  store_range(body, lhs_range_, tile, range);
  return block(std::move(body));
}

Stmt TileKernel::split_panel(const Expr& panel, const Expr& depth) {
  std::vector<Stmt> body;
  const Range range = start_range(body);
  body.push_back(loop_over(nest_, LoopKind::Serial, "pair", whole_steps(depth) * kTileSide, [&](const Expr& pair) {
    return loop_over(
        nest_, LoopKind::Vector, "column", integer(b_.tile_n),
        [&](const Expr& column) {
          return split_pairs(
              pair, depth, [&](const Expr& k) { return k * b_.tile_n + column; }, packed_.rhs, rhs_,
              [&](int part) {
                return ((panel * kParts + integer(part)) * (b_.block_k / 2) + pair) * b_.tile_n + column;
              },
              range);
        },
        b_.lanes);
  }));
  store_range(body, rhs_range_, panel, range);
  return block(std::move(body));
}

Stmt TileKernel::prepare_lhs(const Expr& tiles, const Expr& depth) {
  std::vector<Stmt> body;
  const Expr missing = whole_steps(depth) * step() - depth;
  if (packed_.lhs_along_k) {
    if (!ragged()) return block({});
    return loop_over(nest_, LoopKind::Serial, "row", tiles * b_.tile_m, [&](const Expr& row) {
      return loop_over(
          nest_, LoopKind::Vector, "k", missing * 2,
          [&](const Expr& k) {
            return store(packed_.lhs, (row * packed_.lhs_pitch + depth) * 2 + k, real(0, DType::BF16));
          },
          2 * b_.lanes);
    });
  }
  if (ragged())
    body.push_back(loop_over(nest_, LoopKind::Serial, "k", missing, [&](const Expr& k) {
      return loop_over(
          nest_, LoopKind::Vector, "row", tiles * b_.tile_m,
          [&](const Expr& row) {
            return store(packed_.lhs, (depth + k) * packed_.lhs_pitch + row, integer(0, DType::I32));
          },
          b_.lanes);
    }));
  body.push_back(loop_over(nest_, LoopKind::Serial, "rows", tiles * down_, [&](const Expr& rows) {
    return loop_over(nest_, LoopKind::Serial, "square", whole_steps(depth), [&](const Expr& square) {
      return transpose(lhs_, rows * (kTileSide * lhs_pitch_) + square * kTileSide, lhs_pitch_, packed_.lhs,
                       square * (kTileSide * packed_.lhs_pitch) + rows * kTileSide, packed_.lhs_pitch, kTileSide);
    });
  }));
  return block(std::move(body));
}

Stmt TileKernel::prepare_rhs(const Expr& panels, const Expr& depth) {
  if (!ragged()) return block({});
  return loop_over(nest_, LoopKind::Serial, "panel", panels, [&](const Expr& panel) {
    return loop_over(
        nest_, LoopKind::Vector, "rest", (whole_steps(depth) * step() - depth) * b_.tile_n,
        [&](const Expr& i) {
          return store(packed_.rhs, (panel * b_.block_k + depth) * b_.tile_n + i, integer(0, DType::I32));
        },
        b_.lanes);
  });
}

Expr TileKernel::fits(const Expr& tile, const Expr& panel) const {
  const auto product = [&](int which) {
    return apply(Op::Mul, {nest_.load(lhs_range_, tile * 2 + integer(which)),
                           nest_.load(rhs_range_, panel * 2 + integer(which))});
  };
  // false of NaN
  return apply(Op::And, {apply(Op::Lt, {real(kLeast, DType::F32), product(0)}),
                         apply(Op::Lt, {product(1), real(kGreatest, DType::F32)})});
}

// --- multiplying

Stmt TileKernel::multiply(const Expr& tile, const Expr& panel, const Expr& depth,
                          const std::function<std::vector<Stmt>(const Expr& step)>& ahead) {
  std::vector<Stmt> body;
  for (int sums : sums_) body.push_back(tile_zero(sums));
  const int64_t each = nest_.buffers[size_t(lhs_)].dtype == DType::BF16 ? 2 : 1;  // elements of the buffer in a pair
  const int64_t parts = in_parts_ ? kParts : 1, deep = b_.block_k * kTileSide / step();
  body.push_back(loop_over(nest_, LoopKind::Serial, "step", whole_steps(depth), [&](const Expr& step) {
    std::vector<Stmt> steps = ahead(step);
    const auto load_lhs = [&](int part) {
      for (int i = 0; i < down_; ++i)
        steps.push_back(tile_load(
            lhs_tiles_[size_t(i)], lhs_,
            ((tile * b_.tile_m + integer(part * lhs_rows_ + i * kTileSide)) * lhs_pitch_ + step * kTileSide) * each,
            lhs_pitch_ * each));
    };
    const auto load_rhs = [&](int part) {
      for (int j = 0; j < across_; ++j)
        steps.push_back(
            tile_load(rhs_tiles_[size_t(j)], rhs_,
                      ((panel * parts + integer(part)) * deep + step * kTileSide) * b_.tile_n + integer(j * kTileSide),
                      b_.tile_n));
    };
    Product loaded{-1, -1};
    const auto multiply = [&](const Product& p) {
      if (p.lhs != loaded.lhs) load_lhs(p.lhs);
      if (p.rhs != loaded.rhs) load_rhs(p.rhs);
      loaded = p;
      for (int i = 0; i < down_; ++i)
        for (int j = 0; j < across_; ++j)
          steps.push_back(tile_dot(sums_[size_t(i * across_ + j)], lhs_tiles_[size_t(i)], rhs_tiles_[size_t(j)]));
    };
    if (in_parts_)
      for (const Product& p : kSixProducts) multiply(p);
    else
      for (const Product& p : kOneProduct) multiply(p);
    return block(std::move(steps));
  }));
  return block(std::move(body));
}

Stmt TileKernel::store_sums(int buffer, const Expr& at) const {
  std::vector<Stmt> body;
  for (int i = 0; i < down_; ++i)
    for (int j = 0; j < across_; ++j)
      body.push_back(tile_store(buffer, at + integer(i * kTileSide * b_.tile_n + j * kTileSide), b_.tile_n,
                                sums_[size_t(i * across_ + j)]));
  return block(std::move(body));
}

}  // namespace trainc::lower
