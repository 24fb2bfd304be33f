#include "lower/causal_mask.h"

#include <algorithm>
#include <cmath>

#include "cost/fusion.h"
#include "cost/matmul_chain.h"
#include "loop/substitute.h"
#include "lower/kernels.h"

namespace trainc::lower {

using loop::ExprKind;
using loop::integer;

namespace {

using MaybeConstant =
    std::optional<double>;  // a number that an expression is in all masked elements; integers and bools too

class MaskedElements {
 public:
  MaskedElements(const Matrix& matrix, const std::vector<const Node*>& values, int64_t above)
      : matrix_(matrix), values_(values.begin(), values.end()), e_(nothing_, kernel_) {
    b_ = nest().add_var("b", matrix.batch), row_ = nest().add_var("row", matrix.rows),
    column_ = nest().add_var("column", matrix.columns);
    const int beyond = nest().add_var("beyond", std::max<int64_t>(1, matrix.columns - above - 1));
    beyond_ = nest().var(row_) + integer(above + 1) + nest().var(beyond);
    unknown_ = nest().add_buffer({"unknown", DType::F32, 0, loop::Space::Argument, false});
    e_.own_value = [this](const Node* n, Index& index) { return value(n, index); };
  }

  /// What `n`, an element a position, is known to be.
  MaybeConstant operator()(const Node* n) {
    if (auto it = made_.find(n); it != made_.end()) return it->second;
    stop_at(n);
    return made_[n] = constant(e_.definition(n, at(n)));
  }

 private:
  loop::LoopNest& nest() { return kernel_.nest; }
  Index at(const Node* n) {
    const Dims shape{matrix_.batch, matrix_.rows, matrix_.columns};
    return Index::at_position(n->shape(),
                              Index::at_axes(shape, {nest().var(b_), nest().var(row_), nest().var(column_)}).linear());
  }

  /// Everything below `n` that is no plain expression is asked for by name, and what would be too long a one: in an
  /// expression a node stands as often as it is used (of a hash of positions, the bits of a random mask, 2^60 times).
  void stop_at(const Node* n) {
    int64_t size = 1;
    for (const Node* i : n->inputs) {
      const bool plain = is_elementwise(i->op) || i->op == Op::Reshape || i->op == Op::Permute ||
                         i->op == Op::Broadcast || i->op == Op::Slice || i->op == Op::Iota || i->op == Op::Constant;
      const bool first = seen_.insert(i).second;
      if (!plain || values_.count(i) || static_cast<int64_t>(seen_.size()) > cost::kLargestMask) e_.own.insert(i);
      else if (first) stop_at(i);
      if (!e_.own.count(i) && size_.at(i) > cost::kLargestExpression) e_.own.insert(i);
      size += e_.own.count(i) ? 1 : size_.at(i);
    }
    size_[n] = size;
  }
  Expr value(const Node* n, Index&) {
    const bool element = values_.count(n) && !is_sum(n) &&
                         n->type.numel() == matrix_.batch * matrix_.rows * matrix_.columns && n->op != Op::Contract;
    const DType dtype = arithmetic_dtype(n->dtype());
    if (element)
      if (const MaybeConstant k = (*this)(n))
        return is_float(dtype) ? loop::real(*k, dtype) : integer(static_cast<int64_t>(*k), dtype);
    const Expr load = nest().load(unknown_, integer(0));
    return dtype == DType::F32 ? load : loop::cast(load, dtype);
  }

  /// `op` of two integers, by the range of their difference beyond the diagonal.
  MaybeConstant compared(Op op, const Expr& a, const Expr& b) const {
    const loop::Range d = loop::range_of(substitute(a, {{column_, beyond_}}) - substitute(b, {{column_, beyond_}}));
    if (!d.known) return std::nullopt;
    const auto decided = [](bool yes, bool no) {
      return yes ? MaybeConstant(1) : no ? MaybeConstant(0) : std::nullopt;
    };
    switch (op) {
      case Op::Le: return decided(d.high <= 0, d.low > 0);
      case Op::Lt: return decided(d.high < 0, d.low >= 0);
      case Op::Eq: return decided(d.low == 0 && d.high == 0, d.low > 0 || d.high < 0);
      case Op::Ne: return decided(d.low > 0 || d.high < 0, d.low == 0 && d.high == 0);
      default: return std::nullopt;
    }
  }

  // Numbers that are not known are taken to be finite.
  MaybeConstant constant(const Expr& e) const {
    if (e->kind == ExprKind::Int) return static_cast<double>(e->int_value);
    if (e->kind == ExprKind::Float) return e->float_value;
    if (e->kind != ExprKind::Apply) return std::nullopt;
    if (e->args.size() == 2 && e->dtype == DType::Bool && e->args[0]->dtype == DType::I64)
      return compared(e->op, e->args[0], e->args[1]);
    std::vector<MaybeConstant> a;
    for (const Expr& x : e->args) a.push_back(constant(x));
    const auto infinite = [](MaybeConstant k) { return k && std::isinf(*k); };
    const bool both = a.size() == 2 && a[0] && a[1];
    switch (e->op) {
      case Op::Not: return a[0] && e->dtype == DType::Bool ? MaybeConstant(*a[0] == 0) : std::nullopt;
      case Op::And:
        return e->dtype != DType::Bool                        ? std::nullopt
               : (a[0] && *a[0] == 0) || (a[1] && *a[1] == 0) ? MaybeConstant(0)
               : both                                         ? MaybeConstant(1)
                                                              : std::nullopt;
      case Op::Or:
        return e->dtype != DType::Bool                        ? std::nullopt
               : (a[0] && *a[0] != 0) || (a[1] && *a[1] != 0) ? MaybeConstant(1)
               : both                                         ? MaybeConstant(0)
                                                              : std::nullopt;
      case Op::Select: {
        if (a[0]) return *a[0] != 0 ? a[1] : a[2];
        return a[1] && a[2] && *a[1] == *a[2] ? a[1] : std::nullopt;
      }
      // of what matters here, 0, 1 and infinities, no cast changes anything
      case Op::Cast: return e->dtype == DType::Bool ? std::nullopt : a[0];
      case Op::Neg: return a[0] ? MaybeConstant(-*a[0]) : std::nullopt;
      case Op::Exp: return a[0] && *a[0] == -std::numeric_limits<double>::infinity() ? MaybeConstant(0) : std::nullopt;
      case Op::Add:
        return both ? MaybeConstant(*a[0] + *a[1]) : infinite(a[0]) ? a[0] : infinite(a[1]) ? a[1] : std::nullopt;
      case Op::Sub:
        return both             ? MaybeConstant(*a[0] - *a[1])
               : infinite(a[0]) ? a[0]
               : infinite(a[1]) ? MaybeConstant(-*a[1])
                                : std::nullopt;
      case Op::Mul:
        return both                                           ? MaybeConstant(*a[0] * *a[1])
               : (a[0] && *a[0] == 0) || (a[1] && *a[1] == 0) ? MaybeConstant(0)
                                                              : std::nullopt;
      case Op::Div: return both ? MaybeConstant(*a[0] / *a[1]) : a[0] && *a[0] == 0 ? MaybeConstant(0) : std::nullopt;
      default: return std::nullopt;
    }
  }

  const Matrix matrix_;
  const std::unordered_set<const Node*> values_;
  const Schedule nothing_;
  LoweredKernel kernel_;
  Expressions e_;
  std::unordered_set<const Node*> seen_;
  std::unordered_map<const Node*, int64_t> size_;  // of the expression that makes a node
  std::unordered_map<const Node*, MaybeConstant> made_;
  int b_, row_, column_, unknown_;
  Expr beyond_;
};

bool all_masked(const Matrix& matrix, const std::vector<const Node*>& values, const std::vector<const Node*>& wanted,
                int64_t above) {
  MaskedElements masked(matrix, values, above);
  for (const Node* n : wanted)
    if (masked(n) != MaybeConstant(0)) return false;
  for (const Node* n : values) {
    if (!is_sum(n)) continue;
    const Expr none = neutral(n->as<ReduceAttr>().kind, arithmetic_dtype(n->dtype()));
    const double number = none->kind == ExprKind::Float ? none->float_value : static_cast<double>(none->int_value);
    const Node* x = n->in(0);
    if ((x->op == Op::Contract ? MaybeConstant() : masked(x)) != MaybeConstant(number)) return false;
  }
  return true;
}

}  // namespace

const Node* mask_in(const std::vector<const Node*>& wanted) {
  // The first node that is one among those that `from` are made of; `sums`: through sums too.
  const auto below = [](std::vector<const Node*> from, bool sums, const auto& is_one) -> const Node* {
    std::unordered_set<const Node*> seen;
    while (!from.empty() && static_cast<int64_t>(seen.size()) < cost::kLargestMask) {
      const Node* n = from.back();
      from.pop_back();
      if (!seen.insert(n).second) continue;
      if (is_one(n)) return n;
      if (is_elementwise(n->op) || is_movement(n->op) || (sums && is_sum(n)))
        from.insert(from.end(), n->inputs.begin(), n->inputs.end());
    }
    return nullptr;
  };
  const auto is_place = [](const Node* n) {
    return n->op == Op::Iota || (n->op == Op::Input && n->dtype() == DType::Bool);
  };
  return below(wanted, true, [&](const Node* n) { return n->op == Op::Select && below({n->in(0)}, false, is_place); });
}

std::optional<int64_t> masked_above(const Matrix& matrix, const std::vector<const Node*>& values,
                                    const std::vector<const Node*>& wanted) {
  for (int64_t above : {int64_t{0}, matrix.columns - matrix.rows})
    if (above >= 0 && above + 1 < matrix.columns && all_masked(matrix, values, wanted, above)) return above;
  return std::nullopt;
}

}  // namespace trainc::lower
