// The order of a plan's steps where some of them start what runs beside the others. Takes: a plan whose memory is not
// laid out, its steps in an order that runs. Gives: the same steps, ordered so that kernels hide what is in flight.
// Includes: plan.
#pragma once
#include <cstdint>
#include <vector>

#include "cost/ordering.h"
#include "plan/plan.h"

namespace trainc::schedule {

/// What a step's kernel is estimated to take: the longer of its operations and its bytes, and something for itself.
struct StepCosts {
  double flops_per_second = cost::kFlopsPerSecond, bytes_per_second = cost::kBytesPerSecond,
         seconds_a_step = cost::kSecondsAStep;
  double seconds(const plan::Step&) const;  // of a Start: none; what it begins lasts Step::seconds
};

/// What running the steps in this order comes to. Steps run one after the other; what is in flight shares one link: it
/// is served in the order of its Starts.
struct Estimate {
  double seconds = 0;
  int64_t bytes = 0;  // the most that temporaries and the framework's results take at one step
};
Estimate estimate(const plan::Plan&, const std::vector<int>& order, const StepCosts& = {});

/// Puts each Start where its inputs are made, each Wait before its first reader, and work that needs nothing in flight
/// between them. Needs: `verify` would accept the plan once its memory is laid out. Gives: the same; each step sees the
/// values that it saw before; draws and the framework's calls keep their order. Without a Start nothing changes. More
/// memory is taken only where it pays (docs/schedule.md, "Order").
plan::Plan order_steps(plan::Plan, const StepCosts& = {});

}  // namespace trainc::schedule
