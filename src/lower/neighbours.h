// Which accesses of a loop's iterations lie beside each other in memory, by their indices alone. Inside lower only.
#pragma once
#include <optional>
#include <set>

#include "loop/loop.h"

namespace trainc::lower {

/// A number that divides an index, whatever its variables are; 0: every number does.
int64_t divisor_of(const loop::Expr& index);

/// Whether `e` is made of the variable, or of one of the locals.
bool depends_on(const loop::Expr& e, int var, const std::set<int>& locals = {});

/// A group of iterations: the variable is `first` + lane, for lanes from 0 up to `lanes`, which divides `first`.
struct Lanes {
  int var;
  loop::Expr first;
  int64_t lanes;
  std::set<int> locals = {};  // those that differ from lane to lane
};
/// An index, as rest + step * lane; rest is the same in all lanes.
struct Neighbours {
  loop::Expr rest;
  int64_t step;
};
std::optional<Neighbours> split_lanes(const loop::Expr& index, const Lanes&);

}  // namespace trainc::lower
