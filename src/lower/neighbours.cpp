#include "lower/neighbours.h"

#include <algorithm>
#include <numeric>

namespace trainc::lower {

using namespace loop;

int64_t divisor_of(const Expr& e) {
  if (e->kind == ExprKind::Int) return e->int_value;
  if (e->kind != ExprKind::Apply || e->dtype != DType::I64 || e->args.size() != 2) return 1;
  const Expr &a = e->args[0], &b = e->args[1];
  const bool number = b->kind == ExprKind::Int && b->int_value > 0;
  switch (e->op) {
    case Op::Add:
    case Op::Sub:
    case Op::Min: return std::gcd(divisor_of(a), divisor_of(b));
    case Op::Mul: return divisor_of(a) * divisor_of(b);
    case Op::Mod: return number ? std::gcd(divisor_of(a), b->int_value) : 1;
    case Op::FloorDiv: return number && divisor_of(a) % b->int_value == 0 ? divisor_of(a) / b->int_value : 1;
    default: return 1;
  }
}

bool depends_on(const Expr& e, int var, const std::set<int>& locals) {
  if (e->kind == ExprKind::Var) return e->id == var;
  if (e->kind == ExprKind::Local) return locals.contains(e->id);
  return std::any_of(e->args.begin(), e->args.end(), [&](const Expr& a) { return depends_on(a, var, locals); });
}

std::optional<Neighbours> split_lanes(const Expr& e, const Lanes& group) {
  if (!depends_on(e, group.var, group.locals)) return Neighbours{e, 0};
  if (e->kind == ExprKind::Var) return Neighbours{group.first, 1};
  if (e->kind != ExprKind::Apply || e->dtype != DType::I64 || e->args.size() != 2) return std::nullopt;
  const Expr& b = e->args[1];
  const std::optional<Neighbours> left = split_lanes(e->args[0], group);
  if (!left) return std::nullopt;
  if (e->op == Op::Add || e->op == Op::Sub) {
    const std::optional<Neighbours> right = split_lanes(b, group);
    if (!right) return std::nullopt;
    return e->op == Op::Add ? Neighbours{left->rest + right->rest, left->step + right->step}
                            : Neighbours{left->rest - right->rest, left->step - right->step};
  }
  if (b->kind != ExprKind::Int) return std::nullopt;
  const int64_t n = b->int_value;
  if (e->op == Op::Mul) return Neighbours{left->rest * n, left->step * n};
  if (left->step == 0) {
    if (e->op == Op::FloorDiv && n > 0) return Neighbours{floor_div(left->rest, n), 0};
    if (e->op == Op::Mod && n > 0) return Neighbours{mod(left->rest, n), 0};
    return std::nullopt;
  }
  // a group lies within one part of n
  const bool within = n > 0 && n % group.lanes == 0 && left->step == 1 && divisor_of(left->rest) % group.lanes == 0;
  if (!within) return std::nullopt;
  if (e->op == Op::FloorDiv) return Neighbours{floor_div(left->rest, n), 0};
  if (e->op == Op::Mod) return Neighbours{mod(left->rest, n), 1};
  return std::nullopt;
}

}  // namespace trainc::lower
