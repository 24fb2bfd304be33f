// Formulas as functions of tensors, by the oracle; derivatives by differences; random tensors.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "../../common/compare.h"
#include "frontend/formulas/value.h"
#include "graph/verify.h"
#include "reference/reference.h"

namespace trainc::formulas {

using reference::Tensor;
using testing::close;
using Values = std::vector<Value>;
using Formula = std::function<Values(const Values&)>;

inline Tensor tensor(Dims shape, std::vector<double> values, DType d = DType::F64) {
  return {{d, std::move(shape)}, std::move(values), {}};
}
inline Tensor integers(Dims shape, std::vector<int64_t> values) {
  return {{DType::I64, std::move(shape)}, {}, std::move(values)};
}
inline Tensor random_tensor(const Dims& shape, uint64_t seed, double low = -3, double high = 3) {
  std::mt19937_64 rng(seed);
  Tensor t = tensor(shape, {});
  for (int64_t i = 0; i < t.type.numel(); ++i)
    t.f.push_back(low + (high - low) * static_cast<double>(rng() >> 11) * 0x1p-53);
  return t;
}
inline Tensor as_type(Tensor t, DType d) {
  t.type.dtype = d;
  return t;
}

/// What the formula gives for these; the graph is verified.
inline std::vector<Tensor> values_of(const Formula& formula, const std::vector<Tensor>& inputs,
                                     reference::Precision precision = reference::Precision::Truth) {
  Graph graph;
  Builder b{graph, "formula"};
  Values in;
  for (const Tensor& t : inputs) in.push_back({&b, b.input(graph.input_count++, t.type)});
  for (const Value& v : formula(in)) graph.outputs.push_back({v.node, {}});
  verify(graph);
  return reference::evaluate(graph, inputs, {.precision = precision});
}
inline std::vector<double> numbers(const Formula& formula, const std::vector<Tensor>& inputs) {
  return values_of(formula, inputs).at(0).f;
}

inline void expect_near(const std::vector<double>& got, const std::vector<double>& expected, double tolerance = 1e-12) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(close(got[i], expected[i], tolerance)) << "element " << i << ": " << got[i] << ", not " << expected[i];
}

/// `backward`, given dy and the inputs, is the derivative of sum(dy * forward) by each of the first inputs, as many as
/// it gives results.
inline void expect_derivative(const Formula& forward, const Formula& backward, std::vector<Tensor> inputs,
                              double tolerance = 1e-6) {
  const Tensor y = values_of(forward, inputs).at(0), dy = random_tensor(y.type.shape, 99);
  std::vector<Tensor> all{dy};
  all.insert(all.end(), inputs.begin(), inputs.end());
  const std::vector<Tensor> gradients = values_of(backward, all);
  const auto loss = [&] {
    const std::vector<double> f = numbers(forward, inputs);
    double sum = 0;
    for (size_t i = 0; i < f.size(); ++i) sum += dy.f[i] * f[i];
    return sum;
  };
  constexpr double kStep = 1e-5;
  for (size_t i = 0; i < gradients.size(); ++i) {
    ASSERT_EQ(gradients[i].type, inputs[i].type) << "input " << i;
    for (size_t k = 0; k < inputs[i].f.size(); ++k) {
      const double x = inputs[i].f[k];
      inputs[i].f[k] = x + kStep;
      const double above = loss();
      inputs[i].f[k] = x - kStep;
      const double below = loss();
      inputs[i].f[k] = x;
      const double expected = (above - below) / (2 * kStep);
      EXPECT_TRUE(close(gradients[i].f[k], expected, tolerance))
          << "input " << i << " element " << k << ": " << gradients[i].f[k] << ", not " << expected;
    }
  }
}

}  // namespace trainc::formulas
