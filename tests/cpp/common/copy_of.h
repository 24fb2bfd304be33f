// A graph as the front end gives it to the compiler, which consumes it: a copy.
#pragma once
#include "graph/program.h"
#include "graph/text.h"

namespace trainc::testing {

inline Program copy_of(const Graph& graph) {
  Program program;
  program.graph = parse(print(graph));
  program.graph.input_count = graph.input_count;
  return program;
}

}  // namespace trainc::testing
