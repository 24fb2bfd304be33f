#include "schedule/schedule.h"
#include "support/while_operation.h"

namespace trainc::schedule {

const Node* base_of(const Node* n) {
  while (n->op == Op::Reshape) n = n->in(0);
  return n;
}

bool is_loop(const Node* call) { return call->op == Op::Extern && call->as<ExternAttr>().target == kWhile; }

bool is_started(const Node* call) {
  return call->op == Op::Extern && call->as<ExternAttr>().target.starts_with("trainc_started.");
}

bool is_copy(const Node* n) { return n->op == Op::Slice && n->shape() == n->in(0)->shape(); }

const Node* copied(Graph& graph, const Node* n, std::string_view origin) {
  const size_t rank = n->shape().size();
  return graph.make(Op::Slice, SliceAttr{Dims(rank, 0), Dims(rank, 1)}, {n}, n->type, origin);
}

bool is_sum(const Node* n) { return n->op == Op::Reduce && n->in(0)->type.numel() != n->type.numel(); }

bool is_trailing_reduce(const Node* n) {
  if (n->op != Op::Reduce) return false;
  const Dims& shape = n->in(0)->shape();
  const Dims& axes = n->as<ReduceAttr>().axes;
  bool kept = false;  // from the last axis on: a kept one was seen
  size_t left = axes.size();
  for (int64_t axis = static_cast<int64_t>(shape.size()) - 1; axis >= 0; --axis) {
    const bool reduced = left > 0 && axes[left - 1] == axis;
    if (reduced) --left;
    if (shape[axis] == 1) continue;
    if (reduced && kept) return false;
    if (!reduced) kept = true;
  }
  return true;
}

bool are_leading(const Dims& shape, const Dims& axes) {
  size_t folded = 0;
  bool kept = false;  // an axis was, before those that follow
  for (int64_t axis = 0; axis < static_cast<int64_t>(shape.size()); ++axis) {
    const bool here = folded < axes.size() && axes[folded] == axis;
    if (here) ++folded;
    if (shape[axis] == 1) continue;
    if (here && kept) return false;
    if (!here) kept = true;
  }
  return true;
}

bool broadcasts_rows(const Node* broadcast, int64_t columns) {
  const Dims& out = broadcast->shape();
  const Dims& in = broadcast->in(0)->shape();
  int64_t repeated = 1;
  int64_t axis = static_cast<int64_t>(out.size()) - 1;
  for (; axis >= 0 && repeated < columns; --axis) {
    if (out[axis] != 1 && in[axis] != 1) return false;
    repeated *= out[axis];
  }
  if (repeated != columns) return false;
  for (; axis >= 0; --axis)
    if (out[axis] != in[axis]) return false;
  return true;
}

std::vector<Read> reads_of(const Node* value, const std::unordered_set<const Node*>& values, int64_t rows,
                           int64_t columns) {
  std::vector<Read> reads;
  std::unordered_map<const Node*, uint8_t> seen;  // bits by access
  // In depth, the first operand first. Where `values` are few (contractions alone), what is below is as deep as the
  // program: no recursion.
  std::vector<std::pair<const Node*, Access>> stack;
  const auto visit = [&](const Node* n, Access access) { stack.emplace_back(n, access); };
  const auto visit_all = [&](const Node* n, Access access) {
    for (size_t i = n->inputs.size(); i-- > 0;) visit(n->in(i), access);
  };
  const auto visit_inputs = [&](const Node* n, Access access) {
    switch (class_of(n->op)) {
      case OpClass::Leaf: return;
      case OpClass::Elementwise: return visit_all(n, access);
      case OpClass::Reduction:  // only the value itself
        return visit(n->in(0), access == Access::Row && is_trailing_reduce(n) ? Access::Full : Access::Other);
      case OpClass::Movement:
        if (n->op == Op::Reshape) return visit(n->in(0), access);
        if (n->op == Op::Broadcast) {
          const Node* in = n->in(0);
          if (in->type.numel() == n->type.numel()) return visit(in, access);
          if (access == Access::Full && columns > 1 && in->type.numel() == rows && broadcasts_rows(n, columns))
            return visit(in, Access::Row);
        }
        return visit_all(n, Access::Other);
      case OpClass::Indexed:
        if (n->op != Op::Gather) return visit_all(n, Access::Other);
        visit(n->in(1), access);
        return visit(n->in(0), Access::Other);
      case OpClass::Contraction:
      case OpClass::Extern: return visit_all(n, Access::Other);
    }
  };
  visit(value, columns > 1 && value->type.numel() == rows ? Access::Row : Access::Full);
  while (!stack.empty()) {
    const auto [n, access] = stack.back();
    stack.pop_back();
    uint8_t& bits = seen[n];
    const uint8_t bit = static_cast<uint8_t>(1u << static_cast<int>(access));
    if (bits & bit) continue;
    bits |= bit;
    if (n != value && (values.count(n) || n->op == Op::Input)) reads.push_back({n, access});
    else visit_inputs(n, access);
  }
  return reads;
}

}  // namespace trainc::schedule
