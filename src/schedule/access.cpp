#include "schedule/schedule.h"

namespace trainc::schedule {

const Node* base_of(const Node* n) {
  while (n->op == Op::Reshape) n = n->in(0);
  return n;
}

bool is_copy(const Node* n) { return n->op == Op::Slice && n->shape() == n->in(0)->shape(); }

bool is_sum(const Node* n) { return n->op == Op::Reduce && n->in(0)->type.numel() != n->type.numel(); }

bool is_trailing_reduce(const Node* n) {
  if (n->op != Op::Reduce) return false;
  const Dims& shape = n->in(0)->shape();
  const Dims& axes = n->as<ReduceAttr>().axes;
  bool kept = false;  // walking from the last axis: a kept one seen
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

std::vector<Read> reads_of(const Node* value, const std::unordered_set<const Node*>& values, int64_t rows, int64_t columns) {
  std::vector<Read> reads;
  std::unordered_map<const Node*, uint8_t> seen;  // bits by access
  auto visit = [&](auto&& self, const Node* n, Access access) -> void {
    uint8_t& bits = seen[n];
    const uint8_t bit = static_cast<uint8_t>(1u << static_cast<int>(access));
    if (bits & bit) return;
    bits |= bit;
    if (n != value && (values.count(n) || n->op == Op::Input)) {
      reads.push_back({n, access});
      return;
    }
    switch (class_of(n->op)) {
      case OpClass::Leaf: return;
      case OpClass::Elementwise:
        for (const Node* i : n->inputs) self(self, i, access);
        return;
      case OpClass::Reduction:  // only the value itself
        self(self, n->in(0), access == Access::Row && is_trailing_reduce(n) ? Access::Full : Access::Other);
        return;
      case OpClass::Movement:
        if (n->op == Op::Reshape) return self(self, n->in(0), access);
        if (n->op == Op::Broadcast) {
          const Node* in = n->in(0);
          if (in->type.numel() == n->type.numel()) return self(self, in, access);
          if (access == Access::Full && columns > 1 && in->type.numel() == rows && broadcasts_rows(n, columns)) return self(self, in, Access::Row);
        }
        for (const Node* i : n->inputs) self(self, i, Access::Other);
        return;
      case OpClass::Indexed:
        if (n->op == Op::Gather) {
          self(self, n->in(0), Access::Other);
          return self(self, n->in(1), access);
        }
        for (const Node* i : n->inputs) self(self, i, Access::Other);
        return;
      case OpClass::Contraction:
      case OpClass::Extern:
        for (const Node* i : n->inputs) self(self, i, Access::Other);
        return;
    }
  };
  Access start = Access::Full;
  if (columns > 1 && value->type.numel() == rows) start = Access::Row;
  visit(visit, value, start);
  return reads;
}

}  // namespace trainc::schedule
