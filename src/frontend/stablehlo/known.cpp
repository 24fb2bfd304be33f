#include "frontend/stablehlo/known.h"

namespace trainc::frontend::stablehlo {

namespace {

constexpr int64_t kMostElements = 64;  // index vectors and counters; tables are no loop's business

}  // namespace

std::optional<std::vector<int64_t>> Known::integers(const Node* node) {
  const auto& known = value(node);
  return known ? std::optional(known->i) : std::nullopt;
}

std::optional<int64_t> Known::integer(const Node* node) {
  const auto known = integers(node);
  return known && known->size() == 1 ? std::optional((*known)[0]) : std::nullopt;
}

const std::optional<reference::Tensor>& Known::value(const Node* node) {
  if (auto it = values_.find(node); it != values_.end()) return it->second;
  // Not recursive: a chain of operations may be long.
  std::vector<const Node*> waiting{node};
  while (!waiting.empty()) {
    const Node* next = waiting.back();
    bool ready = true;
    if (!values_.contains(next) && next->type.numel() <= kMostElements && !is_float(next->dtype()))
      for (const Node* in : next->inputs)
        if (!values_.contains(in)) waiting.push_back(in), ready = false;
    if (!ready) continue;
    waiting.pop_back();
    if (!values_.contains(next)) values_.emplace(next, compute(next));
  }
  return values_.at(node);
}

std::optional<reference::Tensor> Known::compute(const Node* node) {
  if (node->type.numel() > kMostElements || is_float(node->dtype()) || node->op == Op::Input ||
      node->op == Op::Random || class_of(node->op) == OpClass::Extern)
    return std::nullopt;
  Graph graph;
  std::vector<reference::Tensor> operands;
  std::vector<const Node*> inputs;
  for (const Node* in : node->inputs) {
    const auto& known = values_.at(in);
    if (!known) return std::nullopt;
    inputs.push_back(graph.make(Op::Input, InputAttr{static_cast<int64_t>(operands.size()), {}}, {}, in->type));
    operands.push_back(*known);
  }
  graph.input_count = static_cast<int64_t>(operands.size());
  graph.outputs.push_back({graph.make(node->op, node->attrs, inputs, node->type), {}});
  return reference::evaluate(graph, operands, {reference::Precision::Rounded, {}, {}}).at(0);
}

}  // namespace trainc::frontend::stablehlo
