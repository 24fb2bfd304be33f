// Views that step through an axis, and what is added or written back through them: diagonals and sliding windows. All
// are movements of the values that are there: a diagonal is a slice of the flat matrix, windows are Op::Window.
#pragma once
#include "frontend/formulas/slices.h"

namespace trainc::formulas {

/// A diagonal of the matrices [..., rows, columns] that x has when two of its axes are moved to the end: flattened,
/// every (columns + 1)-th element.
struct Diagonal {
  Dims order;   // of the matrix's axes: rows and columns last
  Dims shape;   // in that order
  Range range;  // along the flat last axis
  Dims flat() const {
    Dims d(shape.begin(), shape.end() - 2);
    d.push_back(shape.end()[-2] * shape.end()[-1]);
    return d;
  }
};
/// offset: above the main diagonal where positive. Axes count from 0.
Diagonal diagonal_of(const Dims& x, int64_t offset, int64_t row_axis, int64_t column_axis);
/// x's other axes, then the diagonal.
Value diagonal(Value x, const Diagonal&);
/// A tensor that is 0 but for the diagonal.
Value on_diagonal(Value diagonal, const Diagonal&);
/// x with src on the diagonal.
Value diagonal_scattered(Value x, Value src, const Diagonal&);

/// [..., n] -> [..., windows, size]: the first `windows` of them, `step` apart.
Value sliding_windows(Value x, int64_t windows, int64_t size, int64_t step);
/// The way back. [..., J, K] -> [..., n]: out[j * step + k * dilation] is the sum of x[j, k]. What places are not met
/// is 0.
Value overlap_add(Value x, int64_t n, int64_t step, int64_t dilation);

}  // namespace trainc::formulas
