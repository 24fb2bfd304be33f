// How far loops of known trips are unrolled.
#pragma once
#include <cstdint>

namespace trainc::cost {

// Primitives that a loop's trips are made into, one behind the other; one that wants more runs in the plan, as a loop
// whose trips are not known does.
constexpr int64_t kMostUnrolled = 50000;
// Primitives of a whole program.
constexpr int64_t kMostPrimitives = 1000000;

}  // namespace trainc::cost
