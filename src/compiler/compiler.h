// The whole way from an imported graph to a plan: passes, schedule, loops, code. The one place that names all stages.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "frontend/aten.h"
#include "plan/plan.h"
#include "support/cpu.h"

namespace trainc::compiler {

struct Options {
  CpuLevel level;
  int threads = 2;  // kernels are compiled on so many
  /// Called with kernels done and kernels in all, from the calling thread; may throw to interrupt.
  std::function<void(int64_t done, int64_t total)> progress;
};

/// One graph as one plan (an inference graph, an optimizer's step).
plan::Plan compile(frontend::Imported, const std::string& name, const Options&);

/// A joint graph cut into a forward and a backward plan. Inputs: primals, then tangents, in the order of the imported
/// graph. Outputs: `forward_outputs` of the forward, then a gradient (or none) per primal.

class JointGraph {
 public:
  JointGraph(frontend::Imported, int64_t primals, int64_t forward_outputs, const std::string& name, const Options&);
  ~JointGraph();
  plan::Plan forward() const;
  const std::vector<int64_t>& saved_inputs() const;
  int64_t saved_bytes() const;
  /// The backward plan where tangents with defined[i] == false are zero without being read. Inputs: saved_inputs' tensors,
  /// then all tangents (undefined ones: nullptr). Outputs: a gradient per primal.
  plan::Plan backward(const std::vector<bool>& defined) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// An elementwise update over many tensors (an optimizer's step): inputs of shape [n] are taken tensor by tensor with any number of
/// elements, inputs of shape [] are scalars shared by all. Output i is written over input in_place[i].
/// Kernel arguments: the inputs in order, then a pointer to the number of elements (i64). Parallel iterations: chunks of `chunk` elements.
struct Foreach {
  plan::Kernel kernel;
  int64_t input_count = 0, chunk = 4096;
  std::vector<int64_t> in_place;
};
Foreach compile_foreach(frontend::Imported, std::vector<int64_t> in_place, const std::string& name, const Options&);

}  // namespace trainc::compiler
