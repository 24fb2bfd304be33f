// Algebra as a table of rewrite rules, by theme: rules_algebra.cpp, rules_constants.cpp, rules_movement.cpp.
//
// A rule may fire only where the replacement has the same value for every input, NaN, infinities and the sign of zero
// included (promise 1: no x*0 -> 0, no x-x -> 0, no x/x -> 1 of floats), of every dtype.
// Each rule has a case where it fires and one where it must not: tests/cpp/passes/rules_test.cpp refuses a rule
// without.
#pragma once
#include <span>
#include <vector>

#include "graph/build.h"

namespace trainc {

struct Rule {
  const char* name;
  const char* meaning;  // "x * 1 -> x"
  std::vector<Op> ops;  // of the node that is replaced
  /// The replacement, of the node's type, or nullptr where the rule does not apply. Makes nothing before it is sure.
  const Node* (*apply)(Builder&, const Node*);
};

std::span<const Rule> algebra_rules();
std::span<const Rule> constant_rules();
std::span<const Rule> movement_rules();
/// All of them, in that order.
const std::vector<const Rule*>& all_rules();
/// For rules about every elementwise operation.
const std::vector<Op>& elementwise_ops();

/// Applies the rules, all over the graph, until none fires. Gives: the same values; no rule's left side; live nodes
/// only; of commutative operations uniform constants stand on the right. Running it again changes nothing.
/// InternalError, with the names of the rules, where they do not come to an end.
Graph simplify(const Graph&);
/// The same with the rules given.
Graph simplify_with(const Graph&, std::span<const Rule* const>);

}  // namespace trainc
