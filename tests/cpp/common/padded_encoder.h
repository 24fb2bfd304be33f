// A layer of an encoder with padding, forward and the products of its backward, written by hand.
#pragma once
#include <functional>
#include <vector>

#include "graph/build.h"

namespace trainc::testing {

struct PaddedEncoder {
  int64_t samples = 3, tokens = 7, heads = 2, width = 8;  // width: of a head
  enum class Mask { Bias, Shown, Hidden } mask = Mask::Bias;
  bool causal = false;
  // What a test may do to one of the values on the way: it gives what stands in its place.
  std::function<const Node*(Builder&, const Node*)> of_weights, of_hidden;
  double hides = -3.4028234663852886e38;  // what stands in the place of hidden scores
  std::vector<double> scales{0.25};       // that scores are multiplied by, one after the other
  bool also_read = false;                 // all tokens, by a second reader
  // which token is read: -1: all
  int64_t read = 0;

  int64_t rows() const { return samples * tokens; }
  int64_t wide() const { return heads * width; }

  struct Made {
    Graph graph;
    const Node *x, *shown, *query, *values, *attended, *weights, *hidden, *gradient, *key_gradient, *of_weight;
  };

  /// Inputs: x [samples, tokens, wide], the mask (bool [samples, tokens], true where a token is one), four weights, and
  /// the gradient of the token that is read. Outputs: that token, gradients of two weights, and of a bias.
  Made make() const {
    Made made;
    Builder b{made.graph, {}};
    made.graph.input_count = 7;
    const Dims all{samples, tokens, wide()};
    made.x = b.input(0, {DType::F32, all}), made.shown = b.input(1, {DType::Bool, {samples, tokens}});
    const Node* w[4];
    for (int64_t i = 0; i < 4; ++i) w[i] = b.input(2 + i, {DType::F32, {1, wide(), wide()}});
    const auto number = [&](const Dims& shape, double value) { return b.full(DType::F32, shape, value); };
    const auto linear = [&](const Node* x, const Node* weight) {
      return b.reshape(b.contract(b.reshape(x, {1, rows(), wide()}), weight), all);
    };
    const auto by_heads = [&](const Node* x) {
      return b.reshape(b.permute(b.reshape(x, {samples, tokens, heads, width}), {0, 2, 1, 3}),
                       {samples * heads, tokens, width});
    };
    const auto by_rows = [&](const Node* x) {
      return b.reshape(b.permute(b.reshape(x, {samples, heads, tokens, width}), {0, 2, 1, 3}), {1, rows(), wide()});
    };
    made.query = linear(made.x, w[0]);
    const Node *q = by_heads(made.query), *k = by_heads(linear(made.x, w[1])),
               *v = by_heads(made.values = linear(made.x, w[2]));
    const Dims square{samples, heads, tokens, tokens}, thin{samples, 1, tokens, tokens};
    const Node* scores = b.reshape(b.contract(q, k), square);
    for (const double scale : scales) scores = b.mul(scores, number(square, scale));
    const Node* key = b.broadcast(b.reshape(made.shown, {samples, 1, 1, tokens}), thin);
    if (causal)
      key = b.binary(Op::And, key, b.binary(Op::Le, b.iota(DType::I64, thin, 3), b.iota(DType::I64, thin, 2)));
    if (mask == Mask::Bias) {
      const Node* bias = b.select(key, number(thin, 0), number(thin, hides));
      scores = b.add(scores, b.broadcast(bias, square));
    } else if (mask == Mask::Shown) {
      scores = b.select(b.broadcast(key, square), scores, number(square, hides));
    } else {
      scores = b.select(b.broadcast(b.unary(Op::Not, key), square), number(square, hides), scores);
    }
    const auto of_rows = [&](ReduceKind kind, const Node* n) {
      return b.broadcast(b.reduce(kind, n, {3}, true), square);
    };
    const Node* exp = b.unary(Op::Exp, b.sub(scores, of_rows(ReduceKind::Max, scores)));
    made.weights = b.div(exp, of_rows(ReduceKind::Sum, exp));
    if (of_weights) made.weights = of_weights(b, made.weights);
    const Node* p = b.reshape(made.weights, {samples * heads, tokens, tokens});
    const Node* attended = made.attended = by_rows(b.contract(p, b.permute(v, {0, 2, 1})));
    const Node* sum = b.add(linear(attended, w[3]), made.x);
    // a norm
    const Dims thin_rows{samples, tokens, 1};
    const auto mean = [&](const Node* n) {
      return b.mul(b.reduce(ReduceKind::Sum, n, {2}, true), number(thin_rows, 1.0 / static_cast<double>(wide())));
    };
    const Node* centred = b.sub(sum, b.broadcast(mean(sum), all));
    const Node* variance = b.add(mean(b.mul(centred, centred)), number(thin_rows, 1e-5));
    const Node* scale = b.broadcast(b.div(number(thin_rows, 1), b.unary(Op::Sqrt, variance)), all);
    made.hidden = b.mul(centred, scale);
    if (of_hidden) made.hidden = of_hidden(b, made.hidden);
    made.graph.outputs.push_back({read < 0 ? made.hidden : b.slice_axis(made.hidden, 1, read, 1), {}});
    if (also_read) made.graph.outputs.push_back({b.unary(Op::Neg, made.hidden), {}});
    // back
    const Node* tangent = b.input(6, {DType::F32, {samples, 1, wide()}});
    const Node* padded = read < 0 ? b.broadcast(tangent, all)
                                  : b.pad(tangent, b.constant(DType::F32, 0), {0, read, 0}, {0, tokens - read - 1, 0});
    made.gradient = b.mul(b.mul(padded, scale), made.hidden);
    const auto across = [&](const Node* n) { return b.permute(b.reshape(n, {1, rows(), wide()}), {0, 2, 1}); };
    made.of_weight = b.contract(across(made.gradient), across(attended));
    const Node* back = by_heads(linear(made.gradient, b.permute(w[3], {0, 2, 1})));
    const Node* of_weights = b.reshape(b.contract(back, v), square);
    const Node* of_scores_ = b.mul(
        made.weights,
        b.sub(of_weights, b.broadcast(b.reduce(ReduceKind::Sum, b.mul(made.weights, of_weights), {3}, true), square)));
    const Node* turned = b.permute(b.reshape(of_scores_, {samples * heads, tokens, tokens}), {0, 2, 1});
    made.key_gradient = by_rows(b.contract(turned, b.permute(q, {0, 2, 1})));
    made.graph.outputs.push_back({made.of_weight, {}});
    made.graph.outputs.push_back({b.contract(across(made.key_gradient), across(made.x)), {}});
    const Node* value_gradient = by_rows(b.contract(b.permute(p, {0, 2, 1}), b.permute(back, {0, 2, 1})));
    made.graph.outputs.push_back({b.reduce(ReduceKind::Sum, value_gradient, {1}), {}});
    return made;
  }
};

}  // namespace trainc::testing
