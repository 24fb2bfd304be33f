#include "lower/wide_accesses.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "cost/loops.h"
#include "loop/substitute.h"
#include "lower/kernels.h"
#include "lower/neighbours.h"

namespace trainc::lower {

using namespace loop;

namespace {

/// One Thread loop, taken `lanes` neighbours at a time.
class Widening {
 public:
  Widening(LoopNest& nest, const StmtNode& loop, int lanes) : nest_(nest), loop_(loop), lanes_(lanes) {
    group_ = nest_.add_var("group", extent_of(loop));
    lane_ = nest_.add_var("lane", lanes);
    element_[loop.var] = nest_.var(group_) * lanes_ + nest_.var(lane_);
  }

  /// The loop over groups; nothing where the list in the header has a reason.
  Stmt run() {
    find_reduced(loop_.body[0]);
    Stmt body = statement(loop_.body[0]);
    if (!fits_ || groups_.empty() || !body) return nullptr;
    std::vector<Stmt> all = before_;
    all.push_back(for_loop(LoopKind::Unroll, lane_, integer(lanes_), body));
    all.insert(all.end(), after_.begin(), after_.end());
    return for_loop(LoopKind::Thread, group_, floor_div(loop_.extent, lanes_), block(std::move(all)));
  }

 private:
  int64_t extent_of(const StmtNode& loop) const {
    int64_t most = nest_.vars[static_cast<size_t>(loop.var)].extent;
    if (const Range r = range_of(loop.extent); most < 0 && r.known) most = r.high;
    return most < 0 ? -1 : most / lanes_;
  }

  std::optional<Neighbours> split(const Expr& e) const {
    return split_lanes(e, {loop_.var, nest_.var(group_) * lanes_, lanes_, inner_});
  }
  bool varies(const Expr& e) const { return depends_on(e, loop_.var, inner_); }
  bool reads_stored(const Expr& e) const {
    return (e->kind == ExprKind::Load && stored_.contains(e->id)) ||
           std::ranges::any_of(e->args, [&](const Expr& a) { return reads_stored(a); });
  }
  void find_reduced(const Stmt& s) {
    if (s->kind == StmtKind::Reduce) reduced_.insert(s->local);
    for (const Stmt& inner : s->body) find_reduced(inner);
  }

  /// The registers that hold a group of `buffer` from `index` on; -1 where it is no group.
  int registers(int buffer, const Neighbours& at, bool written) {
    if (at.step != 1 || divisor_of(at.rest) % lanes_ != 0) return -1;
    const Buffer& b = nest_.buffers[static_cast<size_t>(buffer)];
    if (lanes_ * size_of(b.dtype) > kCopyBytes) return -1;
    for (const Group& g : groups_)
      if (g.buffer == buffer && g.written == written && same(g.rest, at.rest)) return g.registers;
    if (static_cast<int64_t>(groups_.size() + 1) * lanes_ > cost::kWideRegisters) return -1;
    const int id = nest_.add_buffer({b.name + "_wide", b.dtype, lanes_, Space::Register, true});
    groups_.push_back({buffer, written, at.rest, id});
    if (written) after_.push_back(copy(buffer, at.rest, id, integer(0), lanes_));
    else before_.push_back(copy(id, integer(0), buffer, at.rest, lanes_));
    return id;
  }

  bool in_memory(int buffer) const {
    const Space space = nest_.buffers[static_cast<size_t>(buffer)].space;
    return space == Space::Argument || space == Space::Shared;
  }

  Expr expr(const Expr& e) {
    if (!fits_ || e->args.empty()) return loop::substitute(e, element_);
    if (const auto at = made_.find(e.get()); at != made_.end()) return at->second;
    if (e->kind == ExprKind::Load && in_memory(e->id)) {
      if (!varies(e)) return e;
      const std::optional<Neighbours> at =
          e->args.size() == 1 && !stored_.contains(e->id) ? split(e->args[0]) : std::nullopt;
      if (at && at->step == 0 && !nest_.buffers[static_cast<size_t>(e->id)].bits)  // one element for the whole group
        return made_[e.get()] = nest_.load(e->id, at->rest);
      const int held = at && nest_.buffers[static_cast<size_t>(e->id)].over < 0 ? registers(e->id, *at, false) : -1;
      fits_ &= held >= 0;
      return made_[e.get()] = held >= 0 ? nest_.load(held, nest_.var(lane_)) : e;
    }
    if (e->kind == ExprKind::Apply && e->dtype == DType::I64)
      return made_[e.get()] = loop::substitute(loaded(e), element_);
    return made_[e.get()] = loaded(e);
  }
  Expr loaded(const Expr& e) {
    auto changed = std::make_shared<ExprNode>(*e);
    for (Expr& a : changed->args) a = expr(a);
    return changed;
  }

  /// nullptr: nothing is left of it for a lane.
  Stmt statement(const Stmt& s) {
    auto made = std::make_shared<StmtNode>(*s);
    switch (s->kind) {
      case StmtKind::Block:
        for (Stmt& inner : made->body) inner = statement(inner);
        std::erase_if(made->body, [](const Stmt& inner) { return inner == nullptr; });
        break;
      case StmtKind::Let:
        if (!varies(s->value) && !reduced_.contains(s->local) && !reads_stored(s->value)) {
          before_.push_back(s);  // all lanes share it, and groups may begin where it says
          return nullptr;
        }
        inner_.insert(s->local);
        made->value = expr(s->value);
        break;
      case StmtKind::Reduce:
      case StmtKind::Check: made->value = expr(s->value); break;
      case StmtKind::Store: {
        made->value = expr(s->value);
        const std::optional<Neighbours> at = in_memory(s->buffer) ? split(s->index) : std::nullopt;
        const int held = at && nest_.buffers[static_cast<size_t>(s->buffer)].over < 0 && !stored_.contains(s->buffer)
                             ? registers(s->buffer, *at, true)
                             : -1;
        fits_ &= held >= 0;
        if (held < 0) break;
        stored_.insert(s->buffer);
        made_.clear();  // what is read from it now is another value
        made->buffer = held;
        made->index = nest_.var(lane_);
        break;
      }
      default: fits_ = false;
    }
    return made;
  }

  struct Group {
    int buffer;
    bool written;
    Expr rest;
    int registers;
  };

  LoopNest& nest_;
  const StmtNode& loop_;
  const int64_t lanes_;
  int group_ = -1, lane_ = -1;
  Replacement element_;
  std::vector<Group> groups_;
  std::vector<Stmt> before_, after_;
  // locals that the body binds to a value a lane, and those that it adds to; buffers that it has stored to
  std::set<int> inner_, reduced_, stored_;
  std::map<const ExprNode*, Expr> made_;
  bool fits_ = true;
};

class Nest {
 public:
  explicit Nest(LoopNest nest) : nest_(std::move(nest)) {}
  LoopNest run() {
    nest_.body = statement(nest_.body);
    return std::move(nest_);
  }

 private:
  Stmt statement(const Stmt& s) {
    if (s->kind == StmtKind::For && s->loop == LoopKind::Thread) return thread_loop(s);
    if (s->body.empty()) return s;
    auto made = std::make_shared<StmtNode>(*s);
    for (Stmt& inner : made->body) inner = statement(inner);
    return made;
  }

  Stmt thread_loop(const Stmt& s) {
    const int64_t extent = nest_.vars[static_cast<size_t>(s->var)].extent;
    const int64_t most = s->extent->kind == ExprKind::Int ? s->extent->int_value : extent;
    for (int64_t lanes = cost::kWideElements; lanes >= 2; lanes /= 2) {
      if (most >= 0 && 2 * (most / lanes) < nest_.threads) continue;
      const bool whole = divisor_of(s->extent) % lanes == 0;
      if (!whole && s->extent->kind == ExprKind::Int) continue;
      LoopNest tried = nest_;
      const Stmt groups = Widening(tried, *s, static_cast<int>(lanes)).run();
      if (!groups) continue;
      nest_ = std::move(tried);
      if (whole) return groups;
      const int rest = nest_.add_var("rest", lanes - 1);
      Replacement last;
      last[s->var] = floor_div(s->extent, lanes) * lanes + nest_.var(rest);
      return block({groups, for_loop(LoopKind::Thread, rest, mod(s->extent, lanes), substitute(s->body[0], last))});
    }
    return s;
  }

  LoopNest nest_;
};

}  // namespace

LoopNest widen_accesses(LoopNest nest) { return Nest(std::move(nest)).run(); }

}  // namespace trainc::lower
