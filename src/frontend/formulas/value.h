// A notation for formulas: nodes with operators, so that a formula reads as the maths it stands for. For formulas and
// for front ends. Shapes broadcast as in NumPy; dtypes must agree (who calls casts first); a plain number takes the
// dtype of the other side.
#pragma once
#include "graph/build.h"

namespace trainc::formulas {

/// What a float operation computes in: f32 for the half types, rounded once at the end; itself otherwise.
inline DType compute_dtype(DType d) { return d == DType::BF16 || d == DType::F16 ? DType::F32 : d; }

struct Value {
  Builder* b = nullptr;
  const Node* node = nullptr;

  const Dims& shape() const { return node->type.shape; }
  DType dtype() const { return node->type.dtype; }
  int64_t rank() const { return node->type.rank(); }
  int64_t size(int64_t axis) const { return shape().at(axis); }
  int64_t numel() const { return node->type.numel(); }
};

inline Value with(Value x, const Node* node) { return {x.b, node}; }
/// A scalar beside x: same builder and dtype.
inline Value number(Value x, double v) { return with(x, x.b->constant(x.dtype(), v)); }

inline Value binary(Op op, Value x, Value y) {
  Dims shape = broadcast_shape(x.shape(), y.shape());
  return with(x, x.b->binary(op, x.b->broadcast(x.node, shape), x.b->broadcast(y.node, shape)));
}
inline Value unary(Op op, Value x) { return with(x, x.b->unary(op, x.node)); }

#define TRAINC_BINARY(name, op)                                          \
  inline Value name(Value x, Value y) { return binary(op, x, y); }       \
  inline Value name(Value x, double y) { return name(x, number(x, y)); } \
  inline Value name(double x, Value y) { return name(number(y, x), y); }
TRAINC_BINARY(operator+, Op::Add)
TRAINC_BINARY(operator-, Op::Sub)
TRAINC_BINARY(operator*, Op::Mul)
TRAINC_BINARY(operator/, Op::Div)
TRAINC_BINARY(operator<, Op::Lt)
TRAINC_BINARY(operator<=, Op::Le)
TRAINC_BINARY(operator==, Op::Eq)
TRAINC_BINARY(operator!=, Op::Ne)
TRAINC_BINARY(operator%, Op::Mod)
TRAINC_BINARY(max, Op::Max)
TRAINC_BINARY(min, Op::Min)
TRAINC_BINARY(pow, Op::Pow)
#undef TRAINC_BINARY
inline Value operator>(Value x, Value y) { return y < x; }
inline Value operator>(Value x, double y) { return number(x, y) < x; }
inline Value operator>=(Value x, Value y) { return y <= x; }
inline Value operator>=(Value x, double y) { return number(x, y) <= x; }
inline Value operator&(Value x, Value y) { return binary(Op::And, x, y); }
inline Value operator|(Value x, Value y) { return binary(Op::Or, x, y); }
inline Value operator^(Value x, Value y) { return binary(Op::Xor, x, y); }
inline Value operator-(Value x) { return unary(Op::Neg, x); }
inline Value operator!(Value x) { return unary(Op::Not, x); }

inline Value exp(Value x) { return unary(Op::Exp, x); }
inline Value expm1(Value x) { return unary(Op::Expm1, x); }
inline Value log(Value x) { return unary(Op::Log, x); }
inline Value log1p(Value x) { return unary(Op::Log1p, x); }
inline Value sqrt(Value x) { return unary(Op::Sqrt, x); }
inline Value tanh(Value x) { return unary(Op::Tanh, x); }
inline Value erf(Value x) { return unary(Op::Erf, x); }
inline Value abs(Value x) { return unary(Op::Abs, x); }
inline Value sign(Value x) { return unary(Op::Sign, x); }
inline Value trunc(Value x) { return unary(Op::Trunc, x); }
inline Value is_nan(Value x) { return unary(Op::IsNan, x); }
inline Value sigmoid(Value x) { return 1.0 / (1.0 + exp(-x)); }

inline Value cast(Value x, DType d) { return with(x, x.b->cast(x.node, d)); }
inline Value broadcast(Value x, const Dims& shape) { return with(x, x.b->broadcast(x.node, shape)); }
inline Value reshape(Value x, const Dims& shape) { return with(x, x.b->reshape(x.node, shape)); }
inline Value permute(Value x, const Dims& order) { return with(x, x.b->permute(x.node, order)); }

inline Value where(Value c, Value x, Value y) {
  Dims shape = broadcast_shape(c.shape(), broadcast_shape(x.shape(), y.shape()));
  return with(x, x.b->select(broadcast(c, shape).node, broadcast(x, shape).node, broadcast(y, shape).node));
}
inline Value where(Value c, double x, Value y) { return where(c, number(y, x), y); }
inline Value where(Value c, Value x, double y) { return where(c, x, number(x, y)); }

inline Value reduce(ReduceKind kind, Value x, Dims axes, bool keep = true) {
  return with(x, x.b->reduce(kind, x.node, std::move(axes), keep));
}
inline Value sum(Value x, Dims axes, bool keep = true) { return reduce(ReduceKind::Sum, x, std::move(axes), keep); }
inline Value amax(Value x, Dims axes, bool keep = true) { return reduce(ReduceKind::Max, x, std::move(axes), keep); }

/// [B,M,K] x [B,K,N] -> [B,M,N]: the graph's contraction takes the right side with K last.
inline Value matmul(Value x, Value y) { return with(x, x.b->contract(x.node, x.b->permute(y.node, {0, 2, 1}))); }

/// x where it is not below (above) the bound: max and min that keep the sign of a zero x. NaN stays, also the bound's.
inline Value beyond(Value out, Value bound, Value x) {
  return where(is_float(x.dtype()) ? out | is_nan(bound) : out, bound, x);
}
inline Value at_least(Value x, Value low) { return beyond(x < low, low, x); }
inline Value at_most(Value x, Value high) { return beyond(high < x, high, x); }
inline Value at_least(Value x, double low) { return at_least(x, number(x, low)); }
inline Value at_most(Value x, double high) { return at_most(x, number(x, high)); }

/// x, after a check: where `ok` (of x's shape) does not hold, the plan fails when it runs. A lookup in a table of one
/// element.
inline Value checked(Value x, Value ok, Failure failure) {
  Value index = with(x, x.b->cast(x.b->unary(Op::Not, x.b->reshape(ok.node, {ok.node->type.numel()})), DType::I64));
  Value found = with(x, x.b->gather(x.b->full(x.dtype(), {1}, 0), index.node, 0, failure));
  return where(ok, x, reshape(found, x.shape()));
}

/// i64 [shape], counting along axis.
inline Value iota(Builder& b, const Dims& shape, int64_t axis) { return {&b, b.iota(DType::I64, shape, axis)}; }

}  // namespace trainc::formulas
