#include "frontend/stablehlo/monoid.h"

#include <cmath>
#include <limits>

#include "support/rounding.h"

namespace trainc::frontend::stablehlo {
namespace {

using formulas::cast;
using formulas::where;

const std::map<std::string, Op> kOperations = {{"stablehlo.add", Op::Add},     {"stablehlo.multiply", Op::Mul},
                                               {"stablehlo.maximum", Op::Max}, {"stablehlo.minimum", Op::Min},
                                               {"stablehlo.and", Op::And},     {"stablehlo.or", Op::Or},
                                               {"stablehlo.xor", Op::Xor}};

std::optional<ReduceKind> kind_of(Op op, DType dtype) {
  const bool logic = dtype == DType::Bool;
  switch (op) {
    case Op::Add: return logic ? ReduceKind::Max : ReduceKind::Sum;
    case Op::Mul: return logic ? ReduceKind::Min : ReduceKind::Prod;
    case Op::Max: return ReduceKind::Max;
    case Op::Min: return ReduceKind::Min;
    case Op::And: return logic ? std::optional(ReduceKind::Min) : std::nullopt;
    case Op::Or: return logic ? std::optional(ReduceKind::Max) : std::nullopt;
    default: return std::nullopt;
  }
}

/// Whether `init` is known to change nothing.
bool is_neutral(ReduceKind kind, Value init) {
  if (init.node->op != Op::Constant) return false;
  const DType d = init.dtype();
  const bool real = is_float(d);
  switch (kind) {
    case ReduceKind::Sum: return real ? float_of(init.node) == 0 : int_of(init.node) == 0;
    case ReduceKind::Prod: return real ? float_of(init.node) == 1 : int_of(init.node) == 1;
    case ReduceKind::Max:
    case ReduceKind::Min: {
      const bool most = kind == ReduceKind::Min;
      if (real) return std::isinf(float_of(init.node)) && std::signbit(float_of(init.node)) != most;
      const int bits = d == DType::Bool ? 1 : static_cast<int>(size_of(d)) * 8;
      const uint64_t all = ~uint64_t{0} >> (64 - bits);
      const uint64_t highest = is_unsigned(d) ? all : all >> 1, lowest = is_unsigned(d) ? 0 : ~(all >> 1);
      return static_cast<uint64_t>(int_of(init.node)) == (most ? highest : lowest);
    }
    case ReduceKind::ArgMax:
    case ReduceKind::ArgMin: break;
  }
  return false;
}

/// The first or the second of each pair of neighbours along the last axis.
Value of_pairs(Value x, bool second) {
  Dims shape = x.shape();
  shape.back() /= 2;
  Dims pairs = shape;
  pairs.push_back(2);
  const Value split = reshape(x, pairs);
  return reshape(with(split, split.b->slice_axis(split.node, split.rank() - 1, second, 1)), shape);
}

/// The axes that are reduced as one, the last.
void gather_axes(Values& x, const Dims& axes) {
  const Dims order = formulas::to_the_end(x[0].rank(), axes);
  const auto kept = static_cast<std::ptrdiff_t>(order.size() - axes.size());
  for (Value& v : x) {
    v = permute(v, order);
    Dims shape(v.shape().begin(), v.shape().begin() + kept);
    shape.push_back(formulas::product(Dims(v.shape().begin() + kept, v.shape().end())));
    v = reshape(v, shape);
  }
}
Value part(Value x, int64_t from, int64_t count) { return with(x, x.b->slice_axis(x.node, x.rank() - 1, from, count)); }
Value without_last_axis(Value x) { return reshape(x, Dims(x.shape().begin(), x.shape().end() - 1)); }

/// A tree over neighbours: the monoid may depend on the order of its operands (of two NaN, which is the first?).
Values in_pairs(const Monoid& monoid, Values x, const Dims& axes) {
  gather_axes(x, axes);
  for (int64_t n = x[0].shape().back(); n > 1; n = x[0].shape().back()) {
    Values left, right;
    for (const Value& v : x) {
      const Value even = n % 2 ? part(v, 0, n - 1) : v;
      left.push_back(of_pairs(even, false)), right.push_back(of_pairs(even, true));
    }
    Values halves = monoid.combine(left, right);
    for (size_t i = 0; i < x.size(); ++i) {
      if (n % 2) {  // the initial value is no filler: it may be counted once
        const std::vector<const Node*> both{halves[i].node, part(x[i], n - 1, 1).node};
        halves[i] = with(x[i], x[i].b->concat(both, x[i].rank() - 1));
      }
      x[i] = halves[i];
    }
  }
  for (Value& v : x) v = without_last_axis(v);
  return x;
}

/// One after the other, as XLA does, without those that are not `inside`.
Values in_order(const Monoid& monoid, Values x, Values result, const Dims& axes, std::optional<Value> inside) {
  if (inside) x.push_back(*inside);
  gather_axes(x, axes);
  const int64_t n = x[0].shape().back();
  if (n > kMostInOrder)
    monoid.call().fail("of " + std::to_string(n) +
                       " elements with a function that may depend on their order is not compiled");
  for (int64_t i = 0; i < n; ++i) {
    Values next;
    for (const Value& v : x) next.push_back(without_last_axis(part(v, i, 1)));
    if (!inside) {
      result = monoid.combine(result, next);
      continue;
    }
    const Value here = next.back();
    next.pop_back();
    const Values more = monoid.combine(result, next);
    for (size_t k = 0; k < result.size(); ++k) result[k] = where(here, more[k], result[k]);
  }
  return result;
}

}  // namespace

const Json* Monoid::alone() const {
  const Json &args = region_.at("args"), &body = region_.at("body"), &returns = region_.at("returns");
  if (args.size() != 2 || body.size() != 1 || returns.size() != 1) return nullptr;
  const Json& node = body[0];
  return node.at("operands").size() == 2 && returns[0] == node.at("results").at(0).at("name") ? &node : nullptr;
}

bool Monoid::single() const { return region_.at("args").size() == 2; }

std::optional<Op> Monoid::operation() const {
  const Json *node = alone(), &args = region_.at("args");
  if (!node) return std::nullopt;
  const auto row = kOperations.find(node->at("op").get<std::string>());
  const Json &operands = node->at("operands"), &a = args[0].at("name"), &b = args[1].at("name");
  const bool both = (operands[0] == a && operands[1] == b) || (operands[0] == b && operands[1] == a);
  return row != kOperations.end() && both ? std::optional(row->second) : std::nullopt;
}

bool Monoid::subtracts() const {
  const Json *node = alone(), &args = region_.at("args");
  return node && node->at("op") == "stablehlo.subtract" && node->at("operands")[0] == args[0].at("name") &&
         node->at("operands")[1] == args[1].at("name");
}

Values Monoid::combine(const Values& x, const Values& y) const {
  Values arguments = x;
  arguments.insert(arguments.end(), y.begin(), y.end());
  return call_.importer.map(region_, arguments);
}

std::optional<Values> Monoid::neutral(DType d) const {
  const auto op = operation();
  if (!op) return std::nullopt;
  if (parts_of(region_.at("args")[0]) == 2) return Values{call_.scalar(d, *op == Op::Mul ? 1 : 0), call_.scalar(d, 0)};
  const auto whole = [&](int64_t v) { return Values{{&call_.b, call_.b.constant_int(d, v)}}; };
  const bool is_least = *op == Op::Max, is_most = *op == Op::Min;
  if (is_float(d)) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    return Values{call_.scalar(d, is_least ? -infinity : is_most ? infinity : *op == Op::Mul ? 1 : 0)};
  }
  if (d == DType::Bool) return whole(*op == Op::Mul || *op == Op::And || is_most);
  const int bits = static_cast<int>(size_of(d)) * 8;
  const uint64_t all = ~uint64_t{0} >> (64 - bits);
  if (is_least) return whole(is_unsigned(d) ? 0 : static_cast<int64_t>(~(all >> 1)));
  if (is_most) return whole(wrap_to(d, static_cast<int64_t>(is_unsigned(d) ? all : all >> 1)));
  return whole(*op == Op::And ? wrap_to(d, -1) : *op == Op::Mul);
}

Values reduced(const Monoid& monoid, Values x, const Values& init, const Dims& axes, std::optional<Value> inside) {
  Dims kept;
  for (int64_t axis = 0; axis < x[0].rank(); ++axis)
    if (!std::binary_search(axes.begin(), axes.end(), axis)) kept.push_back(x[0].size(axis));
  Values initial;
  for (const Value& v : init) initial.push_back(formulas::broadcast(v, kept));
  if (x[0].numel() == 0) return initial;
  const auto op = monoid.operation();
  const bool each_part = x.size() == 1 || op == Op::Add;  // of complex numbers sums alone
  const auto kind = op && each_part ? kind_of(*op, x[0].dtype()) : std::nullopt;
  if (!op && (inside || monoid.single())) return in_order(monoid, x, initial, axes, inside);
  if (!kind) return monoid.combine(initial, in_pairs(monoid, x, axes));
  const DType dtype = x[0].dtype();
  bool neutral = true;
  Values result;
  for (size_t i = 0; i < x.size(); ++i) {
    const Value wide = formulas::reduce(*kind, cast(x[i], compute_dtype(dtype)), axes, /*keep=*/false);
    result.push_back(cast(wide, dtype));
    neutral = neutral && is_neutral(*kind, init[i]);
  }
  return neutral ? result : monoid.combine(initial, result);
}

}  // namespace trainc::frontend::stablehlo
