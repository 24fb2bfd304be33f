#include "schedule/hidden_rows.h"

#include <algorithm>
#include <unordered_map>

#include "cost/chunking.h"
#include "schedule/schedule.h"

namespace trainc::schedule {
namespace {

using Nodes = std::unordered_set<const Node*>;

struct Sizes { int64_t rows, columns; };

/// Below reshapes, and broadcasts that repeat a number, or the element of a row along it: what has the same value at
/// each row.
const Node* bare(const Node* n, const Sizes& m) {
  for (;;) {
    if (n->op == Op::Reshape) {
      n = n->in(0);
      continue;
    }
    if (n->op != Op::Broadcast) return n;
    const int64_t from = n->in(0)->type.numel(), to = n->type.numel();
    if (from != 1 && from != to && !(from == m.rows && to == m.rows * m.columns && broadcasts_rows(n, m.columns)))
      return n;
    n = n->in(0);
  }
}

/// Whether two nodes have the same value at each row, whatever their shapes.
bool same(const Node* a, const Node* b, const Sizes& m, int depth) {
  a = bare(a, m), b = bare(b, m);
  if (a == b) return true;
  if (depth == 0 || a->op != b->op || !is_elementwise(a->op) || a->dtype() != b->dtype() || !(a->attrs == b->attrs))
    return false;
  for (size_t i = 0; i < a->inputs.size(); ++i)
    if (!same(a->in(i), b->in(i), m, depth - 1)) return false;
  return true;
}

class Proof {
 public:
  Proof(const ShownRows& by, const Sizes& matrix) : by_(by), matrix_(matrix) {}

  /// Whether `n` is 0 in all hidden rows.
  bool zero(const Node* n, int depth = cost::kDeepestChunk) {
    if (const auto it = zero_.find(n); it != zero_.end()) return it->second;
    if (depth == 0) return false;
    const bool is = find_zero(n, depth - 1);
    zero_[n] = is;
    return is;
  }

 private:
  bool find_zero(const Node* n, int depth) {
    const auto in = [&](size_t i) { return zero(n->in(i), depth); };
    switch (n->op) {
      case Op::Constant: return is_float(n->dtype()) ? float_of(n) == 0 : int_of(n) == 0;
      case Op::Broadcast:
      case Op::Reshape: {
        const Node* below = bare(n, matrix_);
        return below != n && zero(below, depth);
      }
      case Op::Neg: return in(0);
      case Op::Cast: return n->in(0)->dtype() == DType::Bool ? has(n->in(0), false, depth) : in(0);
      case Op::Mul: return in(0) || in(1);
      case Op::Add:
      case Op::Sub: return in(0) && in(1);
      case Op::Div: {
        const Node* by = bare(n->in(1), matrix_);
        return by->op == Op::Constant && is_float(by->dtype()) && float_of(by) != 0 && in(0);
      }
      case Op::Select:
        if (has(n->in(0), false, depth)) return in(2);
        if (has(n->in(0), true, depth)) return in(1);
        return in(1) && in(2);
      case Op::Reduce:
        return n->as<ReduceAttr>().kind == ReduceKind::Sum && is_trailing_reduce(n) &&
               n->type.numel() == matrix_.rows && n->in(0)->type.numel() == matrix_.rows * matrix_.columns && in(0);
      default: return false;
    }
  }

  /// Whether the bool `n` is `value` in all hidden rows.
  bool has(const Node* n, bool value, int depth) {
    n = bare(n, matrix_);
    if (depth == 0) return false;
    if (same(n, by_.mask, matrix_, cost::kDeepestLabel)) return value != by_.shown;
    const auto in = [&](size_t i, bool v) { return has(n->in(i), v, depth - 1); };
    switch (n->op) {
      case Op::Constant: return (int_of(n) != 0) == value;
      case Op::Not: return n->dtype() == DType::Bool && in(0, !value);
      case Op::And: return value ? in(0, true) && in(1, true) : in(0, false) || in(1, false);
      case Op::Or: return value ? in(0, true) || in(1, true) : in(0, false) && in(1, false);
      case Op::Eq:
      case Op::Ne: {
        const Op opposite = n->op == Op::Eq ? Op::Ne : Op::Eq;
        return by_.mask->op == opposite && same(n->in(0), by_.mask->in(0), matrix_, cost::kDeepestLabel) &&
               same(n->in(1), by_.mask->in(1), matrix_, cost::kDeepestLabel) && value == by_.shown;
      }
      default: return false;
    }
  }

  const ShownRows by_;
  const Sizes matrix_;
  std::unordered_map<const Node*, bool> zero_;
};

/// The bools a row that are among what makes `roots`.
std::vector<const Node*> candidates(const std::vector<const Node*>& roots, const Sizes& m, const Nodes& after) {
  std::vector<const Node*> found;
  Nodes seen;
  std::vector<const Node*> stack(roots.rbegin(), roots.rend());
  while (!stack.empty() && found.size() < cost::kMostMasks) {
    const Node* n = bare(stack.back(), m);
    stack.pop_back();
    if (!seen.insert(n).second) continue;
    const bool logic = n->op == Op::And || n->op == Op::Or || n->op == Op::Not;
    if (n->dtype() == DType::Bool && n->type.numel() == m.rows && !after.count(n) && !logic) {
      found.push_back(n);
      continue;
    }
    if (n->dtype() == DType::Bool && !logic) continue;
    if (class_of(n->op) != OpClass::Elementwise && n->op != Op::Reduce) continue;
    stack.insert(stack.end(), n->inputs.rbegin(), n->inputs.rend());
  }
  return found;
}

}  // namespace

std::optional<ShownRows> shown_rows(const std::vector<const Node*>& zeros, int64_t rows, int64_t columns,
                                    const Nodes& after) {
  const Sizes matrix{rows, columns};
  for (const Node* mask : candidates(zeros, matrix, after))
    for (const bool shown : {true, false}) {
      Proof proof({mask, shown}, matrix);
      if (std::all_of(zeros.begin(), zeros.end(), [&](const Node* n) { return proof.zero(n); }))
        return ShownRows{mask, shown};
    }
  return std::nullopt;
}

}  // namespace trainc::schedule
