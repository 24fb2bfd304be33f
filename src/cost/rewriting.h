// When rewriting a graph stops, should rules undo each other: far beyond what any graph has taken.
#pragma once

namespace trainc::cost {

// Rules that fire at one node, one after another.
constexpr int kMostRewrites = 100;
// Rounds over the whole graph.
constexpr int kMostRounds = 50;

}  // namespace trainc::cost
