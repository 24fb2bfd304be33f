// How the files of a contraction write a loop, and a zero. Inside lower only.
#pragma once
#include <algorithm>
#include <string>

#include "loop/loop.h"

namespace trainc::lower {

using loop::Expr;
using loop::LoopNest;
using loop::Stmt;

/// A loop over a new variable; body(variable) writes what is inside. None where the extent is 0, the body alone where
/// it is 1 and Serial.
template <class Body>
Stmt loop_over(LoopNest& nest, loop::LoopKind kind, const char* name, const Expr& extent, Body body, int lanes = 1) {
  const bool number = extent->kind == loop::ExprKind::Int;
  if (number && extent->int_value == 0) return loop::block({});
  if (number && extent->int_value == 1 && kind == loop::LoopKind::Serial) return body(loop::integer(0));
  const int var = nest.add_var(name, number ? extent->int_value : -1);
  return for_loop(kind, var, extent, body(nest.var(var)), lanes);
}

/// A buffer of the nest's own. `shared`: parts of a nest leave it to each other: one of this name is taken where there
/// is one, with room for both.
inline int own_buffer(LoopNest& nest, const std::string& name, DType dtype, int64_t numel, loop::Space space,
                      bool shared) {
  for (size_t i = 0; i < nest.buffers.size() && shared; ++i)
    if (loop::Buffer& b = nest.buffers[i]; b.name == name && b.dtype == dtype && b.space == space)
      return b.numel = std::max(b.numel, numel), static_cast<int>(i);
  return nest.add_buffer({name, dtype, numel, space, true});
}

inline Expr zero(DType dtype) { return is_float(dtype) ? loop::real(0, dtype) : loop::integer(0, dtype); }

}  // namespace trainc::lower
