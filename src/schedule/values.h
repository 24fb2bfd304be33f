// Which nodes of a graph are values: made by name, each once. All others are inlined into the expressions that use
// them. Inside schedule only.
#pragma once
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "graph/graph.h"

namespace trainc::schedule {

struct Values {
  std::unordered_set<const Node*> nodes;
  // of each live node's expression: its operations, and 1 at least for what is index arithmetic
  std::unordered_map<const Node*, int64_t> work;
};

/// Needs: a verified graph after `prepare`, and its live nodes. Gives: every output's base, every extern operand,
/// contraction, sum and draw is a value.
Values choose_values(const Graph&, const std::vector<const Node*>& live);

}  // namespace trainc::schedule
