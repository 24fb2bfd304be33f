// When rewriting a graph stops, should rules undo each other: far beyond what any graph has taken; what a pass takes
// for a change of rounding alone.
#pragma once

namespace trainc::cost {

// Rules that fire at one node, one after another.
constexpr int kMostRewrites = 100;
// Rounds over the whole graph.
constexpr int kMostRounds = 50;
// Times a product of bf16, either way: numbers that scale its operands by more, or by less than the reciprocal, stay
// where they are. What is summed before it is scaled leaves the range of f32 only where the scaled sum is within this
// factor of its end.
constexpr double kFarthestScale = 1024;

}  // namespace trainc::cost
