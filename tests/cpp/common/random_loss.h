// Random losses over a vocabulary, forward and backward, as models spell them: x [B, T, K] -> linear -> cross-entropy,
// in one joint graph.
#pragma once
#include <limits>

#include "random_joint.h"

namespace trainc::testing {

struct LossCase {
  int64_t batch = 3, length = 7, width = 5, columns = 11;
  bool bias = false, smoothing = false, mean = true, weighted = false, bf16 = false, tied = false;
  bool flat = true;          // the loss takes [B T, V]; else [B, T, V]
  bool rows_wanted = false;  // the loss of each row is a result as well
  bool after = false;        // something is made of the loss before the tangent comes
  // What keeps the logits whole.
  bool logits_wanted = false, whole = false /* the gradient needs the sum of all losses */,
       teacher = false /* another tensor of their size */;
  // What is not 0 where the label is to be ignored.
  bool loss_of_hidden = false, gradient_of_hidden = false;
  bool chunks() const { return !logits_wanted && !whole && !teacher; }
  int64_t rows() const { return batch * length; }
};

inline LossCase random_loss_case(uint64_t seed) {
  std::mt19937_64 rng(seed);
  const auto one_of = [&](std::initializer_list<int64_t> values) { return values.begin()[rng() % values.size()]; };
  LossCase c;
  c.batch = one_of({1, 2, 3, 5}), c.length = one_of({2, 3, 7, 16, 21}), c.width = one_of({1, 3, 8, 17}),
  c.columns = one_of({2, 4, 16, 33, 100});
  bool* flags[] = {&c.bias, &c.smoothing, &c.mean, &c.weighted, &c.bf16, &c.tied, &c.flat, &c.rows_wanted, &c.after};
  for (bool* f : flags) *f = rng() & 1;
  c.bf16 = c.bf16 && (rng() & 1);
  bool* whole[] = {&c.logits_wanted, &c.whole, &c.teacher};
  if (rng() % 4 == 0) *whole[rng() % 3] = true;
  return c;
}

/// Primals: x, labels (any number: -3 is to be ignored, the others count modulo V), the weight [V, K]; then bias, class
/// weights, the teacher's logits where there are such. Tangent: of the loss. Outputs: the loss, losses of rows and
/// logits where wanted; gradients of x, of the weight, of the bias.
inline RandomJoint loss_joint(const LossCase& c) {
  RandomJoint joint;
  Graph& graph = joint.graph;
  Builder b{graph, {}};
  const int64_t rows = c.rows(), columns = c.columns;
  const Dims wide{c.batch, c.length, columns}, square = c.flat ? Dims{rows, columns} : wide;
  Dims one = square, per_row(square.begin(), square.end() - 1);
  one.back() = 1;
  const int64_t last = static_cast<int64_t>(square.size()) - 1;
  const Node* x = b.input(0, {DType::F32, {c.batch, c.length, c.width}});
  const Node* labels = b.input(1, {DType::I64, {c.batch, c.length}});
  const Node* w = b.input(2, {DType::F32, {columns, c.width}});
  int64_t inputs = 3;
  const auto widened = [&](const Node* n) { return b.cast(n, DType::F32); };
  const DType d = c.bf16 ? DType::BF16 : DType::F32;
  const Node *xs = b.reshape(widened(b.cast(b.mul(x, b.full(DType::F32, x->shape(), 0.5)), d)), {1, rows, c.width}),
             *ws = widened(b.cast(w, d));
  const Node* logits = b.reshape(b.contract(xs, b.reshape(ws, {1, columns, c.width})), wide);
  if (c.bias) logits = b.add(logits, b.broadcast(b.input(inputs++, {DType::F32, {columns}}), wide));
  logits = b.reshape(widened(b.cast(logits, d)), square);
  const Node* scores = logits;
  if (c.teacher) scores = b.add(scores, b.input(inputs++, {DType::F32, square}));

  const auto along = [&](const Node* n) { return b.broadcast(n, square); };
  const auto over = [&](ReduceKind kind, const Node* n) { return b.reduce(kind, n, {last}, true); };
  const auto number = [&](double value, const Dims& shape) { return b.full(DType::F32, shape, value); };
  const auto integer = [&](int64_t value) { return b.broadcast(b.constant_int(DType::I64, value), one); };
  const Node* shifted = b.sub(scores, along(over(ReduceKind::Max, scores)));
  const Node* logp = b.sub(shifted, along(b.unary(Op::Log, over(ReduceKind::Sum, b.unary(Op::Exp, shifted)))));
  const Node* label = b.reshape(labels, one);
  const Node* counted = b.binary(Op::Ne, label, integer(-3));
  const Node* target = b.select(counted, b.binary(Op::Mod, label, integer(columns)), integer(0));
  const Node* loss = b.unary(Op::Neg, b.gather(logp, target, last));
  const Node* weight = nullptr;
  if (c.weighted) {
    const Node* table = b.input(inputs++, {DType::F32, {columns}});
    weight = b.reshape(b.gather(table, b.reshape(target, {rows}), 0), one);
    loss = b.mul(loss, weight);
  }
  if (c.smoothing)
    loss = b.sub(loss, b.mul(over(ReduceKind::Sum, logp), number(0.1 / static_cast<double>(columns), one)));
  loss = b.reshape(b.select(counted, loss, number(c.loss_of_hidden ? 0.5 : 0, one)), per_row);
  Dims all;
  for (int64_t axis = 0; axis < last; ++axis) all.push_back(axis);
  const Node* total = b.reduce(ReduceKind::Sum, loss, all);
  const Node* count =
      b.add(b.reduce(ReduceKind::Sum, b.reshape(b.cast(counted, DType::F32), {rows}), {0}), number(1, {}));
  const Node* result = c.mean ? b.div(total, count) : total;
  if (c.after) result = b.mul(result, number(0.25, {}));
  graph.outputs = {{result, {}}};
  if (c.rows_wanted) graph.outputs.push_back({loss, {}});
  if (c.logits_wanted) graph.outputs.push_back({logits, {}});
  joint.primals = inputs;
  joint.forward_outputs = static_cast<int64_t>(graph.outputs.size());

  const Node* g = b.input(inputs++, {DType::F32, {}});
  graph.input_count = inputs;
  if (c.after) g = b.mul(g, number(0.25, {}));
  if (c.mean) g = b.div(g, count);
  if (c.whole) g = b.mul(g, total);
  const Node* of_row = b.broadcast(b.unary(Op::Neg, g), one);
  if (!c.gradient_of_hidden) of_row = b.select(counted, of_row, number(0, one));
  const Node* picked = weight ? b.mul(of_row, weight) : of_row;
  const Node* here = b.binary(Op::Eq, b.iota(DType::I64, square, last), along(target));
  const Node* of_logp = b.select(here, along(picked), number(0, square));
  if (c.smoothing) of_logp = b.add(of_logp, along(b.mul(of_row, number(0.1 / static_cast<double>(columns), one))));
  const Node* dlogits = b.sub(of_logp, b.mul(b.unary(Op::Exp, logp), along(over(ReduceKind::Sum, of_logp))));
  const Node* dz = b.reshape(widened(b.cast(b.reshape(dlogits, wide), d)), {rows, columns});
  const Node* dw = b.reshape(b.contract(b.reshape(b.permute(dz, {1, 0}), {1, columns, rows}), b.permute(xs, {0, 2, 1})),
                             {columns, c.width});
  dw = widened(b.cast(dw, d));
  if (c.tied)
    dw = b.scatter(ScatterKind::Sum, dw, b.broadcast(b.reshape(target, {rows, 1}), {rows, c.width}),
                   b.reshape(x, {rows, c.width}), 0);
  const Node* dx =
      b.contract(b.reshape(dz, {1, rows, columns}), b.permute(b.reshape(ws, {1, columns, c.width}), {0, 2, 1}));
  dx = b.mul(b.reshape(widened(b.cast(dx, d)), x->shape()), number(0.5, x->shape()));
  graph.outputs.push_back({dx, {}});
  graph.outputs.push_back({dw, {}});
  if (c.bias) graph.outputs.push_back({b.reduce(ReduceKind::Sum, b.reshape(dz, wide), {0, 1}), {}});
  return joint;
}

/// Labels that are to be ignored: of so many rows in ten, by chance.
inline void hide_labels(std::vector<reference::Tensor>& inputs, uint64_t seed, int in_ten) {
  std::mt19937_64 rng(seed + 13);
  for (int64_t& label : inputs[1].i) {
    if (label == -3) label = 2;
    if (static_cast<int>(rng() % 10) < in_ten) label = -3;
  }
}

}  // namespace trainc::testing
