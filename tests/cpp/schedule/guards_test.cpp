// Which kernels may be passed over: those whose results one branch of a selection by a flag alone wants.
#include "schedule/guards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../common/copy_of.h"
#include "../common/random_graph.h"
#include "../common/run_plan.h"
#include "compiler/compiler.h"
#include "graph/build.h"
#include "schedule/schedule.h"

namespace trainc::schedule {
namespace {

using reference::Tensor;

/// A graph with two flags, a matrix x [6, 8] and a weight [8, 8]; what it gives is the test's.
struct Flagged {
  Graph graph;
  Builder b{graph, {}};
  const Node *flags, *x, *w;
  Flagged() {
    graph.input_count = 3;
    flags = b.unary(Op::Not, b.input(0, {DType::Bool, {3}}));
    x = b.input(1, {DType::F32, {1, 6, 8}}), w = b.input(2, {DType::F32, {1, 8, 8}});
  }
  const Node* flag(int64_t k) {
    const Node* part = b.slice_axis(flags, 0, k, 1);
    return graph.make(Op::Slice, SliceAttr{{0}, {1}}, {part}, part->type);
  }
  const Node* choose(const Node* flag, const Node* x, const Node* y) {
    return b.select(b.broadcast(b.reshape(flag, Dims(x->shape().size(), 1)), x->shape()), x, y);
  }
  const Node* product(const Node* lhs) { return b.contract(lhs, w); }
  const Node* zeros() { return b.full(DType::F32, x->shape(), 0); }
  void give(std::initializer_list<const Node*> nodes) {
    for (const Node* n : nodes) graph.outputs.push_back({n, {}});
  }
};

std::vector<std::string> guards_of(const plan::Plan& p) {
  std::vector<std::string> found;
  for (const plan::Step& s : p.steps)
    if (s.guard >= 0) found.push_back((s.guard_value ? "" : "not ") + p.buffers[s.guard].name);
  return found;
}

/// The plan's guards; and for each set of flags it gives what the oracle does, with poisoned memory too.
std::vector<std::string> check(const Flagged& f) {
  const plan::Plan plan = compiler::compile(testing::copy_of(f.graph), "guards", {.target = cpu_target(cpu_level())});
  for (int set = 0; set < 8; ++set)
    for (const bool poisoned : {false, true}) {
      std::vector<Tensor> inputs = testing::random_inputs(f.graph, 3);
      inputs[0].i = {set & 1, set >> 1 & 1, set >> 2 & 1};
      if (poisoned) setenv("TRAINC_DEBUG", "poison", 1);
      const std::vector<Tensor> got = testing::run_plan(plan, inputs);
      unsetenv("TRAINC_DEBUG");
      const auto expected = reference::evaluate(f.graph, inputs, {});
      for (size_t k = 0; k < got.size(); ++k)
        for (size_t i = 0; i < got[k].f.size(); ++i)
          EXPECT_NEAR(got[k].f[i], expected[k].f[i], 1e-3) << "flags " << set << ", output " << k;
    }
  return guards_of(plan);
}

TEST(Guards, ABranchThatIsNotChosenIsNotComputed) {
  Flagged f;
  f.give({f.choose(f.flag(0), f.product(f.x), f.zeros())});
  // A result is nobody's memory before: the kernel that makes it runs, and writes the zeros.
  EXPECT_THAT(check(f), ::testing::ElementsAre(::testing::StartsWith("not ")));
  Flagged g;  // the chosen product is read by a kernel of its own
  const Node* chosen = g.choose(g.flag(0), g.product(g.product(g.x)), g.product(g.b.unary(Op::Neg, g.x)));
  g.give({g.b.reduce(ReduceKind::Sum, chosen, {1})});
  const std::vector<std::string> guards = check(g);  // a product where it is not set, and two where it is
  ASSERT_THAT(guards, ::testing::SizeIs(3));
  EXPECT_THAT(guards, ::testing::Contains(guards[2]).Times(2));
  EXPECT_THAT(guards, ::testing::Contains("not " + guards[2]));
}

TEST(Guards, ASumIsMadeInPlaceOrLeftAsItIs) {
  Flagged f;
  const Node* sum = f.choose(f.flag(0), f.product(f.x), f.zeros());
  const Node* more = f.product(f.b.mul(f.x, f.x));
  sum = f.choose(f.flag(1), f.b.add(sum, more), sum);
  f.give({f.b.reduce(ReduceKind::Sum, sum, {1})});
  // zeros where it begins with nothing, the first product, the second
  const std::vector<std::string> guards = check(f);
  ASSERT_THAT(guards, ::testing::SizeIs(3));
  EXPECT_EQ(guards[0], "not " + guards[1]);
  EXPECT_NE(guards[1], guards[2]);
}

TEST(Guards, WhatSomebodyElseWantsIsComputed) {
  Flagged f;
  const Node* product = f.product(f.product(f.x));
  f.give({f.b.reduce(ReduceKind::Sum, f.choose(f.flag(0), product, f.zeros()), {1}), product});
  EXPECT_THAT(check(f), ::testing::Each(::testing::StartsWith("not "))) << "zeros alone";
  Flagged g;  // by another flag
  const Node* both = g.product(g.product(g.x));
  g.give({g.b.reduce(ReduceKind::Sum, g.choose(g.flag(0), both, g.zeros()), {1}),
          g.b.reduce(ReduceKind::Sum, g.choose(g.flag(1), both, g.zeros()), {1})});
  EXPECT_THAT(check(g), ::testing::Each(::testing::StartsWith("not ")));
}

// Kernels that run read what was not made: no number of that may be a place in memory.
TEST(Guards, AnIndexIsAlwaysComputed) {
  Flagged f;
  const Node* product = f.product(f.product(f.x));
  const Node* index =
      f.b.cast(f.b.binary(Op::Min, f.b.unary(Op::Abs, product), f.b.full(DType::F32, f.x->shape(), 5)), DType::I64);
  const Node* picked = f.b.gather(f.x, index, 1);
  f.give({f.b.reduce(ReduceKind::Sum, f.choose(f.flag(0), picked, f.zeros()), {1})});
  EXPECT_THAT(check(f), ::testing::IsEmpty());
}

}  // namespace
}  // namespace trainc::schedule
