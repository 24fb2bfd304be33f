#include "lower/contraction_ahead.h"

#include <algorithm>

#include "cost/blocking.h"
#include "loop/substitute.h"
#include "lower/contraction_builder.h"
#include "support/division.h"

namespace trainc::lower {

using namespace loop;
namespace {

bool stays(const Buffer& b) { return b.numel > 0 && b.numel * size_of(b.dtype) <= cost::kStaysCached; }

bool reads(const Expr& index, ExprKind what, int but_of = -1) {
  return (index->kind == what && index->id != but_of) ||
         std::any_of(index->args.begin(), index->args.end(), [&](const Expr& a) { return reads(a, what, but_of); });
}

template <class Visit>
void loads_of(const Expr& e, Visit visit) {
  if (!e) return;
  if (e->kind == ExprKind::Load) visit(*e);
  for (const Expr& a : e->args) loads_of(a, visit);
}

// The loads of `e` whose lines are worth asking for, and can be: where a gather reads, memory would have to be read to
// know; but for `order`, which stays in cache itself.
std::vector<const ExprNode*> worth_asking(const LoopNest& nest, const Expr& e, int order) {
  std::vector<const ExprNode*> loads;
  loads_of(e, [&](const ExprNode& load) {
    if (!stays(nest.buffers.at(static_cast<size_t>(load.id))) && load.id != order &&
        !reads(load.args[0], ExprKind::Load, order))
      loads.push_back(&load);
  });
  return loads;
}

}  // namespace

std::vector<Stmt> prefetch_share(const LoopNest& nest, const BlockAhead& block, const Expr& slot, int64_t slots) {
  const Expr first = block.element(integer(0), integer(0));
  const std::vector<const ExprNode*> loads = worth_asking(nest, first, block.order);
  if (loads.empty()) return {};
  int64_t element = 1;
  for (const ExprNode* load : loads) element = std::max(element, size_of(load->dtype));

  const int64_t line = cost::kCacheLine / element;  // elements
  const int64_t across = ceil_div(block.along_k ? block.depth : block.rows, line);
  const int64_t lines = across * (block.along_k ? block.rows : block.depth);
  const int64_t each = std::min(cost::kLinesAhead, ceil_div(lines, slots));
  // Where there are more slots than lines, the first slots wait: what came to L2 at once would have to stay there while
  // the rest of this block passes through, and some of it would not.
  const int64_t wait = std::max<int64_t>(0, slots * each - lines) * cost::kWaitsAhead / 8;
  std::vector<Stmt> share;
  for (int64_t i = 0; i < each; ++i) {
    // the last one again, once all are asked for; before, the first one
    Expr at = apply(Op::Min, {slot * each + integer(i - wait), integer(lines - 1)});
    if (wait > 0) at = apply(Op::Max, {at, integer(0)});
    const Expr down = floor_div(at, across), along = mod(at, across) * line;
    const Expr read = block.along_k ? block.element(down, along) : block.element(along, down);
    for (const ExprNode* load : worth_asking(nest, read, block.order))
      share.push_back(prefetch(load->id, load->args[0], 2));
  }
  return share;
}

namespace {

template <class Visit>
void accesses_of(const Stmt& s, bool writes, Visit visit) {
  for (const Stmt& b : s->body) accesses_of(b, writes, visit);
  if (writes && s->kind == StmtKind::Store) visit(s->buffer, s->index);
  loads_of(s->value, [&](const ExprNode& load) { visit(load.id, load.args[0]); });
}

}  // namespace

EpilogueAhead::EpilogueAhead(const LoopNest& nest, const Stmt& element, int row_var, int column_var, int64_t rows,
                             int64_t columns, bool writes)
    : row_var_(row_var), column_var_(column_var), rows_(rows), columns_(columns) {
  accesses_of(element, writes, [&](int id, const Expr& index) {
    const Buffer& b = nest.buffers.at(static_cast<size_t>(id));
    if (reads(index, ExprKind::Load) || reads(index, ExprKind::Local)) return;  // what is in a local may have been read
    // What is the same for all rows (a bias) stays, however long it may be.
    if (b.space != Space::Argument || stays(b) || step_of(index, column_var) != 1 || step_of(index, row_var) == 0)
      return;
    for (const Access& a : accesses_)
      if (a.buffer == id && same(a.index, index)) return;
    accesses_.push_back({id, index, cost::kCacheLine / size_of(b.dtype)});
  });
}

std::vector<Stmt> EpilogueAhead::share(const Expr& row, const Expr& column, const Expr& slot, int64_t slots,
                                       const std::function<Expr(const Expr&)>& row_of) const {
  std::vector<Stmt> share;
  for (const Access& a : accesses_) {
    const int64_t across = (columns_ + a.line - 1) / a.line, lines = across * rows_;
    const int64_t each = std::min(cost::kLinesAhead, ceil_div(lines, slots));
    for (int64_t i = 0; i < each; ++i) {
      const Expr at = apply(Op::Min, {slot * each + integer(i), integer(lines - 1)});
      share.push_back(prefetch(a.buffer,
                               substitute(a.index, {{row_var_, row_of(row + floor_div(at, across))},
                                                    {column_var_, column + mod(at, across) * a.line}}),
                               1));
    }
  }
  return share;
}

Expr ContractionBuilder::choose(std::vector<Stmt>& body, const char* name, const Expr& index, const Expr& count,
                                const Expr& at_last, const Expr& before) {
  if (is_number(count) && count->int_value == 1) return at_last;
  return named(body, name, apply(Op::Select, {apply(Op::Eq, {index, count - integer(1)}), at_last, before}));
}

void ContractionBuilder::look_ahead_of_k_block(std::vector<Stmt>& body, const Expr& task) {
  const Expr next = minimum(task + integer(1), tasks_ - integer(1));
  const auto choice = [&](const char* name, const Expr& of_next_task, const Expr& here) {
    return b_.k_blocks == 1 ? of_next_task : choose(body, name, k_block_, k_blocks_here(), of_next_task, here);
  };
  const Expr batch = choice("next_batch", quotient(next, product(m_tasks_, n_tasks_)), batch_);
  const Expr tile =
      choice("next_tile", product(remainder(quotient(next, n_tasks_), m_tasks_), tiles_of_task_), first_tile_);
  const Expr panel = choice("next_panel", product(remainder(next, n_tasks_), task_n_), first_panel_);
  const Expr k = choice("next_k", integer(0), first_k_ + block_k_);
  next_lhs_ = {batch, tile * b_.tile_m, k};
  next_rhs_ = {batch, panel * b_.tile_n, k};
}

void ContractionBuilder::look_ahead_of_m_block(std::vector<Stmt>& body, const Expr& m_block) {
  const auto choice = [&](const char* name, const Expr& of_next_k, const Expr& here) {
    return choose(body, name, m_block, integer(m_blocks_), of_next_k, here);
  };
  const Expr row = (first_tile_ + (m_block + integer(1)) * b_.block_m) * b_.tile_m;
  lhs_ahead_ = {choice("lhs_batch", next_lhs_.batch, batch_), choice("lhs_row", next_lhs_.row, row),
                choice("lhs_k", next_lhs_.k, first_k_)};
}

std::vector<Stmt> ContractionBuilder::look_ahead(const Expr& block_tile, const Expr& tile, const Expr& panel,
                                                 const Expr& asking, const Expr& base) {
  std::vector<Stmt> share;
  const int64_t askings = this->askings();
  const auto ask = [&](const BlockAhead& next, const Expr& slot, int64_t slots) {
    for (Stmt& s : prefetch_share(nest_, next, slot, slots)) share.push_back(std::move(s));
  };
  if (many_blocks()) {
    const int64_t line = cost::kCacheLine / size_of(sum_), lines = b_.tile_m * b_.tile_n / line,
                  each = ceil_div(lines, askings);
    // Sums that go on in registers have been read before the first step: so the next tile's are asked for.
    const int64_t next = amx_ && pairs_ ? int64_t(b_.tile_m) * b_.tile_n : 0;
    for (int64_t i = 0; i < each; ++i)
      share.push_back(prefetch(partial_, base + integer(next) + (asking * each + integer(i)) * line, 1));
  }
  const auto within = [](const Expr& row, const Expr& total) { return minimum(row, total - integer(1)); };
  const auto term_ahead = [&](const Expr& k) {
    return lists_terms() ? listed(within(k, integer(spec_.k * each()))) : k;
  };
  if (part_ != Part::None) return share;  // the caches hold what a part reads
  if (finish_ahead_)
    for (Stmt& s :
         finish_ahead_->share(finish_row_, finish_column_, many_blocks() ? product(asking, is_last_block()) : asking,
                              askings, [&](const Expr& row) { return lists_rows() ? listed(within(row, m_)) : row; }))
      share.push_back(std::move(s));
  // Products of bf16 on tiles take so little time that memory cannot bring an operand's next block meanwhile.
  if (amx_ && pairs_) return share;
  // Of an operand in runs, finding the line would cost as much as waiting for it.
  if (spec_.lhs_run == 0 && (more_tasks() || b_.k_blocks > 1 || m_blocks_ > 1))
    ask({b_.block_m * b_.tile_m, pack_k_ * each(), spec_.lhs_k_contiguous,
         [&](const Expr& row, const Expr& k) {
           return spec_.lhs(lhs_ahead_.batch, row_of(within(lhs_ahead_.row + row, m_)),
                            term_ahead(lhs_ahead_.k * each() + k));
         },
         spec_.listed.order},
        (panel * b_.block_m + tile) * askings + asking, b_.room_n * b_.block_m * askings);
  // Panels are read from front to end: the CPU itself has their lines come.
  if (!spec_.rhs_in_panels && spec_.rhs_run == 0 && spec_.rhs_k_run == 0 && (more_tasks() || b_.k_blocks > 1))
    ask({b_.room_n * b_.tile_n, pack_k_ * each(), spec_.rhs_k_contiguous,
         [&](const Expr& row, const Expr& k) {
           return spec_.rhs(next_rhs_.batch, within(next_rhs_.row + row, n_), term_ahead(next_rhs_.k * each() + k));
         },
         spec_.listed.order},
        ((block_tile + tile) * b_.room_n + panel) * askings + asking, b_.room_m * b_.room_n * askings);
  return share;
}

void ContractionBuilder::look_ahead_of_tile(std::vector<Stmt>& body, const Expr& block_tile, const Expr& tile,
                                            const Expr& panel) {
  if (!finish_ahead_) {
    const int row = nest_.add_var("row", spec_.m), column = nest_.add_var("column", spec_.n);
    // Stores wait in their queue for lines, and the next tile is multiplied meanwhile: with several blocks of k, for
    // long enough.
    finish_ahead_.emplace(nest_, spec_.epilogue(batch_, nest_.var(row), nest_.var(column), real(0, sum_)), row, column,
                          b_.tile_m, b_.tile_n, !many_blocks());
  }
  const Expr tiles = tiles_in_block(block_tile), first = (first_tile_ + block_tile) * b_.tile_m,
             here = (first_panel_ + panel) * b_.tile_n;
  finish_row_ = choose(body, "finish_row", tile, tiles, first, first + (tile + integer(1)) * b_.tile_m);
  finish_column_ = choose(body, "finish_column", tile, tiles, here + integer(panels_together() * b_.tile_n), here);
}

}  // namespace trainc::lower
