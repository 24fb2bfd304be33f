// Memory beside tensors.
#pragma once
#include <cstdint>

namespace trainc::cost {

// Bytes of workspace that the vendor's library may use beside its operands: its own advice for sm_90.
constexpr int64_t kVendorWorkspace = 32 << 20;
// Bytes at multiples of which rows begin that the vendor's library is quick with: what a thread reads at a time.
constexpr int64_t kVendorRows = 16;
// FLOPs of the vendor's products for each byte of an operand that is made longer, from which on that pays: a copy reads
// and writes a byte in 0.5 ps (4.8 TB/s), and a FLOP takes 2 fs less where rows begin at multiples of 16 bytes (0.75 of
// 989 TFLOP/s rather than some 300).
constexpr int64_t kWorthPadding = 256;
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
