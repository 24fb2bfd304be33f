#include "loop/offsets.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <unordered_map>
#include <unordered_set>

namespace trainc::loop {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

/// The constant term of an index.
int64_t constant_of(const Expr& index) {
  if (index->kind == ExprKind::Int) return index->int_value;
  if (index->kind != ExprKind::Apply || index->op != Op::Add) return 0;
  return constant_of(index->args[0]) + constant_of(index->args[1]);
}

/// Meets each access once, as (buffer, index); what is given back takes the index's place.
class Accesses {
 public:
  using Visit = std::function<Expr(int buffer, const Expr& index)>;
  explicit Accesses(Visit visit) : visit_(std::move(visit)) {}

  Stmt stmt(const Stmt& s) {
    if (!s) return s;
    auto copy = std::make_shared<StmtNode>(*s);
    copy->extent = expr(s->extent), copy->index = expr(s->index), copy->value = expr(s->value),
    copy->second = expr(s->second);
    switch (s->kind) {
      case StmtKind::Store:
      case StmtKind::Prefetch:
      case StmtKind::TileStore: copy->index = visit_(s->buffer, copy->index); break;
      case StmtKind::Copy:
      case StmtKind::CopyAsync:
      case StmtKind::Transpose:
        copy->index = visit_(s->buffer, copy->index), copy->value = visit_(s->source, copy->value);
        break;
      case StmtKind::TileLoad: copy->value = visit_(s->source, copy->value); break;
      default: break;
    }
    for (Stmt& b : copy->body) b = stmt(b);
    return copy;
  }

 private:
  Expr expr(const Expr& e) {
    if (!e || e->args.empty()) return e;
    if (const auto it = made_.find(e.get()); it != made_.end()) return it->second;
    bool changed = false;
    std::vector<Expr> args;
    for (const Expr& a : e->args) args.push_back(expr(a));
    if (e->kind == ExprKind::Load) args[0] = visit_(e->id, args[0]);
    for (size_t i = 0; i < args.size(); ++i) changed = changed || args[i] != e->args[i];
    if (!changed) return made_[e.get()] = e;
    auto copy = std::make_shared<ExprNode>(*e);
    copy->args = std::move(args);
    return made_[e.get()] = copy;
  }

  Visit visit_;
  std::unordered_map<const ExprNode*, Expr> made_;  // expressions share their parts
};

}  // namespace

std::vector<int64_t> take_offsets(LoopNest& nest, const std::vector<int64_t>& most) {
  std::vector<int64_t> least(nest.buffers.size(), kNone);
  std::vector<bool> stays(nest.buffers.size());
  for (size_t i = 0; i < nest.buffers.size(); ++i) {
    const Buffer& b = nest.buffers[i];
    stays[i] = stays[i] || b.space != Space::Argument || b.bits || b.over >= 0;
    if (b.over >= 0) stays[static_cast<size_t>(b.over)] = true;
  }
  Accesses look([&](int buffer, const Expr& index) {
    int64_t& l = least[static_cast<size_t>(buffer)];
    l = std::min(l, constant_of(index));
    return index;
  });
  look.stmt(nest.body);
  bool any = false;
  for (size_t i = 0; i < least.size(); ++i) {
    if (stays[i] || least[i] == kNone || least[i] < 0) least[i] = 0;
    least[i] = std::min(least[i], i < most.size() ? std::max<int64_t>(most[i], 0) : 0);
    any = any || least[i] > 0;
  }
  if (!any) return least;
  Accesses move([&](int buffer, const Expr& index) {
    const int64_t by = least[static_cast<size_t>(buffer)];
    return by > 0 ? index - integer(by) : index;
  });
  nest.body = move.stmt(nest.body);
  return least;
}

}  // namespace trainc::loop
