// Variances in one way over memory: which sums are two sums of one variance, and how near to the truth they come out.
#include "schedule/variance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "../common/random_graph.h"
#include "../lower/run_schedule.h"
#include "graph/build.h"
#include "graph/text.h"
#include "schedule/prepare.h"
#include "schedule/schedule.h"

namespace trainc::schedule {
namespace {

struct Normalised {
  Dims shape{8, 5, 4, 24}, axes{0, 1, 2};
  DType dtype = DType::F32;
  double counted = 0;  // beyond the number of elements: that much more
  bool another_mean = false, widened = false;
};

/// The mean and the variance of x, as the framework's batch norm spells them.
Graph normalised(const Normalised& c) {
  Graph graph;
  Builder b{graph, {}};
  const Node* x = b.input(0, {c.widened ? DType::BF16 : c.dtype, c.shape});
  if (c.widened) x = b.cast(x, c.dtype);
  double count = 1;
  for (int64_t axis : c.axes) count *= static_cast<double>(c.shape[static_cast<size_t>(axis)]);
  const auto mean_of = [&](const Node* terms, double of) {
    const Node* sum = b.reduce(ReduceKind::Sum, terms, c.axes, true);
    return b.div(sum, b.full(c.dtype, sum->shape(), of));
  };
  const Node* mean = mean_of(c.another_mean ? b.unary(Op::Tanh, x) : x, count + c.counted);
  const Node* deviation = b.sub(x, b.broadcast(mean, c.shape));
  graph.input_count = 1;
  graph.outputs = {{mean, {}}, {mean_of(b.mul(deviation, deviation), count), {}}};
  return graph;
}

TEST(Variance, BothOfItsSumsAreFound) {
  EXPECT_EQ(variances_of(normalised({})).size(), 2u);
  EXPECT_EQ(variances_of(normalised({.shape = {30, 7}, .axes = {0}})).size(), 2u);
  EXPECT_EQ(variances_of(normalised({.widened = true})).size(), 2u);
}

TEST(Variance, WhatIsNoneIsNotFound) {
  EXPECT_TRUE(variances_of(normalised({.counted = -1})).empty()) << "not the mean";
  EXPECT_TRUE(variances_of(normalised({.another_mean = true})).empty()) << "the mean of something else";
  EXPECT_TRUE(variances_of(normalised({.dtype = DType::F64})).empty()) << "nothing wider";
  EXPECT_TRUE(variances_of(normalised({.axes = {3}})).empty()) << "a row is in L1 for the second sum";
  EXPECT_TRUE(variances_of(normalised({.shape = {8, 5, 4, 1}})).empty());
  EXPECT_TRUE(variances_of(normalised({.shape = {0, 5, 4, 3}})).empty());
}

TEST(Variance, IsOneWayOverMemory) {
  const Graph graph = prepare(normalised({}));
  const Schedule s = make_schedule(graph, true);
  int64_t readers = 0;
  for (const Group& g : s.groups) readers += g.kind == GroupKind::Columns;
  EXPECT_EQ(readers, 1) << print(graph);
  const Graph on_a_device = prepare(normalised({}), 0, 0, nullptr, {}, 1 << 16);
  for (const Node* n : on_a_device.live()) EXPECT_NE(n->dtype(), DType::F64) << "may be 64 times as dear";
}

TEST(Variance, ComputesTheGraphsNumbers) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  for (uint64_t seed = 1; seed <= 60 && !HasFailure(); ++seed) {
    const Normalised c{.shape = {1 + static_cast<int64_t>(seed % 4), 1 + static_cast<int64_t>(seed % 29), 3,
                                 2 + static_cast<int64_t>(seed * 7 % 70)},
                       .widened = seed % 5 == 0};
    const Graph given = normalised(c), graph = prepare(given);
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + print(graph));
    auto inputs = testing::random_inputs(given, seed);
    const double shift = std::pow(10, static_cast<double>(seed % 4));
    for (double& v : inputs[0].f) v = c.widened ? v : static_cast<float>(v + shift);
    if (seed % 6 == 0) inputs[0].f[0] = seed % 12 ? inf : nan;
    if (seed % 7 == 0) std::ranges::fill(inputs[0].f, c.widened ? 0.375 : 0.1F);
    const CpuLevel level = seed % 2 ? CpuLevel::Avx512 : CpuLevel::Avx2;
    const auto made = testing::interpret_schedule(graph, make_schedule(graph, true), inputs, {cpu_target(level)});
    for (const std::string& finding : made.findings) ADD_FAILURE() << finding;
    const auto expected = reference::evaluate(given, inputs, {});
    for (size_t o = 0; o < expected.size(); ++o)
      for (size_t i = 0; i < expected[o].f.size(); ++i) {
        const double got = made.outputs[o].f[i], wanted = expected[o].f[i];
        if (std::isnan(wanted) || std::isinf(wanted)) EXPECT_EQ(std::isnan(got), std::isnan(wanted)) << o << " " << i;
        else EXPECT_NEAR(got, wanted, 1e-6 * std::abs(wanted) + (o ? 1e-15 * shift * shift : 0)) << o << " " << i;
        EXPECT_FALSE(got < 0 && o == 1) << "a root is taken of it";
      }
  }
}

}  // namespace
}  // namespace trainc::schedule
