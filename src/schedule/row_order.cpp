#include "schedule/row_order.h"

#include <algorithm>
#include <bit>

#include "schedule/schedule.h"
#include "support/division.h"
#include "support/error.h"

namespace trainc::schedule {
namespace {

/// Arithmetic of i64.
struct Integers {
  Builder& b;
  const Node* number(int64_t value, const Dims& shape = {1}) const {
    return b.broadcast(b.reshape(b.constant_int(DType::I64, value), {1}), shape);
  }
  const Node* binary(Op op, const Node* x, const Node* y) const {
    const Dims shape = broadcast_shape(x->shape(), y->shape());
    return b.binary(op, b.broadcast(x, shape), b.broadcast(y, shape));
  }
  const Node* binary(Op op, const Node* x, int64_t y) const { return binary(op, x, number(y)); }
  const Node* count_up(int64_t n) const { return b.iota(DType::I64, {n}, 0); }
};

/// Elements of a vector in memory of their own: a whole slice of a slice, which the passes leave alone.
const Node* copied_part(Builder& b, const Node* vector, int64_t first, int64_t count) {
  const Node* part = b.slice_axis(vector, 0, first, count);
  require(part->op == Op::Slice && count < vector->shape()[0], "a copy of all of a vector");
  return copied(b.graph, part, b.origin);
}

}  // namespace

RowOrder order_rows(Builder& b, const Node* shown, int64_t chunk, int64_t finest) {
  const Integers i{b};
  const int64_t rows = shown->shape()[0], chunks = ceil_div(rows, chunk);
  const int halves = std::bit_width(static_cast<uint64_t>((chunk - 1) / finest));  // parts behind the chunks
  RowOrder order;
  if (chunks + halves < 2) return order;

  // The order: each shown row behind the shown ones before it, each hidden row behind those and the hidden ones before.
  const Node* upto = b.scan(b.cast(shown, DType::I64), 0);
  const Node *count = b.slice_axis(upto, 0, rows - 1, 1), *row = i.count_up(rows);
  const Node* to = b.select(shown, i.binary(Op::Sub, upto, 1), i.binary(Op::Add, count, i.binary(Op::Sub, row, upto)));
  const Node* sorted = b.scatter(ScatterKind::Last, i.number(0, {rows}), to, row, 0);

  // What runs: `whole` chunks, and of what is left so many units of `finest` rows; another chunk where these would be
  // as many rows, or reach to the end.
  const Node* whole = i.binary(Op::Div, count, chunk);
  const Node* left = i.binary(Op::Sub, count, i.binary(Op::Mul, whole, chunk));
  const Node* units = i.binary(Op::Div, i.binary(Op::Add, left, finest - 1), finest);
  const Node* left_rows = i.binary(Op::Mul, units, finest);
  const Node* start = i.binary(Op::Mul, whole, chunk);  // of the smaller parts
  const Node* rounds_up = i.binary(Op::Or, i.binary(Op::Le, i.number(chunk), left_rows),
                                   i.binary(Op::Le, i.number(rows), i.binary(Op::Add, start, left_rows)));
  const Node* running = i.binary(Op::Add, whole, b.cast(rounds_up, DType::I64));
  units = b.select(rounds_up, i.number(0), units);
  // One flag more than is asked for: a slice of all of them would be no slice.
  const Node* chunk_runs = i.binary(Op::Lt, i.count_up(chunks + 1), running);
  const Node* half_runs =
      i.binary(Op::Ne, i.binary(Op::And, i.binary(Op::Shr, units, i.count_up(halves + 1)), 1), i.number(0));

  std::vector<const Node*> positions{row}, runs_of_rows;
  for (int64_t k = 0; k < chunks; ++k)
    order.parts.push_back({std::min(chunk, rows - k * chunk), nullptr, copied_part(b, chunk_runs, k, 1)});
  for (int bit = halves - 1; bit >= 0; --bit) {
    const int64_t size = finest << bit;
    order.parts.push_back({size, nullptr, copied_part(b, half_runs, bit, 1)});
    const Node* before = i.binary(Op::Shl, i.binary(Op::Shr, units, bit + 1), bit + 1);  // units of larger parts
    const Node* first = i.binary(Op::Add, start, i.binary(Op::Mul, before, finest));
    // a part that does not run lies anywhere
    positions.push_back(i.binary(Op::Min, i.binary(Op::Add, first, i.count_up(size)), rows - 1));
  }
  const Node* taken = b.gather(sorted, b.concat(positions, 0), 0);
  order.total = taken->shape()[0];
  int64_t first = 0;
  for (RowOrder::Part& p : order.parts) {
    p.index = copied_part(b, taken, first, p.rows);
    runs_of_rows.push_back(b.broadcast(p.runs, {p.rows}));
    first += p.rows;
  }
  // Rows of parts that do not run go to a place behind the last.
  const Node* goes_to = b.select(b.concat(runs_of_rows, 0), taken, i.number(rows, {order.total}));
  const Node* places =
      b.scatter(ScatterKind::Last, i.number(order.total, {rows + 1}), goes_to, i.count_up(order.total), 0);
  order.place = b.slice_axis(places, 0, 0, rows);
  return order;
}

}  // namespace trainc::schedule
