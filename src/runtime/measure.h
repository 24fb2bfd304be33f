// How long a kernel takes on this machine's threads, by itself. Takes: a kernel and sizes. Gives: seconds. Includes:
// plan.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace trainc::runtime {

/// The least of several runs over iterations [0, extent), after one that is not counted; arguments are zeros, of so
/// many bytes each. Throws InternalError where a Check of the kernel fails.
double seconds_of(const plan::Kernel&, int64_t extent, const std::vector<int64_t>& argument_bytes);

}  // namespace trainc::runtime
