// A program as a front end gives it to the compiler: its graph, and what is known of it beside its values. Knows no
// front end; lines of the user's program are the nodes' origins, what the framework has to run are Extern nodes with
// their reasons. Includes: graph.
#pragma once
#include <string>
#include <vector>

#include "graph/graph.h"

namespace trainc {

struct Program {
  Graph graph;                              // outputs in the caller's order
  std::vector<std::string> input_names;     // as the front end calls them, one an input; empty: they have none
  std::vector<const Node*> must_recompute;  // the user's checkpoints: values that the backward computes again
  // draws from this place on are made by the user's own backward, when it runs
  int64_t late_draws_from = INT64_MAX;
};

/// "weight", or "input 3" where inputs have no names.
inline std::string input_name(const Program& program, int64_t index) {
  return index < static_cast<int64_t>(program.input_names.size()) ? program.input_names[index]
                                                                  : "input " + std::to_string(index);
}

}  // namespace trainc
