// Nodes: equal means same pointer. Builders and the verifier: what they accept, and what a refusal says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "graph/build.h"
#include "graph/text.h"
#include "graph/verify.h"

namespace trainc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Type kF32{DType::F32, {2, 3}};

TEST(Graph, EqualMeansSamePointer) {
  Graph g;
  Builder b{g, "a.py:1"};
  const Node* x = b.input(0, kF32);
  const Node* once = b.add(x, b.full(DType::F32, {2, 3}, 1.5));
  b.origin = "a.py:2";
  const int64_t nodes = g.nodes().size();
  EXPECT_EQ(b.add(b.input(0, kF32), b.full(DType::F32, {2, 3}, 1.5)), once);
  EXPECT_EQ(static_cast<int64_t>(g.nodes().size()), nodes);
  EXPECT_THAT(g.origins(once), ElementsAre("a.py:1", "a.py:2"));
}

TEST(Graph, WhatTheKeyTellsApart) {
  Graph g;
  Builder b{g, {}};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_NE(b.constant(DType::F32, 0.0), b.constant(DType::F32, -0.0));
  EXPECT_EQ(b.constant(DType::F32, nan), b.constant(DType::F32, nan));
  EXPECT_NE(b.constant(DType::F32, 1), b.constant(DType::BF16, 1));
  EXPECT_NE(b.random({4}, {0, 0.5}), b.random({4}, {1, 0.5}));
  const Node* x = b.input(0, {DType::F32, {2, 2}});
  EXPECT_NE(b.sub(x, b.unary(Op::Neg, x)), b.sub(b.unary(Op::Neg, x), x));
  EXPECT_NE(b.permute(x, {1, 0}), b.reverse(x, {0, 1}));
  EXPECT_NE(b.reduce(ReduceKind::Sum, x, {0}), b.reduce(ReduceKind::Sum, x, {1}));
  ExternAttr call{"aten.x", "{}", {{DType::F32, {}}}};
  const Node* plain = b.extern_call(call, {x});
  EXPECT_EQ(b.extern_call(call, {x}), plain);
  call.aliases = {0};
  EXPECT_NE(b.extern_call(call, {x}), plain);
  call.aliases = {};
  call.random = true;
  call.draw = 0;
  EXPECT_NE(b.extern_call(call, {x}), plain);
}

TEST(Graph, ConstantsAreRounded) {
  Graph g;
  Builder b{g, {}};
  EXPECT_EQ(float_of(b.constant(DType::F32, 0.1)), static_cast<double>(0.1f));
  EXPECT_EQ(float_of(b.constant(DType::BF16, 1.00390625)), 1.0);  // 1 + 2^-8 is a tie: to even
  EXPECT_EQ(float_of(b.constant(DType::F16, 65520)), std::numeric_limits<double>::infinity());
  EXPECT_EQ(int_of(b.constant(DType::I8, 300)), 44);
  EXPECT_EQ(int_of(b.constant(DType::Bool, 1)), 1);
  EXPECT_THROW(b.constant(DType::I64, 0.5), InternalError);
}

TEST(Graph, LiveNodesOnlyAndAMoveKeepsThem) {
  Graph g;
  Builder b{g, {}};
  const Node* x = b.input(0, kF32);
  b.unary(Op::Exp, x);
  const Node* y = b.unary(Op::Neg, x);
  g.outputs = {{y, {}}};
  const Graph moved = std::move(g);
  EXPECT_THAT(moved.live(), ElementsAre(x, y));
}

TEST(Graph, InputsOfAnotherGraphAreRefused) {
  Graph g, other;
  const Node* x = Builder{g, {}}.input(0, kF32);
  EXPECT_THROW((Builder{other, {}}.unary(Op::Neg, x)), InternalError);
}

TEST(Builder, BroadcastsAsNumPy) {
  Graph g;
  Builder b{g, {}};
  const Node* x = b.input(0, {DType::F32, {3}});
  g.outputs = {{b.broadcast(x, {2, 3}), {}}};
  EXPECT_EQ(print(g),
            "%0 = input index=0 : f32[3]\n%1 = reshape %0 : f32[1,3]\n%2 = broadcast %1 : f32[2,3]\nreturn %2\n");
  EXPECT_THAT(broadcast_shape({2, 1, 4}, {3, 1}), ElementsAre(2, 3, 4));
  EXPECT_THAT(broadcast_shape({0}, {1}), ElementsAre(0));
  EXPECT_THROW(broadcast_shape({2}, {3}), InternalError);
  EXPECT_THROW(b.broadcast(x, {4}), InternalError);
}

TEST(Builder, ReduceKeepsAxesOnWish) {
  Graph g;
  Builder b{g, {}};
  const Node* x = b.input(0, {DType::F32, {2, 3, 4}});
  EXPECT_THAT(b.reduce(ReduceKind::Sum, x, {2, 0})->shape(), ElementsAre(3));
  EXPECT_THAT(b.reduce(ReduceKind::Sum, x, {2, 0}, true)->shape(), ElementsAre(1, 3, 1));
  EXPECT_EQ(b.reduce(ReduceKind::ArgMax, x, {1})->dtype(), DType::I64);
}

struct Refusal {
  const char* line;
  const char* told;
};

TEST(Verify, RefusalsSayWhy) {
  const Refusal cases[] = {
      {"%y = add %x : f32[2,3]", "wrong number of inputs"},
      {"%y = add %x %i : f32[2,3]", "differ in dtype"},
      {"%y = add %m %m : bool[2,3]", "bool has no arithmetic"},
      {"%y = exp %i : i64[2,3]", "needs a float dtype"},
      {"%y = and %x %x : f32[2,3]", "needs bool or an integer dtype"},
      {"%y = lt %x %x : f32[2,3]", "gives bool"},
      {"%y = select %x %x %x : f32[2,3]", "the condition is bool"},
      {"%y = reduce %x kind=sum axes=[1,0] : f32[]", "do not ascend"},
      {"%y = reduce %x kind=sum axes=[2] : f32[2,3]", "no such axis"},
      {"%y = reduce %x kind=sum axes=[0] : f32[2]", "without the axes"},
      {"%y = reduce %e kind=max axes=[1] : f32[2]", "a reduced axis is empty"},
      {"%y = contract %x %x : f32[2,2]", "rank 3"},
      {"%y = contract %t %u : f32[1,2,4]", "the summed axes differ"},
      {"%y = reshape %x : f32[7]", "the number of elements changes"},
      {"%y = permute %x order=[0,0] : f32[2,2]", "comes twice"},
      {"%y = permute %x order=[1,0] : f32[2,3]", "not the permuted one"},
      {"%y = broadcast %x : f32[4,3]", "an axis that is not 1 changes size"},
      {"%y = slice %x start=[0,1] step=[1,2] : f32[2,2]", "runs out of the input"},
      {"%y = slice %x start=[0,0] step=[1,0] : f32[2,2]", "step below 1"},
      {"%y = window %x axes=[1] size=[2] step=[1] dilation=[2] : f32[2,2,2]", "runs out of the input"},
      {"%y = window %x axes=[1] size=[2] step=[1] dilation=[1] : f32[1,2,2]", "an axis without windows changes size"},
      {"%y = window %x axes=[1] size=[2] step=[1] dilation=[1] : f32[2,2,3]", "not as large as the window"},
      {"%y = window %x axes=[1] size=[2] step=[0] dilation=[1] : f32[2,2,2]", "step or dilation is below 1"},
      {"%y = pad %x %x low=[0,0] high=[0,0] : f32[2,3]", "is a scalar"},
      {"%y = concat %x %e axis=0 : f32[4,3]", "differs in size"},
      {"%y = gather %x %x axis=0 : f32[2,3]", "the index is i64"},
      {"%y = scatter %x %i %e axis=0 kind=sum : f32[2,3]", "index and src differ in shape"},
      {"%y = iota axis=0 : f32[2]", "integer dtype"},
      {"%y = result %x index=0 : f32[2,3]", "is no extern"},
      {"%y = extern %x target=\"t\" arguments=\"{}\" results=[f32[2,3]] aliases=[1] : f32[2,3]",
       "a view of an input that is not there"},
      {"%y = constant value=1 : f32[1]", "a constant is a scalar"},
      {"%y = constant value=2 : bool[]", "none of the dtype"},
  };
  for (const Refusal& refusal : cases) {
    const std::string text =
        "%x = input index=0 : f32[2,3]\n%i = input index=1 : i64[2,3]\n%m = input index=2 : bool[2,3]\n%e = input "
        "index=3 : f32[2,0]\n"
        "%t = input index=4 : f32[1,2,3]\n%u = input index=5 : f32[1,4,5]\n" +
        std::string(refusal.line) + "\nreturn %y\n";
    try {
      parse(text);
      ADD_FAILURE() << "accepted: " << refusal.line;
    } catch (const InternalError& e) { EXPECT_THAT(e.what(), HasSubstr(refusal.told)) << refusal.line; }
  }
}

TEST(Verify, OneDeclarationAnInput) {
  Graph g;
  Builder b{g, {}};
  b.input(0, {DType::F32, {2}});
  verify(g);
  b.input(0, {DType::F32, {3}});
  EXPECT_THROW(verify(g), InternalError);
}

}  // namespace
}  // namespace trainc
