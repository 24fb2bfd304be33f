#include "lower/map_device.h"

#include <algorithm>
#include <functional>
#include <set>

#include "cost/loops.h"
#include "loop/substitute.h"
#include "lower/kernels.h"
#include "lower/wide_accesses.h"
#include "support/division.h"

namespace trainc::lower {

using loop::block;
using loop::integer;
using loop::kWarp;
using loop::LoopKind;
using loop::LoopNest;
using loop::Space;
using loop::StmtKind;
using loop::StmtNode;

namespace {

void visit(const Stmt& s, const std::function<void(const StmtNode&)>& f) {
  f(*s);
  for (const Stmt& inner : s->body) visit(inner, f);
}

// --- what a statement does to memory

struct Touched { std::set<int> loads, stores; };

void loads_of(const Expr& e, std::set<int>& into, std::set<const loop::ExprNode*>& seen) {
  if (!e || !seen.insert(e.get()).second) return;
  if (e->kind == loop::ExprKind::Load) into.insert(e->id);
  for (const Expr& a : e->args) loads_of(a, into, seen);
}

Touched touched_by(const Stmt& s) {
  Touched t;
  std::set<const loop::ExprNode*> seen;
  visit(s, [&](const StmtNode& n) {
    for (const Expr& e : {n.extent, n.index, n.value, n.second}) loads_of(e, t.loads, seen);
    if (n.kind == StmtKind::Store) t.stores.insert(n.buffer);
  });
  return t;
}

bool meet(const std::set<int>& a, const std::set<int>& b) {
  return std::any_of(a.begin(), a.end(), [&](int x) { return b.count(x) > 0; });
}

bool contains(const Stmt& s, LoopKind kind) {
  bool found = false;
  visit(s, [&](const StmtNode& n) { found |= n.kind == StmtKind::For && n.loop == kind; });
  return found;
}

/// Locals that are reduced in `s` and not bound in it; `in_vectors`: only where a Vector loop lies between.
using Reduced = std::vector<std::pair<int, ReduceKind>>;
Reduced reduced_across(const Stmt& s, bool in_vectors = false) {
  std::set<int> bound;
  Reduced reduced;
  std::function<void(const Stmt&, bool)> walk = [&](const Stmt& at, bool counts) {
    counts |= at->kind == StmtKind::For && at->loop == LoopKind::Vector;
    if (at->kind == StmtKind::Let) bound.insert(at->local);
    const bool known = std::any_of(reduced.begin(), reduced.end(), [&](auto& r) { return r.first == at->local; });
    if (at->kind == StmtKind::Reduce && counts && !bound.count(at->local) && !known)
      reduced.push_back({at->local, at->combine});
    for (const Stmt& inner : at->body) walk(inner, counts);
  };
  walk(s, !in_vectors);
  return reduced;
}

/// A block of one statement is that statement.
Stmt only(Stmt s) {
  while (s->kind == StmtKind::Block && s->body.size() == 1) s = s->body[0];
  return s;
}

bool is_number(const Expr& e) { return e->kind == loop::ExprKind::Int; }

// --- locals renamed

Expr rename(const Expr& e, int local, const Expr& to) {
  if (!e) return e;
  if (e->kind == loop::ExprKind::Local) return e->id == local ? to : e;
  if (e->args.empty()) return e;
  auto copy = std::make_shared<loop::ExprNode>(*e);
  for (Expr& a : copy->args) a = rename(a, local, to);
  return copy;
}
Stmt rename(const Stmt& s, int local, const Expr& to) {
  auto copy = std::make_shared<StmtNode>(*s);
  for (Stmt& inner : copy->body) inner = rename(inner, local, to);
  copy->extent = rename(s->extent, local, to);
  copy->index = rename(s->index, local, to);
  copy->value = rename(s->value, local, to);
  copy->second = rename(s->second, local, to);
  return copy;
}

class Mapping {
 public:
  Mapping(const LoopNest& nest, const Target& target) : nest_(nest), multiprocessors_(target.multiprocessors) {}

  LoopNest run() {
    if (nest_.parallel_extent == 0) {
      nest_.threads = kWarp;
      return std::move(nest_);
    }
    Stmt body = only(nest_.body);
    if (body->kind == StmtKind::For && body->loop == LoopKind::Parallel) {
      parallel_ = body->var;
      body = only(body->body[0]);
    }
    for (loop::Buffer& b : nest_.buffers) scratch_ |= b.space == Space::Scratch;
    if (!deal_out(body)) rows(body);
    for (loop::Buffer& b : nest_.buffers)
      if (b.space == Space::Scratch) b.space = Space::Shared;
    return std::move(nest_);
  }

 private:
  // --- 1: independent elements

  bool deal_out(const Stmt& body) {
    if (scratch_) return false;
    const bool vector = body->kind == StmtKind::For && body->loop == LoopKind::Vector;
    if (!vector && contains(body, LoopKind::Vector)) return false;
    if (vector && !reduced_across(body->body[0]).empty()) return false;
    if (vector && !is_number(body->extent)) return false;
    if (parallel_ < 0 && !vector) return false;
    const int64_t inner = vector ? body->extent->int_value : 1, all = nest_.parallel_extent * inner;
    if (all == 0) return false;
    const Stmt element = vector ? body->body[0] : body;

    // Few elements are spread over all multiprocessors; of many, a thread takes several, one block's threads apart.
    int64_t widest = 1;
    for (const loop::Buffer& b : nest_.buffers) widest = std::max<int64_t>(widest, size_of(b.dtype));
    const int64_t many = cost::kBlockThreads *
                         std::clamp<int64_t>(loop::kCopyBytes / widest, cost::kElementsOfThread, cost::kWideElements);
    const int64_t per_block = all >= many * cost::kManyBlocks * multiprocessors_ ? many : cost::kBlockThreads;
    nest_.threads = static_cast<int>(std::min(cost::kBlockThreads, ceil_div(all, kWarp) * kWarp));
    nest_.parallel_extent = ceil_div(all, per_block);
    const int b = nest_.add_var("block", nest_.parallel_extent), t = nest_.add_var("thread", std::min(all, per_block));
    const Expr first = nest_.var(b) * per_block, at = first + nest_.var(t);
    loop::Replacement places;
    if (vector) places[body->var] = inner == 1 ? integer(0) : parallel_ < 0 ? at : loop::mod(at, inner);
    if (parallel_ >= 0) places[parallel_] = loop::floor_div(at, inner);
    const Expr extent = all % per_block == 0         ? integer(per_block)
                        : nest_.parallel_extent == 1 ? integer(all)
                                                     : loop::apply(Op::Min, {integer(per_block), integer(all) - first});
    nest_.body = loop::for_loop(LoopKind::Parallel, b, integer(nest_.parallel_extent),
                                loop::for_loop(LoopKind::Thread, t, extent, substitute(element, places)));
    return true;
  }

  // --- 2: a block a Parallel iteration

  void rows(const Stmt& body) {
    int64_t widest = 1;
    std::function<void(const Stmt&, int64_t)> measure = [&](const Stmt& s, int64_t around) {
      if (s->kind == StmtKind::For && s->loop == LoopKind::Vector) {
        const int64_t known = is_number(s->extent) ? s->extent->int_value : nest_.vars[s->var].extent;
        widest = std::max(widest, (known < 0 ? cost::kUnknownRow : known) * around);
      }
      const bool joined =
          s->kind == StmtKind::For && s->loop == LoopKind::Serial && is_number(s->extent) && can_join(s);
      for (const Stmt& inner : s->body) measure(inner, joined ? around * s->extent->int_value : 1);
    };
    measure(body, 1);
    nest_.threads = static_cast<int>(widest <= cost::kNarrowRow ? ceil_div(widest, kWarp) * kWarp
                                     : widest <= cost::kWideRow ? cost::kBlockThreads
                                                                : cost::kWideRowThreads);
    std::vector<Stmt> mapped = statements({body});
    Stmt whole = mapped.size() == 1 ? mapped[0] : block(std::move(mapped));
    nest_.body =
        parallel_ >= 0 ? loop::for_loop(LoopKind::Parallel, parallel_, integer(nest_.parallel_extent), whole) : whole;
  }

  /// A Serial loop around nothing but a Vector loop, whose iterations do not hand anything on through memory: one range
  /// for the threads.
  static bool can_join(const Stmt& s) {
    const Stmt inner = only(s->body[0]);
    if (inner->kind != StmtKind::For || !is_number(inner->extent) || !is_number(s->extent)) return false;
    if (inner->loop != LoopKind::Vector && !(inner->loop == LoopKind::Serial && can_join(inner))) return false;
    const Touched t = touched_by(s);
    return !meet(t.loads, t.stores);
  }

  /// What the threads have touched since the last barrier.
  Touched open_;
  void barrier_before(const Touched& next, std::vector<Stmt>& out) {
    if (meet(open_.stores, next.loads) || meet(open_.loads, next.stores) || meet(open_.stores, next.stores)) {
      out.push_back(loop::barrier());
      open_ = {};
    }
    open_.loads.insert(next.loads.begin(), next.loads.end());
    for (int b : next.stores) open_.stores.insert(b);
    for (auto it = open_.loads.begin(); it != open_.loads.end();)  // what nobody writes orders nothing
      it = nest_.buffers[*it].written ? std::next(it) : open_.loads.erase(it);
  }

  std::vector<Stmt> statements(std::vector<Stmt> in) {
    std::vector<Stmt> out;
    for (size_t i = 0; i < in.size(); ++i) {
      const Stmt s = in[i];
      switch (s->kind) {
        case StmtKind::Block: out.push_back(block(statements(s->body))); break;
        case StmtKind::Store:
          if (nest_.buffers[s->buffer].space == Space::Register) {
            out.push_back(s);
            break;
          }
          barrier_before(touched_by(s), out);
          out.push_back(once(s));
          break;
        case StmtKind::Let:
        case StmtKind::Reduce:
        case StmtKind::Check:
          barrier_before(touched_by(s), out);
          out.push_back(s);
          break;
        case StmtKind::For: {
          if (s->loop == LoopKind::Vector || (s->loop == LoopKind::Serial && can_join(s))) {
            barrier_before(touched_by(s), out);
            out.push_back(threads(s));
          } else {
            const Touched all = touched_by(s);
            barrier_before(all, out);
            const bool again = meet(all.loads, all.stores) || contains(s, LoopKind::Vector);
            std::vector<Stmt> body = statements({s->body[0]});
            if (again) body.push_back(loop::barrier()), open_ = {};  // before the next iteration
            auto copy = std::make_shared<StmtNode>(*s);
            copy->body = {body.size() == 1 ? body[0] : block(std::move(body))};
            out.push_back(copy);
          }
          fold(reduced_across(s, true), in, i, out);
          break;
        }
        case StmtKind::Prefetch:
        case StmtKind::Transpose:
        case StmtKind::TileZero:
        case StmtKind::TileLoad:
        case StmtKind::TileDot:
        case StmtKind::TileStore: throw InternalError("map_to_device: the nest is written for a CPU");
        case StmtKind::Barrier:
        case StmtKind::WarpReduce:
        case StmtKind::Mma:
        case StmtKind::Copy:
        case StmtKind::CopyAsync:
        case StmtKind::CommitCopies:
        case StmtKind::WaitCopies:
        case StmtKind::LoadMatrix: throw InternalError("map_to_device: the nest is a device's");
      }
    }
    return out;
  }

  Stmt once(Stmt s) {
    const int t = nest_.add_var("one", 1);
    return loop::for_loop(LoopKind::Thread, t, integer(1), std::move(s));
  }

  /// A Vector loop, or Serial loops around one, as a Thread loop.
  Stmt threads(const Stmt& s) {
    std::vector<const StmtNode*> loops;
    Stmt inner = s;
    for (;; inner = only(inner->body[0])) {
      loops.push_back(inner.get());
      if (inner->loop == LoopKind::Vector) break;
    }
    if (loops.size() == 1) return loop::for_loop(LoopKind::Thread, s->var, s->extent, s->body[0]);
    int64_t all = 1;
    for (const StmtNode* l : loops) all *= l->extent->int_value;
    const int t = nest_.add_var("thread", all);
    loop::Replacement places;
    int64_t stride = all;
    for (const StmtNode* l : loops) {
      const int64_t extent = l->extent->int_value;
      stride /= std::max<int64_t>(extent, 1);
      places[l->var] =
          all == 0 ? integer(0) : loop::mod(loop::floor_div(nest_.var(t), std::max<int64_t>(stride, 1)), extent);
    }
    return loop::for_loop(LoopKind::Thread, t, integer(all), substitute(inner->body[0], places));
  }

  /// Each thread's part of a sum -> the sum, in every thread, under a new name from `in[i + 1]` on.
  /// A sum that is bound further out is combined there.
  void fold(const Reduced& in_loop, std::vector<Stmt>& in, size_t i, std::vector<Stmt>& out) {
    Reduced reduced;
    for (const auto& [local, kind] : in_loop)
      if (starts_here(local, kind, in, i)) reduced.push_back({local, kind});
    if (reduced.empty()) return;
    for (const auto& [local, kind] : reduced) out.push_back(loop::warp_reduce(local, kind));
    const int64_t warps = nest_.threads / kWarp;
    if (warps == 1) return;
    std::vector<int> parts;
    std::vector<Stmt> store;
    const int t = nest_.add_var("thread", nest_.threads), first = nest_.add_var("first", 1);
    for (const auto& [local, kind] : reduced) {
      parts.push_back(nest_.add_buffer({"parts", nest_.locals[local].dtype, warps, Space::Shared, true}));
      store.push_back(loop::store(parts.back(), loop::floor_div(nest_.var(t), kWarp), nest_.local(local)));
    }
    // The language has no `if`: a loop of 0 or 1 iterations is one.
    const Expr is_first = loop::cast(loop::apply(Op::Eq, {loop::mod(nest_.var(t), kWarp), integer(0)}), DType::I64);
    out.push_back(loop::for_loop(LoopKind::Thread, t, integer(nest_.threads),
                                 loop::for_loop(LoopKind::Serial, first, is_first, block(std::move(store)))));
    out.push_back(loop::barrier());
    open_ = {};
    for (size_t r = 0; r < reduced.size(); ++r) {
      const auto [local, kind] = reduced[r];
      const int total = nest_.add_local(nest_.locals[local].name, nest_.locals[local].dtype),
                w = nest_.add_var("warp", warps);
      out.push_back(loop::let(total, nest_.load(parts[r], integer(0))));
      out.push_back(loop::for_loop(LoopKind::Serial, w, integer(warps - 1),
                                   loop::reduce(total, kind, nest_.load(parts[r], nest_.var(w) + integer(1)))));
      for (size_t k = i + 1; k < in.size(); ++k) in[k] = rename(in[k], local, nest_.local(total));
    }
  }

  bool starts_here(int local, ReduceKind kind, const std::vector<Stmt>& in, size_t end) const {
    for (size_t i = 0; i < end; ++i)
      if (in[i]->kind == StmtKind::Let && in[i]->local == local) {
        const Expr start = in[i]->value, wanted = neutral(kind, start->dtype);
        const bool same = start->kind == wanted->kind && start->int_value == wanted->int_value &&
                          start->float_value == wanted->float_value;
        require(same, "map_to_device: " + nest_.name + ": a sum that starts at another value than its neutral element");
        return true;
      }
    return false;
  }

  LoopNest nest_;
  const int multiprocessors_;
  int parallel_ = -1;
  bool scratch_ = false;
};

}  // namespace

LoopNest map_to_device(const LoopNest& nest, const Target& target) {
  return widen_accesses(Mapping(nest, target).run());
}

}  // namespace trainc::lower
