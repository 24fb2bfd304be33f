// Passes: Graph -> Graph. Each pass is one function, in a file with its name, its contract in its header; Pipeline alone
// verifies after, dumps, times and disables.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace trainc {

class Pipeline {
 public:
  struct Record { std::string pass; double seconds; int64_t nodes_before, nodes_after; bool changed, skipped; };
  explicit Pipeline(std::string graph_name);  // reads TRAINC_DUMP, TRAINC_DUMP_DIR, TRAINC_DISABLE_PASSES
  Graph run(const char* pass, const std::function<Graph(const Graph&)>&, Graph);
  const std::vector<Record>& records() const { return records_; }
 private:
  std::string graph_name_;
  std::vector<Record> records_;
};

/// All passes in their order, with the reasons for it (pipeline.cpp). Gives a graph with the same outputs.
Graph optimize(Graph, Pipeline&);

}  // namespace trainc
