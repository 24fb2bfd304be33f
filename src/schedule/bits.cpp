#include "schedule/bits.h"

#include <vector>

namespace trainc::schedule {

std::unordered_set<const Node*> masks_as_bits(const Graph& graph, int64_t arena_from) {
  const std::vector<const Node*> live = graph.live();
  std::vector<const Node*> stack;  // bools that somebody sees as bytes
  for (size_t i = 0; i < graph.outputs.size() && (arena_from < 0 || static_cast<int64_t>(i) < arena_from); ++i)
    if (graph.outputs[i].value) stack.push_back(graph.outputs[i].value);
  for (const Node* n : live)
    if (n->op == Op::Extern) stack.insert(stack.end(), n->inputs.begin(), n->inputs.end());
  std::unordered_set<const Node*> seen;
  while (!stack.empty()) {
    const Node* n = stack.back();
    stack.pop_back();
    if (n->dtype() != DType::Bool || !seen.insert(n).second) continue;
    if (is_elementwise(n->op) || is_movement(n->op)) stack.insert(stack.end(), n->inputs.begin(), n->inputs.end());
  }
  std::unordered_set<const Node*> masks;
  for (const Node* n : live) {
    if (n->op != Op::Random || seen.contains(n)) continue;
    const RandomAttr& draw = n->as<RandomAttr>();
    if (draw.threads == 0 || draw.vector > 1) masks.insert(n);
  }
  return masks;
}

}  // namespace trainc::schedule
