// Rows of hidden states that padding fills.
#pragma once
#include <cstddef>
#include <cstdint>

namespace trainc::cost {

// A number of a mask from which on down exp gives 0, whatever finite score it is added to: the least f32 and bf16 are
// below it.
constexpr double kHides = -1e38;
// What a product of queries and keys may be scaled by for its elements to be far smaller than that.
constexpr double kLeastScale = 1e-6;
// And at most.
constexpr double kMostScale = 1e6;
// Nodes that are looked at to see whether what is subtracted in exp(x - c) is made of that x: a softmax's has six.
constexpr size_t kNodesToOwn = 64;
// What may be added to x in exp(x), or subtracted from it, where x may become 0: exp of it is far below the largest
// f32.
constexpr double kSmallInExp = 64;
// Elements of a row of hidden states, at least, where a kernel is to ask of each row whether it is shown.
constexpr int64_t kLeastWidth = 16;

}  // namespace trainc::cost
