// An element of a tensor, by its place.
#pragma once
#include <vector>

#include "loop/loop.h"

namespace trainc::loop {

/// Where in a tensor: its row-major position, or the coordinate of each axis, or both; each is worked out from the
/// other when asked for, so that what stays linear never sees a division.
struct Index {
  Dims shape;
  Expr position;
  std::vector<Expr> axes;

  static Index at_position(const Dims& shape, Expr position) { return {shape, std::move(position), {}}; }
  static Index at_axes(const Dims& shape, std::vector<Expr> axes) { return {shape, nullptr, std::move(axes)}; }
  const Expr& linear();
  const std::vector<Expr>& coordinates();
};

}  // namespace trainc::loop
