// Random attention, forward and backward, as models spell it: q [B H, M, E], k and v [B G, N, E] (G heads of keys for H
// of queries).
#pragma once
#include <limits>

#include "random_joint.h"

namespace trainc::testing {

struct AttentionCase {
  int64_t batch = 2, heads = 4, groups = 2, rows = 20, columns = 20, width = 8;
  int64_t diagonal = 0;  // of a causal mask: row r sees columns up to r + diagonal
  bool scaled = true, additive = false, causal = false, dropout = false, safe = false, flash = false,
       transposed_rhs = false, bf16 = false, backward = false;
  bool joint = false;   // both, as autograd traces them
  bool merged = false;  // of the results, heads beside each other, are read by a product each
};

inline AttentionCase random_attention_case(uint64_t seed) {
  std::mt19937_64 rng(seed);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  const auto one_of = [&](std::initializer_list<int64_t> values) {
    return values.begin()[below(static_cast<int64_t>(values.size()))];
  };
  AttentionCase c;
  c.batch = one_of({1, 2, 3}), c.groups = one_of({1, 2, 4}), c.heads = c.groups * one_of({1, 1, 3});
  c.rows = one_of({1, 2, 7, 16, 21, 33}), c.columns = below(3) ? c.rows : one_of({2, 3, 17, 32, 50}),
  c.width = one_of({1, 3, 8, 16, 17});
  c.columns = std::max<int64_t>(c.columns, 1);
  bool* flags[] = {&c.scaled, &c.additive,       &c.causal, &c.dropout, &c.safe,
                   &c.flash,  &c.transposed_rhs, &c.bf16,   &c.backward};
  for (bool* f : flags) *f = below(2);
  c.bf16 = c.bf16 && below(2);
  c.diagonal = below(2) ? std::max<int64_t>(0, c.columns - c.rows) : 0;
  return c;
}

/// Inputs: q, k, v, then a mask to be added [B, 1, M, N] and a gradient [B H, M, E] where there are such. Outputs: the
/// result; or the gradients of q, k, v, with the rows' maximum and sum made in the same graph; or all of it (`joint`).
inline Graph attention_graph(const AttentionCase& c) {
  Graph graph;
  Builder b{graph, {}};
  const DType d = c.bf16 ? DType::BF16 : DType::F32;
  const int64_t all = c.batch * c.heads;
  const Dims square{all, c.rows, c.columns}, full{c.batch, c.heads, c.rows, c.columns};
  const Node* q = b.input(0, {d, {all, c.rows, c.width}});
  const auto spread = [&](const Node* x) {
    x = b.broadcast(b.reshape(x, {c.batch, c.groups, 1, c.columns, c.width}),
                    {c.batch, c.groups, c.heads / c.groups, c.columns, c.width});
    return b.reshape(x, {all, c.columns, c.width});
  };
  const Node* k = spread(b.input(1, {d, {c.batch * c.groups, c.columns, c.width}}));
  const Node* v = spread(b.input(2, {d, {c.batch * c.groups, c.columns, c.width}}));
  int64_t inputs = 3;
  const auto widened = [&](const Node* x) { return b.cast(x, DType::F32); };

  const Node* s = widened(b.contract(q, k));
  if (c.scaled) s = b.mul(s, b.full(DType::F32, square, 0.25));
  if (c.additive)
    s = b.reshape(
        b.add(b.reshape(s, full), b.broadcast(b.input(inputs++, {DType::F32, {c.batch, 1, c.rows, c.columns}}), full)),
        square);
  const Node* none = b.full(DType::F32, square, -std::numeric_limits<double>::infinity());
  const Node* last_seen = b.iota(DType::I64, square, 1);
  if (c.diagonal) last_seen = b.add(last_seen, b.full(DType::I64, square, static_cast<double>(c.diagonal)));
  if (c.causal) s = b.select(b.binary(Op::Le, b.iota(DType::I64, square, 2), last_seen), s, none);
  const auto over_row = [&](ReduceKind kind, const Node* x) { return b.reduce(kind, x, {2}, true); };
  const auto along = [&](const Node* x) { return b.broadcast(x, square); };
  const Node* most = over_row(ReduceKind::Max, s);
  const Node* e = b.unary(Op::Exp, b.sub(s, along(most)));
  const Node* p = b.div(e, along(over_row(ReduceKind::Sum, e)));
  if (c.safe) p = b.select(b.binary(Op::Eq, along(most), none), b.full(DType::F32, square, 0), p);
  const Node* keep = c.dropout ? b.mul(b.cast(b.reshape(b.random(full, {0, 0.75}), square), DType::F32),
                                       b.full(DType::F32, square, 4.0 / 3))
                               : nullptr;
  const Node* dropped = keep ? b.mul(p, keep) : p;
  const auto merged = [&](const Node* x) {
    const int64_t rows = x->shape()[1];
    x = b.permute(b.reshape(x, {c.batch, c.heads, rows, c.width}), {0, 2, 1, 3});
    const Node* w = b.input(graph.input_count++, {d, {1, 5, c.heads * c.width}});
    return b.contract(b.reshape(x, {1, c.batch * rows, c.heads * c.width}), w);
  };
  const Node* y = b.contract(b.cast(dropped, d), b.permute(v, {0, 2, 1}));
  if (!c.backward && !c.joint) {
    graph.input_count = inputs;
    graph.outputs = {{c.merged ? merged(y) : y, {}}};
    return graph;
  }
  const Node* dy = b.input(inputs++, {d, {all, c.rows, c.width}});
  graph.input_count = inputs;
  const Node* dp = widened(b.contract(dy, v));
  if (keep) dp = b.mul(dp, keep);
  // The sum of p * dp, or what it is equal to: the sum of y * dy.
  const Node* made = c.flash ? widened(c.joint ? y : b.input(graph.input_count++, y->type)) : p;
  const Node* delta = over_row(ReduceKind::Sum, b.mul(made, c.flash ? widened(dy) : dp));
  const Node* ds = b.cast(b.mul(p, b.sub(dp, along(delta))), d);
  const Node* transposed = b.permute(ds, {0, 2, 1});
  const Node* dq = b.contract(ds, b.permute(k, {0, 2, 1}));
  const Node* qt = b.permute(q, {0, 2, 1});
  const Node* dk = c.transposed_rhs ? b.contract(qt, transposed) : b.contract(transposed, qt);
  const Node* dv = b.contract(b.permute(b.cast(dropped, d), {0, 2, 1}), b.permute(dy, {0, 2, 1}));
  graph.outputs = {{dq, {}}, {dk, {}}, {dv, {}}};
  if (c.merged)
    for (Output& o : graph.outputs)
      o.value = merged(o.value == dk && c.transposed_rhs ? b.permute(dk, {0, 2, 1}) : o.value);
  if (c.joint) graph.outputs.insert(graph.outputs.begin(), {y, {}});
  return graph;
}

inline RandomJoint attention_joint(AttentionCase c) {
  c.joint = true;
  return {attention_graph(c), c.additive ? 4 : 3, 1};
}

}  // namespace trainc::testing
