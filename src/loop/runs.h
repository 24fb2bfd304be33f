// How long chains of additions may be. A chain's error grows with its length, so sums of floats are added up in runs,
// and what runs give in longer ones.
//
// A sum of f32 is kept in an f64 local: runs of kRun terms in f32, each run's sum added in f64, where nothing is lost
// any more. A local as narrow as its terms has nothing wider above it: kRuns runs make a longer run, and so on. Vector
// loops do so by themselves (loop.h, Reduce); Serial loops are cut here.
#pragma once
#include <set>

#include "cost/sums.h"
#include "loop/loop.h"

namespace trainc::loop {

using cost::kLevels;
using cost::kRun;
using cost::kRuns;

inline bool adds_floats(ReduceKind kind, DType terms) { return kind == ReduceKind::Sum && is_float(terms); }

/// What the sum of such terms is kept in on a CPU. (On a device f64 may be 64 times as dear: there a sum is kept in its
/// terms' dtype.)
inline DType total_dtype(ReduceKind kind, DType terms) { return adds_floats(kind, terms) ? DType::F64 : terms; }

/// How many partial sums a lane of a Vector loop keeps, from the terms' up to the total.
inline size_t levels_of(ReduceKind kind, DType terms, DType total) {
  return !adds_floats(kind, terms) ? 1 : total != terms ? 2 : kLevels;
}
/// Vectors in a run of a level, 1 or more.
constexpr int64_t run_of(size_t level) { return level == 1 ? kRun : kRuns * run_of(level - 1); }

/// `s` with its Serial loops cut into runs of `kRun` terms, and those of locals as narrow as their terms again and
/// again.
/// Gives: the same terms in their order. Leaves: what is no sum of floats, a local that is read in the loop (a running
/// sum), loops whose extent is no number; on a device (`threads_to_come`) loops around Vector loops, which become one
/// range of the threads. `any_size`: the nest's template must not depend on whether runs divide the extent. `wide`:
/// locals whose terms, of that dtype too, have digits of a narrower one: nothing is lost in them either.
Stmt add_in_runs(LoopNest&, const Stmt& s, bool any_size = false, bool threads_to_come = false,
                 const std::set<int>& wide = {});

}  // namespace trainc::loop
