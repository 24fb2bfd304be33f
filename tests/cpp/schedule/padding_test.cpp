// Which rows are zero, or read by nobody, where a mask hides them; and what only looks so.
#include "schedule/padding.h"

#include <gtest/gtest.h>

#include <cmath>

#include "../common/padded_encoder.h"
#include "graph/text.h"

namespace trainc::schedule {
namespace {

using testing::PaddedEncoder;
using Mask = PaddedEncoder::Mask;

TEST(Padding, IsFoundWhateverTheMasksSpelling) {
  for (const Mask mask : {Mask::Bias, Mask::Shown, Mask::Hidden})
    for (const int64_t samples : {1, 3}) {
      PaddedEncoder encoder{.samples = samples, .mask = mask};
      const auto made = encoder.make();
      const auto found = PaddingProof::find(made.graph);
      ASSERT_TRUE(found) << print(made.graph);
      EXPECT_TRUE(found->only_one());
      EXPECT_EQ(found->samples(), samples);
      EXPECT_EQ(found->tokens(), encoder.tokens);
      for (const Node* n : {made.query, made.hidden, made.gradient, made.key_gradient})
        EXPECT_TRUE(found->may_be_zero(n));
      EXPECT_TRUE(found->sums_over_rows(made.of_weight));
      // projections, the product that goes back to the heads, and gradients of two weights
      const int64_t product = 2 * encoder.rows() * encoder.wide() * encoder.wide();
      EXPECT_EQ(found->flops(), 7 * product);
    }
}

// Then hidden keys and values are read by nobody still, but all else of their rows is.
TEST(Padding, IsNotWhereSomebodyReads) {
  PaddedEncoder encoder;
  const auto expect_read = [&](const char* why) {
    const auto made = encoder.make();
    const auto found = PaddingProof::find(made.graph);
    ASSERT_TRUE(found) << why;
    for (const Node* n : {made.query, made.attended}) EXPECT_FALSE(found->may_be_zero(n)) << why;
    EXPECT_TRUE(found->may_be_zero(made.values)) << why;
  };
  encoder.read = 3;
  expect_read("the fourth token, which may be hidden");
  encoder.read = -1;
  expect_read("all tokens");
  encoder.read = 0;
  encoder.of_hidden = [](Builder& b, const Node* n) {
    return b.add(n, b.broadcast(b.reduce(ReduceKind::Sum, n, {1}, true), n->shape()));
  };
  expect_read("a sum over tokens");
  encoder.of_hidden = [](Builder& b, const Node* n) { return b.reverse(n, {1}); };
  expect_read("the last token");
  encoder.of_hidden = nullptr;
  encoder.also_read = true;
  expect_read("a second output");
}

TEST(Padding, IsNotWhereTheWeightIsNotZero) {
  PaddedEncoder encoder;
  encoder.of_weights = [](Builder& b, const Node* n) { return b.add(n, b.full(DType::F32, n->shape(), 1e-3)); };
  const auto made = encoder.make();
  const auto found = PaddingProof::find(made.graph);
  ASSERT_TRUE(found);  // queries of hidden rows are read by nobody all the same
  for (const Node* n : {made.values, made.key_gradient}) EXPECT_FALSE(found->may_be_zero(n));
  encoder.of_weights = nullptr;
  encoder.hides = -1e4;  // in the place of scores: exp of it is 0 for some only
  for (const Mask mask : {Mask::Shown, Mask::Hidden}) {
    encoder.mask = mask;
    EXPECT_FALSE(PaddingProof::find(encoder.make().graph));
  }
}

// Scores must be far smaller than what hides them.
TEST(Padding, IsNotWhereScoresMayBeOfAnySize) {
  const std::vector<double> scaled[] = {{1e30}, {1e-30}, {0}, {-0.25}, {1e30, 1e-30}, {1e-30, 1e30}, {0.25, -1, -1}};
  for (const Mask mask : {Mask::Bias, Mask::Shown, Mask::Hidden}) {
    for (const std::vector<double>& scales : scaled) {
      const auto made = PaddedEncoder{.mask = mask, .scales = scales}.make();
      EXPECT_FALSE(PaddingProof::find(made.graph)) << print(made.graph);
    }
    for (const std::vector<double>& scales : {std::vector<double>{}, {1}, {0.125, 100}})
      EXPECT_TRUE(PaddingProof::find(PaddedEncoder{.mask = mask, .scales = scales}.make().graph));
  }
}

TEST(Padding, DoesNotDivideByWhatItFills) {
  PaddedEncoder encoder;
  const Node* norm = nullptr;
  encoder.of_hidden = [&](Builder& b, const Node* n) {  // x / |x|: of a row of zeros NaN
    norm = b.reduce(ReduceKind::Sum, b.unary(Op::Abs, n), {2}, true);
    return b.div(n, b.broadcast(norm, n->shape()));
  };
  const auto made = encoder.make();
  const auto found = PaddingProof::find(made.graph);
  ASSERT_TRUE(found);  // gradients are zero
  EXPECT_FALSE(found->may_be_zero(norm));
  EXPECT_FALSE(found->may_be_zero(made.query));
  EXPECT_TRUE(found->may_be_zero(made.gradient));
  encoder.of_hidden = [&](Builder& b, const Node* n) {
    norm = b.reduce(ReduceKind::Sum, b.unary(Op::Abs, n), {2}, true);
    const Node* safe = b.binary(Op::Max, norm, b.full(DType::F32, norm->shape(), 1e-6));
    return b.div(n, b.broadcast(safe, n->shape()));
  };
  const auto safe = encoder.make();
  EXPECT_TRUE(PaddingProof::find(safe.graph)->may_be_zero(norm));
  EXPECT_TRUE(PaddingProof::find(safe.graph)->may_be_zero(safe.query));
}

}  // namespace
}  // namespace trainc::schedule
