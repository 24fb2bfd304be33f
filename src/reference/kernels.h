// The evaluator's families of operations; reference.cpp chooses among them.
#pragma once
#include "reference/reference.h"

namespace trainc::reference {

using Operands = std::vector<const Tensor*>;

Tensor evaluate_elementwise(const Node&, const Operands&, Precision);
Tensor evaluate_reduction(const Node&, const Operands&, Precision);  // reduce, scan, contract
Tensor evaluate_movement(const Node&, const Operands&);
Tensor evaluate_indexed(const Node&, const Operands&, Precision);  // gather, scatter

/// Calls visit(linear, offset) for every element of `shape` in row-major order, offset = base + sum of index * stride.
template <class Visit> void walk(const Dims& shape, const Dims& strides, int64_t base, Visit visit) {
  int64_t count = 1;
  for (int64_t d : shape) count *= d;
  Dims index(shape.size(), 0);
  int64_t offset = base;
  for (int64_t linear = 0; linear < count; ++linear) {
    visit(linear, offset);
    for (size_t axis = shape.size(); axis-- > 0;) {
      offset += strides[axis];
      if (++index[axis] < shape[axis]) break;
      offset -= strides[axis] * shape[axis];
      index[axis] = 0;
    }
  }
}

inline double sum(double a, double b) { return a + b; }
// wraps
inline int64_t sum(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

/// A tensor of that type, all zeros.
Tensor zeros(const Type&);
/// The value as the precision keeps it in that dtype.
double kept(Precision, DType, double);

}  // namespace trainc::reference
