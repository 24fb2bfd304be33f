// Live ranges of a plan's buffers, for the memory planner, the verifier and the runtime. Includes: plan.h.
#pragma once
#include "plan/plan.h"

namespace trainc::plan {

constexpr int64_t kAlignment = 64;  // bytes: a cache line, and the widest vector
constexpr int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// Steps [first, last] in which a buffer is touched, both ends included; first = -1: never.
struct LiveRange {
  int first = -1, last = -1;
  bool meets(const LiveRange& other) const { return first >= 0 && other.first >= 0 && first <= other.last && other.first <= last; }
};
/// One per buffer.
std::vector<LiveRange> live_ranges(const Plan&);

}  // namespace trainc::plan
