// Index arithmetic in a normal form: sum of coefficient * atom + constant, each atom once, greatest coefficient first.
// An atom is a variable, a local, a load, or an operation that is not linear (floor_div, mod, max, ...). Division and
// remainder are floored throughout, so every rule here is an identity of integers; ranges only choose which ones apply.
// Two sums that are equal as normal forms are equal as trees, and print equal.
#include <algorithm>
#include <limits>
#include <numeric>

#include "loop/loop.h"

namespace trainc::loop {
namespace {

// as bounds: unknown
constexpr int64_t kMin = std::numeric_limits<int64_t>::min(), kMax = std::numeric_limits<int64_t>::max();

// --- bounds, saturating: kMin and kMax stand for "no bound"
struct Bounds { int64_t low = kMin, high = kMax; };

int64_t clamp(__int128 v) { return v <= kMin ? kMin : v >= kMax ? kMax : static_cast<int64_t>(v); }
int64_t add_bound(int64_t a, int64_t b, int64_t none) {
  return a == none || b == none ? none : clamp(static_cast<__int128>(a) + b);
}
int64_t mul_bound(int64_t a, int64_t c) {  // c != 0
  if (a == kMin || a == kMax) return (a == kMax) == (c > 0) ? kMax : kMin;
  return clamp(static_cast<__int128>(a) * c);
}
Bounds operator+(Bounds a, Bounds b) { return {add_bound(a.low, b.low, kMin), add_bound(a.high, b.high, kMax)}; }
Bounds scale(Bounds a, int64_t c) {
  if (c == 0) return {0, 0};
  Bounds r{mul_bound(a.low, c), mul_bound(a.high, c)};
  if (c < 0) std::swap(r.low, r.high);
  return r;
}
int64_t floored(int64_t a, int64_t d) { return a == kMin || a == kMax ? a : a / d - (a % d < 0 ? 1 : 0); }

Bounds bounds_of(const Expr& e);

Bounds bounds_of_apply(const ExprNode& e) {
  auto arg = [&](size_t i) { return bounds_of(e.args[i]); };
  auto number = [&](size_t i) { return e.args[i]->kind == ExprKind::Int ? e.args[i]->int_value : 0; };
  switch (e.op) {
    case Op::Add: return arg(0) + arg(1);
    case Op::Sub: return arg(0) + scale(arg(1), -1);
    case Op::Neg: return scale(arg(0), -1);
    case Op::Mul:
      if (e.args[1]->kind == ExprKind::Int) return scale(arg(0), number(1));
      if (e.args[0]->kind == ExprKind::Int) return scale(arg(1), number(0));
      return {};
    case Op::FloorDiv: {
      if (number(1) <= 0) return {};
      const Bounds a = arg(0);
      return {floored(a.low, number(1)), floored(a.high, number(1))};
    }
    case Op::Mod: return number(1) > 0 ? Bounds{0, number(1) - 1} : Bounds{};
    case Op::Max: {
      const Bounds a = arg(0), b = arg(1);
      return {std::max(a.low, b.low), std::max(a.high, b.high)};
    }
    case Op::Min: {
      const Bounds a = arg(0), b = arg(1);
      return {std::min(a.low, b.low), std::min(a.high, b.high)};
    }
    case Op::Select: {
      const Bounds a = arg(1), b = arg(2);
      return {std::min(a.low, b.low), std::max(a.high, b.high)};
    }
    case Op::Cast: return is_float(e.args[0]->dtype) || e.dtype != DType::I64 ? Bounds{} : arg(0);
    default: return {};  // not an index operation with a range we use
  }
}

Bounds bounds_of(const Expr& e) {
  switch (e->kind) {
    case ExprKind::Int: return {e->int_value, e->int_value};
    case ExprKind::Var: return {0, e->extent < 0 ? kMax : std::max<int64_t>(e->extent - 1, 0)};
    case ExprKind::Apply:
      if (e->dtype == DType::I64) return bounds_of_apply(*e);
      break;
    case ExprKind::Float:
    case ExprKind::Local:
    case ExprKind::Load:
    case ExprKind::Fma:
    case ExprKind::Pair:
    case ExprKind::Dot: break;
  }
  switch (e->dtype) {
    case DType::Bool: return {0, 1};
    case DType::U8: return {0, 255};
    case DType::I8: return {-128, 127};
    case DType::I16: return {-32768, 32767};
    case DType::I32: return {std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()};
    case DType::U16: return {0, 65535};
    case DType::U32: return {0, 0xffffffff};
    case DType::U64:
    case DType::I64:
    case DType::F64:
    case DType::F32:
    case DType::BF16:
    case DType::F16: return {};
  }
  return {};
}

// --- a total order over expressions, by structure
int order(const Expr& a, const Expr& b) {
  if (a == b) return 0;
  auto by = [](auto x, auto y) { return x < y ? -1 : x > y ? 1 : 0; };
  if (int c = by(a->kind, b->kind)) return c;
  if (int c = by(a->id, b->id)) return c;
  if (int c = by(a->op, b->op)) return c;
  if (int c = by(a->dtype, b->dtype)) return c;
  if (int c = by(a->int_value, b->int_value)) return c;
  if (int c = by(a->float_value, b->float_value)) return c;
  if (int c = by(a->args.size(), b->args.size())) return c;
  for (size_t i = 0; i < a->args.size(); ++i)
    if (int c = order(a->args[i], b->args[i])) return c;
  return 0;
}

// --- the normal form
struct Term {
  Expr atom;
  int64_t coefficient;
};
struct Sum {
  std::vector<Term> terms;  // greatest coefficient first, then by `order`; no zero coefficient
  int64_t constant = 0;
};

void add_term(Sum& sum, const Expr& atom, int64_t coefficient) {
  const Bounds b = bounds_of(atom);
  if (b.low == b.high) {  // a variable of extent 1
    sum.constant += coefficient * b.low;
    return;
  }
  for (Term& t : sum.terms)
    if (order(t.atom, atom) == 0) {
      t.coefficient += coefficient;
      return;
    }
  sum.terms.push_back({atom, coefficient});
}

void add_scaled(Sum& sum, const Expr& e, int64_t factor) {
  if (e->kind == ExprKind::Int) {
    sum.constant += factor * e->int_value;
    return;
  }
  if (e->kind == ExprKind::Apply && e->dtype == DType::I64) {
    if (e->op == Op::Add || e->op == Op::Sub) {
      add_scaled(sum, e->args[0], factor);
      add_scaled(sum, e->args[1], e->op == Op::Add ? factor : -factor);
      return;
    }
    if (e->op == Op::Neg) return add_scaled(sum, e->args[0], -factor);
    if (e->op == Op::Mul && e->args[1]->kind == ExprKind::Int)
      return add_scaled(sum, e->args[0], factor * e->args[1]->int_value);
    if (e->op == Op::Mul && e->args[0]->kind == ExprKind::Int)
      return add_scaled(sum, e->args[1], factor * e->args[0]->int_value);
  }
  add_term(sum, e, factor);
}

bool is_apply(const Expr& e, Op op) { return e->kind == ExprKind::Apply && e->op == op; }
bool is_apply_number(const Expr& e, Op op) {
  return is_apply(e, op) && e->args[1]->kind == ExprKind::Int && e->args[1]->int_value > 0;
}

// c*m * (x floor_div m) + c * (x mod m) is c * x: what a reshape and its way back leave.
// c*m * ((x floor_div m) mod n) + c * (x mod m) is c * (x mod m*n): the same within a larger one, as the taps and
// channels of a window's row.
bool join_quotient_and_remainder(Sum& sum) {
  for (size_t i = 0; i < sum.terms.size(); ++i) {
    if (!is_apply_number(sum.terms[i].atom, Op::Mod)) continue;
    const Expr x = sum.terms[i].atom->args[0];
    const int64_t m = sum.terms[i].atom->args[1]->int_value, c = sum.terms[i].coefficient;
    const Expr quotient = floor_div(x, m);
    for (size_t j = 0; j < sum.terms.size(); ++j) {
      if (j == i || sum.terms[j].coefficient != c * m) continue;
      const Expr atom = sum.terms[j].atom;
      const bool whole = order(atom, quotient) == 0;
      if (!whole && !(is_apply_number(atom, Op::Mod) && order(atom->args[0], quotient) == 0)) continue;
      sum.terms.erase(sum.terms.begin() + static_cast<std::ptrdiff_t>(std::max(i, j)));
      sum.terms.erase(sum.terms.begin() + static_cast<std::ptrdiff_t>(std::min(i, j)));
      add_scaled(sum, whole ? x : mod(x, m * atom->args[1]->int_value), c);
      return true;
    }
  }
  return false;
}

void normalize(Sum& sum) {
  do std::erase_if(sum.terms, [](const Term& t) { return t.coefficient == 0; });
  while (join_quotient_and_remainder(sum));
  std::sort(sum.terms.begin(), sum.terms.end(), [](const Term& a, const Term& b) {
    return a.coefficient != b.coefficient ? a.coefficient > b.coefficient : order(a.atom, b.atom) < 0;
  });
}

Sum sum_of(const Expr& e) {
  require(e && e->dtype == DType::I64, "index arithmetic on something that is not i64");
  Sum sum;
  add_scaled(sum, e, 1);
  normalize(sum);
  return sum;
}

Expr expr_of(const Sum& sum) {
  Expr e;
  for (const Term& t : sum.terms) {
    const bool minus = e && t.coefficient < 0 && t.coefficient != kMin;
    const int64_t c = minus ? -t.coefficient : t.coefficient;
    Expr term = c == 1 ? t.atom : apply(Op::Mul, {t.atom, integer(c)});
    e = e ? apply(minus ? Op::Sub : Op::Add, {e, term}) : term;
  }
  if (!e) return integer(sum.constant);
  return sum.constant == 0 ? e : apply(Op::Add, {e, integer(sum.constant)});
}

Bounds bounds_of(const Sum& sum) {
  Bounds b{sum.constant, sum.constant};
  for (const Term& t : sum.terms) b = b + scale(bounds_of(t.atom), t.coefficient);
  return b;
}

int64_t floor_mod(int64_t a, int64_t d) { return a - floored(a, d) * d; }

// sum = divisor * multiple + rest, where rest keeps the terms that the divisor does not divide.
void split(const Sum& sum, int64_t divisor, Sum& multiple, Sum& rest) {
  for (const Term& t : sum.terms) {
    if (t.coefficient % divisor == 0) multiple.terms.push_back({t.atom, t.coefficient / divisor});
    else rest.terms.push_back(t);
  }
  multiple.constant = floored(sum.constant, divisor);
  rest.constant = floor_mod(sum.constant, divisor);
}

// A g > 1 that divides the divisor, with sum = g * multiple + rest and rest within [0, g): then sum / divisor is
// multiple / (divisor / g), and the rest cannot carry. The greatest such g; 1 where there is none.
int64_t common_factor(const Sum& sum, int64_t divisor, Sum& multiple, Sum& rest) {
  std::vector<int64_t> candidates;
  for (const Term& t : sum.terms) {
    const int64_t g = std::gcd(t.coefficient, divisor);
    const size_t known = candidates.size();
    for (size_t i = 0; i < known; ++i) candidates.push_back(std::gcd(candidates[i], g));
    candidates.push_back(g);
    std::sort(candidates.begin(), candidates.end(), std::greater<>());
    candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());
  }
  for (int64_t g : candidates) {
    if (g <= 1) break;
    multiple = rest = Sum{};
    split(sum, g, multiple, rest);
    const Bounds b = bounds_of(rest);
    if (b.low >= 0 && b.high < g) return g;
  }
  return 1;
}

Expr plus(Sum a, const Expr& e) {
  add_scaled(a, e, 1);
  normalize(a);
  return expr_of(a);
}

// The part of `e` that counts, once what the divisor divides is taken out; all of `e` where taking it out would leave
// something that may be negative (the contract promises only that the whole is not).
void take_out(const Expr& e, int64_t divisor, Sum& multiple, Sum& rest) {
  const Sum sum = sum_of(e);
  split(sum, divisor, multiple, rest);
  if (bounds_of(rest).low < 0) {
    multiple = Sum{};
    rest = sum;
  }
}

}  // namespace

Expr operator+(const Expr& a, const Expr& b) {
  require(b && b->dtype == DType::I64, "index arithmetic on something that is not i64");
  return plus(sum_of(a), b);
}

Expr operator-(const Expr& a, const Expr& b) { return a + b * -1; }

Expr operator*(const Expr& a, int64_t factor) {
  Sum sum = sum_of(a);
  for (Term& t : sum.terms) t.coefficient *= factor;
  sum.constant *= factor;
  normalize(sum);
  return expr_of(sum);
}

Expr floor_div(const Expr& e, int64_t divisor) {
  require(divisor > 0, "floor_div: the divisor is not positive");
  Sum multiple, rest;
  take_out(e, divisor, multiple, rest);
  const Bounds b = bounds_of(rest);
  if (b.low != kMin && b.high != kMax && floored(b.low, divisor) == floored(b.high, divisor))
    return plus(multiple, integer(floored(b.low, divisor)));

  Sum inner, below;
  if (const int64_t g = common_factor(rest, divisor, inner, below); g > 1)
    return plus(multiple, floor_div(expr_of(inner), divisor / g));

  if (rest.terms.size() == 1 && rest.terms[0].coefficient == 1) {
    const Expr atom = rest.terms[0].atom;
    if (is_apply_number(atom, Op::FloorDiv)) {  // (x / a + c) / d is (x + c * a) / (a * d)
      const int64_t a = atom->args[1]->int_value;
      return plus(multiple, floor_div(atom->args[0] + integer(rest.constant * a), a * divisor));
    }
    // (x % (d * m)) / d is (x / d) % m
    if (is_apply_number(atom, Op::Mod) && rest.constant == 0 && atom->args[1]->int_value % divisor == 0)
      return plus(multiple, mod(floor_div(atom->args[0], divisor), atom->args[1]->int_value / divisor));
  }
  return plus(multiple, apply(Op::FloorDiv, {expr_of(rest), integer(divisor)}));
}

Expr mod(const Expr& e, int64_t divisor) {
  require(divisor > 0, "mod: the divisor is not positive");
  Sum multiple, rest;
  take_out(e, divisor, multiple, rest);
  const Bounds b = bounds_of(rest);
  if (b.low != kMin && b.high != kMax && floored(b.low, divisor) == floored(b.high, divisor))
    return plus(rest, integer(-floored(b.low, divisor) * divisor));

  Sum inner, below;
  if (const int64_t g = common_factor(rest, divisor, inner, below); g > 1)
    return plus(below, mod(expr_of(inner), divisor / g) * g);

  if (rest.terms.size() == 1 && rest.terms[0].coefficient == 1 && rest.constant == 0) {
    const Expr atom = rest.terms[0].atom;
    if (is_apply_number(atom, Op::Mod) && atom->args[1]->int_value % divisor == 0) return mod(atom->args[0], divisor);
  }
  return apply(Op::Mod, {expr_of(rest), integer(divisor)});
}

Range range_of(const Expr& e) {
  if (!e || is_float(e->dtype)) return {};
  const Bounds b = e->dtype == DType::I64 ? bounds_of(sum_of(e)) : bounds_of(e);
  if (b.low == kMin || b.high == kMax) return {};
  return {b.low, b.high, true};
}

}  // namespace trainc::loop
