#include "emit/llvm/dot_operands.h"

#include <utility>

namespace trainc::emit {
namespace {

using loop::Buffer;
using loop::Expr;
using loop::ExprKind;
using loop::ExprNode;
using loop::LoopNest;
using loop::Space;
using loop::StmtKind;
using loop::StmtNode;

bool of_pairs(DType d) { return d == DType::BF16 || d == DType::I32; }

/// Takes all for operands, and strikes out what is read for something else, until nothing changes.
class DotOperands {
 public:
  explicit DotOperands(const LoopNest& nest) {
    for (size_t i = 0; i < nest.buffers.size(); ++i) {
      const Buffer& b = nest.buffers[i];
      if (of_pairs(b.dtype) && (b.space == Space::Scratch || b.space == Space::Register))
        buffers_.insert(static_cast<int>(i));
    }
    size_t before = 0;
    do {
      before = buffers_.size() + others_.size();
      seen_.clear();
      statement(*nest.body);
    } while (buffers_.size() + others_.size() != before);
  }
  std::set<int> buffers_;

 private:
  void statement(const StmtNode& s) {
    for (const loop::Stmt& inner : s.body) statement(*inner);
    read(s.extent, false), read(s.index, false), read(s.second, false);
    switch (s.kind) {
      case StmtKind::Store: read(s.value, buffers_.count(s.buffer) > 0); return;
      case StmtKind::Let: read(s.value, !others_.count(s.local)); return;
      case StmtKind::Transpose:
        read(s.value, false);
        if (!buffers_.count(s.buffer)) buffers_.erase(s.source);
        return;
      case StmtKind::TileLoad: read(s.value, false); return;  // tiles of pairs are multiplied, and nothing else
      default:
        read(s.value, false);
        if (s.kind == StmtKind::Reduce) others_.insert(s.local);
        if (s.kind != StmtKind::Prefetch) buffers_.erase(s.buffer), buffers_.erase(s.source), buffers_.erase(s.other);
    }
  }

  /// `multiplied`: the value of `e` goes where only products are.
  void read(const Expr& e, bool multiplied) {
    if (!e || !seen_.emplace(e.get(), multiplied).second) return;
    const bool selects = e->kind == ExprKind::Apply && e->op == Op::Select;
    const bool passes = (e->kind == ExprKind::Pair || selects) && multiplied;
    if (e->kind == ExprKind::Load && !multiplied) buffers_.erase(e->id);
    if (e->kind == ExprKind::Local && !multiplied) others_.insert(e->id);
    for (size_t i = 0; i < e->args.size(); ++i)
      read(e->args[i], (passes && !(selects && i == 0)) || (e->kind == ExprKind::Dot && i < 2));
  }

  std::set<int> others_;  // locals that are read for something else
  std::set<std::pair<const ExprNode*, bool>> seen_;
};

}  // namespace

std::set<int> dot_operands(const LoopNest& nest) { return DotOperands(nest).buffers_; }

}  // namespace trainc::emit
