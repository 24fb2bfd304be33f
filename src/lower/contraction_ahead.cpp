#include "lower/contraction_ahead.h"

#include <algorithm>

#include "loop/substitute.h"

namespace trainc::lower {

using namespace loop;
namespace {

constexpr int64_t kLine = 64;         // bytes
constexpr int64_t kMostLines = 8;     // of a slot: the loads of the multiplication itself must not wait
constexpr int64_t kStays = 32 << 10;  // bytes of a buffer that is read all the time (a bias, scales) and need not be asked for

bool stays(const Buffer& b) { return b.numel > 0 && b.numel * size_of(b.dtype) <= kStays; }

bool reads(const Expr& index, ExprKind what) {
  return index->kind == what || std::any_of(index->args.begin(), index->args.end(), [&](const Expr& a) { return reads(a, what); });
}

template <class Visit>
void loads_of(const Expr& e, Visit visit) {
  if (!e) return;
  if (e->kind == ExprKind::Load) visit(*e);
  for (const Expr& a : e->args) loads_of(a, visit);
}

// The loads of `e` whose lines are worth asking for, and can be: where a gather reads, memory would have to be read to know.
std::vector<const ExprNode*> worth_asking(const LoopNest& nest, const Expr& e) {
  std::vector<const ExprNode*> loads;
  loads_of(e, [&](const ExprNode& load) {
    if (!stays(nest.buffers.at(static_cast<size_t>(load.id))) && !reads(load.args[0], ExprKind::Load)) loads.push_back(&load);
  });
  return loads;
}

}  // namespace

std::vector<Stmt> prefetch_share(const LoopNest& nest, const BlockAhead& block, const Expr& slot, int64_t slots) {
  const Expr first = block.element(integer(0), integer(0));
  const std::vector<const ExprNode*> loads = worth_asking(nest, first);
  if (loads.empty()) return {};
  int64_t element = 1;
  for (const ExprNode* load : loads) element = std::max(element, size_of(load->dtype));

  const int64_t line = kLine / element;  // elements
  const int64_t across = ((block.along_k ? block.depth : block.rows) + line - 1) / line;
  const int64_t lines = across * (block.along_k ? block.rows : block.depth);
  const int64_t each = std::min(kMostLines, (lines + slots - 1) / slots);
  std::vector<Stmt> share;
  for (int64_t i = 0; i < each; ++i) {
    const Expr at = apply(Op::Min, {slot * each + integer(i), integer(lines - 1)});  // the last one again, once all are asked for
    const Expr down = floor_div(at, across), along = mod(at, across) * line;
    const Expr read = block.along_k ? block.element(down, along) : block.element(along, down);
    for (const ExprNode* load : worth_asking(nest, read)) share.push_back(prefetch(load->id, load->args[0], 2));
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

bool same(const Expr& a, const Expr& b) {
  return a->kind == b->kind && a->id == b->id && a->int_value == b->int_value && a->op == b->op &&
         std::equal(a->args.begin(), a->args.end(), b->args.begin(), b->args.end(), same);
}

}  // namespace

EpilogueAhead::EpilogueAhead(const LoopNest& nest, const Stmt& element, int row_var, int column_var, int64_t rows, int64_t columns, bool writes)
    : row_var_(row_var), column_var_(column_var), rows_(rows), columns_(columns) {
  accesses_of(element, writes, [&](int id, const Expr& index) {
    const Buffer& b = nest.buffers.at(static_cast<size_t>(id));
    if (reads(index, ExprKind::Load) || reads(index, ExprKind::Local)) return;  // what is in a local may have been read
    // What is the same for all rows (a bias) stays, however long it may be.
    if (b.space != Space::Argument || stays(b) || step_of(index, column_var) != 1 || step_of(index, row_var) == 0) return;
    for (const Access& a : accesses_)
      if (a.buffer == id && same(a.index, index)) return;
    accesses_.push_back({id, index, kLine / size_of(b.dtype)});
  });
}

std::vector<Stmt> EpilogueAhead::share(const Expr& row, const Expr& column, const Expr& slot, int64_t slots) const {
  std::vector<Stmt> share;
  for (const Access& a : accesses_) {
    const int64_t across = (columns_ + a.line - 1) / a.line, lines = across * rows_;
    const int64_t each = std::min(kMostLines, (lines + slots - 1) / slots);
    for (int64_t i = 0; i < each; ++i) {
      const Expr at = apply(Op::Min, {slot * each + integer(i), integer(lines - 1)});
      share.push_back(prefetch(a.buffer, substitute(a.index, {{row_var_, row + floor_div(at, across)}, {column_var_, column + mod(at, across) * a.line}}), 1));
    }
  }
  return share;
}

}  // namespace trainc::lower
