#include "lower/contraction.h"

#include "lower/contraction_builder.h"

namespace trainc::lower {

// The nest, with tiles of tile_m x tile_n sums in registers:
//
//   parallel task (batch, m, n)
//     for k block
//       pack the rhs: panels of [block_k][tile_n]
//       for m block
//         pack the lhs
//         for rhs panel, for lhs tile (f32 in parts: for two panels, for lhs tile, for each of the two)
//           sums = 0; for k: sums += lhs column * rhs row           <- all the time goes here
//           partial = sums (+ partial, from the second k block on)
//           after the last k block: epilogue over the tile's rows and columns that exist
//
// `partial` holds one tile where k is one block, else all tiles of the task. The epilogue reads it back, out of L1,
// rather than from registers: its code then exists once, not tile_m * vectors times, and any edge is a shorter loop.
// The IR has no `if`: a loop of 0 or 1 iterations is one.
//
// Operands come from far: what is packed next (the next m block, k block or task) is asked for by the micro-kernel, a
// few cache lines every few steps of k.
//
// bf16 operands are packed as pairs along k, and the dot product of two pairs takes the place of the FMA. All that is
// said of k then paired pairs (`spec.k` too), but for the coordinates that the operands are read at. Along k a pair is
// two neighbours of a bf16 buffer, else an i32.
//
// On AMX (`b_.tiles`) the packed blocks are made into tiles, and contraction_tiles.h has the micro-kernel: the sums
// come to `partial` from there. f32 blocks whose numbers it cannot take are multiplied by FMAs as they are packed.

ContractionBuilder::ContractionBuilder(LoopNest& nest, const ContractionSpec& spec, DType dtype, int64_t elements_of_k,
                                       const Blocking& blocking, Part part)
    : nest_(nest),
      spec_(spec),
      part_(part),
      elements_of_k_(elements_of_k),
      pairs_(dtype == DType::BF16),
      element_(dtype),
      packed_(pairs_ ? DType::I32 : dtype),
      sum_(pairs_ ? DType::F32 : dtype),
      b_(blocking),
      pack_k_(!spec.fixed_blocking ? (b_.tiles ? round_up(b_.block_k, kTileSide) : b_.block_k)
              : b_.tiles           ? cost::kBlockOnTiles
                                   : cost::kBlock),
      stage_k_(std::min(cost::kStagedSteps, pack_k_)),
      stage_row_(stage_k_ + b_.lanes),
      m_(size("m", spec.m)),
      n_(size("n", spec.n)),
      k_(size("k", spec.k)),
      block_k_(size("block_k", b_.block_k)),
      k_blocks_(size("k_blocks", b_.k_blocks)),
      m_tasks_(size("m_tasks", b_.m_tasks)),
      n_tasks_(size("n_tasks", b_.n_tasks)),
      task_m_(size("task_m", b_.task_m)),
      task_n_(size("task_n", b_.task_n)),
      tasks_(size("tasks", spec.batch * b_.m_tasks * b_.n_tasks)),
      tiles_of_m_(size("m_tiles", (spec.m + b_.tile_m - 1) / b_.tile_m)),
      panels_of_n_(size("n_panels", (spec.n + b_.tile_n - 1) / b_.tile_n)) {
  // One vector more than the data: rows a power of two long would fall on the same cache sets.
  const int64_t rows = packed_rows();
  lhs_pitch_ =
      (spec.lhs_k_contiguous ? pack_k_ : (rows + b_.lanes - 1) / b_.lanes * b_.lanes) + (places_rows() ? 0 : b_.lanes);
  // A part is done with these at the end of a call, and leaves them to the next one.
  if (b_.lhs_unpacked) lhs_ = spec.lhs_unpacked.buffer;
  else if (lhs_in_block()) lhs_ = spec.lhs_block.buffer;
  else if (spec.lhs_k_contiguous) lhs_ = passing("lhs_pack", element_, rows * lhs_pitch_ * each());
  else lhs_ = passing("lhs_pack", packed_, pack_k_ * lhs_pitch_);
  if (!b_.rhs_unpacked)
    rhs_ = part_ == Part::Rows ? scratch("rhs_whole", packed_, b_.k_blocks * rhs_block())
                               : passing("rhs_pack", packed_, rhs_block());
  if (spec.rhs_k_contiguous) stage_ = passing("rhs_stage", element_, b_.tile_n * stage_row_ * each());
  const int64_t partials = (b_.k_blocks == 1 ? 1 : b_.room_m * b_.room_n) * b_.tile_m * b_.tile_n;
  partial_ = part_ == Part::Depth ? scratch("sums_over_blocks", sum_, partials) : passing("partial", sum_, partials);
  if (sums_in_block()) {
    Buffer& to = nest_.buffers[static_cast<size_t>(spec.sums_block.buffer)];
    to.numel = std::max(to.numel, b_.task_m * b_.tile_m * spec.sums_block.pitch);
  }
  if (b_.tiles) {
    const bool any_k = part_ != Part::None || spec.fixed_blocking || lists_terms();
    amx_.emplace(nest_, b_,
                 PackedOperands{lhs_, rhs_, spec.lhs_k_contiguous, places_rows(),
                                lhs_in_block() ? spec.lhs_block.pitch / each() : lhs_pitch_, part_ != Part::None},
                 !pairs_, pack_k_, any_k ? -1 : spec.k);
    if (many_blocks() && !pairs_) block_sums_ = scratch("block_sums", sum_, int64_t(b_.tile_m) * b_.tile_n);
    if (pairs_) return;
  }
  sums_ = passing("sums", sum_, int64_t(b_.tile_m) * b_.tile_n, Space::Register);
  columns_ = passing("columns", packed_, b_.tile_n, Space::Register);
}

Stmt ContractionBuilder::task(const Expr& task) {
  batch_ = quotient(task, product(m_tasks_, n_tasks_));
  const Expr m_task = remainder(quotient(task, n_tasks_), m_tasks_);
  first_tile_ = product(m_task, task_m_);
  first_panel_ = product(remainder(task, n_tasks_), task_n_);
  tiles_ = up_to(task_m_, first_tile_, tiles_of_m_);
  tiles_of_task_ = task_m_;
  if (spec_.listed.order >= 0) begin_listed(m_task);
  panels_ = up_to(task_n_, first_panel_, panels_of_n_);
  Stmt blocks = over_k([&] {
    std::vector<Stmt> body;
    look_ahead_of_k_block(body, task);
    body.push_back(pack_rhs_block());
    body.push_back(multiply_rows());
    return block(std::move(body));
  });
  if (sizes_.empty()) return blocks;
  sizes_.push_back(std::move(blocks));
  if (lists_rows()) sizes_.push_back(zeros_in_hidden_rows());
  return block(std::move(sizes_));
}

Expr ContractionBuilder::named(std::vector<Stmt>& body, const char* name, const Expr& value) {
  const int local = nest_.add_local(name, DType::I64);
  body.push_back(let(local, value));
  return nest_.local(local);
}

void ContractionBuilder::begin_listed(const Expr& m_task) {
  require(part_ == Part::None && spec_.batch == 1, "rows are listed of one nest");
  const Expr count = named(sizes_, "count", nest_.load(spec_.listed.count, integer(0)));
  if (spec_.listed.terms) {
    k_here_ = pairs_ ? named(sizes_, "pairs", floor_div(count + integer(1), 2)) : count;
    return;
  }
  // Tasks share the rows that there are equally.
  m_here_ = count;
  const Expr tiles = named(sizes_, "tiles_shown", floor_div(count + integer(b_.tile_m - 1), b_.tile_m));
  m_task_ = named(sizes_, "m_task", m_task);
  tiles_of_task_ = named(sizes_, "tiles_of_task", quotient(tiles + m_tasks_ - integer(1), m_tasks_));
  first_tile_ = named(sizes_, "first_tile", product(m_task_, tiles_of_task_));
  tiles_ = named(sizes_, "tiles_here", rest(tiles_of_task_, first_tile_, tiles));
}

Stmt ContractionBuilder::zeros_in_hidden_rows() {
  std::vector<Stmt> body;
  const Expr hidden = named(body, "hidden", m_ - m_here_);
  const Expr share = named(body, "share", quotient(hidden + m_tasks_ - integer(1), m_tasks_));
  const Expr before = named(body, "before", product(m_task_, share));
  const Expr column = first_panel_ * b_.tile_n;
  const Expr columns = named(body, "columns", minimum(panels_ * b_.tile_n, n_ - column));
  body.push_back(loop(LoopKind::Serial, "row", rest(share, before, hidden), [&](const Expr& row) {
    return with_row(m_here_ + before + row, [&](const Expr& m) {
      return loop(
          LoopKind::Vector, "column", columns, [&](const Expr& n) { return spec_.listed.zeros(m, column + n); },
          b_.lanes);
    });
  }));
  return block(std::move(body));
}

Stmt ContractionBuilder::pack_whole_rhs(const Expr& batch) {
  begin_part(batch, {});
  return over_k([&] { return pack_rhs_block(); });
}

Stmt ContractionBuilder::multiply_block(const Expr& batch, const Extents& here) {
  begin_part(batch, here);
  return over_k([&] { return multiply_rows(); });
}

Stmt ContractionBuilder::add_k_block(const Expr& batch, const Expr& k_block, const Extents& here,
                                     const Extents& before) {
  begin_part(batch, here);
  before_ = before;
  at_k_block(k_block);
  return block({pack_rhs_block(), multiply_rows()});
}

Expr ContractionBuilder::size(const char* name, int64_t value) {
  return spec_.fixed_blocking ? named(sizes_, name, integer(value)) : integer(value);
}

void ContractionBuilder::begin_part(const Expr& batch, const Extents& here) {
  batch_ = batch;
  first_tile_ = first_panel_ = integer(0);
  m_here_ = here.m, n_here_ = here.n;
  k_here_ = here.k && pairs_ ? floor_div(here.k + integer(1), 2) : here.k;
  tiles_ = m_here_ ? floor_div(m_here_ + integer(b_.tile_m - 1), b_.tile_m) : tiles_of_m_;
  panels_ = n_here_ ? floor_div(n_here_ + integer(b_.tile_n - 1), b_.tile_n) : panels_of_n_;
}

void ContractionBuilder::at_k_block(const Expr& k_block) {
  k_block_ = k_block;
  first_k_ = product(k_block, block_k_);
  depth_ = up_to(block_k_, first_k_, k_, k_here_);
}

template <class Body>
Stmt ContractionBuilder::over_k(Body body) {
  const auto at = [&](const Expr& k_block) {
    at_k_block(k_block);
    return body();
  };
  return b_.k_blocks == 1 ? at(integer(0)) : loop(LoopKind::Serial, "k_block", k_blocks_here(), at);
}

Stmt ContractionBuilder::multiply_rows() {
  m_blocks_ = (b_.room_m + b_.block_m - 1) / b_.block_m;
  return loop(LoopKind::Serial, "m_block", integer(m_blocks_), [&](const Expr& m_block) { return multiply(m_block); });
}

Stmt ContractionBuilder::multiply(const Expr& m_block) {
  const Expr block_tile = m_block * b_.block_m;  // within the task
  const Expr tiles = tiles_in_block(block_tile);
  std::vector<Stmt> body;
  if (part_ == Part::None) look_ahead_of_m_block(body, m_block);
  body.push_back(pack_lhs_block(first_tile_ + block_tile, tiles));
  const int64_t together = panels_together();
  if (together == 1)
    body.push_back(loop(LoopKind::Serial, "panel", panels_, [&](const Expr& panel) {
      return loop(LoopKind::Serial, "tile", tiles,
                  [&](const Expr& tile) { return micro_kernel(block_tile, tile, panel); });
    }));
  else
    body.push_back(
        loop(LoopKind::Serial, "panels", floor_div(panels_ + integer(together - 1), together), [&](const Expr& panels) {
          return loop(LoopKind::Serial, "tile", tiles, [&](const Expr& tile) {
            const Expr first = panels * together;
            return loop(LoopKind::Serial, "panel",
                        all_full(panels_, together) ? integer(together) : minimum(integer(together), panels_ - first),
                        [&](const Expr& panel) { return micro_kernel(block_tile, tile, first + panel); });
          });
        }));
  return block(std::move(body));
}

bool ContractionBuilder::lhs_in_block() const {
  return spec_.lhs_block.buffer >= 0 && spec_.lhs_block.granule % b_.tile_m == 0 &&
         (!pairs_ || (spec_.lhs_k_contiguous && !odd()));
}

bool ContractionBuilder::sums_in_block() const {
  return spec_.sums_block.buffer >= 0 && b_.k_blocks == 1 && sum_ == DType::F32 &&
         (spec_.n + b_.tile_n - 1) / b_.tile_n * b_.tile_n <= spec_.sums_block.pitch;
}

Expr ContractionBuilder::tiles_in_block(const Expr& block_tile) const {
  if (m_blocks_ == 1) return tiles_;
  if (!m_here_ && b_.task_m % b_.block_m == 0 && all_full(tiles_of_m_, b_.task_m)) return integer(b_.block_m);
  return rest(integer(b_.block_m), block_tile, tiles_);
}

ContractionShape shape_of(const ContractionSpec& s) {
  ContractionShape shape{s.batch,
                         s.m,
                         s.n,
                         s.k,
                         s.lhs_k_contiguous,
                         s.rhs_k_contiguous,
                         s.rhs_run,
                         s.rhs_in_panels,
                         {},
                         s.f32_in_parts,
                         s.fixed_blocking};
  if (s.lhs_unpacked.buffer >= 0)
    shape.lhs_unpacked = {s.lhs_unpacked.row_run, s.lhs_unpacked.row_stride, s.lhs_unpacked.k_run};
  return shape;
}

namespace {

// The spec as its loops are written: where bf16 is multiplied in pairs, k counts pairs.
struct PairedSpec {
  ContractionSpec spec;
  DType dtype;  // of the operands' elements
  bool pairs;
};
PairedSpec in_pairs(const ContractionSpec& spec, const Target& target) {
  // Asked with coordinates that exist, or are not read (k = 0).
  const DType dtype = spec.lhs(integer(0), integer(0), integer(0))->dtype;
  const bool pairs = dtype == DType::BF16 && target.has_bf16_dot;
  require(dtype == DType::F32 || dtype == DType::F64 || pairs,
          "contraction of " + std::string(name_of(dtype)) + " operands: cast them to f32");
  PairedSpec c{spec, dtype, pairs};
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
  const PairedSpec c = in_pairs(spec, target);
  const Blocking blocking = spec.fixed_blocking
                                ? schedule::fixed_blocking(shape_of(c.spec), c.dtype, target, *spec.fixed_blocking)
                                : choose_blocking(shape_of(c.spec), c.dtype, target, variant);
  nest.parallel_extent = spec.batch * blocking.m_tasks * blocking.n_tasks;
  ContractionBuilder builder(nest, c.spec, c.dtype, spec.k, blocking);
  const int task = nest.add_var("task", spec.fixed_blocking ? -1 : nest.parallel_extent);
  nest.body = for_loop(LoopKind::Parallel, task, integer(nest.parallel_extent), builder.task(nest.var(task)));
}

struct ContractionPart::Impl {
  /// Of a fixed blocking, a part has the tile alone: its sizes are numbers.
  static ContractionSpec with_numbers(ContractionSpec spec) {
    spec.fixed_blocking = nullptr;
    return spec;
  }
  Impl(LoopNest& nest, const ContractionSpec& spec, int64_t k_block, const Target& target)
      : paired(in_pairs(spec, target)),
        blocking(block_part(shape_of(paired.spec), paired.dtype, target, paired.pairs ? k_block / 2 : k_block)),
        builder(nest, with_numbers(paired.spec), paired.dtype, spec.k, blocking, k_block ? Part::Depth : Part::Rows) {
    require(!paired.pairs || k_block % 2 == 0, "a part's block of k splits a pair");
  }
  const PairedSpec paired;
  const Blocking blocking;
  ContractionBuilder builder;
};
ContractionPart::ContractionPart(LoopNest& nest, const ContractionSpec& spec, int64_t k_block, const Target& target)
    : impl_(std::make_unique<Impl>(nest, spec, k_block, target)) {}
ContractionPart::~ContractionPart() = default;
ContractionPart::ContractionPart(ContractionPart&&) noexcept = default;
Stmt ContractionPart::pack_rhs(const Expr& batch) { return impl_->builder.pack_whole_rhs(batch); }
Stmt ContractionPart::multiply(const Expr& batch, const Extents& here) {
  return impl_->builder.multiply_block(batch, here);
}
Stmt ContractionPart::add_k_block(const Expr& batch, const Expr& k_block, const Extents& here, const Extents& before) {
  return impl_->builder.add_k_block(batch, k_block, here, before);
}
int64_t ContractionPart::block_k() const { return impl_->blocking.block_k * (impl_->paired.pairs ? 2 : 1); }

}  // namespace trainc::lower
