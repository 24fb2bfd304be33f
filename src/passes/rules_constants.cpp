// Rules that compute what is known: a constant in every element stays one scalar, broadcast.
#include "passes/rules.h"
#include "passes/values.h"
#include "reference/reference.h"

namespace trainc {
namespace {

using N = const Node*;

/// The scalar operation on the operands' scalars, rounded to its dtype as an ideal machine would.
N fold_elementwise(Builder& b, N n) {
  Graph scalar;
  std::vector<const Node*> inputs;
  for (N in : n->inputs) {
    N c = uniform_constant(in);
    if (!c) return nullptr;
    inputs.push_back(scalar.make(Op::Constant, c->attrs, {}, c->type));
  }
  scalar.outputs.push_back({scalar.make(n->op, n->attrs, inputs, {n->dtype(), {}}), {}});
  const auto value = reference::evaluate(scalar, {}, {reference::Precision::Rounded, {}, {}}).at(0);
  N c = is_float(n->dtype()) ? b.constant(n->dtype(), value.f[0]) : b.constant_int(n->dtype(), value.i[0]);
  return b.broadcast(c, n->shape());
}

/// One way to write a uniform constant: constant, reshape to ones, broadcast (Builder::full's).
N move_constant(Builder& b, N n) {
  N c = uniform_constant(n);
  return c ? b.broadcast(c, n->shape()) : nullptr;
}

N pad_constant(Builder& b, N n) {
  N c = uniform_constant(n->in(0)), value = uniform_constant(n->in(1));
  return c && c == value ? b.broadcast(c, n->shape()) : nullptr;
}

N concat_constants(Builder& b, N n) {
  N c = uniform_constant(n->in(0));
  for (N in : n->inputs)
    if (!c || uniform_constant(in) != c) return nullptr;
  return b.broadcast(c, n->shape());
}

N reduce_constant(Builder& b, N n) {
  const ReduceKind kind = n->as<ReduceAttr>().kind;
  N c = uniform_constant(n->in(0));
  if (!c || (kind != ReduceKind::Max && kind != ReduceKind::Min)) return nullptr;
  return b.broadcast(c, n->shape());
}

N gather_constant(Builder& b, N n) {
  // Only where the index is known to be within bounds: an IndexError is part of the value.
  N c = uniform_constant(n->in(0)), index = uniform_constant(n->in(1));
  if (!c || !index || int_of(index) < 0 || int_of(index) >= n->in(0)->shape()[n->as<AxisAttr>().axis]) return nullptr;
  return b.broadcast(c, n->shape());
}

}  // namespace

std::span<const Rule> constant_rules() {
  static const std::vector<Rule> rules = {
      {"fold_elementwise", "f(constants) -> constant", elementwise_ops(), fold_elementwise},
      {"move_constant",
       "a movement of a uniform constant -> broadcast(constant)",
       {Op::Reshape, Op::Permute, Op::Broadcast, Op::Slice, Op::Window, Op::Reverse},
       move_constant},
      {"pad_constant", "pad(c, c) -> c", {Op::Pad}, pad_constant},
      {"concat_constants", "concat(c, c) -> c", {Op::Concat}, concat_constants},
      {"reduce_constant",
       "max or min of a uniform constant -> it (a sum would have to round as the machine does)",
       {Op::Reduce},
       reduce_constant},
      {"gather_constant", "gather(c, known index within bounds) -> c", {Op::Gather}, gather_constant},
  };
  return rules;
}

}  // namespace trainc
