// Few elements that are written into a tensor whose others stay as they are.
#pragma once
#include <cstdint>

namespace trainc::cost {

// The share of a tensor's elements, one of so many, from which down an update at a place that is not known is put into
// it: in a copy, or where the tensor lies if that is given away. A larger one is a choice for each element. What such a
// share is made of is read before it is put there.
constexpr int64_t kFewOf = 8;
// Elements of a tensor from which on a loop of unknown trips that scatters few to several places of it is left to XLA,
// which does so where the tensor lies; such a scatter of ours copies it, for what lies outside.
constexpr int64_t kCopiedEachTrip = 1 << 14;

}  // namespace trainc::cost
