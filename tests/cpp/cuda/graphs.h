// Graphs that the tests of devices share.
#pragma once
#include "graph/build.h"

namespace trainc::testing {

inline Graph softmax(int64_t rows, int64_t columns) {
  Graph g;
  Builder b{g, {}};
  const Dims all = {rows, columns};
  const Node* x = b.input(0, {DType::F32, all});
  const Node* e = b.unary(Op::Exp, b.sub(x, b.broadcast(b.reduce(ReduceKind::Max, x, {1}, true), all)));
  g.outputs = {{b.div(e, b.broadcast(b.reduce(ReduceKind::Sum, e, {1}, true), all)), {}}};
  g.input_count = 1;
  return g;
}

/// Batches of rows x columns as batches of columns x rows, in another order.
inline Graph transposed(int64_t batch, int64_t rows, int64_t columns, DType dtype) {
  Graph g;
  Builder b{g, {}};
  g.outputs = {{b.permute(b.input(0, {dtype, {batch, rows, columns}}), {0, 2, 1}), {}}};
  g.input_count = 1;
  return g;
}

inline Graph column_sums(int64_t rows, int64_t columns) {
  Graph g;
  Builder b{g, {}};
  const Node* x = b.input(0, {DType::F32, {rows, columns, 3}});
  g.outputs = {{b.reduce(ReduceKind::Sum, x, {0}), {}},
               {b.reduce(ReduceKind::Sum, x, {0, 2}), {}},
               {b.reduce(ReduceKind::Max, x, {1}), {}}};
  g.input_count = 1;
  return g;
}

/// Row i of the sources is added to row i % rows.
inline Graph scatter(int64_t sources, int64_t rows, int64_t columns) {
  Graph g;
  Builder b{g, {}};
  const Dims shape = {sources, columns};
  const Node* index =
      b.binary(Op::Mod, b.iota(DType::I64, shape, 0), b.full(DType::I64, shape, static_cast<double>(rows)));
  const Node* sum =
      b.scatter(ScatterKind::Sum, b.full(DType::F32, {rows, columns}, 0), index, b.input(0, {DType::F32, shape}), 0);
  g.outputs.push_back({sum, {}});
  g.input_count = 1;
  return g;
}

struct Operands { const Node *lhs, *rhs; };
/// Inputs 0 and 1 as [batch, m, k] and [batch, n, k], transposed in memory where asked.
inline Operands operands(Builder& b, int64_t batch, int64_t m, int64_t n, int64_t k, DType dtype, bool lhs_transposed,
                         bool rhs_transposed) {
  const auto operand = [&](int64_t index, int64_t rows, bool transposed) {
    const Node* x = b.input(index, {dtype, transposed ? Dims{batch, k, rows} : Dims{batch, rows, k}});
    return transposed ? b.permute(x, {0, 2, 1}) : x;
  };
  const Node* lhs = operand(0, m, lhs_transposed);
  return {lhs, operand(1, n, rhs_transposed)};
}

/// max(lhs * rhs + bias, 0).
inline Graph contraction(int64_t batch, int64_t m, int64_t n, int64_t k, DType dtype, bool lhs_transposed,
                         bool rhs_transposed) {
  Graph g;
  Builder b{g, {}};
  const auto [l, r] = operands(b, batch, m, n, k, dtype, lhs_transposed, rhs_transposed);
  const Node* bias = b.broadcast(b.input(2, {DType::F32, {n}}), {batch, m, n});
  const Node* sum = b.add(b.contract(b.cast(l, DType::F32), b.cast(r, DType::F32)), bias);
  g.outputs = {{b.binary(Op::Max, sum, b.full(DType::F32, sum->shape(), 0)), {}}};
  g.input_count = 3;
  return g;
}

}  // namespace trainc::testing
