// A graph as the front end gives it to the compiler, which consumes it: a copy.
#pragma once
#include "frontend/aten.h"
#include "graph/text.h"

namespace trainc::testing {

inline frontend::Imported copy_of(const Graph& graph) {
  frontend::Imported imported;
  imported.graph = parse(print(graph));
  imported.graph.input_count = graph.input_count;
  return imported;
}

}  // namespace trainc::testing
