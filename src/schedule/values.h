// Which nodes of a graph are values: made by name, each once. All others are inlined into the expressions that use
// them. Inside schedule only.
#pragma once
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "graph/graph.h"
#include "schedule/vendor_epilogue.h"

namespace trainc::schedule {

struct Values {
  std::unordered_set<const Node*> nodes;
  // of each live node's expression: its operations, and 1 at least for what is index arithmetic
  std::unordered_map<const Node*, int64_t> work;
  // Contractions that the vendor's library is to compute, what it does with their sums, and of what it writes then:
  // which contraction it was.
  std::unordered_set<const Node*> vendor;
  std::unordered_map<const Node*, VendorEpilogue> vendor_epilogues;
  std::unordered_map<const Node*, const Node*> vendor_results;
  std::unordered_map<const Node*, const Node*> vendor_sums;  // the same of an operand's sums, and of their rounding
};

/// Needs: a verified graph after `prepare`, and its live nodes. Gives: every output's base, every extern operand,
/// contraction, sum and draw is a value; so is what the vendor's library multiplies.
Values choose_values(const Graph&, const std::vector<const Node*>& live, const VendorLibrary& = {});

}  // namespace trainc::schedule
