#include "passes/rewrite.h"

namespace trainc {

Graph rewrite(const Graph& graph, const Rebuild& rebuild) {
  Graph to;
  std::vector<const Node*> made(graph.nodes().size());  // by id
  for (const Node* from : graph.live()) {
    std::vector<const Node*> inputs;
    for (const Node* in : from->inputs) inputs.push_back(made[in->id]);
    const std::vector<std::string>& origins = graph.origins(from);
    Builder builder{to, origins.empty() ? "" : origins[0]};
    const Node* node = made[from->id] = rebuild(builder, from, inputs);
    // x * 1 -> x must not make an argument or a constant look as if the multiplication were its home.
    if (node && (node->op == from->op || class_of(node->op) != OpClass::Leaf))
      for (const std::string& origin : origins) to.add_origin(node, origin);
  }
  for (const Output& output : graph.outputs) {
    const Node* value = output.value ? made[output.value->id] : nullptr;
    require(value || !output.value, "rewrite: an output has got no value");
    to.outputs.push_back({value, output.strides});
  }
  for (const Node* effect : graph.effects)
    if (const Node* made_of = made[effect->id]) to.effects.push_back(made_of);
  to.input_count = graph.input_count;
  return to;
}

const Node* with_inputs(Builder& b, const Node* from, const std::vector<const Node*>& inputs) {
  return b.graph.make(from->op, from->attrs, inputs, from->type, b.origin);
}

Graph remove_dead(const Graph& graph) { return rewrite(graph, with_inputs); }

}  // namespace trainc
