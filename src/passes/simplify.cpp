#include <array>
#include <set>

#include "cost/rewriting.h"
#include "passes/rewrite.h"
#include "passes/rules.h"

namespace trainc {

const std::vector<const Rule*>& all_rules() {
  static const std::vector<const Rule*> rules = [] {
    std::vector<const Rule*> all;
    for (const auto theme : {algebra_rules(), constant_rules(), movement_rules()})
      for (const Rule& rule : theme) all.push_back(&rule);
    return all;
  }();
  return rules;
}

const std::vector<Op>& elementwise_ops() {
  static const std::vector<Op> ops = [] {
    std::vector<Op> all;
#define OP(Name, text, inputs, Class, meaning) \
  if (OpClass::Class == OpClass::Elementwise) all.push_back(Op::Name);
#include "graph/ops.def"
    return all;
  }();
  return ops;
}

Graph simplify(const Graph& graph) { return simplify_with(graph, all_rules()); }

Graph simplify_with(const Graph& graph, std::span<const Rule* const> rules) {
  std::array<std::vector<const Rule*>, 256> by_op;
  for (const Rule* rule : rules)
    for (Op op : rule->ops) by_op[static_cast<size_t>(op)].push_back(rule);

  std::set<std::string> fired;  // in this round
  const auto rebuild = [&](Builder& b, const Node* from, const std::vector<const Node*>& inputs) {
    const Node* node = with_inputs(b, from, inputs);
    for (int steps = 0; steps < cost::kMostRewrites; ++steps) {
      const Node* next = nullptr;
      for (const Rule* rule : by_op[static_cast<size_t>(node->op)]) {
        next = rule->apply(b, node);
        if (next == node) next = nullptr;
        if (!next) continue;
        require(next->type == node->type, std::string("rule ") + rule->name + " gives " + to_string(next->type) +
                                              " for " + to_string(node->type));
        fired.insert(rule->name);
        break;
      }
      if (!next) break;
      node = next;
    }
    return node;
  };

  // What a rule makes below its result is looked at in the next round; a round without a rule ends it.
  Graph now = remove_dead(graph);
  for (int round = 0; round < cost::kMostRounds; ++round) {
    fired.clear();
    now = rewrite(now, rebuild);
    if (fired.empty()) return remove_dead(now);
  }
  std::string names;
  for (const std::string& name : fired) names += " " + name;
  throw InternalError("simplify does not come to an end; the rules that still fire:" + names);
}

}  // namespace trainc
