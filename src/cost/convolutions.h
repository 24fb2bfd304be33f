// Convolutions that the framework computes faster.
#pragma once
#include <cstdint>

namespace trainc::cost {

// Channels that a group of several has at least, in and out: of fewer, most of each vector of a product's tile would be
// empty.
constexpr int64_t kLeastGroup = 16;

}  // namespace trainc::cost
