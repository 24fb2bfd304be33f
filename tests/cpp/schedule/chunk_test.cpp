// Losses in chunks of rows compute what they computed before, and never make a tensor of the logits' size.
#include "schedule/chunk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../common/random_loss.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "schedule/guards.h"
#include "schedule/schedule.h"

namespace trainc::schedule {
namespace {

using reference::Tensor;

bool makes(const Graph& graph, const Dims& logits) {
  const std::vector<const Node*> live = graph.live();
  return std::any_of(live.begin(), live.end(),
                     [&](const Node* n) { return n->op == Op::Contract && n->shape() == logits; });
}

std::vector<std::string> told(const std::vector<Remark>& remarks) {
  std::vector<std::string> lines;
  for (const Remark& r : remarks)
    lines.push_back(r.reason + " (" + r.detail + "): " + (r.origins.empty() ? "" : r.origins[0]));
  return lines;
}

/// Equal but for the order of sums.
void expect_close(const std::vector<Tensor>& got, const std::vector<Tensor>& expected, double tolerance = 1e-11) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t k = 0; k < got.size(); ++k) {
    ASSERT_EQ(got[k].type, expected[k].type);
    double most = 0;
    for (double v : expected[k].f)
      if (std::isfinite(v)) most = std::max(most, std::abs(v));
    for (size_t i = 0; i < got[k].f.size(); ++i) {
      const double a = got[k].f[i], e = expected[k].f[i];
      if (std::isnan(e)) ASSERT_TRUE(std::isnan(a)) << "output " << k << ", element " << i << ": " << a;
      else if (std::isinf(e)) ASSERT_EQ(a, e) << "output " << k << ", element " << i;
      else ASSERT_NEAR(a, e, tolerance * most) << "output " << k << ", element " << i;
    }
  }
}

TEST(Chunks, AreTheSameLossAndGradients) {
  int64_t chunked = 0, whole = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    const testing::LossCase c = testing::random_loss_case(seed);
    const testing::RandomJoint joint = testing::loss_joint(c);
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + print(joint.graph));
    const int64_t rows = 1 + static_cast<int64_t>(seed % 9);
    Remarks remarks;
    std::optional<Graph> cut = chunk_rows(joint.graph, joint.primals,
                                          {.rows = rows, .worth = std::numeric_limits<int64_t>::min() / 2}, &remarks);
    const Graph after = cut ? std::move(*cut) : parse(print(joint.graph));
    verify(after);
    const bool expected = c.chunks() && rows < c.rows();
    EXPECT_NE(makes(after, {1, c.rows(), c.columns}), expected) << ::testing::PrintToString(told(remarks.take()));
    (expected ? chunked : whole) += 1;
    // Truth: with rounding, another order would be another number.
    const auto inputs = testing::random_inputs(joint.graph, seed, seed % 5 == 0);
    const reference::Options oracle{.precision = reference::Precision::Truth, .random = {}, .call = {}};
    expect_close(reference::evaluate(after, inputs, oracle), reference::evaluate(joint.graph, inputs, oracle));
    if (HasFailure()) return;
  }
  EXPECT_GT(chunked, 200);
  EXPECT_GT(whole, 50);
}

testing::LossCase large() { return {.batch = 4, .length = 10, .width = 6, .columns = 50}; }

/// The flags that kernels may be passed over by.
size_t flags_of(const Graph& graph) {
  std::unordered_set<const Node*> flags;
  for (const Node* n : graph.live())
    if (const Node* flag = flag_of(n)) flags.insert(flag);
  return flags.size();
}

// Whatever the labels hide: no row, most, all.
TEST(Chunks, HiddenRowsArePassedOver) {
  int64_t skipped = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const testing::LossCase c = testing::random_loss_case(seed);
    const testing::RandomJoint joint = testing::loss_joint(c);
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + print(joint.graph));
    const Chunks chunks{.rows = 1 + static_cast<int64_t>(seed % 23),
                        .worth = seed % 3 ? std::numeric_limits<int64_t>::max() : 1,
                        .skip_flops = 0};
    std::optional<Graph> cut = chunk_rows(joint.graph, joint.primals, chunks);
    const bool expected = c.chunks() && c.rows() > std::max<int64_t>(1, chunks.rows / 8);
    EXPECT_EQ(cut.has_value(), expected);
    if (!cut) continue;
    verify(*cut);
    EXPECT_GT(flags_of(*cut), 0u);
    ++skipped;
    for (const int hidden : {0, 3, 8, 10}) {
      auto inputs = testing::random_inputs(joint.graph, seed);
      testing::hide_labels(inputs, seed, hidden);
      const reference::Options oracle{.precision = reference::Precision::Truth, .random = {}, .call = {}};
      // Where few rows are left, what is left of a gradient may have cancelled.
      expect_close(reference::evaluate(*cut, inputs, oracle), reference::evaluate(joint.graph, inputs, oracle), 1e-9);
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(skipped, 150);
}

// Zero in hidden rows is proved, not guessed: each of these has a loss, or a gradient, where the label says -3.
TEST(Chunks, WhatIsNotZeroInHiddenRowsIsComputed) {
  const auto skips = [](const testing::LossCase& c) {
    const testing::RandomJoint joint = testing::loss_joint(c);
    const auto cut = chunk_rows(joint.graph, joint.primals,
                                {.rows = 16, .worth = std::numeric_limits<int64_t>::max(), .skip_flops = 0});
    return cut && flags_of(*cut) > 0;
  };
  testing::LossCase c = large();
  EXPECT_TRUE(skips(c));
  c.loss_of_hidden = true;
  EXPECT_FALSE(skips(c));
  c = large(), c.gradient_of_hidden = true;
  EXPECT_FALSE(skips(c));
}

// What is too small is left alone, as it was.
TEST(Chunks, HiddenRowsAreSkippedWhereItIsWorthIt) {
  const testing::RandomJoint joint = testing::loss_joint(large());
  // three contractions of 2 x 40 x 6 x 50
  EXPECT_FALSE(chunk_rows(joint.graph, joint.primals, {.skip_flops = 72'001}).has_value());
  EXPECT_TRUE(chunk_rows(joint.graph, joint.primals, {.rows = 16, .skip_flops = 72'000}).has_value());
}

/// Why a loss was not made in chunks; the contraction that makes the logits is of line m.py:1.
std::vector<std::string> reasons_of(const testing::LossCase& c, const Chunks& chunks = {.rows = 10, .worth = 1}) {
  testing::RandomJoint joint = testing::loss_joint(c);
  for (const Node* n : joint.graph.live())
    if (n->op == Op::Contract && n->shape() == Dims{1, c.rows(), c.columns}) joint.graph.add_origin(n, "m.py:1");
  Remarks remarks;
  chunk_rows(joint.graph, joint.primals, chunks, &remarks);
  return told(remarks.take());
}

TEST(Chunks, WhatKeepsTheLogitsWhole) {
  using ::testing::ElementsAre;
  using ::testing::IsEmpty;
  testing::LossCase c = large();
  EXPECT_THAT(reasons_of(c), IsEmpty());
  c = large(), c.logits_wanted = true;
  EXPECT_THAT(reasons_of(c), ElementsAre("the matrix is a result (): m.py:1"));
  c = large(), c.whole = true;
  EXPECT_THAT(reasons_of(c), ElementsAre("the matrix is put together with what needs all of it (): m.py:1"));
  c = large(), c.teacher = true;
  EXPECT_THAT(reasons_of(c), ElementsAre("the matrix is put together with another tensor of its size (input): m.py:1"));
  // 30 rows of 50 f32 less, 50 x 6 of the weight's gradient and 40 x 6 of the input's more
  EXPECT_THAT(reasons_of(large(), {.rows = 10, .worth = 5000}),
              ElementsAre("it would save too little (3840 bytes): m.py:1"));
  // In one plan the gradient of the weight, a result, is there beside that of the logits in any case.
  EXPECT_THAT(reasons_of(large(), {.rows = 10, .worth = 5000, .one_plan = true}), IsEmpty());
}

// All chunks but the last have the same kernels: nothing in them says where in the tensors they are.
TEST(Chunks, ReadCopiesOfTheirRows) {
  const testing::RandomJoint joint = testing::loss_joint(large());
  const Graph after = chunk_rows(joint.graph, joint.primals, {.rows = 10, .worth = 1}).value();
  int slices = 0;
  for (const Node* n : after.live())
    for (const Node* i : n->inputs)
      if (i->op == Op::Slice && i->type != i->in(0)->type) {
        EXPECT_TRUE(is_copy(n)) << name_of(n->op);
        ++slices;
      }
  EXPECT_EQ(slices, 8);  // x and labels, four chunks each
}

}  // namespace
}  // namespace trainc::schedule
