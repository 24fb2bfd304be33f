// The oracle: the plainest possible evaluator of a graph. Never fast. Includes: graph, support.
#pragma once
#include <functional>
#include <vector>
#include "graph/graph.h"

namespace trainc::reference {

struct Tensor {
  Type type;
  std::vector<double> f;   // float dtypes: values
  std::vector<int64_t> i;  // the others
};
enum class Precision {
  Truth,    // every float operation in fp64, never rounded to the node's dtype (Cast to a float dtype keeps the value)
  Rounded,  // each operation's result rounded to its dtype, computed in fp64: what an ideal fp32 machine gives
};
struct Options {
  Precision precision = Precision::Truth;
  // masks; required where the graph has Random
  std::function<Tensor(const Node*)> random;
  std::function<std::vector<Tensor>(const Node*, const std::vector<Tensor>&)> call;  // extern
};
/// Values of all outputs (a None gives an empty tensor). `inputs` by index. Throws IndexError for Gather/Scatter out of
/// bounds.
std::vector<Tensor> evaluate(const Graph&, const std::vector<Tensor>& inputs, const Options& = {});

}  // namespace trainc::reference
