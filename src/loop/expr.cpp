// Constructors of expressions; they hold the dtype rules. Index arithmetic is in simplify.cpp.
#include <fmt/format.h>

#include "loop/loop.h"
#include "support/rounding.h"

namespace trainc::loop {
namespace {

ExprNode node(ExprKind kind, DType dtype) {
  ExprNode n{};
  n.kind = kind;
  n.dtype = dtype;
  return n;
}
Expr share(ExprNode n) { return std::make_shared<const ExprNode>(std::move(n)); }

bool gives_bool(Op op) { return op == Op::Lt || op == Op::Le || op == Op::Eq || op == Op::Ne || op == Op::IsNan; }

}  // namespace

Expr integer(int64_t value, DType dtype) {
  require(!is_float(dtype), "integer: a float dtype; use real");
  ExprNode n = node(ExprKind::Int, dtype);
  n.int_value = value;
  return share(std::move(n));
}

Expr real(double value, DType dtype) {
  require(is_float(dtype), "real: not a float dtype; use integer");
  ExprNode n = node(ExprKind::Float, dtype);
  n.float_value = round_to(dtype, value);
  return share(std::move(n));
}

Expr apply(Op op, std::vector<Expr> args) {
  require(is_elementwise(op) && op != Op::Cast && op != Op::Bitcast,
          fmt::format("apply: {} is not an elementwise op with a dtype of its own", name_of(op)));
  require(static_cast<int>(args.size()) == arity_of(op),
          fmt::format("apply: {} takes {} operands, not {}", name_of(op), arity_of(op), args.size()));
  for (const Expr& a : args) require(a != nullptr, fmt::format("apply: {} with a null operand", name_of(op)));
  const size_t first = op == Op::Select ? 1 : 0;  // a Select's condition has a dtype of its own
  if (first == 1) require(args[0]->dtype == DType::Bool, "apply: select's condition is not bool");
  for (const Expr& a : args)
    require(&a < &args[first] || a->dtype == args[first]->dtype,
            fmt::format("apply: operands of {} are {} and {}", name_of(op), name_of(args[first]->dtype),
                        name_of(a->dtype)));
  ExprNode n = node(ExprKind::Apply, gives_bool(op) ? DType::Bool : args[first]->dtype);
  n.op = op;
  n.args = std::move(args);
  return share(std::move(n));
}

Expr cast(Expr a, DType dtype) {
  if (a->dtype == dtype) return a;
  ExprNode n = node(ExprKind::Apply, dtype);
  n.op = Op::Cast;
  n.args = {std::move(a)};
  return share(std::move(n));
}

Expr bitcast(Expr a, DType dtype) {
  require(size_of(a->dtype) == size_of(dtype) && a->dtype != DType::Bool && dtype != DType::Bool,
          fmt::format("bitcast: {} as {}", name_of(a->dtype), name_of(dtype)));
  if (a->dtype == dtype) return a;
  ExprNode n = node(ExprKind::Apply, dtype);
  n.op = Op::Bitcast;
  n.args = {std::move(a)};
  return share(std::move(n));
}

Expr fma(Expr a, Expr b, Expr c) {
  require(is_float(a->dtype) && a->dtype == b->dtype && b->dtype == c->dtype,
          "fma: operands are not of one float dtype");
  ExprNode n = node(ExprKind::Fma, a->dtype);
  n.args = {std::move(a), std::move(b), std::move(c)};
  return share(std::move(n));
}

Expr pair(Expr low, Expr high) {
  require(low->dtype == DType::BF16 && high->dtype == DType::BF16, "pair: the halves are not bf16");
  ExprNode n = node(ExprKind::Pair, DType::I32);
  n.args = {std::move(low), std::move(high)};
  return share(std::move(n));
}

Expr dot(Expr a, Expr b, Expr c) {
  require(a->dtype == DType::I32 && b->dtype == DType::I32 && c->dtype == DType::F32,
          "dot: not two pairs (i32) and an f32");
  ExprNode n = node(ExprKind::Dot, DType::F32);
  n.args = {std::move(a), std::move(b), std::move(c)};
  return share(std::move(n));
}

Expr guarded(const Expr& e, const Expr& guard) {
  if (e->args.empty()) return e;
  ExprNode copy = *e;
  for (Expr& argument : copy.args) argument = guarded(argument, guard);
  if (e->kind == ExprKind::Load)
    copy.args.resize(1), copy.args.push_back(e->args.size() == 1 ? guard : apply(Op::And, {guard, e->args[1]}));
  return share(std::move(copy));
}

// --- leaves that know their nest

Expr LoopNest::var(int id) const {
  ExprNode n = node(ExprKind::Var, DType::I64);
  n.id = id;
  n.extent = vars.at(static_cast<size_t>(id)).extent;
  return share(std::move(n));
}

Expr LoopNest::local(int id) const {
  ExprNode n = node(ExprKind::Local, locals.at(static_cast<size_t>(id)).dtype);
  n.id = id;
  return share(std::move(n));
}

Expr LoopNest::load(int buffer, Expr index, Expr guard) const {
  require(index && index->dtype == DType::I64, "load: the index is not i64");
  require(!guard || guard->dtype == DType::Bool, "load: the guard is not bool");
  ExprNode n = node(ExprKind::Load, buffers.at(static_cast<size_t>(buffer)).dtype);
  n.id = buffer;
  n.args.push_back(std::move(index));
  if (guard) n.args.push_back(std::move(guard));
  return share(std::move(n));
}

}  // namespace trainc::loop
