// Index expressions: variables replaced by others, whether two are the same, how far an index moves with a variable.
#pragma once
#include <unordered_map>

#include "loop/loop.h"

namespace trainc::loop {

using Replacement = std::unordered_map<int, Expr>;  // variable -> index expression

/// Replaces variables; index arithmetic is simplified again on the way.
Expr substitute(const Expr&, const Replacement&);
Stmt substitute(const Stmt&, const Replacement&);

/// Whether two index expressions are written alike.
bool same(const Expr&, const Expr&);

/// How far the first load in `e` that moves at all moves in memory, in elements, when variable `var` goes from 0 to 1
/// and the others are 0.
int64_t stride_of(const Expr& e, int var, int other);
/// The same of an index itself.
int64_t step_of(const Expr& index, int var);

}  // namespace trainc::loop
