// What is saved for the backward, and what is computed again.
#pragma once
#include <cstddef>
#include <cstdint>

namespace trainc::cost {

// Bytes: smaller outputs are not worth a call of their own to compute them later.
constexpr int64_t kDeferredBytes = 1 << 16;
// Bytes: a gather of less out of an input is computed again rather than saved.
constexpr int64_t kGatheredAgain = 1 << 16;
// Bytes: a primal of so many is copied for what the backward computes again of it (a bias, a norm's weight).
constexpr int64_t kCopiedPrimal = 1 << 16;
// Bytes of a row that outgrows the first cache: each loop over it reads memory again.
constexpr int64_t kLongRow = 32 << 10;
// Nodes below a value that are searched for a sum of another loop.
constexpr size_t kNearLoop = 16;
// To save a moved copy, or what one cheap operation makes, costs its bytes and one part of so many more: rather save
// what it was made of.
constexpr int64_t kMovedCopy = 2;
// To save a value that another loop makes from a sum (a softmax over a vocabulary) costs one part of so many more: what
// was summed is in memory anyway.
constexpr int64_t kOfAnotherLoop = 8;
// A contraction at the very end of the forward costs one part of so many more FLOPs to do again than the first one:
// when the backward comes to early layers, little else is in memory.
constexpr int64_t kLatestSurcharge = 4;
// The search for a price (bytes a FLOP) that meets a budget: above the dearest contraction's bytes a FLOP times this
// nothing is worth computing again ...
constexpr double kDearest = 2;
// ... and below the cheapest one's over this all are, with what they read.
constexpr double kCheapest = 16;
// Prices that are tried differ by this factor where some cut is known to fit ...
constexpr double kPriceStep = 1.1;
// ... and by this where none was found: equal layers are about so far apart.
constexpr double kFinePriceStep = 1.02;

}  // namespace trainc::cost
