// Lookups and writes by tensors of indices: all forms become one Gather or Scatter along one axis. Indices are i64; one
// that is out of bounds fails when the plan runs, as `Failure` says.
#pragma once
#include <optional>

#include "frontend/formulas/value.h"

namespace trainc::formulas {

/// out[.., i, ..] = x[.., index[.., i, ..], ..] along the axis; index has x's rank.
Value gathered(Value x, Value index, int64_t axis, Failure failure = Failure::Index);
/// init with src written (Last) or added (Sum) at init[.., index[.., i, ..], ..]; index and src have one shape.
Value scattered(ScatterKind, Value init, Value index, Value src, int64_t axis, Failure failure = Failure::Index);
/// A vector of indices for `axis`, repeated over the other axes of `shape`.
Value along(Value index, const Dims& shape, int64_t axis);

/// Rows of a table [rows, width] by indices of any shape [...]: [numel, width].
Value take_rows(Value table, Value index);
/// The gradient of the table: dy [numel, width] summed into [rows, width], rows of `padding` left out (negative: none
/// is).
Value take_rows_backward(Value dy, Value index, int64_t rows, int64_t padding = -1);

/// x[i, :, j] as NumPy does it: the indexed axes become one, in place where they are neighbours and in front where they
/// are not.
struct Indexed {
  Dims order;                // of x's axes: before, indexed, after
  Dims before, many, after;  // sizes of the three; `many` is the common shape of the indices
  int64_t places = 1;        // product of the indexed axes
  // [numel of many]: places counted row-major; negative ones wrapped; -1 where any is out of bounds
  Value index;
};
/// indices: integers, one an axis of x from the first on, which broadcast; nothing: the whole axis. Nothing where no
/// axis is indexed, or one of no size.
std::optional<Indexed> indexed(Value x, const std::vector<std::optional<Value>>& indices);
/// [before..., many..., after...], flattened to three axes.
Value indexed_read(Value x, const Indexed&);
/// x with values, which broadcast against [before..., many..., after...], written or added there.
Value indexed_write(ScatterKind, Value x, const Indexed&, Value values);

}  // namespace trainc::formulas
