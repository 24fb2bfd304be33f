// Memory beside tensors.
#pragma once
#include <cstdint>

namespace trainc::cost {

// Bytes of workspace that the vendor's library may use beside its operands: its own advice for sm_90.
constexpr int64_t kVendorWorkspace = 32 << 20;
// Scratch of a kernel that serves several sizes, as a multiple of what the first needs, rounded up to a power of two:
// it costs nothing until it is touched.
constexpr int64_t kScratchForOthers = 4;
// Elements more for each further scratch buffer: powers of two would fall on the same cache sets.
constexpr int64_t kScratchOffset = 272;
// What differs between a kernel and one of an earlier size is taken for what sizes change, if no more numbers differ
// than one part of so many of all ...
constexpr int64_t kSimilarShare = 4;
// ... and so many beside.
constexpr int64_t kSimilarNumbers = 2;

}  // namespace trainc::cost
