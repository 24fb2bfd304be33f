// Which steps of a device's plan follow one another with nothing of the framework's between them.
#pragma once
#include <vector>

#include "plan/plan.h"

namespace trainc::plan {

/// Steps [first, last) of a plan, all of them kernels and products: what one CUDA graph can replay.
struct Part {
  size_t first, last;
  bool multiplies;  // there is a product among them
};

/// In order. Between two lies what the framework runs: it may allocate, and where its results lie is known afterwards.
inline std::vector<Part> parts(const Plan& plan) {
  std::vector<Part> parts;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& s = plan.steps[i];
    const bool multiplies = s.kind == StepKind::Product;
    if (s.kernel < 0 && !multiplies) continue;
    if (parts.empty() || parts.back().last != i) parts.push_back({i, i, false});
    parts.back().last = i + 1;
    parts.back().multiplies |= multiplies;
  }
  return parts;
}

}  // namespace trainc::plan
