#include "loop/runs.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "loop/substitute.h"
#include "support/division.h"

namespace trainc::loop {
namespace {

bool any(const Stmt& s, const std::function<bool(const StmtNode&)>& p) {
  return p(*s) || std::any_of(s->body.begin(), s->body.end(), [&](const Stmt& inner) { return any(inner, p); });
}

bool reads(const Expr& e, int local, std::set<const ExprNode*>& seen) {
  if (!e || !seen.insert(e.get()).second) return false;
  if (e->kind == ExprKind::Local && e->id == local) return true;
  return std::any_of(e->args.begin(), e->args.end(), [&](const Expr& a) { return reads(a, local, seen); });
}
bool reads(const Stmt& s, int local) {
  std::set<const ExprNode*> seen;
  return any(s, [&](const StmtNode& n) {
    return reads(n.index, local, seen) || reads(n.value, local, seen) || reads(n.extent, local, seen);
  });
}

/// Reductions of some locals go to others.
Stmt redirect(const Stmt& s, const std::map<int, int>& locals) {
  auto copy = std::make_shared<StmtNode>(*s);
  for (Stmt& inner : copy->body) inner = redirect(inner, locals);
  if (auto to = locals.find(s->local); s->kind == StmtKind::Reduce && to != locals.end()) copy->local = to->second;
  return copy;
}

class Runs {
 public:
  Runs(LoopNest& nest, bool any_size, bool threads_to_come, const std::set<int>& wide)
      : nest_(nest), any_size_(any_size), threads_to_come_(threads_to_come), wide_(wide) {}

  /// What a statement adds to a local that is bound outside of it.
  struct Chain {
    int64_t terms = 0;
    DType dtype;         // of the terms
    bool counts = true;  // false: nothing is lost in it, or it cannot be cut
  };
  using Chains = std::map<int, Chain>;

  Stmt statement(const Stmt& s, Chains& chains) {
    switch (s->kind) {
      case StmtKind::Reduce:
        if (adds_floats(s->combine, s->value->dtype))
          add(chains, s->local, {1, s->value->dtype, !wide_.count(s->local)});
        return s;
      case StmtKind::Block: return in_block(s, chains);
      case StmtKind::For: return in_loop(s, chains);
      default: return s;
    }
  }

 private:
  static void add(Chains& to, int local, const Chain& c) {
    auto [it, fresh] = to.emplace(local, c);
    if (fresh) return;
    it->second.terms += c.terms;
    it->second.counts &= c.counts;
  }
  bool widens(int local, const Chain& c) const {
    return size_of(nest_.locals[static_cast<size_t>(local)].dtype) > size_of(c.dtype);
  }

  Stmt in_block(const Stmt& s, Chains& chains) {
    auto copy = std::make_shared<StmtNode>(*s);
    std::vector<Chains> of(s->body.size());
    std::set<int> bound;
    for (size_t i = 0; i < s->body.size(); ++i) {
      copy->body[i] = statement(s->body[i], of[i]);
      if (s->body[i]->kind == StmtKind::Let) bound.insert(s->body[i]->local);
    }
    for (size_t i = 0; i < s->body.size(); ++i) {
      std::set<int> short_ones;  // too short to be cut, but a run: the terms of a loop are added in their own dtype
      for (const auto& [local, c] : of[i])
        if (!bound.count(local)) add(chains, local, c);
        else if (c.counts && c.terms > 1 && widens(local, c)) short_ones.insert(local);
      if (!short_ones.empty()) copy->body[i] = as_a_run(copy->body[i], short_ones, of[i]);
    }
    return copy;
  }

  Stmt in_loop(const Stmt& s, Chains& chains) {
    auto copy = std::make_shared<StmtNode>(*s);
    Chains inside;
    copy->body[0] = statement(s->body[0], inside);
    const bool number = s->extent->kind == ExprKind::Int;
    const bool cut = s->loop == LoopKind::Serial && number &&
                     !(threads_to_come_ &&
                       any(s, [](const StmtNode& n) { return n.kind == StmtKind::For && n.loop == LoopKind::Vector; }));
    std::set<int> first, second;
    int64_t most = 1;  // terms of an iteration
    for (auto& [local, c] : inside) {
      if (s->loop == LoopKind::Vector) {  // the lanes are kept and folded in the local's dtype, and give it one term
        c = {1, nest_.locals[static_cast<size_t>(local)].dtype, c.counts && !widens(local, c)};
        continue;
      }
      c.counts = c.counts && cut && !reads(copy->body[0], local);
      if (!c.counts || c.terms * s->extent->int_value <= kRun) continue;
      first.insert(local);
      most = std::max(most, c.terms);
      if (!widens(local, c)) second.insert(local);
    }
    Stmt loop = copy;
    if (!first.empty()) {
      loop = in_runs(loop, std::max<int64_t>(1, kRun / most), first, inside);
      while (!second.empty() && loop->extent->int_value > kRuns) loop = in_runs(loop, kRuns, second, inside);
    }
    for (auto& [local, c] : inside) {
      const int64_t times = !first.count(local) ? (number ? s->extent->int_value : kRun) : loop->extent->int_value;
      if (first.count(local) && widens(local, c)) c.counts = false;
      if (s->loop != LoopKind::Vector) c.terms = first.count(local) ? times : c.terms * times;
      add(chains, local, c);
    }
    return loop;
  }

  std::map<int, int> bind(const std::set<int>& locals, const Chains& chains, std::vector<Stmt>& out) {
    std::map<int, int> runs;
    for (int local : locals) {
      const DType dtype = chains.at(local).dtype;
      const int run = runs[local] = nest_.add_local("u" + std::to_string(nest_.locals.size()), dtype);
      out.push_back(let(run, real(0, dtype)));
    }
    return runs;
  }
  void finish(const std::map<int, int>& runs, std::vector<Stmt>& out) const {
    for (const auto& [local, run] : runs) out.push_back(reduce(local, ReduceKind::Sum, nest_.local(run)));
  }

  /// let u = 0; s, which adds to u; local += u
  Stmt as_a_run(const Stmt& s, const std::set<int>& locals, const Chains& chains) {
    std::vector<Stmt> body;
    const std::map<int, int> runs = bind(locals, chains, body);
    body.push_back(redirect(s, runs));
    finish(runs, body);
    return block(std::move(body));
  }

  /// The loop `s` in pieces of `run` iterations.
  Stmt in_runs(const Stmt& s, int64_t run, const std::set<int>& locals, const Chains& chains) {
    const int64_t extent = s->extent->int_value, pieces = ceil_div(extent, run);
    const std::string name = nest_.vars[static_cast<size_t>(s->var)].name;
    const int piece = nest_.add_var(name + "b", pieces), in_piece = nest_.add_var(name + "i", std::min(run, extent));
    const Expr start = nest_.var(piece) * run;
    const bool whole = extent % run == 0 && !any_size_;
    const Expr length = whole ? integer(run) : apply(Op::Min, {integer(run), integer(extent) - start});
    const Stmt body = substitute(s->body[0], {{s->var, start + nest_.var(in_piece)}});
    return for_loop(LoopKind::Serial, piece, integer(pieces),
                    as_a_run(for_loop(LoopKind::Serial, in_piece, length, body), locals, chains));
  }

  LoopNest& nest_;
  const bool any_size_, threads_to_come_;
  const std::set<int>& wide_;
};

}  // namespace

Stmt add_in_runs(LoopNest& nest, const Stmt& s, bool any_size, bool threads_to_come, const std::set<int>& wide) {
  Runs::Chains chains;
  return Runs(nest, any_size, threads_to_come, wide).statement(s, chains);
}

}  // namespace trainc::loop
