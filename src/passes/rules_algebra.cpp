// Rules of arithmetic and logic.
#include <cmath>

#include "passes/rules.h"
#include "passes/values.h"
#include "support/rounding.h"

namespace trainc {
namespace {

using N = const Node*;

/// The operand that is left when the other one is a neutral element, on the right or (commutative) on the left.
N other_than(N n, double neutral, bool commutative = true) {
  if (is_uniform(n->in(1), neutral)) return n->in(0);
  return commutative && is_uniform(n->in(0), neutral) ? n->in(1) : nullptr;
}

N add_neutral(Builder&, N n) { return other_than(n, is_float(n->dtype()) ? -0.0 : 0.0); }
N sub_neutral(Builder&, N n) { return other_than(n, 0.0, false); }
N mul_one(Builder&, N n) { return other_than(n, 1.0); }
N div_one(Builder&, N n) { return other_than(n, 1.0, false); }

N mul_minus_one(Builder& b, N n) {
  N x = other_than(n, -1.0);
  return x ? b.unary(Op::Neg, x) : nullptr;
}

N mul_zero_of_integers(Builder&, N n) {
  if (is_float(n->dtype())) return nullptr;
  return is_uniform(n->in(0), 0.0) ? n->in(0) : is_uniform(n->in(1), 0.0) ? n->in(1) : nullptr;
}

/// Both are the rounding of one and the same real number when the reciprocal is a value of the dtype.
N div_by_power_of_two(Builder& b, N n) {
  N c = uniform_constant(n->in(1));
  if (!c || !is_float(n->dtype())) return nullptr;
  const double value = float_of(c), reciprocal = 1 / value;
  int exponent;
  if (!std::isfinite(value) || value == 0 || std::fabs(std::frexp(value, &exponent)) != 0.5) return nullptr;
  if (!std::isfinite(reciprocal) || round_to(n->dtype(), reciprocal) != reciprocal) return nullptr;
  return b.mul(n->in(0), b.full(n->dtype(), n->shape(), reciprocal));
}

N add_of_neg(Builder& b, N n) {
  if (n->in(1)->op == Op::Neg) return b.sub(n->in(0), n->in(1)->in(0));
  return n->in(0)->op == Op::Neg ? b.sub(n->in(1), n->in(0)->in(0)) : nullptr;
}
N sub_of_neg(Builder& b, N n) { return n->in(1)->op == Op::Neg ? b.add(n->in(0), n->in(1)->in(0)) : nullptr; }

/// Not of integers' quotients: the least integer is its own opposite, -least / -1 and least / 1 agree, but -x / -least
/// does not.
N product_of_negs(Builder& b, N n) {
  if (n->in(0)->op != Op::Neg || n->in(1)->op != Op::Neg) return nullptr;
  if (n->op == Op::Div && !is_float(n->dtype())) return nullptr;
  return b.binary(n->op, n->in(0)->in(0), n->in(1)->in(0));
}

N undo_itself(Builder&, N n) { return n->in(0)->op == n->op ? n->in(0)->in(0) : nullptr; }

/// |-x| is |x| where the dtype has signs: an unsigned -1 is 255, and so is its absolute value.
N abs_of_signless(Builder& b, N n) {
  if (n->in(0)->op == Op::Abs) return n->in(0);
  return n->in(0)->op == Op::Neg && !is_unsigned(n->dtype()) ? b.unary(Op::Abs, n->in(0)->in(0)) : nullptr;
}

/// Of NaN, == is false and != true: each is the other's opposite. The orders are so of integers alone.
N not_of_comparison(Builder& b, N n) {
  N c = n->in(0);
  if (c->op == Op::Eq) return b.binary(Op::Ne, c->in(0), c->in(1));
  if (c->op == Op::Ne) return b.binary(Op::Eq, c->in(0), c->in(1));
  if ((c->op != Op::Lt && c->op != Op::Le) || is_float(c->in(0)->dtype())) return nullptr;
  return b.binary(c->op == Op::Lt ? Op::Le : Op::Lt, c->in(1), c->in(0));
}

N of_itself(Builder&, N n) { return n->in(0) == n->in(1) ? n->in(0) : nullptr; }

N logic_with_constant(Builder&, N n) {
  if (n->dtype() != DType::Bool) return nullptr;
  const double neutral = n->op == Op::And;
  for (size_t i : {0, 1}) {
    if (is_uniform(n->in(i), neutral)) return n->in(1 - i);
    if (is_uniform(n->in(i), 1 - neutral)) return n->in(i);
  }
  return nullptr;
}

N select_constant(Builder&, N n) {
  N c = uniform_constant(n->in(0));
  return c ? n->in(int_of(c) ? 1 : 2) : nullptr;
}
N select_same(Builder&, N n) { return n->in(1) == n->in(2) ? n->in(1) : nullptr; }
N select_not(Builder& b, N n) {
  return n->in(0)->op == Op::Not ? b.select(n->in(0)->in(0), n->in(2), n->in(1)) : nullptr;
}
N select_again(Builder& b, N n) {  // an inner select by the same condition is decided
  for (size_t i : {1, 2})
    if (N inner = n->in(i); inner->op == Op::Select && inner->in(0) == n->in(0))
      return i == 1 ? b.select(n->in(0), inner->in(1), n->in(2)) : b.select(n->in(0), n->in(1), inner->in(2));
  return nullptr;
}

N cast_same(Builder&, N n) { return n->in(0)->dtype() == n->dtype() ? n->in(0) : nullptr; }
N cast_cast(Builder& b, N n) {
  if (n->in(0)->op != Op::Cast) return nullptr;
  N x = n->in(0)->in(0);
  const DType from = x->dtype(), over = n->in(0)->dtype();
  if (!holds_exactly(from, over)) return nullptr;
  // Integers that pass through a float to narrower integers: out of range means wrapping on one way, nonsense on the
  // other.
  if (!is_float(from) && is_float(over) && !is_float(n->dtype()) && n->dtype() != DType::Bool &&
      !holds_exactly(from, n->dtype()))
    return nullptr;
  return b.cast(x, n->dtype());
}

/// Not max and min: zeros of two signs make their order count.
N operand_order(Builder& b, N n) {
  N x = n->in(0), y = n->in(1);
  const bool x_constant = uniform_constant(x), y_constant = uniform_constant(y);
  return x_constant > y_constant || (x_constant == y_constant && x->id > y->id) ? b.binary(n->op, y, x) : nullptr;
}

/// The powers that one operation gives as well, with its one rounding. Not the roots (of -0.0 and -inf: pow gives 0.0
/// and inf) and not the cube, which would be rounded twice; eager's own forms of them are the front end's (pow_scalar).
N pow_of_one_operation(Builder& b, N n) {
  N c = uniform_constant(n->in(1)), x = n->in(0);
  if (!c || !is_float(n->dtype())) return nullptr;
  const double exponent = float_of(c);
  const auto one = [&] { return b.full(n->dtype(), n->shape(), 1); };
  if (exponent == 0) return one();
  if (exponent == 1) return x;
  if (exponent == 2) return b.mul(x, x);
  if (exponent == -1) return b.div(one(), x);
  return nullptr;
}

}  // namespace

std::span<const Rule> algebra_rules() {
  static const std::vector<Rule> rules = {
      {"add_neutral", "x + -0.0 -> x; integers: x + 0 -> x", {Op::Add}, add_neutral},
      {"sub_neutral", "x - 0 -> x", {Op::Sub}, sub_neutral},
      {"mul_one", "x * 1 -> x", {Op::Mul}, mul_one},
      {"div_one", "x / 1 -> x", {Op::Div}, div_one},
      {"mul_minus_one", "x * -1 -> -x", {Op::Mul}, mul_minus_one},
      {"mul_zero_of_integers", "x * 0 -> 0, integers only", {Op::Mul}, mul_zero_of_integers},
      {"div_by_power_of_two", "x / 2^k -> x * 2^-k", {Op::Div}, div_by_power_of_two},
      {"add_of_neg", "x + -y -> x - y", {Op::Add}, add_of_neg},
      {"sub_of_neg", "x - -y -> x + y", {Op::Sub}, sub_of_neg},
      {"product_of_negs", "-x * -y -> x * y; floats: -x / -y -> x / y", {Op::Mul, Op::Div}, product_of_negs},
      {"undo_itself", "--x -> x; not not x -> x", {Op::Neg, Op::Not}, undo_itself},
      {"abs_of_signless", "| |x| | -> |x|; where there are signs: |-x| -> |x|", {Op::Abs}, abs_of_signless},
      {"not_of_comparison",
       "not x == y -> x != y, and the other way; integers: not x < y -> y <= x",
       {Op::Not},
       not_of_comparison},
      {"of_itself", "max(x, x), min(x, x), x and x, x or x -> x", {Op::Max, Op::Min, Op::And, Op::Or}, of_itself},
      {"logic_with_constant",
       "bool: x and true -> x, x and false -> false, and so with or",
       {Op::And, Op::Or},
       logic_with_constant},
      {"select_constant", "true ? x : y -> x", {Op::Select}, select_constant},
      {"select_same", "c ? x : x -> x", {Op::Select}, select_same},
      {"select_not", "not c ? x : y -> c ? y : x", {Op::Select}, select_not},
      {"select_again", "c ? (c ? x : y) : z -> c ? x : z", {Op::Select}, select_again},
      {"cast_same", "cast(x) to its own dtype -> x", {Op::Cast}, cast_same},
      {"cast_cast", "cast(cast(x, B), C) -> cast(x, C), where B holds every value of x's dtype", {Op::Cast}, cast_cast},
      {"operand_order",
       "constants on the right, older values on the left",
       {Op::Add, Op::Mul, Op::And, Op::Or, Op::Xor, Op::Eq, Op::Ne},
       operand_order},
      {"pow_of_one_operation", "x ^ {0, 1, 2, -1} -> 1, x, x * x, 1 / x", {Op::Pow}, pow_of_one_operation},
  };
  return rules;
}

}  // namespace trainc
