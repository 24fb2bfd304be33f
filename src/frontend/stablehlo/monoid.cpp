#include "frontend/stablehlo/monoid.h"

#include <cmath>

namespace trainc::frontend::stablehlo {
namespace {

using formulas::cast;
using formulas::where;

const std::map<std::string, Op> kOperations = {{"stablehlo.add", Op::Add},     {"stablehlo.multiply", Op::Mul},
                                               {"stablehlo.maximum", Op::Max}, {"stablehlo.minimum", Op::Min},
                                               {"stablehlo.and", Op::And},     {"stablehlo.or", Op::Or}};

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

/// A tree over neighbours: the monoid may depend on the order of its operands (of two NaN, which is the first?).
Values in_pairs(const Monoid& monoid, Values x, const Values& init, const Dims& axes) {
  const Dims order = formulas::to_the_end(x[0].rank(), axes);
  const auto kept = static_cast<std::ptrdiff_t>(order.size() - axes.size());
  for (Value& v : x) {
    v = permute(v, order);
    Dims shape(v.shape().begin(), v.shape().begin() + kept);
    shape.push_back(formulas::product(Dims(v.shape().begin() + kept, v.shape().end())));
    v = reshape(v, shape);
  }
  while (x[0].shape().back() > 1) {
    Values left, right;
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i].shape().back() % 2) {
        Dims none(x[i].rank(), 0), one = none;
        one.back() = 1;
        x[i] = with(x[i], x[i].b->pad(x[i].node, init[i].node, none, one));
      }
      left.push_back(of_pairs(x[i], false)), right.push_back(of_pairs(x[i], true));
    }
    x = monoid.combine(left, right);
  }
  for (Value& v : x) v = reshape(v, Dims(v.shape().begin(), v.shape().begin() + kept));
  return x;
}

}  // namespace

const Json* Monoid::alone() const {
  const Json &args = region_.at("args"), &body = region_.at("body"), &returns = region_.at("returns");
  if (args.size() != 2 || body.size() != 1 || returns.size() != 1) return nullptr;
  const Json& node = body[0];
  return node.at("operands").size() == 2 && returns[0] == node.at("results").at(0).at("name") ? &node : nullptr;
}

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

Values reduced(const Monoid& monoid, Values x, const Values& init, const Dims& axes) {
  Dims kept;
  for (int64_t axis = 0; axis < x[0].rank(); ++axis)
    if (!std::binary_search(axes.begin(), axes.end(), axis)) kept.push_back(x[0].size(axis));
  Values initial;
  for (const Value& v : init) initial.push_back(formulas::broadcast(v, kept));
  if (x[0].numel() == 0) return initial;
  const auto op = monoid.operation();
  const auto kind = op && x.size() == 1 ? kind_of(*op, x[0].dtype()) : std::nullopt;
  if (!kind) return monoid.combine(initial, in_pairs(monoid, x, init, axes));
  const DType dtype = x[0].dtype();
  const Value result = formulas::reduce(*kind, cast(x[0], compute_dtype(dtype)), axes, /*keep=*/false);
  if (is_neutral(*kind, init[0])) return {cast(result, dtype)};
  return monoid.combine(initial, {cast(result, dtype)});
}

}  // namespace trainc::frontend::stablehlo
