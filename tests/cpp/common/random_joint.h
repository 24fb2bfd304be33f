// Random joint graphs: what AOTAutograd's joint capture gives, made out of any random graph by calling some inputs
// tangents.
#pragma once
#include <unordered_set>
#include <vector>

#include "random_graph.h"

namespace trainc::testing {

struct RandomJoint {
  Graph graph;  // outputs: of the forward first, then gradients, among them a None
  int64_t primals = 0, forward_outputs = 0;
};

/// Nodes that a tangent (an input from `primals` on) reaches.
inline std::unordered_set<const Node*> of_tangents(const Graph& graph, int64_t primals) {
  std::unordered_set<const Node*> reached;
  for (const Node& n : graph.nodes()) {
    bool depends = n.op == Op::Input && n.as<InputAttr>().index >= primals;
    for (const Node* i : n.inputs) depends = depends || reached.count(i);
    if (depends) reached.insert(&n);
  }
  return reached;
}

inline RandomJoint random_joint(uint64_t seed, RandomGraphOptions options = {}) {
  options.inputs = 5;
  options.nodes = 36;
  RandomJoint joint{random_graph(seed, options), 3, 0};
  const auto late = of_tangents(joint.graph, joint.primals);
  std::vector<const Node*> forward, backward;
  for (const Node& n : joint.graph.nodes())
    if (class_of(n.op) != OpClass::Leaf && n.type.numel() <= options.max_numel)
      (late.count(&n) ? backward : forward).push_back(&n);
  std::mt19937_64 rng(seed + 99);
  std::vector<Output> outputs;
  for (int i = 0; i < 2 && !forward.empty(); ++i) outputs.push_back({forward[rng() % forward.size()], {}});
  joint.forward_outputs = static_cast<int64_t>(outputs.size());
  for (const Output& o : joint.graph.outputs) outputs.push_back(o);
  for (int i = 0; i < 3 && !backward.empty(); ++i) outputs.push_back({backward[rng() % backward.size()], {}});
  outputs.push_back({nullptr, {}});
  joint.graph.outputs = std::move(outputs);
  return joint;
}

}  // namespace trainc::testing
