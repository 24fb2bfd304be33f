#include "lower/contraction.h"

#include <algorithm>
#include <optional>

#include "loop/width.h"
#include "lower/contraction_ahead.h"
#include "lower/contraction_loops.h"
#include "lower/contraction_tiles.h"
#include "schedule/contraction_blocking.h"

namespace trainc::lower {

using namespace loop;
using schedule::Blocking;
using schedule::kBlock;
namespace {

// The nest, with tiles of tile_m x tile_n sums in registers:
//
//   parallel task (batch, m, n)
//     for k block
//       pack the rhs: panels of [block_k][tile_n]
//       for m block
//         pack the lhs
//         for rhs panel, for lhs tile
//           sums = 0; for k: sums += lhs column * rhs row           <- all the time goes here
//           partial = sums (+ partial, from the second k block on)
//           after the last k block: epilogue over the tile's rows and columns that exist
//
// `partial` holds one tile where k is one block, else all tiles of the task. The epilogue reads it back, out of L1, rather than from
// registers: its code then exists once, not tile_m * vectors times, and any edge is a shorter loop.
// The IR has no `if`: a loop of 0 or 1 iterations is one.
//
// Operands come from far: what is packed next (the next m block, k block or task) is asked for by the micro-kernel, a few cache lines every kSteps.
//
// bf16 operands are packed as pairs along k, and the dot product of two pairs takes the place of the FMA. All that is said of k then counts pairs (`spec.k`
// too), but for the coordinates that the operands are read at. Along k a pair is two neighbours of a bf16 buffer, else an i32.
//
// On AMX (`b_.tiles`) the packed blocks are made into tiles, and contraction_tiles.h has the micro-kernel: the sums come to `partial` from there. f32 blocks whose
// numbers it cannot take are multiplied by FMAs as they are packed.
constexpr int64_t kSteps = 8;  // of k, written out in the micro-kernel's loop

enum class Part : uint8_t { None, Rows, Depth };  // not one; one whose rows (or whose k) come block by block

class Builder {
 public:
  // `dtype`: of the operands' elements; `elements_of_k`: of the sum, where spec.k counts pairs.
  // `part`: of a nest that others write more of: the rhs is packed once for all blocks of k, if it is not k that comes in blocks.
  Builder(LoopNest& nest, const ContractionSpec& spec, DType dtype, int64_t elements_of_k, const Blocking& blocking, Part part = Part::None)
      : nest_(nest), spec_(spec), part_(part), elements_of_k_(elements_of_k), pairs_(dtype == DType::BF16), element_(dtype), packed_(pairs_ ? DType::I32 : dtype),
        sum_(pairs_ ? DType::F32 : dtype), b_(blocking), pack_k_(spec.pinned ? kBlock : b_.block_k), stage_k_(std::min<int64_t>(64, pack_k_)), stage_row_(stage_k_ + b_.lanes),
        m_(size("m", spec.m)), n_(size("n", spec.n)), k_(size("k", spec.k)), block_k_(size("block_k", b_.block_k)), k_blocks_(size("k_blocks", b_.k_blocks)),
        m_tasks_(size("m_tasks", b_.m_tasks)), n_tasks_(size("n_tasks", b_.n_tasks)), task_m_(size("task_m", b_.task_m)), task_n_(size("task_n", b_.task_n)),
        tasks_(size("tasks", spec.batch * b_.m_tasks * b_.n_tasks)), tiles_of_m_(size("m_tiles", (spec.m + b_.tile_m - 1) / b_.tile_m)),
        panels_of_n_(size("n_panels", (spec.n + b_.tile_n - 1) / b_.tile_n)) {
    // One vector more than the data: rows a power of two long would fall on the same cache sets.
    const int64_t rows = b_.block_m * b_.tile_m;
    lhs_pitch_ = (spec.lhs_k_contiguous ? pack_k_ : (rows + b_.lanes - 1) / b_.lanes * b_.lanes) + b_.lanes;
    // A part is done with these at the end of a call, and leaves them to the next one.
    if (b_.lhs_in_place) lhs_ = spec.lhs_place.buffer;
    else if (lhs_in_block()) lhs_ = spec.lhs_block.buffer;
    else if (spec.lhs_k_contiguous) lhs_ = passing("lhs_pack", element_, rows * lhs_pitch_ * each());
    else lhs_ = passing("lhs_pack", packed_, pack_k_ * lhs_pitch_);
    if (!b_.in_place) rhs_ = part_ == Part::Rows ? scratch("rhs_whole", packed_, b_.k_blocks * rhs_block()) : passing("rhs_pack", packed_, rhs_block());
    if (spec.rhs_k_contiguous) stage_ = passing("rhs_stage", element_, b_.tile_n * stage_row_ * each());
    const int64_t partials = (b_.k_blocks == 1 ? 1 : b_.room_m * b_.room_n) * b_.tile_m * b_.tile_n;
    partial_ = part_ == Part::Depth ? scratch("sums_over_blocks", sum_, partials) : passing("partial", sum_, partials);
    if (sums_in_block()) {
      Buffer& to = nest_.buffers[static_cast<size_t>(spec.sums_block.buffer)];
      to.numel = std::max(to.numel, b_.task_m * b_.tile_m * spec.sums_block.pitch);
    }
    if (b_.tiles) {
      require(part_ == Part::None, "part of a nest on AMX tiles");
      amx_.emplace(nest_, b_, PackedBlocks{lhs_, rhs_, spec.lhs_k_contiguous, lhs_pitch_}, !pairs_, spec.k);
      if (many_blocks()) block_sums_ = scratch("block_sums", sum_, int64_t(b_.tile_m) * b_.tile_n);
      if (pairs_) return;
    }
    sums_ = passing("sums", sum_, int64_t(b_.fma_rows) * b_.tile_n, Space::Register);
    columns_ = passing("columns", packed_, b_.tile_n, Space::Register);
  }

  Stmt task(const Expr& task) {
    batch_ = quotient(task, product(m_tasks_, n_tasks_));
    first_tile_ = product(remainder(quotient(task, n_tasks_), m_tasks_), task_m_);
    first_panel_ = product(remainder(task, n_tasks_), task_n_);
    tiles_ = up_to(task_m_, first_tile_, tiles_of_m_);
    panels_ = up_to(task_n_, first_panel_, panels_of_n_);
    Stmt blocks = over_k([&] {
      std::vector<Stmt> body;
      look_ahead_of_k_block(body, task);
      body.push_back(pack_rhs_block());
      if (amx_) body.push_back(amx_->prepare_rhs(panels_, depth_));
      body.push_back(multiply_rows());
      return block(std::move(body));
    });
    if (sizes_.empty()) return blocks;
    sizes_.push_back(std::move(blocks));
    return block(std::move(sizes_));
  }

  // --- as part of another nest: everything is one task
  Stmt pack_whole_rhs(const Expr& batch) {
    begin_part(batch, {});
    return over_k([&] { return pack_rhs_block(); });
  }
  Stmt multiply_block(const Expr& batch, const Extents& here) {
    begin_part(batch, here);
    return over_k([&] { return multiply_rows(); });
  }
  Stmt add_k_block(const Expr& batch, const Expr& k_block, const Extents& here, const Extents& before) {
    begin_part(batch, here);
    before_ = before;
    at_k_block(k_block);
    return block({pack_rhs_block(), multiply_rows()});
  }

 private:
  // A number that the sizes decide. Where the nest's form must not depend on it, it has a name, through which nothing is simplified.
  Expr size(const char* name, int64_t value) {
    if (!spec_.pinned) return integer(value);
    const int local = nest_.add_local(name, DType::I64);
    sizes_.push_back(let(local, integer(value)));
    return nest_.local(local);
  }
  static bool is_number(const Expr& e) { return e->kind == ExprKind::Int; }
  static Expr product(const Expr& a, const Expr& b) { return is_number(b) ? a * b->int_value : is_number(a) ? b * a->int_value : apply(Op::Mul, {a, b}); }
  static Expr quotient(const Expr& a, const Expr& b) { return is_number(b) ? floor_div(a, b->int_value) : apply(Op::FloorDiv, {a, b}); }
  static Expr remainder(const Expr& a, const Expr& b) { return is_number(b) ? mod(a, b->int_value) : apply(Op::Mod, {a, b}); }
  // Whether all parts of `part` are known to be full.
  static bool all_full(const Expr& total, int64_t part) { return is_number(total) && total->int_value % part == 0; }

  void begin_part(const Expr& batch, const Extents& here) {
    batch_ = batch;
    first_tile_ = first_panel_ = integer(0);
    m_here_ = here.m, n_here_ = here.n;
    k_here_ = here.k && pairs_ ? floor_div(here.k + integer(1), 2) : here.k;
    tiles_ = m_here_ ? floor_div(m_here_ + integer(b_.tile_m - 1), b_.tile_m) : tiles_of_m_;
    panels_ = n_here_ ? floor_div(n_here_ + integer(b_.tile_n - 1), b_.tile_n) : panels_of_n_;
  }

  Expr k_blocks_here() const { return k_here_ ? floor_div(k_here_ + integer(b_.block_k - 1), b_.block_k) : k_blocks_; }
  void at_k_block(const Expr& k_block) {
    k_block_ = k_block;
    first_k_ = product(k_block, block_k_);
    depth_ = up_to(block_k_, first_k_, k_, k_here_);
  }
  template <class Body>
  Stmt over_k(Body body) {
    const auto at = [&](const Expr& k_block) {
      at_k_block(k_block);
      return body();
    };
    return b_.k_blocks == 1 ? at(integer(0)) : loop(LoopKind::Serial, "k_block", k_blocks_here(), at);
  }
  Stmt pack_rhs_block() { return spec_.k == 0 || b_.in_place ? block({}) : spec_.rhs_k_contiguous ? pack_rhs_transposed() : pack_rhs(); }
  Stmt multiply_rows() {
    m_blocks_ = (b_.room_m + b_.block_m - 1) / b_.block_m;
    return loop(LoopKind::Serial, "m_block", integer(m_blocks_), [&](const Expr& m_block) { return multiply(m_block); });
  }

  // Packs one block of the lhs and runs the micro-kernel over its tiles.
  Stmt multiply(const Expr& m_block) {
    const Expr block_tile = m_block * b_.block_m;  // within the task
    const Expr tiles = tiles_in_block(block_tile);
    std::vector<Stmt> body;
    if (part_ == Part::None) look_ahead_of_m_block(body, m_block);
    if (spec_.k > 0 && !lhs_in_block() && !b_.lhs_in_place) body.push_back(pack_lhs(first_tile_ + block_tile, tiles));
    if (amx_) body.push_back(amx_->prepare_lhs(tiles, depth_));
    body.push_back(loop(LoopKind::Serial, "panel", panels_, [&](const Expr& panel) {
      return loop(LoopKind::Serial, "tile", tiles, [&](const Expr& tile) { return micro_kernel(block_tile, tile, panel); });
    }));
    return block(std::move(body));
  }

  // Where an operand's next block starts.
  struct Ahead { Expr batch, row, k; };

  bool more_tasks() const { return spec_.pinned || nest_.parallel_extent > 1; }
  // select(index is the last, a, b) under a name, where it is not one of them for all iterations.
  Expr choose(std::vector<Stmt>& body, const char* name, const Expr& index, const Expr& count, const Expr& at_last, const Expr& before) {
    if (is_number(count) && count->int_value == 1) return at_last;
    const int local = nest_.add_local(name, DType::I64);
    body.push_back(let(local, apply(Op::Select, {apply(Op::Eq, {index, count - integer(1)}), at_last, before})));
    return nest_.local(local);
  }

  // After this k block comes the next, or the first of the next task (which a thread takes next more often than not).
  void look_ahead_of_k_block(std::vector<Stmt>& body, const Expr& task) {
    const Expr next = minimum(task + integer(1), tasks_ - integer(1));
    const auto choice = [&](const char* name, const Expr& of_next_task, const Expr& here) {
      return b_.k_blocks == 1 ? of_next_task : choose(body, name, k_block_, k_blocks_, of_next_task, here);
    };
    const Expr batch = choice("next_batch", quotient(next, product(m_tasks_, n_tasks_)), batch_);
    const Expr tile = choice("next_tile", product(remainder(quotient(next, n_tasks_), m_tasks_), task_m_), first_tile_);
    const Expr panel = choice("next_panel", product(remainder(next, n_tasks_), task_n_), first_panel_);
    const Expr k = choice("next_k", integer(0), first_k_ + block_k_);
    next_lhs_ = {batch, tile * b_.tile_m, k};
    next_rhs_ = {batch, panel * b_.tile_n, k};
  }
  // After this m block comes the next, or the first of the next k block.
  void look_ahead_of_m_block(std::vector<Stmt>& body, const Expr& m_block) {
    const auto choice = [&](const char* name, const Expr& of_next_k, const Expr& here) { return choose(body, name, m_block, integer(m_blocks_), of_next_k, here); };
    const Expr row = (first_tile_ + (m_block + integer(1)) * b_.block_m) * b_.tile_m;
    lhs_ahead_ = {choice("lhs_batch", next_lhs_.batch, batch_), choice("lhs_row", next_lhs_.row, row), choice("lhs_k", next_lhs_.k, first_k_)};
  }

  int scratch(const char* name, DType dtype, int64_t numel) { return nest_.add_buffer({name, dtype, numel, Space::Scratch, true}); }
  int passing(const char* name, DType dtype, int64_t numel, Space space = Space::Scratch) {
    for (size_t i = 0; i < nest_.buffers.size() && part_ != Part::None; ++i)
      if (Buffer& b = nest_.buffers[i]; b.name == name && b.dtype == dtype && b.space == space) return b.numel = std::max(b.numel, numel), static_cast<int>(i);
    return nest_.add_buffer({name, dtype, numel, space, true});
  }
  static Expr zero(DType dtype) { return is_float(dtype) ? real(0, dtype) : integer(0, dtype); }

  bool lhs_in_block() const {
    return spec_.lhs_block.buffer >= 0 && spec_.lhs_block.granule % b_.tile_m == 0 && (!pairs_ || (spec_.lhs_k_contiguous && !odd()));
  }
  bool sums_in_block() const {
    return spec_.sums_block.buffer >= 0 && b_.k_blocks == 1 && sum_ == DType::F32 && (spec_.n + b_.tile_n - 1) / b_.tile_n * b_.tile_n <= spec_.sums_block.pitch;
  }
  int64_t each() const { return pairs_ ? 2 : 1; }  // elements of the operands in one of k
  bool odd() const { return elements_of_k_ % each() != 0; }  // the last pair is half empty

  // What the operand is packed as, at k; `read` takes an element's k.
  template <class Read>
  Expr packed(const Expr& k, Read read) const {
    if (!pairs_) return read(k);
    const Expr low = k * 2, high = low + integer(1);
    if (!odd()) return pair(read(low), read(high));
    const Expr exists = apply(Op::Lt, {high, integer(elements_of_k_)});
    return pair(read(low), apply(Op::Select, {exists, guarded(read(high), exists), zero(DType::BF16)}));
  }
  // The packed element `at` of a buffer that was filled along k.
  Expr packed_at(int buffer, const Expr& at) const {
    return pairs_ ? pair(nest_.load(buffer, at * 2), nest_.load(buffer, at * 2 + integer(1))) : nest_.load(buffer, at);
  }
  int element_lanes() const { return b_.lanes * static_cast<int>(each()); }
  // Fills a buffer along k, from packed element `at` on, with `depth` of an operand from `first` on: copy(first element, how many) and, where half a pair is left, a zero.
  template <class Copy>
  Stmt fill_along_k(int buffer, const Expr& at, const Expr& first, const Expr& depth, Copy copy) {
    const Expr elements = odd() ? minimum(depth * 2, integer(elements_of_k_) - first * 2) : depth * each();
    Stmt fill = copy(first * each(), elements);
    if (!odd()) return fill;
    return block({fill, loop(LoopKind::Serial, "rest", depth * 2 - elements, [&](const Expr& i) { return store(buffer, at * 2 + elements + i, zero(element_)); })});
  }
  template <class Read>
  Stmt copy_along_k(int buffer, const Expr& at, const Expr& first, const Expr& depth, Read read) {
    return fill_along_k(buffer, at, first, depth, [&](const Expr& from, const Expr& count) {
      return loop(LoopKind::Vector, "k", count, [&](const Expr& k) { return store(buffer, at * each() + k, read(from + k)); }, element_lanes());
    });
  }

  static Expr minimum(const Expr& a, const Expr& b) { return apply(Op::Min, {a, b}); }

  // min(block, total - start), a number where every block is full. `start` is a multiple of `block`.
  // `here`: the total is this instead, at most `total`.
  static Expr up_to(const Expr& block, const Expr& start, const Expr& total, const Expr& here = nullptr) {
    if (is_number(block) && is_number(total)) {
      const int64_t size = block->int_value, all = total->int_value;
      if (here) return all <= size ? here : minimum(block, here - start);
      if (all % size == 0) return block;
      if (all < size) return total;
    }
    return minimum(block, total - start);
  }
  static Expr up_to(int64_t block, const Expr& start, const Expr& total, const Expr& here = nullptr) { return up_to(integer(block), start, total, here); }

  // What a part of `block` starting at `start` has left of a count that ends at `end`: none where the end comes first.
  static Expr rest(const Expr& block, const Expr& start, const Expr& end) {
    return apply(Op::Max, {integer(0), minimum(block, end - start)});
  }

  // Tiles of an m block: all, unless the last block of a task, or the last task, is short.
  Expr tiles_in_block(const Expr& block_tile) const {
    if (m_blocks_ == 1) return tiles_;
    if (!m_here_ && b_.task_m % b_.block_m == 0 && all_full(tiles_of_m_, b_.task_m)) return integer(b_.block_m);
    return rest(integer(b_.block_m), block_tile, tiles_);
  }

  template <class Body>
  Stmt loop(LoopKind kind, const char* name, const Expr& extent, Body body, int lanes = 1) {
    return loop_over(nest_, kind, name, extent, body, lanes);
  }

  // The vectors of one row of a register tile; body gets the column within the tile.
  template <class Body>
  Stmt vectors(Body body) {
    return loop(LoopKind::Unroll, "vector", integer(b_.tile_n / b_.lanes), [&](const Expr& vector) {
      return loop(LoopKind::Vector, "lane", integer(b_.lanes), [&](const Expr& lane) { return body(vector * b_.lanes + lane); }, b_.lanes);
    });
  }
  template <class Body>
  Stmt tile_elements(Body body) {
    return loop(LoopKind::Unroll, "row", integer(b_.fma_rows), [&](const Expr& row) {
      return vectors([&](const Expr& column) { return body(row * b_.tile_n + column); });
    });
  }

  // The lhs is packed as it lies in memory, k or the rows along vectors: the micro-kernel broadcasts single elements, so both serve it alike.
  Expr lhs_index(const Expr& row, const Expr& k) const {
    return spec_.lhs_k_contiguous ? row * lhs_pitch_ + k : k * lhs_pitch_ + row;
  }
  // The lhs at a tile's row and k, of the m block and the block of k that are written.
  Expr lhs_at(const Expr& block_tile, const Expr& tile, const Expr& row, const Expr& k) const {
    if (!lhs_in_block()) return lhs_index(tile * b_.tile_m + row, k);
    const Expr whole = (block_tile + tile) * b_.tile_m + row, depth = part_ == Part::Rows ? first_k_ + k : k;
    const int64_t pitch = spec_.lhs_block.pitch / each();
    return spec_.lhs_k_contiguous ? whole * pitch + depth : depth * pitch + whole;
  }
  int64_t rhs_block() const { return b_.room_n * pack_k_ * b_.tile_n; }  // elements
  Expr rhs_index(const Expr& panel, const Expr& k, const Expr& column) const {
    const Expr at = (panel * pack_k_ + k) * b_.tile_n + column;
    return part_ == Part::Rows ? k_block_ * rhs_block() + at : at;
  }

  // A copy of `count` neighbours from `first` on, at most `most`, in pieces that end where a run does, by vectors of `lanes`. `aligned`: `first` is a multiple of
  // `most`.
  // copy(offset from first, run, place in the run)
  template <class Copy>
  Stmt copy_runs(int64_t run, int64_t most, bool aligned, const Expr& first, const Expr& count, int lanes, Copy copy) {
    if (aligned && run % most == 0)
      return loop(LoopKind::Vector, "lane", count, [&](const Expr& lane) { return copy(lane, floor_div(first, run), mod(first, run) + lane); }, lanes);
    return loop(LoopKind::Serial, "piece", integer((most + run - 2) / run + 1), [&](const Expr& piece) {
      const int major = nest_.add_local("run", DType::I64), begin = nest_.add_local("begin", DType::I64);
      const Expr start = nest_.local(major) * run;
      const Expr end = minimum(first + count, start + integer(run));
      return block({let(major, floor_div(first, run) + piece), let(begin, apply(Op::Max, {first, start})),
                    loop(LoopKind::Vector, "lane", apply(Op::Max, {integer(0), end - nest_.local(begin)}), [&](const Expr& lane) {
                      return copy(nest_.local(begin) - first + lane, nest_.local(major), nest_.local(begin) - start + lane);
                    }, lanes)});
    });
  }

  // Writes `count` of `width` elements with `value`, the others with 0: what is beyond the operand must not be garbage (slow denormals).
  template <class Index, class Value>
  Stmt copy_padded(const Expr& count, const Expr& width, bool full, Index index, Value value, int buffer) {
    Stmt copy = loop(LoopKind::Vector, "lane", count, [&](const Expr& lane) { return store(buffer, index(lane), value(lane)); }, b_.lanes);
    return full ? copy : block({copy, zeros(buffer, width - count, [&](const Expr& lane) { return index(count + lane); })});
  }
  template <class Index>
  Stmt zeros(int buffer, const Expr& count, Index index) {
    return loop(LoopKind::Vector, "lane", count, [&](const Expr& lane) { return store(buffer, index(lane), zero(packed_)); }, b_.lanes);
  }

  Stmt pack_lhs(const Expr& first_tile, const Expr& tiles) {
    const Expr first = first_tile * b_.tile_m, rows = tiles * b_.tile_m;
    if (spec_.lhs_k_contiguous) {
      return loop(LoopKind::Serial, "row", rows, [&](const Expr& row) {
        const Expr m = m_here_ ? minimum(first + row, m_here_ - integer(1)) : clamp(first + row, m_, b_.tile_m);  // rows beyond the last repeat it: their sums are never read
        const Expr at = lhs_index(row, integer(0));
        if (spec_.lhs_run == 0) return copy_along_k(lhs_, at, first_k_, depth_, [&](const Expr& k) { return spec_.lhs(batch_, m, k); });
        return fill_along_k(lhs_, at, first_k_, depth_, [&](const Expr& from, const Expr& count) {
          return copy_runs(spec_.lhs_run, pack_k_ * each(), !spec_.pinned, from, count, element_lanes(), [&](const Expr& k, const Expr& major, const Expr& minor) {
            return store(lhs_, at * each() + k, spec_.lhs_in_run(batch_, m, major, minor));
          });
        });
      });
    }
    return loop(LoopKind::Serial, "k", depth_, [&](const Expr& k) {
      const bool full = all_full(m_, b_.tile_m) && !m_here_;
      const Expr end = m_here_ ? m_here_ : m_;
      if (spec_.lhs_run > 0) {
        const Expr there = full ? rows : rest(rows, first, end);
        const bool aligned = !spec_.pinned && (b_.m_tasks == 1 || b_.task_m % b_.block_m == 0);
        Stmt copy = copy_runs(spec_.lhs_run, b_.block_m * b_.tile_m, aligned, first, there, b_.lanes, [&](const Expr& row, const Expr& major, const Expr& minor) {
          return store(lhs_, lhs_index(row, k), packed(first_k_ + k, [&](const Expr& kk) { return spec_.lhs_in_run(batch_, kk, major, minor); }));
        });
        return full ? copy : block({copy, zeros(lhs_, rows - there, [&](const Expr& row) { return lhs_index(there + row, k); })});
      }
      return copy_padded(full ? rows : rest(rows, first, end), rows, full, [&](const Expr& row) { return lhs_index(row, k); },
                         [&](const Expr& row) { return packed(first_k_ + k, [&](const Expr& kk) { return spec_.lhs(batch_, first + row, kk); }); }, lhs_);
    });
  }

  Stmt pack_rhs() {
    const bool full = all_full(n_, b_.tile_n) && !n_here_;
    return loop(LoopKind::Serial, "k", depth_, [&](const Expr& k) {
      return loop(LoopKind::Serial, "panel", panels_, [&](const Expr& panel) {
        Expr n = (first_panel_ + panel) * b_.tile_n;
        if (spec_.rhs_run > 0) {
          const Expr count = up_to(b_.tile_n, n, n_, n_here_);
          Stmt copy = copy_runs(spec_.rhs_run, b_.tile_n, true, n, count, b_.lanes, [&](const Expr& column, const Expr& major, const Expr& minor) {
            return store(rhs_, rhs_index(panel, k, column), packed(first_k_ + k, [&](const Expr& kk) { return spec_.rhs_in_run(batch_, kk, major, minor); }));
          });
          if (full) return copy;
          return block({copy, zeros(rhs_, integer(b_.tile_n) - count, [&](const Expr& lane) { return rhs_index(panel, k, count + lane); })});
        }
        return copy_padded(up_to(b_.tile_n, n, n_, n_here_), integer(b_.tile_n), full, [&](const Expr& column) { return rhs_index(panel, k, column); },
                           [&](const Expr& column) { return packed(first_k_ + k, [&](const Expr& kk) { return spec_.rhs(batch_, n + column, kk); }); }, rhs_);
      });
    });
  }

  // Rows along k into a staging tile (the prologue runs on whole vectors), then the tile's columns, out of L1, into the panel.
  Stmt pack_rhs_transposed() {
    return loop(LoopKind::Serial, "panel", panels_, [&](const Expr& panel) {
      const int64_t stages = (pack_k_ + stage_k_ - 1) / stage_k_;
      return loop(LoopKind::Serial, "stage", integer(stages), [&](const Expr& stage) {
        Expr stage_k = stage * stage_k_;
        const bool full = b_.block_k % stage_k_ == 0 && all_full(k_, b_.block_k);
        Expr depth = full ? integer(stage_k_) : stages == 1 ? depth_ : rest(integer(stage_k_), stage_k, depth_);
        Stmt fill = loop(LoopKind::Serial, "column", integer(b_.tile_n), [&](const Expr& column) {
          Expr n = clamp((first_panel_ + panel) * b_.tile_n + column, n_, b_.tile_n);
          const Expr at = column * stage_row_;
          if (spec_.rhs_k_run == 0) return copy_along_k(stage_, at, first_k_ + stage_k, depth, [&](const Expr& k) { return spec_.rhs(batch_, n, k); });
          const bool aligned = b_.block_k % stage_k_ == 0 && !spec_.pinned;
          return fill_along_k(stage_, at, first_k_ + stage_k, depth, [&](const Expr& from, const Expr& count) {
            return copy_runs(spec_.rhs_k_run, stage_k_ * each(), aligned, from, count, element_lanes(), [&](const Expr& k, const Expr& major, const Expr& minor) {
              return store(stage_, at * each() + k, spec_.rhs_in_k_run(batch_, n, major, minor));
            });
          });
        });
        return block({fill, turn_stage(panel, stage_k, depth)});
      });
    });
  }

  // The staging tile, `depth` elements of k wide, turned into the panel: squares in registers, and the k that no square has one by one.
  Stmt turn_stage(const Expr& panel, const Expr& stage_k, const Expr& depth) {
    const Expr squares = floor_div(depth, b_.lanes);
    Stmt turned = loop(LoopKind::Serial, "square", squares, [&](const Expr& square) {
      const Expr k = square * b_.lanes;
      return loop(LoopKind::Unroll, "columns", integer(b_.tile_n / b_.lanes), [&](const Expr& columns) {
        return transpose(rhs_, rhs_index(panel, stage_k + k, columns * b_.lanes), b_.tile_n, stage_, (columns * (b_.lanes * stage_row_) + k) * each(), stage_row_ * each(), b_.lanes);
      });
    });
    if (all_full(k_, b_.lanes) && b_.block_k % b_.lanes == 0) return turned;
    const Expr done = squares * b_.lanes;
    return block({turned, loop(LoopKind::Serial, "k", depth - done, [&](const Expr& k) {
      return loop(LoopKind::Unroll, "column", integer(b_.tile_n), [&](const Expr& column) {
        return store(rhs_, rhs_index(panel, stage_k + done + k, column), packed_at(stage_, column * stage_row_ + done + k));
      });
    })});
  }

  Expr rhs_element(const Expr& panel, const Expr& k, const Expr& column) const {
    if (!b_.in_place) return nest_.load(rhs_, rhs_index(panel, k, column));
    Expr n = (first_panel_ + panel) * b_.tile_n + column;
    Expr element = packed(first_k_ + k, [&](const Expr& kk) { return spec_.rhs(batch_, n, kk); });
    if (n_here_) return guarded(element, apply(Op::Lt, {n, n_here_}));
    return all_full(n_, b_.tile_n) ? element : guarded(element, apply(Op::Lt, {n, n_}));
  }

  // min(index, total - 1), or the index itself where tiles divide the total.
  static Expr clamp(const Expr& index, const Expr& total, int tile) { return all_full(total, tile) ? index : minimum(index, total - integer(1)); }

  int64_t groups_of_steps() const { return amx_ ? b_.block_k / amx_->step() : pack_k_ / kSteps; }

  // What one group of the micro-kernel's steps asks for: its share of the operands' next blocks, and of the tile's own partial sums.
  std::vector<Stmt> look_ahead(const Expr& block_tile, const Expr& tile, const Expr& panel, const Expr& group, const Expr& base) {
    std::vector<Stmt> share;
    const int64_t groups = groups_of_steps();
    const auto ask = [&](const BlockAhead& next, const Expr& slot, int64_t slots) {
      for (Stmt& s : prefetch_share(nest_, next, slot, slots)) share.push_back(std::move(s));
    };
    if (many_blocks()) {
      const int64_t line = 64 / size_of(sum_), lines = b_.tile_m * b_.tile_n / line, each = (lines + groups - 1) / groups;
      for (int64_t i = 0; i < each; ++i) share.push_back(prefetch(partial_, base + (group * each + integer(i)) * line, 1));
    }
    const auto within = [](const Expr& row, const Expr& total) { return minimum(row, total - integer(1)); };
    if (part_ != Part::None) return share;  // the caches hold what a part reads
    if (finish_ahead_)
      for (Stmt& s : finish_ahead_->share(finish_row_, finish_column_, many_blocks() ? product(group, is_last_block()) : group, groups)) share.push_back(std::move(s));
    // Of an operand in runs, finding the line would cost as much as waiting for it.
    if (spec_.lhs_run == 0 && (more_tasks() || b_.k_blocks > 1 || m_blocks_ > 1))
      ask({b_.block_m * b_.tile_m, pack_k_ * each(), spec_.lhs_k_contiguous,
           [&](const Expr& row, const Expr& k) { return spec_.lhs(lhs_ahead_.batch, within(lhs_ahead_.row + row, m_), lhs_ahead_.k * each() + k); }},
          (panel * b_.block_m + tile) * groups + group, b_.room_n * b_.block_m * groups);
    if (spec_.rhs_run == 0 && spec_.rhs_k_run == 0 && (more_tasks() || b_.k_blocks > 1) && !b_.in_place)
      ask({b_.room_n * b_.tile_n, pack_k_ * each(), spec_.rhs_k_contiguous,
           [&](const Expr& row, const Expr& k) { return spec_.rhs(next_rhs_.batch, within(next_rhs_.row + row, n_), next_rhs_.k * each() + k); }},
          ((block_tile + tile) * b_.room_n + panel) * groups + group, b_.room_m * b_.room_n * groups);
    return share;
  }

  // What the micro-kernel multiplies: a tile of the m block (its rows from `first_row` on, `fma_rows` of them) and a panel; where its partial sums lie.
  struct Place { Expr block_tile, tile, panel, base, first_row; };

  // The lhs, packed or where it lies, at a row of the tile and k of the block.
  Expr lhs_element(const Place& at_tile, const Expr& row, const Expr& k) const {
    const Expr from = lhs_at(at_tile.block_tile, at_tile.tile, at_tile.first_row + row, k);
    return spec_.lhs_k_contiguous ? packed_at(lhs_, from) : nest_.load(lhs_, from);
  }

  // sums += lhs column * rhs row, at one k; lhs(row) is its element
  template <class Lhs>
  Stmt outer_product(const Place& at_tile, const Expr& k, Lhs lhs) {
    Stmt row_of_rhs = vectors([&](const Expr& column) { return store(columns_, column, rhs_element(at_tile.panel, k, column)); });
    Stmt products = loop(LoopKind::Unroll, "row", integer(b_.fma_rows), [&](const Expr& row) {
      int element = nest_.add_local("element", packed_);
      return block({let(element, lhs(row)), vectors([&](const Expr& column) {
        const Expr at = row * b_.tile_n + column, a = nest_.local(element), b = nest_.load(columns_, column), sum = nest_.load(sums_, at);
        return store(sums_, at, pairs_ ? dot(a, b, sum) : fma(a, b, sum));
      })});
    });
    return block({row_of_rhs, products});
  }

  /// Whether blocks of k before this one have left a sum.
  Expr has_partial(const Expr& tile, const Expr& panel) const {
    Expr has = apply(Op::Ne, {k_block_, integer(0)});
    if (before_.m) has = apply(Op::And, {has, apply(Op::Lt, {tile * b_.tile_m, before_.m})});
    if (before_.n) has = apply(Op::And, {has, apply(Op::Lt, {panel * b_.tile_n, before_.n})});
    return has;
  }

  bool many_blocks() const { return b_.k_blocks > 1; }
  // partial[at] = sum, or that added to what the k blocks before have left there.
  Stmt keep(const Place& p, const Expr& at, const Expr& sum) const {
    return store(partial_, at, many_blocks() ? apply(Op::Add, {nest_.load(partial_, at, has_partial(p.block_tile + p.tile, p.panel)), sum}) : sum);
  }

  // Products with an lhs where it lies: the block of k run by run, or the part of a run that it is.
  template <class LookAhead>
  Stmt products_in_place(const Place& p, LookAhead ahead) {
    const ContractionSpec::Place& place = spec_.lhs_place;
    const bool asks = groups_of_steps() > 0;
    const int64_t run = place.k_run / each(), tiles_of_run = place.row_run / b_.tile_m;
    const Expr tile = first_tile_ + p.block_tile + p.tile;
    // products of `count` steps of k, `most` at most, from step `start` of the block on: they are in run `major`, from its step `minor` on
    const auto piece = [&](const Expr& start, const Expr& major, const Expr& minor, const Expr& count, int64_t most) {
      const int first = nest_.add_local("lies", DType::I64);
      const Expr at = place.first(batch_, floor_div(tile, tiles_of_run), major) + mod(tile, tiles_of_run) * (b_.tile_m * place.row_stride) + minor * (each() * place.k_stride);
      const auto product = [&](const Expr& k) {
        return outer_product(p, start + k, [&](const Expr& row) { return packed_at_place(nest_.local(first) + row * place.row_stride + k * (each() * place.k_stride)); });
      };
      int64_t unroll = std::min<int64_t>(kSteps, most);
      for (int64_t u : {8, 10, 7, 6, 5, 4})
        if (most % u == 0) { unroll = u; break; }
      const Expr groups = floor_div(count, unroll);
      std::vector<Stmt> body{let(first, at)};
      body.push_back(loop(LoopKind::Serial, "steps", groups, [&](const Expr& group) {
        std::vector<Stmt> steps = asks ? ahead(floor_div(start + group * unroll, kSteps)) : std::vector<Stmt>();
        steps.push_back(loop(LoopKind::Unroll, "step", integer(unroll), [&](const Expr& i) { return product(group * unroll + i); }));
        return block(std::move(steps));
      }));
      if (!(count->kind == ExprKind::Int && count->int_value % unroll == 0))
        body.push_back(loop(LoopKind::Serial, "k", count - groups * unroll, [&](const Expr& k) { return product(groups * unroll + k); }));
      return block(std::move(body));
    };
    if (run >= spec_.k) return piece(integer(0), integer(0), first_k_, depth_, b_.block_k);
    if (b_.block_k % run == 0)
      return loop(LoopKind::Serial, "run", floor_div(depth_, run), [&](const Expr& i) { return piece(i * run, k_block_ * (b_.block_k / run) + i, integer(0), integer(run), run); });
    if (run % b_.block_k == 0) return piece(integer(0), floor_div(first_k_, run), mod(first_k_, run), depth_, b_.block_k);
    return loop(LoopKind::Serial, "run", integer((b_.block_k + run - 2) / run + 1), [&](const Expr& i) {
      const int major = nest_.add_local("run", DType::I64), begin = nest_.add_local("begin", DType::I64);
      const Expr start = nest_.local(major) * run, end = minimum(first_k_ + depth_, start + integer(run));
      return block({let(major, floor_div(first_k_, run) + i), let(begin, apply(Op::Max, {first_k_, start})),
                    piece(nest_.local(begin) - first_k_, nest_.local(major), nest_.local(begin) - start, apply(Op::Max, {integer(0), end - nest_.local(begin)}), std::min(run, b_.block_k))});
    });
  }
  Expr packed_at_place(const Expr& at) const {
    return pairs_ ? pair(nest_.load(lhs_, at), nest_.load(lhs_, at + integer(1))) : nest_.load(lhs_, at);
  }

  // The sums of `fma_rows` rows of a tile; ahead(group) is put in before each group of steps.
  template <class LookAhead>
  std::vector<Stmt> sums_in_registers(const Place& p, LookAhead ahead) {
    std::vector<Stmt> body;
    body.push_back(tile_elements([&](const Expr& at) { return store(sums_, at, zero(sum_)); }));
    if (spec_.k > 0 && b_.lhs_in_place) {
      body.push_back(products_in_place(p, ahead));
    } else if (spec_.k > 0) {
      const auto product = [&](const Expr& k) { return outer_product(p, k, [&](const Expr& row) { return lhs_element(p, row, k); }); };
      const Expr groups = floor_div(depth_, kSteps);
      if (pack_k_ >= kSteps)
        body.push_back(loop(LoopKind::Serial, "steps", groups, [&](const Expr& group) {
          std::vector<Stmt> steps = ahead(group);
          steps.push_back(loop(LoopKind::Unroll, "step", integer(kSteps), [&](const Expr& i) { return product(group * kSteps + i); }));
          return block(std::move(steps));
        }));
      if (!all_full(k_, kSteps) || b_.block_k % kSteps != 0 || k_here_)
        body.push_back(loop(LoopKind::Serial, "k", depth_ - groups * kSteps, [&](const Expr& k) { return product(groups * kSteps + k); }));
    }
    if (sums_in_block()) {
      const auto& [to, pitch, granule] = spec_.sums_block;
      body.push_back(loop(LoopKind::Unroll, "row", integer(b_.tile_m), [&, to = to, pitch = pitch](const Expr& row) {
        return vectors([&](const Expr& column) {
          const Expr at = ((p.block_tile + p.tile) * b_.tile_m + row) * pitch + p.panel * b_.tile_n + column;
          return store(to, at, nest_.load(sums_, row * b_.tile_n + column));
        });
      }));
      return body;
    }
    body.push_back(tile_elements([&](const Expr& at) { return keep(p, p.base + p.first_row * b_.tile_n + at, nest_.load(sums_, at)); }));
    return body;
  }

  template <class LookAhead>
  Stmt sums_on_tiles(const Place& p, LookAhead ahead) {
    const Stmt sums = amx_->multiply(p.tile, p.panel, depth_, ahead);
    if (!many_blocks()) return block({sums, amx_->store_sums(partial_, p.base)});
    return block({sums, amx_->store_sums(block_sums_, integer(0)), loop(LoopKind::Vector, "sum", integer(int64_t(b_.tile_m) * b_.tile_n), [&](const Expr& at) {
      return keep(p, p.base + at, nest_.load(block_sums_, at));
    }, 4 * b_.lanes)});
  }

  Expr is_last_block() const { return cast(apply(Op::Eq, {k_block_, k_blocks_here() - integer(1)}), DType::I64); }

  // After this tile comes the next of the m block, or the first one, of the next panel.
  void look_ahead_of_tile(std::vector<Stmt>& body, const Expr& block_tile, const Expr& tile, const Expr& panel) {
    if (!finish_ahead_) {
      const int row = nest_.add_var("row", spec_.m), column = nest_.add_var("column", spec_.n);
      // Stores wait in their queue for lines, and the next tile is multiplied meanwhile: with several blocks of k, for long enough.
      finish_ahead_.emplace(nest_, spec_.epilogue(batch_, nest_.var(row), nest_.var(column), real(0, sum_)), row, column, b_.tile_m, b_.tile_n, !many_blocks());
    }
    const Expr tiles = tiles_in_block(block_tile), first = (first_tile_ + block_tile) * b_.tile_m, here = (first_panel_ + panel) * b_.tile_n;
    finish_row_ = choose(body, "finish_row", tile, tiles, first, first + (tile + integer(1)) * b_.tile_m);
    finish_column_ = choose(body, "finish_column", tile, tiles, here + integer(b_.tile_n), here);
  }

  Stmt micro_kernel(const Expr& block_tile, const Expr& tile, const Expr& panel) {
    std::vector<Stmt> body;
    if (part_ == Part::None && (more_tasks() || b_.task_m > 1 || b_.task_n > 1)) look_ahead_of_tile(body, block_tile, tile, panel);
    Place p{block_tile, tile, panel, many_blocks() ? ((block_tile + tile) * b_.room_n + panel) * (int64_t(b_.tile_m) * b_.tile_n) : integer(0), integer(0)};
    const auto ahead = [&](const Expr& group) { return look_ahead(block_tile, tile, panel, group, p.base); };
    if (!amx_) {
      for (Stmt& s : sums_in_registers(p, ahead)) body.push_back(std::move(s));
    } else if (pairs_) {
      body.push_back(sums_on_tiles(p, ahead));
    } else {
      const int fits = nest_.add_local("fits", DType::I64);
      body.push_back(let(fits, cast(amx_->fits(tile, panel), DType::I64)));
      body.push_back(loop(LoopKind::Serial, "on_tiles", nest_.local(fits), [&](const Expr&) { return sums_on_tiles(p, ahead); }));
      body.push_back(loop(LoopKind::Serial, "as_packed", (integer(1) - nest_.local(fits)) * (b_.tile_m / b_.fma_rows), [&](const Expr& part) {
        p.first_row = part * b_.fma_rows;
        return block(sums_in_registers(p, [](const Expr&) { return std::vector<Stmt>(); }));
      }));
    }
    if (sums_in_block()) return block(std::move(body));

    Stmt finish = epilogue(first_tile_ + block_tile + tile, first_panel_ + panel, p.base);
    body.push_back(many_blocks() ? loop(LoopKind::Serial, "last", is_last_block(), [&](const Expr&) { return finish; }) : finish);
    return block(std::move(body));
  }

  Stmt epilogue(const Expr& tile, const Expr& panel, const Expr& base) {
    Expr m = tile * b_.tile_m, n = panel * b_.tile_n;
    return loop(LoopKind::Serial, "row", up_to(b_.tile_m, m, m_, m_here_), [&](const Expr& row) {
      const Expr columns = up_to(b_.tile_n, n, n_, n_here_);
      const int column = nest_.add_var("column", columns->kind == ExprKind::Int ? columns->int_value : -1);
      const Expr at = nest_.var(column);
      const Stmt store = spec_.epilogue(batch_, m + row, n + at, nest_.load(partial_, base + row * b_.tile_n + at));
      return for_loop(LoopKind::Vector, column, columns, store, lanes_for({store}, b_.lanes, b_.tile_n));
    });
  }

  LoopNest& nest_;
  const ContractionSpec spec_;
  const Part part_;
  const int64_t elements_of_k_;
  const bool pairs_;
  const DType element_, packed_, sum_;  // of the operands as read, as the micro-kernel takes them, and of the sums
  const Blocking b_;
  const int64_t pack_k_;               // room for a block of k in what is packed
  const int64_t stage_k_, stage_row_;  // the staging tile of a transposing pack: elements of k, and a row's pitch
  int64_t lhs_pitch_ = 0;              // of the packed lhs: elements from a row to the next, or from a k
  int lhs_ = -1, rhs_ = -1, stage_ = -1, partial_ = -1, sums_ = -1, columns_ = -1, block_sums_ = -1;
  std::optional<TileKernel> amx_;      // where b_.tiles
  std::vector<Stmt> sizes_;            // the names of those below, where they have names
  const Expr m_, n_, k_, block_k_, k_blocks_, m_tasks_, n_tasks_, task_m_, task_n_, tasks_, tiles_of_m_, panels_of_n_;
  // of the task and the k block being written
  Expr batch_, first_tile_, first_panel_, tiles_, panels_;  // the tiles and panels that exist in the task
  Expr k_block_, first_k_, depth_;
  int64_t m_blocks_ = 1;
  Extents before_;
  Expr m_here_, n_here_, k_here_;  // of a part: how much of m, n and k (in what spec_.k counts) there is; nullptr: all
  Ahead next_lhs_, next_rhs_;  // after this k block
  Ahead lhs_ahead_;            // after this m block
  std::optional<EpilogueAhead> finish_ahead_;
  Expr finish_row_, finish_column_;  // of the tile after this one
};

}  // namespace

ContractionShape shape_of(const ContractionSpec& s) {
  ContractionShape shape{s.batch, s.m, s.n, s.k, s.lhs_k_contiguous, s.rhs_k_contiguous, s.rhs_run, {}, s.f32_in_parts, s.pinned};
  if (s.lhs_place.buffer >= 0) shape.lhs_place = {s.lhs_place.row_run, s.lhs_place.row_stride, s.lhs_place.k_run};
  return shape;
}

namespace {

// What the generator counts: pairs of bf16 along k.
struct Counted {
  ContractionSpec spec;
  DType dtype;  // of the operands' elements
  bool pairs;
};
Counted counted(const ContractionSpec& spec, const Target& target) {
  // Asked with coordinates that exist, or are not read (k = 0).
  const DType dtype = spec.lhs(integer(0), integer(0), integer(0))->dtype;
  const bool pairs = dtype == DType::BF16 && target.has_bf16_dot;
  require(dtype == DType::F32 || dtype == DType::F64 || pairs, "contraction of " + std::string(name_of(dtype)) + " operands: cast them to f32");
  Counted c{spec, dtype, pairs};
  if (pairs) c.spec.k = (spec.k + 1) / 2;
  return c;
}

}  // namespace

void build_contraction(LoopNest& nest, const ContractionSpec& spec, const Target& target, int variant) {
  require(spec.batch >= 0 && spec.m >= 0 && spec.n >= 0 && spec.k >= 0, "contraction of negative size");
  nest.flops += 2 * spec.batch * spec.m * spec.n * spec.k;
  if (spec.batch == 0 || spec.m == 0 || spec.n == 0) {
    nest.parallel_extent = 1;
    nest.body = block({});
    return;
  }
  const Counted c = counted(spec, target);
  const Blocking blocking = spec.pinned ? pinned_blocking(shape_of(c.spec), c.dtype, target, *spec.pinned) : choose_blocking(shape_of(c.spec), c.dtype, target, variant);
  nest.parallel_extent = spec.batch * blocking.m_tasks * blocking.n_tasks;
  Builder builder(nest, c.spec, c.dtype, spec.k, blocking);
  const int task = nest.add_var("task", spec.pinned ? -1 : nest.parallel_extent);
  nest.body = for_loop(LoopKind::Parallel, task, integer(nest.parallel_extent), builder.task(nest.var(task)));
}

struct ContractionPart::Impl {
  /// Of a pinned blocking, a part has the tile alone: its sizes are numbers.
  static ContractionSpec with_numbers(ContractionSpec spec) {
    spec.pinned = nullptr;
    return spec;
  }
  Impl(LoopNest& nest, const ContractionSpec& spec, int64_t k_block, const Target& target)
      : counts(counted(spec, target)), blocking(block_part(shape_of(counts.spec), counts.dtype, target, counts.pairs ? k_block / 2 : k_block)),
        builder(nest, with_numbers(counts.spec), counts.dtype, spec.k, blocking, k_block ? Part::Depth : Part::Rows) {
    require(!counts.pairs || k_block % 2 == 0, "a part's block of k splits a pair");
  }
  const Counted counts;
  const Blocking blocking;
  Builder builder;
};
ContractionPart::ContractionPart(LoopNest& nest, const ContractionSpec& spec, int64_t k_block, const Target& target)
    : impl_(std::make_unique<Impl>(nest, spec, k_block, target)) {}
ContractionPart::~ContractionPart() = default;
ContractionPart::ContractionPart(ContractionPart&&) noexcept = default;
Stmt ContractionPart::pack_rhs(const Expr& batch) { return impl_->builder.pack_whole_rhs(batch); }
Stmt ContractionPart::multiply(const Expr& batch, const Extents& here) { return impl_->builder.multiply_block(batch, here); }
Stmt ContractionPart::add_k_block(const Expr& batch, const Expr& k_block, const Extents& here, const Extents& before) {
  return impl_->builder.add_k_block(batch, k_block, here, before);
}
int64_t ContractionPart::block_k() const { return impl_->blocking.block_k * (impl_->counts.pairs ? 2 : 1); }

}  // namespace trainc::lower
