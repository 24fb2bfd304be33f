// How the files of a contraction write a loop. Inside loop only.
#pragma once
#include "loop/loop.h"

namespace trainc::loop {

/// A loop over a new variable; body(variable) writes what is inside. None where the extent is 0, the body alone where it is 1 and Serial.
template <class Body>
Stmt loop_over(LoopNest& nest, LoopKind kind, const char* name, const Expr& extent, Body body, int lanes = 1) {
  const bool number = extent->kind == ExprKind::Int;
  if (number && extent->int_value == 0) return block({});
  if (number && extent->int_value == 1 && kind == LoopKind::Serial) return body(integer(0));
  const int var = nest.add_var(name, number ? extent->int_value : -1);
  return for_loop(kind, var, extent, body(nest.var(var)), lanes);
}

}  // namespace trainc::loop
