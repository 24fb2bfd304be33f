// tune="max": how contractions are cut up, decided by measurement. Takes: groups and their lowering. Gives: the
// lowering that was fastest.
#pragma once
#include <string>
#include <unordered_map>

#include "compiler/compiler.h"
#include "lower/lower.h"

namespace trainc::compiler {

class Tuner {
 public:
  Tuner(const Graph& graph, const schedule::Schedule& schedule, const lower::LoweringOptions& lowering,
        const CompileOptions& options, const Job& job)
      : graph_(graph), schedule_(schedule), lowering_(lowering), options_(options), job_(job) {}

  /// `lowered`, or, for a contraction, the variant that `job.tuning` chose. Kernels of the same text are measured once.
  std::vector<lower::LoweredKernel> best(const schedule::Group&, std::vector<lower::LoweredKernel> lowered);

 private:
  const Graph& graph_;
  const schedule::Schedule& schedule_;
  const lower::LoweringOptions& lowering_;
  const CompileOptions& options_;
  const Job& job_;
  std::unordered_map<std::string, int> chosen_;  // by the text of variant 0
};

}  // namespace trainc::compiler
