// A contraction's loops while they are written: what the files that write them share. Inside lower only.
//
// One class, because packing, multiplying and looking ahead name the same buffers, sizes and coordinates; a file an
// idea: contraction.cpp (the loops around; their picture stands there), contraction_pack.cpp (operands into panels),
// contraction_kernel.cpp (the micro-kernel and what follows it), contraction_ahead.cpp (what is asked for before it is
// needed).
#pragma once
#include <algorithm>
#include <optional>
#include <vector>

#include "cost/blocking.h"
#include "lower/contraction.h"
#include "lower/contraction_ahead.h"
#include "lower/contraction_loops.h"
#include "lower/contraction_tiles.h"
#include "support/division.h"

namespace trainc::lower {

using namespace loop;  // what is written here consists of it

enum class Part : uint8_t {
  None,
  Rows,
  Depth
};  // a nest of its own; a part whose rows, or whose k, come block by block

class ContractionBuilder {
 public:
  // `dtype`: of the operands' elements; `elements_of_k`: of the sum, where spec.k counts pairs.
  // `part`: whether the contraction is a piece of a larger nest. Then the rhs is packed once for all blocks of k
  // (Rows), or block by block (Depth).
  ContractionBuilder(LoopNest& nest, const ContractionSpec& spec, DType dtype, int64_t elements_of_k,
                     const Blocking& blocking, Part part = Part::None);
  Stmt task(const Expr& task);
  // --- as part of another nest: everything is one task
  Stmt pack_whole_rhs(const Expr& batch);
  Stmt multiply_block(const Expr& batch, const Extents& here);
  Stmt add_k_block(const Expr& batch, const Expr& k_block, const Extents& here, const Extents& before);

 private:
  // Where an operand's next block starts.
  struct Ahead { Expr batch, row, k; };
  // What the micro-kernel multiplies: a tile of the m block and a panel; where its partial sums lie.
  struct TilePosition { Expr block_tile, tile, panel, base; };

  // --- what all of them ask
  static bool is_number(const Expr& e) { return e->kind == ExprKind::Int; }
  static Expr product(const Expr& a, const Expr& b) {
    return is_number(b) ? a * b->int_value : is_number(a) ? b * a->int_value : apply(Op::Mul, {a, b});
  }
  static Expr quotient(const Expr& a, const Expr& b) {
    return is_number(b) ? floor_div(a, b->int_value) : apply(Op::FloorDiv, {a, b});
  }
  static Expr remainder(const Expr& a, const Expr& b) {
    return is_number(b) ? mod(a, b->int_value) : apply(Op::Mod, {a, b});
  }
  // Whether all parts of `part` are known to be full.
  static bool all_full(const Expr& total, int64_t part) { return is_number(total) && total->int_value % part == 0; }
  int64_t each() const { return pairs_ ? 2 : 1; }            // elements of the operands in one of k
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
    return minimum(block, (here ? here : total) - start);
  }
  static Expr up_to(int64_t block, const Expr& start, const Expr& total, const Expr& here = nullptr) {
    return up_to(integer(block), start, total, here);
  }
  // What a part of `block` starting at `start` has left of a count that ends at `end`: none where the end comes first.
  static Expr rest(const Expr& block, const Expr& start, const Expr& end) {
    return apply(Op::Max, {integer(0), minimum(block, end - start)});
  }
  template <class Body>
  Stmt loop(LoopKind kind, const char* name, const Expr& extent, Body body, int lanes = 1) {
    return loop_over(nest_, kind, name, extent, body, lanes);
  }
  // The vectors of one row of a register tile; body gets the column within the tile.
  template <class Body>
  Stmt vectors(Body body) {
    return loop(LoopKind::Unroll, "vector", integer(b_.tile_n / b_.lanes), [&](const Expr& vector) {
      return loop(
          LoopKind::Vector, "lane", integer(b_.lanes), [&](const Expr& lane) { return body(vector * b_.lanes + lane); },
          b_.lanes);
    });
  }
  template <class Body>
  Stmt tile_elements(Body body) {
    return loop(LoopKind::Unroll, "row", integer(b_.tile_m), [&](const Expr& row) {
      return vectors([&](const Expr& column) { return body(row * b_.tile_n + column); });
    });
  }
  // On AMX tiles, f32 is split into parts, and rows along vectors are transposed: a tile of rows is packed at a time,
  // placed as the tiles that are loaded, and overwritten by the next. So are panels of f32: a whole block would not
  // leave L2 room for the parts.
  bool in_parts() const { return b_.tiles && !pairs_; }
  int64_t panels_together() const { return in_parts() && b_.block_k <= cost::kBlockOfParts ? cost::kPanelsOfParts : 1; }
  bool places_rows() const { return b_.tiles && !(pairs_ && spec_.lhs_k_contiguous); }
  int64_t packed_rows() const { return (places_rows() ? 1 : b_.block_m) * b_.tile_m; }
  // The lhs is packed as it lies in memory, k or the rows along vectors: the micro-kernel broadcasts single elements,
  // so both serve it alike.
  Expr lhs_index(const Expr& row, const Expr& k) const {
    return spec_.lhs_k_contiguous ? row * lhs_pitch_ + k : k * lhs_pitch_ + row;
  }
  int64_t rhs_block() const { return (in_parts() ? 1 : b_.room_n) * pack_k_ * b_.tile_n; }  // elements
  // Of a part all blocks of the rhs are packed: where this one begins.
  Expr rhs_begin() const { return part_ == Part::Rows ? k_block_ * rhs_block() : integer(0); }
  Expr rhs_index(const Expr& panel, const Expr& k, const Expr& column) const {
    return rhs_begin() + (in_parts() ? k : panel * pack_k_ + k) * b_.tile_n + column;
  }
  // min(index, total - 1), or the index itself where tiles divide the total.
  static Expr clamp(const Expr& index, const Expr& total, int tile) {
    return all_full(total, tile) ? index : minimum(index, total - integer(1));
  }
  bool many_blocks() const { return b_.k_blocks > 1; }
  bool lists_rows() const { return spec_.listed.order >= 0 && !spec_.listed.terms; }
  bool lists_terms() const { return spec_.listed.order >= 0 && spec_.listed.terms; }
  Expr listed(const Expr& place) const { return nest_.load(spec_.listed.order, place); }
  Expr row_of(const Expr& m) const { return lists_rows() ? listed(m) : m; }
  Expr term_of(const Expr& k) const { return lists_terms() ? listed(k) : k; }
  // body(row), with a name for the row where it is listed
  template <class Body>
  Stmt with_row(const Expr& m, Body body) {
    if (!lists_rows()) return body(m);
    const int row = nest_.add_local("row", DType::I64);
    const Expr at = nest_.local(row);
    return block({let(row, listed(m)), body(at)});
  }
  Expr read_rhs(const Expr& b, const Expr& n, const Expr& k) const { return spec_.rhs(b, n, term_of(k)); }

  // --- contraction.cpp
  // A number that the sizes decide. With a fixed blocking, where the nest must be the same for all sizes but for
  // numbers, it has a name, through which nothing is simplified.
  Expr size(const char* name, int64_t value);
  /// Has the task go as far as its share of what is listed. `m_task`: its number down.
  void begin_listed(const Expr& m_task);
  /// `body` gives the value a name.
  Expr named(std::vector<Stmt>& body, const char* name, const Expr& value);
  /// Zeros in the task's share of the rows that are passed over.
  Stmt zeros_in_hidden_rows();
  void begin_part(const Expr& batch, const Extents& here);
  Expr k_blocks_here() const { return k_here_ ? floor_div(k_here_ + integer(b_.block_k - 1), b_.block_k) : k_blocks_; }
  void at_k_block(const Expr& k_block);
  template <class Body>
  Stmt over_k(Body body);
  Stmt multiply_rows();
  // Packs one block of the lhs and runs the micro-kernel over its tiles.
  Stmt multiply(const Expr& m_block);
  int scratch(const char* name, DType dtype, int64_t numel) {
    return nest_.add_buffer({name, dtype, numel, Space::Scratch, true});
  }
  int passing(const char* name, DType dtype, int64_t numel, Space space = Space::Scratch) {
    return own_buffer(nest_, name, dtype, numel, space, part_ != Part::None);
  }
  bool lhs_in_block() const;
  bool sums_in_block() const;
  // Tiles of an m block: all, unless the last block of a task, or the last task, is short.
  Expr tiles_in_block(const Expr& block_tile) const;

  // --- contraction_pack.cpp
  Stmt pack_rhs_block();
  Stmt pack_lhs_block(const Expr& first_tile, const Expr& tiles);
  // Fills a buffer along k, from packed element `at` on, with `depth` of an operand from `first` on: copy(first
  // element, how many) and, where half a pair is left, a zero.
  template <class Copy>
  Stmt fill_along_k(int buffer, const Expr& at, const Expr& first, const Expr& depth, Copy copy);
  template <class Read>
  Stmt copy_along_k(int buffer, const Expr& at, const Expr& first, const Expr& depth, Read read);
  // A copy of `count` neighbours from `first` on, at most `most`, in pieces that end where a run does, by vectors of
  // `lanes`. `aligned`: `first` is a multiple of `most`.
  // copy(offset from first, run, place in the run)
  template <class Copy>
  Stmt copy_runs(int64_t run, int64_t most, bool aligned, const Expr& first, const Expr& count, int lanes, Copy copy);
  // Writes `count` of `width` elements with `value`, the others with 0: what is beyond the operand must not be garbage
  // (slow denormals).
  template <class Index, class Value>
  Stmt copy_padded(const Expr& count, const Expr& width, bool full, Index index, Value value, int buffer);
  template <class Index>
  Stmt zeros(int buffer, const Expr& count, Index index);
  Stmt pack_lhs(const Expr& first_tile, const Expr& tiles);
  Stmt pack_panel(const Expr& panel);
  Stmt pack_row_of_panel(const Expr& panel, const Expr& k);
  // Rows along k into a staging tile (the prologue runs on whole vectors), then the tile's columns, out of L1, into the
  // panel.
  Stmt pack_panel_transposed(const Expr& panel);
  // The staging tile, `depth` elements of k wide, transposed into the panel: squares in registers, and the k that no
  // square has one by one.
  Stmt turn_stage(const Expr& panel, const Expr& stage_k, const Expr& depth);

  // --- contraction_kernel.cpp
  // The lhs at a tile's row and k, of the m block and the block of k that are written.
  Expr lhs_at(const Expr& block_tile, const Expr& tile, const Expr& row, const Expr& k) const;
  Expr rhs_element(const Expr& panel, const Expr& k, const Expr& column) const;
  // The lhs, packed or where it lies, at a row of the tile and k of the block.
  Expr lhs_element(const TilePosition& at_tile, const Expr& row, const Expr& k) const;
  // sums += lhs column * rhs row, at one k; lhs(row) is its element
  template <class Lhs>
  Stmt outer_product(const TilePosition& at_tile, const Expr& k, Lhs lhs);
  // Of what the micro-kernel for tiles multiplies.
  OperandsBegin operands_begin() const {
    return {lhs_in_block() && part_ == Part::Rows ? first_k_ : integer(0), rhs_begin()};
  }
  /// Whether blocks of k before this one have left a sum.
  Expr has_partial(const Expr& tile, const Expr& panel) const;
  // partial[at] = sum, or that added to what the k blocks before have left there.
  Stmt keep(const TilePosition& p, const Expr& at, const Expr& sum) const;
  // Products with an lhs where it lies: the block of k run by run, or the part of a run that it is.
  template <class LookAhead>
  Stmt products_of_unpacked(const TilePosition& p, LookAhead ahead);
  Expr packed_from_memory(const Expr& at) const {
    return pairs_ ? pair(nest_.load(lhs_, at), nest_.load(lhs_, at + integer(1))) : nest_.load(lhs_, at);
  }
  // `groups` times group(number), with asked(number of the group that follows) where it is time to ask.
  template <class Asked, class Group>
  Stmt groups_with_asking(const Expr& groups, Asked asked, Group group);
  // The sums of a tile; ahead(asking) is put in where it is time to ask.
  template <class LookAhead>
  std::vector<Stmt> sums_in_registers(const TilePosition& p, LookAhead ahead);
  template <class LookAhead>
  Stmt sums_on_tiles(const TilePosition& p, LookAhead ahead);
  Expr is_last_block() const { return cast(apply(Op::Eq, {k_block_, k_blocks_here() - integer(1)}), DType::I64); }
  Stmt micro_kernel(const Expr& block_tile, const Expr& tile, const Expr& panel);
  Stmt epilogue(const Expr& tile, const Expr& panel, const Expr& base);

  // --- contraction_ahead.cpp
  bool more_tasks() const { return spec_.fixed_blocking || nest_.parallel_extent > 1; }
  // select(index is the last, a, b) under a name, where it is not one of them for all iterations.
  Expr choose(std::vector<Stmt>& body, const char* name, const Expr& index, const Expr& count, const Expr& at_last,
              const Expr& before);
  // After this k block comes the next, or the first of the next task (which a thread takes next more often than not).
  void look_ahead_of_k_block(std::vector<Stmt>& body, const Expr& task);
  // After this m block comes the next, or the first of the next k block.
  void look_ahead_of_m_block(std::vector<Stmt>& body, const Expr& m_block);
  int64_t groups_of_steps() const { return pack_k_ / (amx_ ? amx_->step() : cost::kUnrolledSteps); }
  int64_t askings() const { return ceil_div(groups_of_steps(), b_.groups_of_asking); }
  // What one of a tile's askings asks for: its share of the operands' next blocks, and of the tile's own partial sums.
  std::vector<Stmt> look_ahead(const Expr& block_tile, const Expr& tile, const Expr& panel, const Expr& asking,
                               const Expr& base);
  // After this tile comes the next of the m block, or the first one, of the next panel.
  void look_ahead_of_tile(std::vector<Stmt>& body, const Expr& block_tile, const Expr& tile, const Expr& panel);

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
  std::optional<TileKernel> amx_;  // where b_.tiles
  std::vector<Stmt> sizes_;        // the names of those below, where they have names
  const Expr m_, n_, k_, block_k_, k_blocks_, m_tasks_, n_tasks_, task_m_, task_n_, tasks_, tiles_of_m_, panels_of_n_;
  // of the task and the k block being written
  Expr batch_, first_tile_, first_panel_, tiles_, panels_;  // the tiles and panels that exist in the task
  Expr k_block_, first_k_, depth_;
  int64_t m_blocks_ = 1;
  Extents before_;
  Expr m_task_, tiles_of_task_;  // where rows are listed: the task's number down, and how many tiles it may have
  Expr m_here_, n_here_,
      k_here_;  // of a part, or what is listed: how much of m, n and k (in what spec_.k counts) there is; nullptr: all
  Ahead next_lhs_, next_rhs_;  // after this k block
  Ahead lhs_ahead_;            // after this m block
  std::optional<EpilogueAhead> finish_ahead_;
  Expr finish_row_, finish_column_;  // of the tile after this one
};

}  // namespace trainc::lower
