#pragma once
#include <unordered_map>

#include "loop/loop.h"

namespace trainc::schedule {

using Replacement = std::unordered_map<int, loop::Expr>;  // variable -> index expression

/// Replaces variables; index arithmetic is simplified again on the way.
loop::Expr substitute(const loop::Expr&, const Replacement&);
loop::Stmt substitute(const loop::Stmt&, const Replacement&);

/// How far the first load in `e` that moves at all moves in memory, in elements, when variable `var` goes from 0 to 1 and the others are 0.
int64_t stride_of(const loop::Expr& e, int var, int other);

}  // namespace trainc::schedule
