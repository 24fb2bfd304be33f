// A step of Adam as a graph, and tensors of many sizes for it.
#pragma once
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "compare.h"
#include "graph/build.h"
#include "random_graph.h"
#include "run_plan.h"

namespace trainc::testing {

/// Inputs: parameter, gradient, the two moments, then learning rate and beta. Outputs: the new parameter and moments.
inline Graph adam(int64_t n, DType dtype = DType::F32) {
  Graph g;
  Builder b{g, {}};
  const Node* p = b.input(0, {dtype, {n}});
  const Node* grad = b.cast(b.input(1, {dtype, {n}}), DType::F32);
  const Node *m = b.input(2, {DType::F32, {n}}), *v = b.input(3, {DType::F32, {n}});
  const Node *rate = b.broadcast(b.input(4, {DType::F32, {}}), {n}),
             *beta = b.broadcast(b.input(5, {DType::F32, {}}), {n});
  const Node* rest = b.sub(b.full(DType::F32, {n}, 1), beta);
  const Node* m2 = b.add(b.mul(m, beta), b.mul(grad, rest));
  const Node* v2 = b.add(b.mul(v, beta), b.mul(b.mul(grad, grad), rest));
  const Node* step = b.div(b.mul(rate, m2), b.add(b.unary(Op::Sqrt, v2), b.full(DType::F32, {n}, 0.5)));
  g.outputs = {{b.cast(b.sub(b.cast(p, DType::F32), step), dtype), {}}, {m2, {}}, {v2, {}}};
  g.input_count = 6;
  return g;
}

/// Tensors of `numels` elements each in memory, with 64 bytes behind each that belong to somebody else.
struct AdamTensors {
  const std::vector<double> scalars = {0.125, 0.875};
  const std::vector<int64_t> numels = {1, 3, 0, 17, 4095, 4096, 4097, 10001};
  std::vector<std::vector<reference::Tensor>> inputs;
  std::vector<std::vector<uint8_t>> memory;  // four for each of `inputs`
  std::vector<void*> pointers;

  explicit AdamTensors(DType dtype = DType::F32) {
    for (size_t t = 0; t < numels.size(); ++t) {
      inputs.push_back(halves(adam(numels[t], dtype), t + 1));
      for (double& x : inputs[t][3].f) x = std::abs(x);
      inputs[t][4].f = {scalars[0]}, inputs[t][5].f = {scalars[1]};
      for (int k = 0; k < 4; ++k) {
        memory.push_back(to_bytes(inputs[t][k]));
        memory.back().insert(memory.back().end(), 64, 0xAB);
      }
    }
    for (auto& bytes : memory) pointers.push_back(bytes.data());
  }
  /// What is there in the place of the parameter and the moments.
  std::vector<reference::Tensor> written(size_t t) const {
    std::vector<reference::Tensor> got;
    for (int k : {0, 2, 3}) got.push_back(from_bytes(inputs[t][k].type, memory[4 * t + k].data()));
    return got;
  }
  /// What should not have changed, in words; "" where it has not.
  std::string trespassed(size_t t) const {
    if (const std::string changed = difference(from_bytes(inputs[t][1].type, memory[4 * t + 1].data()), inputs[t][1]);
        !changed.empty())
      return "the gradient: " + changed;
    for (int k = 0; k < 4; ++k) {
      const auto& bytes = memory[4 * t + k];
      if (!std::all_of(bytes.end() - 64, bytes.end(), [](uint8_t c) { return c == 0xAB; }))
        return "behind the end of tensor " + std::to_string(k);
    }
    return "";
  }
};

}  // namespace trainc::testing
