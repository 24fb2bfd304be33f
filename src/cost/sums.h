// How sums are cut: for cores to share them, and for their error.
#pragma once
#include <cstdint>

namespace trainc::cost {

// --- long sums in two steps
// Results: a sum with fewer keeps too few cores busy ...
constexpr int64_t kFewResults = 16;
// ... which matters from this many elements on.
constexpr int64_t kLongSum = 1 << 15;
// Times that a sum reads each element of a factor, at least, where a copy of it in another order pays.
constexpr int64_t kReadsOfACopy = 16;
// Lanes that results lie across where leading axes are summed: so many partial sums are in registers at a time.
constexpr int64_t kAcross = 64;
// Vector registers that these take, at most.
constexpr int kAcrossRegisters = 4;
// Vectors of results: a sum over leading axes with fewer keeps too few cores busy.
constexpr int64_t kFewVectors = 8;
// Parts that a long sum is split into: the first of these that divides its axis.
constexpr int64_t kSumParts[] = {32, 64, 16, 24, 12, 8, 49, 7, 10, 9, 6, 5, 4, 3, 2};

// --- sums over leading axes on a device, in stages
// Threads a multiprocessor that a stage is to have: a sum of fewer results asks for too little of the memory at a time.
constexpr int64_t kSumThreads = 1024;
// Terms that a thread of such a stage adds at least.
constexpr int64_t kLeastTerms = 16;

// --- scatters on a device
// Threads a multiprocessor that places are dealt to: each goes through all sources.
constexpr int64_t kScatterThreads = 2048;
// Sources whose places a thread reads at a time, where a block has found out which are of its part.
constexpr int64_t kSourcesAtOnce = 8;
// Sources a place that a part of a scatter has at least, where the parts have places of their own.
constexpr int64_t kSourcesOfAPlace = 4;

// --- runs: a chain's error grows with its length (docs/loop.md)
// Terms of a run, or vectors of them: added in their own dtype.
constexpr int64_t kRun = 8;
// Runs in the next longer one, where nothing wider holds their sums.
constexpr int64_t kRuns = 32;
// Levels of a Vector loop: terms, three lengths of runs; 8,192 vectors make one of the longest.
constexpr int kLevels = 4;

}  // namespace trainc::cost
