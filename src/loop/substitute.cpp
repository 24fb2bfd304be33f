#include "loop/substitute.h"

#include <algorithm>
#include <functional>

namespace trainc::loop {

Expr substitute(const Expr& e, const Replacement& map) {
  if (!e) return e;
  if (e->kind == ExprKind::Var) {
    auto it = map.find(e->id);
    return it == map.end() ? e : it->second;
  }
  if (e->args.empty()) return e;
  bool changed = false;
  std::vector<Expr> args;
  for (const Expr& a : e->args) {
    args.push_back(substitute(a, map));
    changed = changed || args.back() != a;
  }
  if (!changed) return e;
  if (e->kind == ExprKind::Apply && e->dtype == DType::I64 && args.size() == 2 && args[0]->dtype == DType::I64) {
    const bool number = args[1]->kind == ExprKind::Int;
    if (e->op == Op::Add) return args[0] + args[1];
    if (e->op == Op::Sub) return args[0] - args[1];
    if (e->op == Op::Mul && number) return args[0] * args[1]->int_value;
    if (e->op == Op::FloorDiv && number && args[1]->int_value > 0) return floor_div(args[0], args[1]->int_value);
    if (e->op == Op::Mod && number && args[1]->int_value > 0) return mod(args[0], args[1]->int_value);
  }
  auto copy = std::make_shared<ExprNode>(*e);
  copy->args = std::move(args);
  return copy;
}

Stmt substitute(const Stmt& s, const Replacement& map) {
  if (!s) return s;
  auto copy = std::make_shared<StmtNode>(*s);
  for (Stmt& b : copy->body) b = substitute(b, map);
  copy->extent = substitute(s->extent, map);
  copy->index = substitute(s->index, map);
  copy->value = substitute(s->value, map);
  copy->second = substitute(s->second, map);
  return copy;
}

namespace {

int64_t evaluate(const Expr& e, int var, int64_t value) {
  auto arg = [&](size_t i) { return evaluate(e->args[i], var, value); };
  switch (e->kind) {
    case ExprKind::Int: return e->int_value;
    case ExprKind::Var: return e->id == var ? value : 0;
    case ExprKind::Apply:
      switch (e->op) {
        case Op::Add: return arg(0) + arg(1);
        case Op::Sub: return arg(0) - arg(1);
        case Op::Mul: return arg(0) * arg(1);
        case Op::FloorDiv: return arg(1) ? arg(0) / arg(1) : 0;
        case Op::Mod: return arg(1) ? arg(0) % arg(1) : 0;
        default: return 0;
      }
    default: return 0;
  }
}

}  // namespace

int64_t step_of(const Expr& index, int var) { return evaluate(index, var, 1) - evaluate(index, var, 0); }

int64_t stride_of(const Expr& e, int var, int other) {
  int64_t found = 0;
  bool done = false;
  std::function<void(const Expr&)> visit = [&](const Expr& x) {
    if (done || !x) return;
    if (x->kind == ExprKind::Load) {
      const Expr& index = x->args[0];
      if (step_of(index, var) != 0 || step_of(index, other) != 0) {
        found = step_of(index, var);
        done = true;
      }
      return;
    }
    for (const Expr& a : x->args) visit(a);
  };
  visit(e);
  return found;
}

bool same(const Expr& a, const Expr& b) {
  if (a == b) return true;
  if (a->kind != b->kind || a->kind == ExprKind::Float || a->dtype != b->dtype || a->id != b->id ||
      a->int_value != b->int_value || a->op != b->op)
    return false;
  return std::equal(a->args.begin(), a->args.end(), b->args.begin(), b->args.end(), same);
}

}  // namespace trainc::loop
