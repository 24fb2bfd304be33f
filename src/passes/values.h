// What can be known of a node's value by looking at it.
#pragma once
#include "graph/build.h"

namespace trainc {

/// The scalar constant that all elements of `node` are, seen through reshape, permute, broadcast, slice, window and
/// reverse; nullptr where there is none.
inline const Node* uniform_constant(const Node* node) {
  for (;;) {
    switch (node->op) {
      case Op::Constant: return node;
      case Op::Reshape:
      case Op::Permute:
      case Op::Broadcast:
      case Op::Slice:
      case Op::Window:
      case Op::Reverse: node = node->in(0); break;
      default: return nullptr;
    }
  }
}

/// Whether all elements are `value`: a float dtype compares by bits (0.0 is not -0.0).
bool is_uniform(const Node*, double value);
/// Whether all elements are 0; of a float dtype: all 0.0, or all -0.0.
bool is_uniform_zero(const Node*);

/// Whether every value of `from` is a value of `to`, so that a cast from it and back changes nothing.
bool holds_exactly(DType from, DType to);

}  // namespace trainc
