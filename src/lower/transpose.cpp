// A value that is another one in a different order (a convolution's weight for its product, and the product's result
// for the weight's gradient): squares of elements are transposed in registers, so that both sides are read and written
// by whole cache lines. The plain loop gathers one side element by element. On a device a block takes a tile through
// Shared memory, which its threads fill in the order of what is read and empty in the order of what is written.
#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "cost/blocking.h"
#include "cost/loops.h"
#include "loop/substitute.h"
#include "lower/domain.h"
#include "lower/kernels.h"
#include "support/division.h"

namespace trainc::lower {

using loop::block;
using loop::integer;
using loop::LoopKind;

namespace {

/// Whether `n` is another value (or an input) moved and cast, element by element, and nothing else.
bool moved(const Node* n, const Schedule& schedule) {
  for (const Node* x = n; x == n || !(schedule.values.count(x) || x->op == Op::Input); x = x->in(0))
    if (x->op != Op::Reshape && x->op != Op::Permute && x->op != Op::Reverse && x->op != Op::Slice && x->op != Op::Cast)
      return false;
  return true;
}

/// The extents into which the elements of `n`, which is moved, fall so that each movement on the way keeps them whole:
/// as far down as there are such.
std::vector<int64_t> pieces_of(const Node* n, const Schedule& schedule) {
  std::vector<int64_t> extents;
  std::vector<int> order;                // of the pieces, as `n` has them
  std::vector<std::vector<int>> layout;  // those of each axis of x
  for (const int64_t e : n->shape()) {
    layout.push_back({static_cast<int>(extents.size())});
    order.push_back(layout.back()[0]), extents.push_back(e);
  }
  const auto found = [&] {
    std::vector<int64_t> all;
    for (const int piece : order) all.push_back(extents[static_cast<size_t>(piece)]);
    return all;
  };
  for (const Node* x = n; x == n || !(schedule.values.count(x) || x->op == Op::Input); x = x->in(0)) {
    if (x->op == Op::Permute) {
      std::vector<std::vector<int>> below(layout.size());
      for (size_t k = 0; k < layout.size(); ++k) below[x->as<AxesAttr>().axes[k]] = layout[k];
      layout = std::move(below);
    } else if (x->op == Op::Slice && x->type.numel() != x->in(0)->type.numel()) {
      return found();  // what lies below has more elements
    } else if (x->op == Op::Reshape) {
      std::vector<int> flat;
      for (const std::vector<int>& axis : layout) flat.insert(flat.end(), axis.begin(), axis.end());
      layout.assign(x->in(0)->shape().size(), {});
      for (size_t k = layout.size(); k-- > 0;)
        for (int64_t left = x->in(0)->shape()[k]; left > 1;) {
          if (flat.empty()) return found();
          const auto piece = static_cast<size_t>(flat.back());
          if (left % extents[piece] == 0) {
            left /= extents[piece];
            flat.pop_back();
            layout[k].insert(layout[k].begin(), static_cast<int>(piece));
            continue;
          }
          if (extents[piece] % left != 0) return found();
          const int inner = static_cast<int>(extents.size());  // the piece falls into two
          order.insert(std::ranges::find(order, static_cast<int>(piece)) + 1, inner);
          extents.push_back(left);
          extents[piece] /= left, left = 1;
          layout[k].insert(layout[k].begin(), inner);
        }
    }
  }
  return found();
}

/// The one load under casts; nullptr where it is guarded.
const loop::ExprNode* only_load(const Expr& e) {
  if (e->kind == loop::ExprKind::Load) return e->args.size() == 1 ? e.get() : nullptr;
  return e->kind == loop::ExprKind::Apply && e->op == Op::Cast ? only_load(e->args[0]) : nullptr;
}
Expr with_load(const Expr& e, const Expr& load) {
  return e->kind == loop::ExprKind::Load ? load : loop::cast(with_load(e->args[0], load), e->dtype);
}

/// An axis of the domain: so many places, with these strides where it is read and where it is written. Counted
/// backwards where it is read so.
struct Axis { int64_t extent, read, written; };

/// `axes`, innermost first, as one: where its place `at` lies by `stride`, one of the two.
Expr place(const std::vector<Axis>& axes, const Expr& at, int64_t Axis::* stride) {
  Expr e = integer(0);
  int64_t below = 1;
  for (const Axis& a : axes) {
    e = e + loop::mod(loop::floor_div(at, below), a.extent) * (a.*stride);
    below *= a.extent;
  }
  return e;
}
int64_t extent_of(const std::vector<Axis>& axes) {
  int64_t n = 1;
  for (const Axis& a : axes) n *= a.extent;
  return n;
}

/// The axes that follow each other without a gap by `stride`, from its neighbours on; those taken are left out of
/// `rest`.
std::vector<Axis> unbroken(std::vector<Axis>& rest, int64_t Axis::* stride) {
  std::vector<Axis> run;
  for (int64_t next = 1;;) {
    const auto it = std::find_if(rest.begin(), rest.end(), [&](const Axis& a) { return a.*stride == next; });
    if (it == rest.end()) return run;
    next *= it->extent;
    run.push_back(*it);
    rest.erase(it);
  }
}

// --- a device: a tile through Shared memory

/// Of an axis, what a block's tile has of it.
struct TileAxis {
  Axis axis;
  int64_t piece = 1;
  int64_t blocks() const { return ceil_div(axis.extent, piece); }
};

/// The innermost axes by `stride` get pieces, as long as they lie side by side, until `elements` are in a run.
/// Gives how many are.
int64_t take_run(std::vector<TileAxis>& tile, int64_t Axis::* stride, int64_t elements) {
  for (int64_t next = 1;;) {
    const auto it = std::ranges::find_if(tile, [&](const TileAxis& t) { return std::abs(t.axis.*stride) == next; });
    if (it == tile.end() || next >= elements) return next;
    it->piece = std::max(it->piece, std::min(it->axis.extent, ceil_div(elements, next)));
    next *= it->piece;
    if (it->piece < it->axis.extent) return next;
  }
}

/// The tile's axes, innermost first by `stride`, with the digits of a thread's place among them.
struct Digits {
  std::vector<const TileAxis*> order;
  std::vector<int64_t> of(int64_t at) const {
    std::vector<int64_t> digits;
    for (const TileAxis* t : order) digits.push_back(at % t->piece), at /= t->piece;
    return digits;
  }
  std::vector<Expr> of(const Expr& at) const {
    std::vector<Expr> digits;
    int64_t below = 1;
    for (const TileAxis* t : order) {
      digits.push_back(loop::mod(loop::floor_div(at, below), t->piece));
      below *= t->piece;
    }
    return digits;
  }
};
Digits by(const std::vector<TileAxis>& tile, int64_t Axis::* stride) {
  Digits d;
  for (const TileAxis& t : tile)
    if (t.piece > 1) d.order.push_back(&t);
  std::ranges::sort(d.order, {}, [&](const TileAxis* t) { return std::abs(t->axis.*stride); });
  return d;
}

/// Whether a warp that writes neighbours reads more of memory than it needs.
bool reads_far_apart(const std::vector<Axis>& axes, int64_t size) {
  std::vector<Axis> inner = axes;  // by where they are written
  std::ranges::sort(inner, {}, [](const Axis& a) { return std::abs(a.written); });
  std::set<int64_t> sectors;
  for (int64_t thread = 0; thread < loop::kWarp; ++thread) {
    int64_t at = 0, left = thread;
    for (const Axis& a : inner) at += left % a.extent * a.read, left /= a.extent;
    sectors.insert(at * size / cost::kSectorBytes);
  }
  return static_cast<int64_t>(sectors.size()) > 2 * ceil_div(loop::kWarp * size, cost::kSectorBytes);
}

/// The kernel's body, where its tile needs no more than a block has.
bool through_shared(loop::LoopNest& nest, const std::vector<Axis>& axes, const LoweringOptions& options,
                    const loop::ExprNode* load, int64_t first_read, int64_t first_written, int64_t read_bytes,
                    int64_t written_bytes, const std::function<Stmt(const Expr& at, const Expr& loaded)>& store) {
  std::vector<TileAxis> tile;
  for (const Axis& a : axes) tile.push_back({a});
  std::ranges::sort(tile, {}, [](const TileAxis& t) { return std::abs(t.axis.written); });
  const int64_t elements = cost::kTransposedRun / std::min(read_bytes, written_bytes);
  const int64_t run = take_run(tile, &Axis::read, elements);
  if (run * read_bytes < cost::kSectorBytes) return false;
  take_run(tile, &Axis::written, elements);
  const Digits reading = by(tile, &Axis::read), writing = by(tile, &Axis::written);

  // Where the tile's elements lie: as they are written, but for gaps behind its axes, as wide as leaves the threads of
  // a warp, that fill it and that empty it, the fewest banks in common.
  int64_t in_tile = 1;
  for (const TileAxis* t : writing.order) in_tile *= t->piece;
  std::vector<int64_t> gaps(writing.order.size(), 0);
  const auto strides = [&] {  // of the axes in the order of `writing`, and how many elements the tile has with its gaps
    std::vector<int64_t> found{1};
    for (size_t k = 0; k < gaps.size(); ++k) found.push_back(found.back() * writing.order[k]->piece + gaps[k]);
    return found;
  };
  const auto stride_of = [&](const std::vector<int64_t>& all, const TileAxis* t) {
    return all[static_cast<size_t>(std::ranges::find(writing.order, t) - writing.order.begin())];
  };
  const auto wavefronts = [&](const std::vector<int64_t>& all, const Digits& order) {
    int64_t sum = 0;
    for (int64_t first = 0; first < std::min(in_tile, cost::kBlockThreads); first += loop::kWarp) {
      std::map<int64_t, std::set<int64_t>> words;  // by bank
      for (int64_t t = first; t < std::min(in_tile, first + loop::kWarp); ++t) {
        const std::vector<int64_t> digits = order.of(t);
        int64_t at = 0;
        for (size_t k = 0; k < digits.size(); ++k) at += digits[k] * stride_of(all, order.order[k]);
        const int64_t word = at * read_bytes / 4;
        words[word % loop::kWarp].insert(word);
      }
      size_t most = 0;
      for (const auto& [bank, of_it] : words) most = std::max(most, of_it.size());
      sum += static_cast<int64_t>(most);
    }
    return sum;
  };
  const auto waits = [&] {
    const std::vector<int64_t> all = strides();
    if (all.back() * read_bytes > loop::kSharedBytes) return std::numeric_limits<int64_t>::max();
    return wavefronts(all, reading) + wavefronts(all, writing);
  };
  int64_t least = waits();
  for (size_t k = gaps.size(); k-- > 0;)
    for (int64_t best = 0, g = 1; g <= loop::kWarp; ++g) {
      gaps[k] = g < loop::kWarp ? g : best;
      if (const int64_t found = waits(); found < least) least = found, best = g;
    }
  if (least == std::numeric_limits<int64_t>::max()) return false;
  const std::vector<int64_t> in_shared = strides();

  nest.threads = static_cast<int>(std::min(cost::kBlockThreads, ceil_div(in_tile, loop::kWarp) * loop::kWarp));
  std::vector<int64_t> blocks;
  for (size_t k = tile.size(); k-- > 0;) blocks.push_back(tile[k].blocks());
  OuterLoops loops(nest, blocks, options);
  const int shared = nest.add_buffer(
      {"tile", nest.buffers[static_cast<size_t>(load->id)].dtype, in_shared.back(), loop::Space::Shared, true});
  /// A loop of the threads over the tile's elements in this order.
  const auto each = [&](const Digits& order,
                        const std::function<Stmt(const Expr& read, const Expr& in_tile, const Expr& written)>& f) {
    const int t = nest.add_var("t", in_tile);
    const std::vector<Expr> digits = order.of(nest.var(t));
    Expr read = integer(first_read), at = integer(0), written = integer(first_written), inside;
    for (size_t k = 0; k < tile.size(); ++k) {
      Expr place = loops.variables()[tile.size() - 1 - k] * tile[k].piece;
      const auto it = std::ranges::find(order.order, &tile[k]);
      if (it != order.order.end()) {
        const Expr digit = digits[static_cast<size_t>(it - order.order.begin())];
        place = place + digit;
        at = at + digit * stride_of(in_shared, &tile[k]);
      }
      read = read + place * tile[k].axis.read, written = written + place * tile[k].axis.written;
      if (tile[k].axis.extent % tile[k].piece == 0) continue;
      const Expr here = loop::apply(Op::Lt, {place, integer(tile[k].axis.extent)});
      inside = inside ? loop::apply(Op::And, {inside, here}) : here;
    }
    Stmt s = f(read, at, written);
    if (inside)  // the language has no `if`
      s = loop::for_loop(LoopKind::Serial, nest.add_var("inside", 1), loop::cast(inside, DType::I64), s);
    return loop::for_loop(LoopKind::Thread, t, integer(in_tile), s);
  };
  const Stmt fill = each(reading, [&](const Expr& read, const Expr& at, const Expr&) {
    return loop::store(shared, at, nest.load(load->id, read));
  });
  const Stmt empty = each(
      writing, [&](const Expr&, const Expr& at, const Expr& written) { return store(written, nest.load(shared, at)); });
  nest.body = loops.close(block({fill, loop::barrier(), empty}));
  return true;
}

}  // namespace

std::optional<LoweredKernel> lower_transpose(const Schedule& schedule, const Group& group,
                                             const LoweringOptions& options) {
  const Node* n = group.values[0];
  const int64_t all = n->type.numel();
  const bool device = options.target.launches_blocks;
  if ((!options.target.transposes_in_registers && !device) || group.columns != 1 || group.values.size() != 1 ||
      all < cost::kWorthTransposing || n->type.rank() == 0 || !moved(n, schedule))
    return std::nullopt;
  LoweredKernel kernel;
  loop::LoopNest& nest = kernel.nest;
  nest.name = kernel_name(group);
  Expressions e(schedule, kernel);
  const int out = e.argument(n, true);

  // Every axis with its strides.
  std::vector<int64_t> own = contiguous_strides(n->shape());
  own.pop_back();
  const std::vector<int64_t> factors =
      device ? pieces_of(n, schedule) : factor(all, own, split_points(n, schedule, all, 1));
  std::vector<int> ids;
  std::vector<Expr> variables;
  for (const int64_t f : factors) ids.push_back(nest.add_var("axis", f)), variables.push_back(nest.var(ids.back()));
  const Expr value = e.definition(n, Index::at_position(n->shape(), position_of(variables, factors)));
  const loop::ExprNode* load = only_load(value);
  if (!load || kernel.arguments.size() != 2) return std::nullopt;
  std::vector<Axis> axes;  // innermost first
  Expr first_read = load->args[0];
  int64_t first_written = 0, written = 1;
  for (size_t i = factors.size(); i-- > 0;) {
    Axis a{factors[i], loop::stride_of(value, ids[i], -1), written};
    written *= a.extent;
    first_read = first_read - variables[i] * a.read;
    if (a.read < 0) {
      first_read = first_read + integer(a.read * (a.extent - 1));
      first_written += a.written * (a.extent - 1);
      a.read = -a.read, a.written = -a.written;
    }
    if (a.extent == 1) continue;
    if (a.read == 0) return std::nullopt;
    if (!axes.empty() && a.read == axes.back().read * axes.back().extent &&
        a.written == axes.back().written * axes.back().extent)
      axes.back().extent *= a.extent;
    else axes.push_back(a);
  }
  if (first_read->kind != loop::ExprKind::Int) return std::nullopt;  // there is a division left
  const DType stored = n->dtype(), read = nest.buffers[static_cast<size_t>(load->id)].dtype;
  if (device) {
    if (!reads_far_apart(axes, size_of(read))) return std::nullopt;
    const auto store = [&](const Expr& at, const Expr& loaded) { return e.store(n, at, with_load(value, loaded)); };
    if (through_shared(nest, axes, options, load, first_read->int_value, first_written, size_of(read), size_of(stored),
                       store))
      return kernel;
    return std::nullopt;
  }

  // One side's neighbours are one axis, `across`; the other's may be several, `along`, which the squares treat as one:
  // of those an element's place takes divisions, but once a row of a square.
  const int lanes = options.target.f32_lanes;
  const auto transposed = [&](int64_t Axis::* near, int64_t Axis::* far) -> bool {
    std::vector<Axis> rest = axes;
    const auto it = std::find_if(rest.begin(), rest.end(), [&](const Axis& a) { return a.*near == 1; });
    if (it == rest.end() || (*it).*far == 1 || it->extent % lanes != 0) return false;
    const Axis across = *it;
    rest.erase(it);
    const std::vector<Axis> along = unbroken(rest, far);
    const int64_t squares = extent_of(along) / lanes;
    if (extent_of(along) % lanes != 0) return false;
    const int64_t abreast = across.extent % (lanes * cost::kAbreast) == 0 ? cost::kAbreast : 1;
    std::vector<int64_t> loops_of;
    for (const Axis& a : rest) loops_of.push_back(a.extent);
    loops_of.push_back(across.extent / (lanes * abreast)), loops_of.push_back(squares);
    OuterLoops loops(nest, loops_of, options);
    const std::vector<Expr>& at = loops.variables();
    const int64_t width = abreast * lanes;  // of a row of squares
    const int tile = nest.add_buffer({"squares", DType::F32, lanes * width, loop::Space::Scratch, true});
    const int side = nest.add_var("side", abreast), row = nest.add_var("row", lanes),
              lane = nest.add_var("lane", width);
    const Expr along_at = at.back() * lanes;
    const auto begins = [&](int64_t Axis::* stride, int64_t first) {
      Expr b = integer(first) + at[rest.size()] * (width * (across.*stride));
      for (size_t i = 0; i < rest.size(); ++i) b = b + at[i] * (rest[i].*stride);
      return b;
    };
    const bool transposes_what_it_reads =
        near == &Axis::written;  // the squares' rows are neighbours where they are written
    const Expr row_at = along_at + nest.var(row), from = begins(&Axis::read, first_read->int_value),
               to = begins(&Axis::written, first_written);
    const Expr in_tile = nest.var(row) * width + nest.var(lane);
    const auto rows = [&](const Stmt& s) {
      return loop::for_loop(LoopKind::Serial, row, integer(lanes),
                            loop::for_loop(LoopKind::Vector, lane, integer(width), s, lanes));
    };
    // The lines of squares to come, on both sides. On one of them rows lie pages apart, where no hardware sees a line
    // coming: of each, those for several squares are asked for together, for memory gives neighbours faster.
    const auto ahead_of_squares = [&] {
      const auto ask = [&](const char* name, int64_t count, int buffer, const std::function<Expr(const Expr&)>& index) {
        const int i = nest.add_var(name, count);
        return loop::for_loop(LoopKind::Serial, i, integer(count), loop::prefetch(buffer, index(nest.var(i)), 2));
      };
      const int jumping = transposes_what_it_reads ? load->id : out, other = transposes_what_it_reads ? out : load->id;
      const Expr &jumps = transposes_what_it_reads ? from : to, &rows_begin = transposes_what_it_reads ? to : from;
      const Expr group = loop::floor_div(at.back(), cost::kSquaresAhead) * cost::kSquaresAhead,
                 turn = loop::mod(at.back(), cost::kSquaresAhead);
      const Expr next = (group + integer(cost::kSquaresAhead)) * lanes,
                 first_row = turn * (width / cost::kSquaresAhead);
      const int64_t line = cost::kCacheLine / size_of(nest.buffers[static_cast<size_t>(other)].dtype),
                    lines = ceil_div(width, line);
      return std::vector<Stmt>{ask("line", width, jumping,
                                   [&](const Expr& i) {
                                     return jumps + next + loop::mod(i, cost::kSquaresAhead) * lanes +
                                            (first_row + loop::floor_div(i, cost::kSquaresAhead)) * (across.*far);
                                   }),
                               ask("line", lanes * lines, other, [&](const Expr& i) {
                                 return rows_begin +
                                        place(along, along_at + integer(lanes) + loop::floor_div(i, lines), near) +
                                        loop::mod(i, lines) * line;
                               })};
    };
    const auto sides = [&](const Stmt& s) { return loop::for_loop(LoopKind::Serial, side, integer(abreast), s); };
    std::vector<Stmt> body = ahead_of_squares();
    if (transposes_what_it_reads) {
      body.push_back(
          sides(loop::transpose(tile, nest.var(side) * lanes, width, load->id,
                                from + along_at + nest.var(side) * (lanes * across.read), across.read, lanes)));
      body.push_back(rows(e.store(n, to + place(along, row_at, &Axis::written) + nest.var(lane),
                                  with_load(value, nest.load(tile, in_tile)))));
    } else {
      body.push_back(rows(loop::store(
          tile, in_tile,
          with_load(value, nest.load(load->id, from + place(along, row_at, &Axis::read) + nest.var(lane))))));
      body.push_back(sides(loop::transpose(out, to + along_at + nest.var(side) * (lanes * across.written),
                                           across.written, tile, nest.var(side) * lanes, width, lanes)));
    }
    nest.body = loops.close(block(std::move(body)));
    return true;
  };
  if (read == DType::F32 && transposed(&Axis::written, &Axis::read)) return kernel;
  if (stored == DType::F32 && value->dtype == DType::F32 && transposed(&Axis::read, &Axis::written)) return kernel;
  return std::nullopt;
}

}  // namespace trainc::lower
