// Results in the memory of inputs that the caller gives away: the same numbers as in memory of their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "../common/compare.h"
#include "../common/copy_of.h"
#include "../common/random_graph.h"
#include "../common/run_plan.h"
#include "compiler/compiler.h"
#include "graph/text.h"

namespace trainc {
namespace {

using compiler::GivenAway;
using reference::Tensor;

/// Each input with the first result of its type that no other has.
GivenAway pairs_of(const Graph& graph) {
  std::set<int64_t> taken, inputs;
  GivenAway pairs;
  for (const Node* n : graph.live()) {
    if (n->op != Op::Input || !inputs.insert(n->as<InputAttr>().index).second) continue;
    for (int64_t i = 0; i < static_cast<int64_t>(graph.outputs.size()); ++i)
      if (graph.outputs[i].value->type == n->type && taken.insert(i).second) {
        pairs.emplace_back(n->as<InputAttr>().index, i);
        break;
      }
  }
  return pairs;
}

int64_t lie_over(const plan::Plan& plan) {
  return std::count_if(plan.buffers.begin(), plan.buffers.end(),
                       [](const plan::Buffer& b) { return b.space == plan::MemorySpace::Output && b.over >= 0; });
}

/// How many results took an input's memory.
int64_t compare(const Graph& graph, uint64_t seed, const GivenAway& pairs) {
  SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + print(graph));
  const auto inputs = testing::halves(graph, seed, false);
  const plan::Plan apart = compiler::compile(testing::copy_of(graph), "apart", {}),
                   over = compiler::compile(testing::copy_of(graph), "over", {}, {}, nullptr, pairs);
  const std::vector<Tensor> wanted = testing::run_plan(apart, inputs), got = testing::run_plan(over, inputs);
  for (size_t i = 0; i < wanted.size(); ++i)
    EXPECT_EQ(testing::to_bytes(got[i]), testing::to_bytes(wanted[i])) << "result " << i << "\n" << plan::print(over);
  return lie_over(over);
}

TEST(GivenAway, RandomGraphsGiveTheSameBits) {
  testing::RandomGraphOptions o;
  o.transcendental = false, o.few_sizes = true, o.inputs = 5, o.outputs = 6, o.nodes = 14;
  int64_t over = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const Graph graph = testing::random_graph(seed, o);
    over += compare(graph, seed, pairs_of(graph));
    if (HasFailure()) return;
  }
  EXPECT_GE(over, 50);
}

// w is read by the gradient of the layer below, after its own gradient is there: the update waits.
TEST(GivenAway, AnUpdateWaitsForThoseThatReadTheParameter) {
  const Graph graph = parse(R"(%0 = input index=0 : f32[32,32]
%1 = input index=1 : f32[16,32]
%2 = input index=2 : f32[16,32]
%3 = permute %2 order=[1,0] : f32[32,16]
%4 = permute %1 order=[1,0] : f32[32,16]
%5 = reshape %3 : f32[1,32,16]
%6 = reshape %4 : f32[1,32,16]
%7 = contract %5 %6 : f32[1,32,32]
%8 = reshape %7 : f32[32,32]
%9 = sub %0 %8 : f32[32,32]
%10 = reshape %2 : f32[1,16,32]
%11 = permute %0 order=[1,0] : f32[32,32]
%12 = reshape %11 : f32[1,32,32]
%13 = contract %10 %12 : f32[1,16,32]
%14 = reshape %13 : f32[16,32]
return %9 %14
)");
  EXPECT_EQ(compare(graph, 1, {{0, 0}}), 1);
}

TEST(GivenAway, WhatIsReadInAnotherOrderKeepsItsMemory) {
  const Graph graph = parse(R"(%0 = input index=0 : f32[32,32]
%1 = permute %0 order=[1,0] : f32[32,32]
%2 = add %0 %1 : f32[32,32]
return %2
)");
  EXPECT_EQ(compare(graph, 1, {{0, 0}}), 0);
}

}  // namespace
}  // namespace trainc
