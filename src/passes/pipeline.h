// Passes: Graph -> Graph. Each pass is one function, in a file with its name, its contract in its header; Pipeline
// alone verifies after, dumps, times and disables.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace trainc {

/// The passes that Pipeline::run may be given, and that may be disabled; of this stage and of the compiler's own.
std::span<const std::string_view> optional_passes();

class Pipeline {
 public:
  struct Record {
    std::string pass;
    double seconds;
    int64_t nodes_before, nodes_after;
    bool changed, skipped;
  };
  using Pass = std::function<Graph(const Graph&)>;
  /// `disabled`: names of passes that are skipped. Dumps where TRAINC_DUMP asks for it.
  explicit Pipeline(std::string graph_name, std::vector<std::string> disabled = {});
  /// One of `optional_passes`: it leaves arguments, results and draws as they are.
  Graph run(const char* pass, const Pass&, Graph);
  /// A pass without which the next stage cannot go on: it is never skipped, and may give results another type or
  /// layout.
  Graph run_needed(const char* pass, const Pass&, const Graph&);
  const std::string& graph_name() const { return graph_name_; }
  const std::vector<Record>& records() const { return records_; }

 private:
  Graph checked(const char* pass, const Pass&, const Graph&,
                const std::function<void(const Graph& before, const Graph& after)>& check);
  std::string graph_name_;
  std::vector<std::string> disabled_;
  std::vector<Record> records_;
};

/// All passes in their order, with the reasons for it (pipeline.cpp). Gives a graph with the same outputs.
Graph optimize(Graph, Pipeline&);

}  // namespace trainc
