#include "frontend/formulas/strided.h"

#include <algorithm>
#include <optional>

#include "frontend/formulas/shapes.h"

namespace trainc::formulas {
namespace {

Value zeros(Value like, const Dims& shape, DType d) { return with(like, like.b->full(d, shape, 0)); }

/// [..., n] -> [..., windows, size], a step of at least `size` apart: a reshape.
Value side_by_side(Value x, int64_t windows, int64_t size, int64_t step) {
  const int64_t axis = x.rank() - 1, n = x.size(axis), length = windows * step;
  x = sliced(x, {axis, 0, std::min(n, length), 1});
  if (n < length) x = unsliced(x, {axis, 0, n, 1}, length, zeros(x, {}, x.dtype()));
  Dims shape(x.shape().begin(), x.shape().end() - 1);
  shape.insert(shape.end(), {windows, step});
  return sliced(reshape(x, shape), {axis + 1, 0, size, 1});
}

}  // namespace

Diagonal diagonal_of(const Dims& shape, int64_t offset, int64_t row_axis, int64_t column_axis) {
  const int64_t rank = shape.size();
  Diagonal d{to_the_end(rank, {row_axis, column_axis}), {}, {}};
  for (int64_t axis : d.order) d.shape.push_back(shape[axis]);
  const int64_t rows = d.shape.end()[-2], columns = d.shape.end()[-1];
  const int64_t row = std::max<int64_t>(-offset, 0), column = std::max<int64_t>(offset, 0);
  d.range = {rank - 2, row * columns + column, std::max<int64_t>(std::min(rows - row, columns - column), 0),
             columns + 1};
  if (d.range.extent == 0) d.range.start = 0;
  return d;
}

Value diagonal(Value x, const Diagonal& d) { return sliced(reshape(permute(x, d.order), d.flat()), d.range); }
Value on_diagonal(Value diagonal, const Diagonal& d) {
  return permute_back(reshape(unsliced(diagonal, d.range, d.flat().back(), number(diagonal, 0)), d.shape), d.order);
}
Value diagonal_scattered(Value x, Value src, const Diagonal& d) {
  x = slice_scattered(reshape(permute(x, d.order), d.flat()), src, d.range);
  return permute_back(reshape(x, d.shape), d.order);
}

Value sliding_windows(Value x, int64_t windows, int64_t size, int64_t step) {
  if (size <= step) return side_by_side(x, windows, size, step);
  x = sliced(x, {x.rank() - 1, 0, (windows - 1) * step + size, 1});
  return with(x, x.b->window(x.node, {{x.rank() - 1}, {size}, {step}, {1}}));
}

Value overlap_add(Value x, int64_t n, int64_t step, int64_t dilation) {
  constexpr int64_t kFew = 16;  // terms that are written out, which saves the additions of zeros
  const int64_t last = x.rank() - 1, windows = x.size(last - 1), size = x.size(last);
  Dims outer(x.shape().begin(), x.shape().end() - 2);
  const auto with_axes = [&](const Dims& axes) {
    Dims shape = outer;
    shape.insert(shape.end(), axes.begin(), axes.end());
    return shape;
  };
  const Value zero = zeros(x, {}, x.dtype());
  if (windows == 0 || size == 0) return zeros(x, with_axes({n}), x.dtype());
  if (dilation * (size - 1) < step) {  // side by side
    x = reshape(unsliced(x, {last, 0, size, dilation}, step, zero), with_axes({windows * step}));
    const int64_t reach = std::min(n, windows * step);
    return unsliced(sliced(x, {last - 1, 0, reach, 1}), {last - 1, 0, reach, 1}, n, zero);
  }
  if (size <= kFew) {
    std::optional<Value> sum;
    for (int64_t k = 0; k < size; ++k) {
      Value term = unsliced(reshape(sliced(x, {last, k, 1, 1}), with_axes({windows})),
                            {last - 1, k * dilation, windows, step}, n, zero);
      sum = sum ? *sum + term : term;
    }
    return *sum;
  }
  // Row k holds x[:, k] at the multiples of `step`, then zeros. Cut from rows of length + dilation into rows of
  // `length`, each row lies `dilation` places further right than the one before; the columns are then summed.
  const int64_t spread = (windows - 1) * step + 1, length = spread + (size - 1) * dilation;
  Dims swapped = all_axes(x.rank());
  std::swap(swapped[last], swapped[last - 1]);
  x = unsliced(permute(x, swapped), {last, 0, windows, step}, length + dilation, zero);
  x = sliced(reshape(x, with_axes({size * (length + dilation)})), {last - 1, 0, size * length, 1});
  x = sum(reshape(x, with_axes({size, length})), {last - 1}, false);
  return unsliced(x, {last - 1, 0, length, 1}, n, zero);
}

}  // namespace trainc::formulas
