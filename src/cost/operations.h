// What one operation costs, and how wide vectors are where operations follow on each other. Takes: an Op. Gives: work,
// in additions.
// Includes: graph/graph.h for Op alone.
#pragma once
#include <cstdint>

#include "graph/graph.h"

namespace trainc::cost {

// Work of one element, in additions: what an addition, a multiplication, a comparison takes.
constexpr int64_t kSimple = 1;
// A division or a root: several cycles of the divider.
constexpr int64_t kDivision = 4;
// A transcendental function: a range reduction and a polynomial.
constexpr int64_t kTranscendental = 16;

/// Work of one element of an operation, in additions: 0 for what is no arithmetic.
int64_t op_cost(Op);

// A statement of so much work, in additions, is a long chain: half a hundred cycles from the first operation to the
// last; out-of-order execution sees over some 200 instructions' worth of it.
constexpr int64_t kLongChain = 24;
// Vector registers side by side, at most, where a chain is long: each waits for its own results.
constexpr int64_t kMostRegisters = 4;

}  // namespace trainc::cost
