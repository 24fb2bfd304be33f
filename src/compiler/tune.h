// tune="max": how contractions are computed, decided by measurement. Takes: groups and their lowering. Gives: the
// lowering that was fastest.
#pragma once
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

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
  /// For explain: what was measured of the library's products, and chosen.
  std::vector<std::string> notes() const;

 private:
  /// The cut that was fastest.
  std::vector<lower::LoweredKernel> cut(const schedule::Group&, std::vector<lower::LoweredKernel> lowered);
  /// A product of the library's by the algorithm that was fastest, or a kernel instead.
  std::vector<lower::LoweredKernel> product(const schedule::Group&, std::vector<lower::LoweredKernel> lowered);
  double seconds_of(const lower::LoweredKernel&, plan::Kernel&) const;

  const Graph& graph_;
  const schedule::Schedule& schedule_;
  const lower::LoweringOptions& lowering_;
  const CompileOptions& options_;
  const Job& job_;
  std::unordered_map<std::string, int> chosen_;  // by the text of variant 0
  struct Choice {
    std::string way, first;  // the algorithm, or kKernel; the library's own choice
    int measured = 0, products = 0;
  };
  std::map<std::string, Choice> ways_;  // by the product and its kernel, as text
};

}  // namespace trainc::compiler
