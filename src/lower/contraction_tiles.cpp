#include "lower/contraction_tiles.h"

#include <utility>

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

TileKernel::TileKernel(LoopNest& nest, const Blocking& blocking, const PackedOperands& packed, bool in_parts,
                       int64_t block_k, int64_t k)
    : nest_(nest),
      b_(blocking),
      packed_(packed),
      in_parts_(in_parts),
      block_k_(block_k),
      k_(k),
      parts_(in_parts ? kParts : 1),
      down_(b_.tile_m / kTileSide),
      across_(b_.tile_n / kTileSide),
      steps_(block_k / step()),
      elements_(packed.lhs_along_k ? 2 : 1),
      lhs_(packed.lhs),
      rhs_(packed.rhs) {
  require(b_.tiles && b_.tile_m % kTileSide == 0 && b_.tile_n % kTileSide == 0 && block_k % step() == 0,
          "a contraction's tiles are no whole ones");
  require(!packed.places_rows || packed.lhs_pitch == (packed.lhs_along_k ? block_k : b_.tile_m),
          "a gap in packed rows");
  if (packed.places_rows)
    lhs_ = scratch("lhs_tiles", packed.lhs_along_k ? DType::BF16 : DType::I32,
                   b_.block_m * steps_ * parts_ * down_ * kSquare * elements_);
  if (in_parts) {
    rhs_ = scratch("rhs_tiles", DType::I32, b_.task_n * steps_ * parts_ * across_ * kSquare);
    if (!packed.lhs_along_k) stage_ = scratch("lhs_stage", DType::I32, kParts * kSquare);
    lhs_range_ = scratch("lhs_range", DType::F32, 2 * b_.block_m);
    rhs_range_ = scratch("rhs_range", DType::F32, 2 * b_.task_n);
  }
  const auto tile = [&](const std::string& name, DType dtype) {
    return own_buffer(nest_, name, dtype, kSquare, Space::Tile, packed.of_part);
  };
  for (int i = 0; i < down_ * across_; ++i) sums_.push_back(tile("tile_sums" + std::to_string(i), DType::F32));
  // One register for each operand: a load takes less time than a product, and with another program on the core's second
  // hardware thread, products of all eight registers take three times what they take alone, of three 1.8 times.
  lhs_register_ = tile("tile_lhs", DType::I32);
  rhs_register_ = tile("tile_rhs", DType::I32);
}

int TileKernel::scratch(const char* name, DType dtype, int64_t numel) {
  return own_buffer(nest_, name, dtype, numel, Space::Scratch, packed_.of_part);
}

// --- preparing

// The range of `count` packed numbers.
Stmt TileKernel::find_range(int buffer, const Expr& at, int source, int64_t count) {
  const int low = nest_.add_local("least", DType::F32), high = nest_.add_local("greatest", DType::F32);
  return block({let(low, real(1, DType::F32)), let(high, real(1, DType::F32)),
                loop_over(
                    nest_, LoopKind::Vector, "number", integer(count),
                    [&](const Expr& i) {
                      const int magnitude = nest_.add_local("magnitude", DType::F32);
                      const Expr m = nest_.local(magnitude), none = apply(Op::Eq, {m, real(0, DType::F32)});
                      return block({let(magnitude, apply(Op::Abs, {nest_.load(source, i)})),
                                    reduce(low, ReduceKind::Min, apply(Op::Select, {none, real(1, DType::F32), m})),
                                    reduce(high, ReduceKind::Max, m)});  // NaN stays
                    },
                    4 * b_.lanes),
                store(buffer, at * 2, nest_.local(low)), store(buffer, at * 2 + integer(1), nest_.local(high))});
}

// x as three bf16: each is what is left, rounded to nearest; the subtractions are exact. Rounding is Veltkamp's
// (Dekker, "A floating-point technique for extending the available precision", 1971): with factor 2^16 + 1, 8 of f32's
// 24 bits stay. It takes three instructions, a rounding cast and its way back seven. Above 2^111 it overflows: `fits`
// sees to it.
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

// 32 neighbours along k of one packed row are a row of a tile, in each part.
Stmt TileKernel::split_along_k(const Expr& tile) {
  const auto each = [&](const char* name, const Expr& count, auto body) {
    return loop_over(nest_, LoopKind::Serial, name, count, body);
  };
  return each("rows", integer(down_), [&](const Expr& rows) {
    return each("row", integer(kTileSide), [&](const Expr& row) {
      return each("step", integer(steps_), [&](const Expr& step) {
        return loop_over(
            nest_, LoopKind::Vector, "k", integer(2 * kTileSide),
            [&](const Expr& k) {
              std::vector<Stmt> body;
              const int x = nest_.add_local("x", DType::F32);
              body.push_back(let(x, nest_.load(packed_.lhs, (rows * kTileSide + row) * packed_.lhs_pitch +
                                                                step * (2 * kTileSide) + k)));
              const std::vector<Expr> parts = split(body, nest_.local(x));
              for (int part = 0; part < kParts; ++part)
                body.push_back(store(lhs_, lhs_tile(tile, step, part, rows) + row * (2 * kTileSide) + k,
                                     parts[static_cast<size_t>(part)]));
              return block(std::move(body));
            },
            2 * b_.lanes);
      });
    });
  });
}

// Within a Vector loop across k: elements 2 * pair and the one after it of `source`, as one pair a part.
Stmt TileKernel::split_pairs(const Expr& pair_at, const std::function<Expr(const Expr& k)>& at, int source, int target,
                             const std::function<Expr(int part)>& to) {
  std::vector<Stmt> body;
  std::vector<Expr> halves[2];
  for (int half = 0; half < 2; ++half) {
    const int x = nest_.add_local("x", DType::F32);
    body.push_back(let(x, nest_.load(source, at(pair_at * 2 + integer(half)))));
    halves[half] = split(body, nest_.local(x));
  }
  for (int part = 0; part < kParts; ++part)
    body.push_back(store(target, to(part), pair(halves[0][size_t(part)], halves[1][size_t(part)])));
  return block(std::move(body));
}

// Packed rows that go along vectors: squares of 16 rows and 16 pairs, transposed.
Stmt TileKernel::place_across_k(const Expr& tile, const Expr& depth) {
  return loop_over(nest_, LoopKind::Serial, "step", placed_steps(depth), [&](const Expr& step) {
    return loop_over(nest_, LoopKind::Serial, "rows", integer(down_), [&](const Expr& rows) {
      std::vector<Stmt> body;
      if (in_parts_)
        body.push_back(loop_over(nest_, LoopKind::Serial, "pair", integer(kTileSide), [&](const Expr& pair) {
          return loop_over(
              nest_, LoopKind::Vector, "row", integer(kTileSide),
              [&](const Expr& row) {
                return split_pairs(
                    step * kTileSide + pair,
                    [&](const Expr& k) { return k * packed_.lhs_pitch + rows * kTileSide + row; }, packed_.lhs, stage_,
                    [&](int part) { return pair * kTileSide + row + integer(part * kSquare); });
              },
              b_.lanes);
        }));
      const Expr square = step * (kTileSide * packed_.lhs_pitch) + rows * kTileSide;
      for (int part = 0; part < parts_; ++part)
        body.push_back(transpose(lhs_, lhs_tile(tile, step, part, rows), kTileSide, in_parts_ ? stage_ : packed_.lhs,
                                 in_parts_ ? integer(part * kSquare) : square,
                                 in_parts_ ? kTileSide : packed_.lhs_pitch, kTileSide));
      return block(std::move(body));
    });
  });
}

// Zeros for what the steps that are placed have not: at the end of each of `rows` packed rows, or after all of them.
Stmt TileKernel::pad(int buffer, const Expr& depth, int64_t rows, bool along_k) {
  if (fills(block_k_)) return block({});
  const DType dtype = nest_.buffers[static_cast<size_t>(buffer)].dtype;
  const Expr missing = placed_steps(depth) * step() - depth;
  const auto zeros = [&](const Expr& from, const Expr& count) {
    return loop_over(
        nest_, LoopKind::Vector, "missing", count, [&](const Expr& i) { return store(buffer, from + i, zero(dtype)); },
        b_.lanes);
  };
  if (!along_k) return zeros(depth * rows, missing * rows);
  return loop_over(nest_, LoopKind::Serial, "row", integer(rows),
                   [&](const Expr& row) { return zeros(row * block_k_ + depth, missing); });
}

Stmt TileKernel::place_rows(const Expr& tile, const Expr& depth) {
  return block({pad(packed_.lhs, depth, b_.tile_m, packed_.lhs_along_k),
                in_parts_ ? find_range(lhs_range_, tile, packed_.lhs, b_.tile_m * block_k_) : block({}),
                packed_.lhs_along_k ? split_along_k(tile) : place_across_k(tile, depth)});
}

Stmt TileKernel::place_panel(const Expr& panel, const Expr& depth) {
  return block(
      {pad(packed_.rhs, depth, b_.tile_n, false), find_range(rhs_range_, panel, packed_.rhs, b_.tile_n * block_k_),
       loop_over(nest_, LoopKind::Serial, "step", integer(steps_), [&](const Expr& step) {
         return loop_over(nest_, LoopKind::Serial, "pair", integer(kTileSide), [&](const Expr& pair) {
           return loop_over(
               nest_, LoopKind::Vector, "column", integer(b_.tile_n),
               [&](const Expr& column) {
                 return split_pairs(
                     step * kTileSide + pair, [&](const Expr& k) { return k * b_.tile_n + column; }, packed_.rhs, rhs_,
                     [&](int part) { return rhs_tile(panel, step, part) + pair * b_.tile_n + column; });
               },
               b_.lanes);
         });
       })});
}

Stmt TileKernel::pad_rows(const Expr& tiles, const Expr& depth, const OperandsBegin& begin) {
  if (fills(step())) return block({});
  return loop_over(nest_, LoopKind::Serial, "row", tiles * b_.tile_m, [&](const Expr& row) {
    return loop_over(
        nest_, LoopKind::Vector, "k", missing(depth) * 2,
        [&](const Expr& k) {
          return store(lhs_, (begin.lhs + row * packed_.lhs_pitch + depth) * 2 + k, real(0, DType::BF16));
        },
        2 * b_.lanes);
  });
}

Stmt TileKernel::pad_panels(const Expr& panels, const Expr& depth, const OperandsBegin& begin) {
  if (fills(step())) return block({});
  return loop_over(nest_, LoopKind::Serial, "panel", panels, [&](const Expr& panel) {
    return loop_over(
        nest_, LoopKind::Vector, "rest", missing(depth) * b_.tile_n,
        [&](const Expr& i) {
          return store(rhs_, begin.rhs + rhs_tile(panel, integer(0), 0) + depth * b_.tile_n + i,
                       integer(0, DType::I32));
        },
        b_.lanes);
  });
}

Expr TileKernel::lhs_tile(const Expr& tile, const Expr& step, int part, const Expr& rows) const {
  return (((tile * steps_ + step) * parts_ + integer(part)) * down_ + rows) * (kSquare * elements_);
}

Expr TileKernel::rhs_tile(const Expr& panel, const Expr& step, int part) const {
  return ((panel * steps_ + step) * parts_ + integer(part)) * (kTileSide * b_.tile_n);
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
                          const std::function<std::vector<Stmt>(const Expr& step)>& ahead, const OperandsBegin& begin) {
  return loop_over(nest_, LoopKind::Serial, "step", whole_steps(depth), [&](const Expr& step) {
    std::vector<Stmt> steps = ahead(step);
    const auto load_lhs = [&](int part, int i) {
      return packed_.places_rows
                 ? tile_load(lhs_register_, lhs_, lhs_tile(tile, step, part, integer(i)), kTileSide * elements_)
                 : tile_load(lhs_register_, lhs_,
                             (begin.lhs + (tile * b_.tile_m + integer(i * kTileSide)) * packed_.lhs_pitch +
                              step * kTileSide) *
                                 2,
                             packed_.lhs_pitch * 2);
    };
    const auto load_rhs = [&](int part, int j) {
      return tile_load(rhs_register_, rhs_, begin.rhs + rhs_tile(panel, step, part) + integer(j * kTileSide),
                       b_.tile_n);
    };
    // What the two registers hold: part and place.
    std::pair<int, int> lhs_held{-1, -1}, rhs_held{-1, -1};
    const auto multiply = [&](const Product& p) {
      for (int j = 0; j < across_; ++j)
        for (int i = 0; i < down_; ++i) {
          const std::pair lhs{p.lhs, i}, rhs{p.rhs, j};
          if (rhs_held != rhs) steps.push_back(load_rhs(p.rhs, j));
          if (lhs_held != lhs) steps.push_back(load_lhs(p.lhs, i));
          lhs_held = lhs, rhs_held = rhs;
          steps.push_back(tile_dot(sums_[size_t(i * across_ + j)], lhs_register_, rhs_register_));
        }
    };
    if (in_parts_)
      for (const Product& p : kSixProducts) multiply(p);
    else
      for (const Product& p : kOneProduct) multiply(p);
    return block(std::move(steps));
  });
}

Stmt TileKernel::zero_sums() const {
  std::vector<Stmt> body;
  for (int sums : sums_) body.push_back(tile_zero(sums));
  return block(std::move(body));
}

template <class Each>
Stmt TileKernel::each_sum(const Expr& at, int64_t pitch, Each each) const {
  std::vector<Stmt> body;
  for (int i = 0; i < down_; ++i)
    for (int j = 0; j < across_; ++j)
      body.push_back(each(sums_[size_t(i * across_ + j)], at + integer(i * kTileSide * pitch + j * kTileSide)));
  return block(std::move(body));
}

Stmt TileKernel::load_sums(int buffer, const Expr& at, int64_t pitch) const {
  return each_sum(at, pitch, [&](int sums, const Expr& first) { return tile_load(sums, buffer, first, pitch); });
}

Stmt TileKernel::store_sums(int buffer, const Expr& at, int64_t pitch) const {
  return each_sum(at, pitch, [&](int sums, const Expr& first) { return tile_store(buffer, first, pitch, sums); });
}

}  // namespace trainc::lower
