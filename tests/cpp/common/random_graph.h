// Random graphs and random inputs for fuzz tests: valid by construction, equal for equal seeds.
// A test that fails prints trainc::print(graph) and the seed; the text parses back.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "graph/build.h"
#include "reference/reference.h"
#include "support/rounding.h"

namespace trainc::testing {

struct RandomGraphOptions {
  int inputs = 3;
  int nodes = 20;  // operations tried after the inputs
  int outputs = 3;
  bool empty_axes = true;  // sizes 0 may occur
  bool integers = true;    // i64 values beside f32 and bool
  bool transcendental = true;
  bool indexed = true;  // gather, scatter
  bool contractions = true;
  bool scans = true;
  bool random_masks = false;
  bool externs = false;       // calls with one or two results (extern_results below), some of which count as draws
  DType floats = DType::F32;  // of inputs and contractions; F64: no value is of another float type
  // three sizes a graph, so that most values fit each other: kernels of many values, and many ways to make a circle of
  // them
  bool few_sizes = false;
  int64_t max_numel = 4096;
};

class RandomGraph {
 public:
  RandomGraph(uint64_t seed, RandomGraphOptions options = {}) : options_(options), rng_(seed) {}

  Graph make() {
    for (int64_t& size : sizes_)
      if (options_.few_sizes) size = one_of<int64_t>({1, 2, 3, 4, 5, 7, 8, 9, 17});
    for (int i = 0; i < options_.inputs; ++i) pool_.push_back(b_.input(i, {input_dtype(i), some_shape()}));
    for (int i = 0; i < options_.nodes; ++i) {
      const Node* made = step();
      if (made && made->type.numel() <= options_.max_numel) pool_.push_back(made);
    }
    for (int i = 0; i < options_.outputs; ++i)
      graph_.outputs.push_back({pool_[pool_.size() - 1 - below(std::min<int64_t>(pool_.size(), 6))], {}});
    return std::move(graph_);
  }

 private:
  RandomGraphOptions options_;
  std::mt19937_64 rng_;
  Graph graph_;
  Builder b_{graph_, {}};
  std::vector<const Node*> pool_;
  int64_t draws_ = 0;
  int64_t sizes_[3] = {};

  // Not std's distributions: their numbers differ between libraries.
  int64_t below(int64_t n) { return static_cast<int64_t>(rng_() % static_cast<uint64_t>(n)); }
  bool chance(int percent) { return below(100) < percent; }
  template <class T> T one_of(std::initializer_list<T> values) { return values.begin()[below(values.size())]; }
  int64_t some_size() {
    return options_.empty_axes && chance(3) ? 0 : one_of<int64_t>({1, 1, 2, 3, 4, 5, 7, 8, 13, 16, 17});
  }
  Dims some_shape() {
    const auto [r, c, k] = sizes_;
    if (options_.few_sizes && chance(90))
      return one_of<Dims>({{r, c}, {r, c}, {1, r, c}, {r, 1}, {c}, {r}, {k, r, c}, {1, c, k}});
    Dims shape(below(4));
    for (int64_t& d : shape) d = some_size();
    return shape;
  }
  DType input_dtype(int i) {
    if (i == 0 || chance(70)) return options_.floats;
    return options_.integers && chance(60) ? DType::I64 : chance(60) ? options_.floats : DType::Bool;
  }
  // rather late ones
  const Node* any() { return pool_[pool_.size() - 1 - std::min(below(pool_.size()), below(pool_.size()))]; }
  const Node* any(DType dtype) {
    for (int tries = 0; tries < 8; ++tries)
      if (const Node* n = any(); n->dtype() == dtype) return n;
    for (const Node* n : pool_)
      if (n->dtype() == dtype) return n;
    return b_.full(dtype, some_shape(), dtype == DType::Bool ? below(2) : below(5) - 2);
  }
  const Node* like(const Node* a) {  // another value of the same type
    std::vector<const Node*> same;
    for (const Node* n : pool_)
      if (n->type == a->type) same.push_back(n);
    if (chance(60)) return same[below(same.size())];
    if (chance(50))  // one that broadcasts
      for (int tries = 0; tries < 8; ++tries) {
        const Node* n = any(a->dtype());
        if (n->type.rank() > a->type.rank()) continue;
        bool fits = true;
        for (int64_t i = 1; i <= n->type.rank(); ++i) {
          const int64_t d = n->shape()[n->shape().size() - i];
          fits &= d == 1 || d == a->shape()[a->shape().size() - i];
        }
        if (fits) return b_.broadcast(n, a->shape());
      }
    if (a->dtype() == DType::Bool) return b_.full(DType::Bool, a->shape(), below(2));
    if (!is_float(a->dtype())) return b_.full(a->dtype(), a->shape(), below(7) - 3);
    return b_.full(a->dtype(), a->shape(), one_of({0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.0, 0.1, -2.5}));
  }

  const Node* step() {
    if (options_.externs && chance(6)) return call();
    if (options_.few_sizes && chance(25)) return along_rows();
    const int64_t r = below(100);
    if (r < 15) return unary();
    if (r < 40) return binary();
    if (r < 46) return select();
    if (r < 52) return cast();
    if (r < 62) return reduce();
    if (r < 64) return options_.scans ? scan() : nullptr;
    if (r < 70) return options_.contractions ? contract() : nullptr;
    if (r < 94) return movement();
    if (r < 99) return options_.indexed ? indexed() : nullptr;
    return options_.random_masks ? b_.random(some_shape(), {draws_++, 0.75}) : nullptr;
  }

  /// a op (something summed over some axes of what has a's shape), as softmax and norms have it.
  const Node* along_rows() {
    const Node* a = any();
    if (a->dtype() == DType::Bool || a->type.rank() == 0) return nullptr;
    const Node* b = like(a);
    const Dims axes = chance(75) ? Dims{a->type.rank() - 1} : Dims{0};
    const Node* sum = b_.broadcast(
        b_.reduce(a->type.numel() > 0 && chance(30) ? ReduceKind::Max : ReduceKind::Sum, b, axes, true), a->shape());
    return b_.binary(one_of({Op::Sub, Op::Mul, Op::Max}), a, sum);
  }
  const Node* call() {
    const Node *a = any(), *b = any();
    const bool random = options_.random_masks && chance(40);
    ExternAttr attr{"test.call", "{}", {a->type}, random, random ? draws_++ : -1};
    if (chance(50)) attr.results.push_back(b->type);
    const size_t results = attr.results.size();
    const Node* made = b_.extern_call(std::move(attr), {a, b});
    if (results == 2) pool_.push_back(b_.result(made, 1));
    return b_.result(made, 0);
  }
  const Node* select() {
    const Node* a = any();
    const Node* b = like(a);
    const Node* c = a->dtype() == DType::Bool ? like(a) : b_.binary(one_of({Op::Lt, Op::Le, Op::Eq, Op::Ne}), a, b);
    return b_.select(c, a, b);
  }
  const Node* unary() {
    const Node* a = any();
    if (a->dtype() == DType::Bool) return b_.unary(Op::Not, a);
    if (!is_float(a->dtype())) return b_.unary(one_of({Op::Neg, Op::Abs, Op::Sign, Op::Not}), a);
    if (options_.transcendental && chance(40))
      return b_.unary(one_of({Op::Exp, Op::Expm1, Op::Log, Op::Log1p, Op::Sin, Op::Cos, Op::Tanh, Op::Erf, Op::Erfc}),
                      a);
    return b_.unary(one_of({Op::Neg, Op::Neg, Op::Abs, Op::Sign, Op::Floor, Op::Ceil, Op::Round, Op::Trunc, Op::Sqrt,
                            Op::Rsqrt, Op::IsNan}),
                    a);
  }
  const Node* binary() {
    const Node* a = any();
    const Node* b = like(a);
    if (chance(30)) std::swap(a, b);
    if (a->dtype() == DType::Bool)
      return b_.binary(one_of({Op::And, Op::Or, Op::Xor, Op::Eq, Op::Ne, Op::Max, Op::Min}), a, b);
    if (chance(15)) return b_.binary(one_of({Op::Lt, Op::Le, Op::Eq, Op::Ne}), a, b);
    if (!is_float(a->dtype()))
      return b_.binary(one_of({Op::Add, Op::Sub, Op::Mul, Op::Div, Op::FloorDiv, Op::Mod, Op::Max, Op::Min, Op::And,
                               Op::Or, Op::Xor, Op::Shl, Op::Shr, Op::Sar}),
                       a, b);
    if (options_.transcendental && chance(10)) return b_.binary(Op::Pow, a, b);
    return b_.binary(one_of({Op::Add, Op::Add, Op::Sub, Op::Mul, Op::Mul, Op::Div, Op::Max, Op::Min}), a, b);
  }
  const Node* cast() {
    const Node* a = any();
    if (options_.floats == DType::F64) return b_.cast(a, one_of({DType::F64, DType::Bool, DType::I32, DType::I64}));
    if (is_float(a->dtype())) return b_.cast(a, one_of({DType::F32, DType::Bool, DType::BF16, DType::F16, DType::F64}));
    if (size_of(a->dtype()) == 4 && chance(50)) return b_.bitcast(a, one_of({DType::I32, DType::U32}));
    return b_.cast(a, one_of({DType::F32, DType::Bool, DType::I32, DType::I64, DType::U32, DType::U64}));
  }
  Dims some_axes(const Node* a) {
    Dims axes;
    for (int64_t i = 0; i < a->type.rank(); ++i)
      if (chance(50)) axes.push_back(i);
    return axes;
  }
  const Node* reduce() {
    const Node* a = any();
    if (a->dtype() == DType::Bool) return nullptr;
    if (a->type.numel() > 0 && a->type.rank() > 0 && chance(15))
      return b_.reduce(one_of({ReduceKind::ArgMax, ReduceKind::ArgMin}), a, {below(a->type.rank())});
    const bool choose = a->type.numel() > 0 && chance(40);
    return b_.reduce(choose ? one_of({ReduceKind::Max, ReduceKind::Min}) : ReduceKind::Sum, a, some_axes(a),
                     chance(40));
  }
  const Node* scan() {
    const Node* a = any();
    return a->type.rank() == 0 || a->dtype() == DType::Bool ? nullptr : b_.scan(a, below(a->type.rank()));
  }
  const Node* rank3(const Node* a) {
    if (a->type.rank() > 3) return nullptr;
    Dims shape(3 - a->type.rank(), 1);
    shape.insert(shape.end(), a->shape().begin(), a->shape().end());
    return b_.reshape(a, shape);
  }
  const Node* contract() {
    const Node* a = any(options_.floats);
    const Node* b = chance(50) ? a : any(options_.floats);
    if (!(a = rank3(a)) || !(b = rank3(b))) return nullptr;
    if (a->shape()[2] != b->shape()[2] && a->shape()[2] == b->shape()[1]) b = b_.permute(b, {0, 2, 1});
    if (a->shape()[2] != b->shape()[2]) b = a;
    if (a->shape()[0] != b->shape()[0] && b->shape()[0] == 1)
      b = b_.broadcast(b, {a->shape()[0], b->shape()[1], b->shape()[2]});
    if (a->shape()[0] != b->shape()[0]) b = a;
    return b_.contract(a, b);
  }
  const Node* movement() {
    const Node* a = any();
    const int64_t rank = a->type.rank();
    switch (below(8)) {
      case 0: {  // reshape: some axes merged, ones put in
        Dims shape;
        for (int64_t d : a->shape()) {
          if (!shape.empty() && chance(50)) shape.back() *= d;
          else shape.push_back(d);
          if (chance(20) && shape.size() < 5) shape.push_back(1);
        }
        return b_.reshape(a, shape);
      }
      case 1: {
        Dims order(rank);
        for (int64_t i = 0; i < rank; ++i) order[i] = i;
        for (int64_t i = rank; i > 1; --i) std::swap(order[i - 1], order[below(i)]);
        return b_.permute(a, order);
      }
      case 2: {
        Dims shape = a->shape();
        for (int64_t& d : shape)
          if (d == 1) d = some_size();
        if (rank < 4 && chance(40)) shape.insert(shape.begin(), some_size());
        return b_.broadcast(a, shape);
      }
      case 3: {
        Dims start(rank), step(rank), extent(rank);
        for (int64_t i = 0; i < rank; ++i) {
          const int64_t size = a->shape()[i];
          step[i] = chance(75) ? 1 : 2;
          start[i] = size ? below(size) / 2 : 0;
          const int64_t most = size ? (size - start[i] + step[i] - 1) / step[i] : 0;
          extent[i] = most && chance(50) ? 1 + below(most) : most;
        }
        return b_.slice(a, start, extent, step);
      }
      case 4: {
        Dims low(rank), high(rank);
        for (int64_t i = 0; i < rank; ++i) {
          low[i] = below(3);
          high[i] = below(3);
        }
        return b_.pad(a,
                      is_float(a->dtype()) ? b_.constant(a->dtype(), one_of({0.0, -0.0, 1.5}))
                                           : b_.constant_int(a->dtype(), below(2)),
                      low, high);
      }
      case 5: {
        if (rank == 0) return nullptr;
        const int64_t axis = below(rank);
        const Node* parts[] = {a, like(a), a};
        return b_.concat(std::span<const Node* const>(parts, 2 + below(2)), axis);
      }
      case 6: {
        WindowAttr attr;
        for (int64_t i = 0; i < rank && rank + attr.axes.size() < 6; ++i) {
          if (chance(50)) continue;
          const int64_t size = 1 + below(3), dilation = 1 + below(2);
          if ((size - 1) * dilation >= a->shape()[i]) continue;
          attr.axes.push_back(i), attr.size.push_back(size), attr.step.push_back(1 + below(2)),
              attr.dilation.push_back(dilation);
        }
        return b_.window(a, attr);
      }
      default: return b_.reverse(a, some_axes(a));
    }
  }
  /// An i64 index within [0, size): iota modulo size, so that rows come more than once.
  const Node* some_index(const Dims& shape, int64_t axis, int64_t size) {
    const Node* i = b_.iota(DType::I64, shape, axis);
    if (chance(50)) i = b_.add(i, b_.full(DType::I64, shape, below(5)));
    return b_.binary(Op::Mod, i, b_.full(DType::I64, shape, size));
  }
  const Node* indexed() {
    const Node* a = any();
    if (a->type.rank() == 0 || a->type.numel() == 0) return nullptr;
    const int64_t axis = below(a->type.rank());
    Dims shape = a->shape();
    shape[axis] = 1 + below(9);
    const Node* index = some_index(shape, axis, a->shape()[axis]);
    if (chance(50)) return b_.gather(a, index, axis);
    const Node* src = b_.gather(a, index, axis);
    return b_.scatter(a->dtype() != DType::Bool && chance(70) ? ScatterKind::Sum : ScatterKind::Last, a, index, src,
                      axis);
  }
};

inline Graph random_graph(uint64_t seed, RandomGraphOptions options = {}) { return RandomGraph(seed, options).make(); }

/// What the externs of random graphs compute: of the first operand its negative, of the second itself, where there is a
/// result for it.
inline std::vector<reference::Tensor> extern_results(const Node* call, const std::vector<reference::Tensor>& operands) {
  std::vector<reference::Tensor> results = operands;
  results.resize(call->as<ExternAttr>().results.size());
  for (double& v : results[0].f) v = -v;
  return results;
}

/// Values for the graph's inputs by index: small numbers of either sign, zeros of either sign; with `special` also NaN
/// and infinities. Inputs that the graph does not have are empty.
inline std::vector<reference::Tensor> random_inputs(const Graph& graph, uint64_t seed, bool special = false) {
  std::mt19937_64 rng(seed * 2 + 1);
  std::vector<reference::Tensor> inputs(graph.input_count);
  for (const Node& node : graph.nodes()) {
    if (node.op != Op::Input) continue;
    reference::Tensor& t = inputs[node.as<InputAttr>().index];
    t.type = node.type;
    for (int64_t i = 0; i < node.type.numel(); ++i) {
      const uint64_t r = rng();
      if (!is_float(node.dtype())) {
        t.i.push_back(wrap_to(node.dtype(), node.dtype() == DType::Bool ? r & 1 : static_cast<int64_t>(r % 21) - 10));
        continue;
      }
      double value = (static_cast<double>(r >> 11) * 0x1p-53 - 0.5) * 8;
      if (r % 13 == 0) value = 0.0;
      if (r % 13 == 1) value = -0.0;
      if (special && r % 17 == 2) value = std::numeric_limits<double>::quiet_NaN();
      if (special && r % 17 == 3) value = std::numeric_limits<double>::infinity();
      if (special && r % 17 == 4) value = -std::numeric_limits<double>::infinity();
      if (special && r % 17 == 5) value = 1e-40;  // subnormal in f32
      t.f.push_back(round_to(node.dtype(), value));
    }
  }
  return inputs;
}

/// Inputs that are halves: most sums are exact in any order, so that floor and comparisons do not hang on a rounding.
inline std::vector<reference::Tensor> halves(const Graph& graph, uint64_t seed, bool special = false) {
  auto inputs = random_inputs(graph, seed, special);
  for (auto& t : inputs)
    for (double& v : t.f) v = std::round(v * 2) / 2;
  return inputs;
}

/// A mask for reference::Options::random: true with about the node's p, by draw number.
inline reference::Tensor random_mask(const Node* node) {
  reference::Tensor t{node->type, {}, {}};
  std::mt19937_64 rng(node->as<RandomAttr>().draw + 77);
  for (int64_t i = 0; i < node->type.numel(); ++i)
    t.i.push_back(static_cast<double>(rng() >> 11) * 0x1p-53 < node->as<RandomAttr>().p);
  return t;
}

/// What an ideal machine gives, with these masks.
inline reference::Options rounded_oracle() {
  return {.precision = reference::Precision::Rounded, .random = random_mask, .call = {}};
}

}  // namespace trainc::testing
