// Live ranges of a plan's buffers, for the memory planner, the verifier and the runtime. Includes: plan.h.
#pragma once
#include "plan/plan.h"

namespace trainc::plan {

constexpr int64_t kAlignment = 64;  // bytes: a cache line, and the widest vector
constexpr int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// Steps [first, last] in which a buffer is touched, both ends included; first = -1: never.
struct LiveRange {
  int first = -1, last = -1;
  bool meets(const LiveRange& other) const {
    return first >= 0 && other.first >= 0 && first <= other.last && other.first <= last;
  }
};
/// One per buffer: where it is touched, itself or through a view of its memory that an extern step gave.
std::vector<LiveRange> live_ranges(const Plan&);
/// A result in the framework's memory (Extern) that may lie in the memory of a buffer, also by way of another such
/// view: from the step that gives it to its last use.
struct ViewOf {
  int buffer, view;
  LiveRange live;
};
std::vector<ViewOf> views(const Plan&);
/// One per buffer: where its memory holds something that is wanted. A Saved slot does so from the start where it is
/// given, to the end where it is written for the backward or must outlast the run; one that a plan overwrites dies
/// with its last reader.
std::vector<LiveRange> memory_ranges(const Plan&);

}  // namespace trainc::plan
