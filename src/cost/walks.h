// How kernels walk over elements.
#pragma once
#include <cstdint>

namespace trainc::cost {

// Of one value's row that a walk keeps for the next one rather than computes again: bytes of scratch on a CPU.
constexpr int64_t kScratchRow = 256 << 10;
// The same on a device, of all kept rows of a block: bytes of Shared memory, less what sums are combined in.
constexpr int64_t kSharedRows = 40 << 10;

}  // namespace trainc::cost
