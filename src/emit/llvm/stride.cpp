#include "emit/llvm/stride.h"

#include <algorithm>
#include <numeric>

namespace trainc::emit {
using loop::Expr;
using loop::ExprKind;

Strides::Strides(int vector_var, int lanes, std::function<bool(int)> varying)
    : var_(vector_var), lanes_(lanes), varying_(std::move(varying)) {}

Stride Strides::of(const Expr& e) {
  auto found = memo_.find(e.get());
  if (found != memo_.end()) return found->second;
  return memo_[e.get()] = compute(e);
}

Stride Strides::compute(const Expr& e) {
  const Stride unknown{};
  switch (e->kind) {
    case ExprKind::Int: return {true, 0, e->int_value == INT64_MIN ? 1 : std::abs(e->int_value), true};
    case ExprKind::Float: return {true, 0, 1, true};
    case ExprKind::Var: return e->id == var_ ? Stride{true, 1, lanes_, true} : Stride{true, 0, 1, true};
    case ExprKind::Local: return varying_(e->id) ? unknown : Stride{true, 0, 1, false};
    case ExprKind::Load:
    case ExprKind::Fma:
    case ExprKind::Pair:
    case ExprKind::Dot:
      for (const Expr& a : e->args)
        if (a && !of(a).uniform()) return unknown;
      return {true, 0, 1, false};
    case ExprKind::Apply: break;
  }
  bool uniform = true, pure = true;
  for (const Expr& a : e->args) {
    uniform &= of(a).uniform();
    pure &= of(a).pure;
  }
  if (e->dtype != DType::I64) return uniform ? Stride{true, 0, 1, false} : unknown;
  const Stride otherwise = uniform ? Stride{true, 0, 1, pure} : unknown;
  if (e->args.size() != 2) return otherwise;
  const Stride a = of(e->args[0]), b = of(e->args[1]);
  if (!a.known || !b.known) return otherwise;
  const auto number = [](const Expr& x) {
    return x->kind == ExprKind::Int ? std::optional(x->int_value) : std::nullopt;
  };
  switch (e->op) {
    case Op::Add: return {true, a.stride + b.stride, std::gcd(a.multiple, b.multiple), pure};
    case Op::Sub: return {true, a.stride - b.stride, std::gcd(a.multiple, b.multiple), pure};
    case Op::Mul: {
      if (auto c = number(e->args[1])) return {true, a.stride * *c, a.multiple * std::abs(*c), pure};
      if (auto c = number(e->args[0])) return {true, b.stride * *c, b.multiple * std::abs(*c), pure};
      return otherwise;
    }
    case Op::FloorDiv:
    case Op::Mod: {
      const auto d = number(e->args[1]);
      if (!d || *d <= 0) return otherwise;
      const bool quotient = e->op == Op::FloorDiv;
      const int64_t g = std::gcd(a.multiple, *d);
      // Lane 0 is at most d - g above a multiple of d: when the lanes stay below g, none of them crosses the next one.
      if (a.stride >= 0 && a.stride * (lanes_ - 1) < g)
        return quotient ? Stride{true, 0, a.multiple % *d == 0 ? a.multiple / *d : 1, pure}
                        : Stride{true, a.stride, g, pure};
      if (a.stride % *d == 0) return quotient ? Stride{true, a.stride / *d, 1, pure} : Stride{true, 0, g, pure};
      return otherwise;
    }
    default: return otherwise;
  }
}

}  // namespace trainc::emit
