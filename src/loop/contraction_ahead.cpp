#include "loop/contraction_ahead.h"

#include <algorithm>

namespace trainc::loop {
namespace {

constexpr int64_t kLine = 64;         // bytes
constexpr int64_t kMostLines = 8;     // of a slot: the loads of the multiplication itself must not wait
constexpr int64_t kStays = 32 << 10;  // bytes of a buffer that is read all the time (a bias, scales) and need not be asked for

bool reads_memory(const Expr& e) {
  return e->kind == ExprKind::Load || std::any_of(e->args.begin(), e->args.end(), reads_memory);
}

// The loads of `e` whose lines are worth asking for. Of a gather, only memory could tell where it reads.
void collect(const LoopNest& nest, const Expr& e, std::vector<const ExprNode*>& loads) {
  if (e->kind != ExprKind::Load) {
    for (const Expr& a : e->args) collect(nest, a, loads);
    return;
  }
  const Buffer& b = nest.buffers.at(static_cast<size_t>(e->id));
  const bool stays = b.numel > 0 && b.numel * size_of(b.dtype) <= kStays;
  if (!stays && !reads_memory(e->args[0])) loads.push_back(e.get());
}

}  // namespace

std::vector<Stmt> prefetch_share(const LoopNest& nest, const BlockAhead& block, const Expr& slot, int64_t slots) {
  std::vector<const ExprNode*> loads;
  const Expr first = block.element(integer(0), integer(0));
  collect(nest, first, loads);
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
    loads.clear();
    collect(nest, read, loads);
    for (const ExprNode* load : loads) share.push_back(prefetch(load->id, load->args[0], 2));
  }
  return share;
}

}  // namespace trainc::loop
