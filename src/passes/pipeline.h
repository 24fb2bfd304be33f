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
  /// `disabled`: names of passes that are skipped. Dumps where TRAINC_DUMP asks for it.
  explicit Pipeline(std::string graph_name, std::vector<std::string> disabled = {});
  Graph run(const char* pass, const std::function<Graph(const Graph&)>&, Graph);
  const std::vector<Record>& records() const { return records_; }
 private:
  std::string graph_name_;
  std::vector<std::string> disabled_;
  std::vector<Record> records_;
};

/// All passes in their order, with the reasons for it (pipeline.cpp). Gives a graph with the same outputs.
Graph optimize(Graph, Pipeline&);

}  // namespace trainc
