// How the value of an expression moves from one lane of a vector to the next: 0 means uniform (one scalar does for all
// lanes), 1 means neighbours in memory. No LLVM here.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>

#include "loop/loop.h"

namespace trainc::emit {

struct Stride {
  bool known = false;  // value(lane) = value(lane 0) + stride * lane
  int64_t stride = 0;
  int64_t multiple = 1;  // value(lane 0) is a multiple of this; 0: it is 0
  bool pure = false;     // made of variables and numbers alone: cannot wrap, may be computed anywhere
  bool uniform() const { return known && stride == 0; }
};

class Strides {
 public:
  /// `vector_var` runs from 0 in steps of `lanes` (-1: none, all is uniform); `varying` says which locals hold vectors.
  Strides(int vector_var, int lanes, std::function<bool(int local)> varying);
  Stride of(const loop::Expr&);

 private:
  Stride compute(const loop::Expr&);
  int var_, lanes_;
  std::function<bool(int)> varying_;
  std::unordered_map<const loop::ExprNode*, Stride> memo_;
};

}  // namespace trainc::emit
