// Forward and backward, put together again, are the joint graph: to the bit, for what is computed again is computed
// alike.
#include "schedule/cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../common/compare.h"
#include "../common/random_attention.h"
#include "graph/text.h"
#include "graph/verify.h"

namespace trainc::schedule {
namespace {

using reference::Tensor;

/// All outputs of the joint graph by way of the two halves.
std::vector<Tensor> evaluate_halves(const Cut& cut, int64_t primals, int64_t forward_outputs,
                                    const std::vector<Tensor>& inputs) {
  const std::vector<Tensor> given(inputs.begin(), inputs.begin() + primals);
  std::vector<Tensor> all = reference::evaluate(cut.forward, given, testing::rounded_oracle());
  std::vector<Tensor> in;
  for (int64_t i : cut.saved_inputs) in.push_back(i < primals ? inputs[i] : all[i - primals]);
  in.insert(in.end(), inputs.begin() + primals, inputs.end());
  in.insert(in.end(), all.begin() + forward_outputs, all.end());
  const std::vector<Tensor> saved(all.begin() + forward_outputs, all.end());
  const std::vector<Tensor> deferred = reference::evaluate(cut.deferred, saved, testing::rounded_oracle());
  for (size_t i = 0; i < deferred.size(); ++i) all.at(cut.deferred_outputs[i]) = deferred[i];
  all.resize(forward_outputs);
  for (Tensor& t : reference::evaluate(cut.backward, in, testing::rounded_oracle())) all.push_back(std::move(t));
  return all;
}

void expect_same_as_joint(const testing::RandomJoint& joint, const std::vector<const Node*>& must_recompute,
                          uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + print(joint.graph));
  const Cut cut = cut_joint(joint.graph, joint.primals, joint.forward_outputs, must_recompute,
                            seed % 2 ? 1 : cost::kDeferredBytes, true, true, 0, INT64_MAX, 0, seed % 3 ? 1 << 16 : 0);
  verify(cut.forward);
  verify(cut.backward);
  verify(cut.deferred);
  ASSERT_EQ(cut.forward.outputs.size(), joint.forward_outputs + cut.saved.size());
  for (size_t i = 0; i < cut.saved.size(); ++i) {
    const Node* saved = cut.forward.outputs[joint.forward_outputs + i].value;
    EXPECT_EQ(saved->type, cut.saved[i]);
    EXPECT_FALSE(saved->op == Op::Reshape || saved->op == Op::Permute || saved->op == Op::Broadcast)
        << name_of(saved->op) << " is saved";
    EXPECT_NE(saved->op, Op::Constant);
    EXPECT_NE(saved->op, Op::Input) << "what the caller holds goes as it is, or as a copy";
  }
  const auto inputs = testing::random_inputs(joint.graph, seed);
  const auto expected = reference::evaluate(joint.graph, inputs, testing::rounded_oracle());
  const auto got = evaluate_halves(cut, joint.primals, joint.forward_outputs, inputs);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(testing::difference(got[i], expected[i]), "") << "output " << i;
}

TEST(Cut, HalvesAreTheJointGraph) {
  testing::RandomGraphOptions options;
  options.random_masks = true;
  size_t saved = 0, held = 0, deferred = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const auto joint = testing::random_joint(seed, options);
    expect_same_as_joint(joint, {}, seed);
    if (HasFailure()) return;
    const Cut cut = cut_joint(joint.graph, joint.primals, joint.forward_outputs, {}, 1);
    saved += cut.saved.size();
    deferred += cut.deferred_outputs.size();
    held += cut.saved_inputs.size();
  }
  EXPECT_GT(saved, 20u) << "the random graphs test nothing";
  EXPECT_GT(held, 100u);
  EXPECT_GT(deferred, 10u);
}

// Rows' maxima and sums are kept, and the operands; nothing of the size of the scores but what was drawn.
TEST(Cut, AttentionKeepsNoProbabilities) {
  size_t found = 0;
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    const testing::AttentionCase c = testing::random_attention_case(seed);
    const auto joint = testing::attention_joint(c);
    expect_same_as_joint(joint, {}, seed);
    if (HasFailure()) return;
    const auto keeps = [&](bool fuse_chains) {
      const Cut cut =
          cut_joint(joint.graph, joint.primals, joint.forward_outputs, {}, cost::kDeferredBytes, fuse_chains);
      return std::any_of(cut.saved.begin(), cut.saved.end(), [&](const Type& t) {
        return is_float(t.dtype) && t.numel() == c.batch * c.heads * c.rows * c.columns;
      });
    };
    if (c.rows < 16 || c.columns < 17) continue;  // there the rows' sums and the matrix are all as small
    EXPECT_FALSE(keeps(true)) << print(joint.graph);
    EXPECT_TRUE(keeps(false));
    ++found;
  }
  EXPECT_GT(found, 30u);
}

TEST(Cut, CheckpointedValuesAreNotKept) {
  testing::RandomGraphOptions options;
  options.random_masks = true;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const auto joint = testing::random_joint(seed, options);
    std::vector<const Node*> forbidden;
    std::mt19937_64 rng(seed);
    for (const Node* n : joint.graph.live())
      if (rng() % 2) forbidden.push_back(n);
    expect_same_as_joint(joint, forbidden, seed);
    if (HasFailure()) return;
  }
}

// x -> sum -> contraction: the contraction is the smaller to keep, unless it may not be kept.
constexpr const char* kChain = R"(%0 = input index=0 : f32[64,8,64]
%1 = reduce %0 kind=sum axes=[0] : f32[8,64]
%2 = reshape %1 : f32[1,8,64]
%3 = contract %2 %2 : f32[1,8,8]
%4 = input index=1 : f32[1,8,8]
%5 = mul %3 %4 : f32[1,8,8]
return none %5
)";
const Node* find(const Graph& g, Op op) {
  for (const Node& n : g.nodes())
    if (n.op == op) return &n;
  return nullptr;
}
TEST(Cut, KeepsTheSmallest) {
  const Graph joint = parse(kChain);
  const Cut cut = cut_joint(joint, 1, 1, {});
  ASSERT_EQ(cut.saved.size(), 1u);
  EXPECT_EQ(cut.forward.outputs[1].value->op, Op::Contract);
}
TEST(Cut, CheckpointedContractionIsComputedAgain) {
  const Graph joint = parse(kChain);
  const Cut cut = cut_joint(joint, 1, 1, {find(joint, Op::Contract)});
  ASSERT_EQ(cut.saved.size(), 1u);
  EXPECT_EQ(cut.forward.outputs[1].value->op, Op::Reduce);
  EXPECT_NE(find(cut.backward, Op::Contract), nullptr);
}
TEST(Cut, AContractionIsComputedAgainForItsPrice) {
  // %1 is 2 KB, kept in any case but for its own price; the contraction: 64 x 64 of 8 columns and 65,536 FLOPs, 16 KB
  const Graph joint = parse(R"(%0 = input index=0 : f32[64,8,64]
%1 = reduce %0 kind=sum axes=[0] : f32[8,64]
%2 = permute %1 order=[1,0] : f32[64,8]
%3 = reshape %2 : f32[1,64,8]
%4 = contract %3 %3 : f32[1,64,64]
%5 = input index=1 : f32[1,64,64]
%6 = mul %4 %5 : f32[1,64,64]
return none %6
)");
  const auto kept = [&](double price) {
    return cut_joint(joint, 1, 1, {}, cost::kDeferredBytes, false, false, price).forward.outputs.at(1).value->op;
  };
  EXPECT_EQ(flops_of(find(joint, Op::Contract)), 65536);
  EXPECT_EQ(kept(0), Op::Contract);
  EXPECT_EQ(kept(1), Op::Contract);   // 64 KB to save 14
  EXPECT_EQ(kept(0.05), Op::Reduce);  // 3 KB
  EXPECT_NE(find(cut_joint(joint, 1, 1, {}, cost::kDeferredBytes, false, false, 0.05).backward, Op::Contract), nullptr);
}
TEST(Cut, CheckpointedDrawIsKept) {  // drawn again it would be another mask
  const Graph joint = parse(R"(%0 = random draw=0 p=0.5 : bool[64]
%1 = input index=0 : f32[64]
%2 = input index=1 : f32[64]
%3 = select %0 %1 %2 : f32[64]
return none %3
)");
  const Cut cut = cut_joint(joint, 1, 1, {find(joint, Op::Random)});
  ASSERT_EQ(cut.saved.size(), 1u);
  EXPECT_EQ(cut.forward.outputs[1].value->op, Op::Random);
  EXPECT_TRUE(cut.saved_as_bits.at(0));
  EXPECT_FALSE(cut_joint(joint, 1, 1, {}, cost::kDeferredBytes, true, false).saved_as_bits.at(0)) << "bytes alone";
}
// a result that a rewriting might make the mask itself; and the operand of a call
TEST(Cut, MasksThatOthersSeeStayBytes) {
  const Graph joint = parse(R"(%0 = random draw=0 p=0.5 : bool[64]
%1 = random draw=1 p=0.5 : bool[64]
%2 = random draw=2 p=0.5 : bool[64]
%3 = input index=0 : f32[64]
%4 = input index=1 : f32[64]
%5 = not %0 : bool[64]
%6 = select %0 %3 %4 : f32[64]
%7 = select %1 %6 %4 : f32[64]
%8 = select %2 %7 %4 : f32[64]
return %5 %8
)");
  const Cut cut = cut_joint(joint, 1, 1, {});
  std::vector<bool> bits;
  for (size_t i = 0; i < cut.saved.size(); ++i) bits.push_back(cut.saved_as_bits[i]);
  EXPECT_EQ(std::count(bits.begin(), bits.end(), true), 2);
  for (size_t i = 0; i < cut.saved.size(); ++i) {
    const Node* n = cut.forward.outputs[1 + i].value;
    EXPECT_EQ(bits[i], n->op == Op::Random && n->as<RandomAttr>().draw != 0);
  }
}
TEST(Cut, ElementwiseOfPrimalsIsComputedAgain) {
  const Graph joint = parse(R"(%0 = input index=0 : f32[64]
%1 = exp %0 : f32[64]
%2 = input index=1 : f32[64]
%3 = mul %1 %2 : f32[64]
return none %3
)");
  const Cut cut = cut_joint(joint, 1, 1, {});
  EXPECT_EQ(cut.saved.size(), 0u);
  EXPECT_THAT(cut.saved_inputs, ::testing::ElementsAre(0));
}
// The backward wants the sum, and its product with the bias, which it makes again; and it reads the bias itself. Of a
// bias that is written in between, it has the old one where it makes the product again, the new one elsewhere.
TEST(Cut, WhatIsComputedAgainReadsSmallPrimalsAsTheyWere) {
  const Graph joint = parse(R"(%0 = input index=0 : f32[1,32,4]
%1 = input index=1 : f32[1,64,4]
%2 = input index=2 : f32[64]
%3 = contract %0 %1 : f32[1,32,64]
%4 = reshape %2 : f32[1,1,64]
%5 = broadcast %4 : f32[1,32,64]
%6 = add %3 %5 : f32[1,32,64]
%7 = mul %6 %5 : f32[1,32,64]
%8 = reduce %7 kind=sum axes=[0,1,2] : f32[]
%9 = input index=3 : f32[]
%10 = reshape %9 : f32[1,1,1]
%11 = broadcast %10 : f32[1,32,64]
%12 = mul %11 %6 : f32[1,32,64]
%13 = mul %11 %7 : f32[1,32,64]
%14 = mul %13 %5 : f32[1,32,64]
return %8 none %12 %14
)");
  const auto cut = [&](const std::vector<const Node*>& must_recompute, int64_t copied_bytes) {
    return cut_joint(joint, 3, 1, must_recompute, cost::kDeferredBytes, true, true, 0, INT64_MAX, 0, copied_bytes);
  };
  const Cut copied = cut({}, 64 * 4);
  EXPECT_THAT(copied.saved_inputs, ::testing::ElementsAre(2));
  EXPECT_THAT(copied.saved, ::testing::UnorderedElementsAre(Type{DType::F32, {64}}, Type{DType::F32, {1, 32, 64}}));
  const std::vector<Tensor> inputs = testing::random_inputs(joint, 1);
  const std::vector<Tensor> forward =
      reference::evaluate(copied.forward, {inputs.begin(), inputs.begin() + 3}, testing::rounded_oracle());
  const auto gradient = [&](const Tensor& bias) {
    return reference::evaluate(copied.backward, {bias, inputs[3], forward.at(1), forward.at(2)},
                               testing::rounded_oracle())
        .at(2)
        .f;
  };
  Tensor twice = inputs[2];
  for (double& b : twice.f) b *= 2;
  std::vector<double> expected = gradient(inputs[2]);
  for (double& g : expected) g *= 2;  // with a new bias in the product, too, it would be neither 2 nor 4 times that
  EXPECT_EQ(gradient(twice), expected);

  EXPECT_EQ(cut({}, 64 * 4 - 1).saved.size(), 1u) << "a larger one is read where it is";
  const Node* checkpointed = joint.outputs[0].value->in(0);  // made of what the caller holds by then
  EXPECT_EQ(cut({checkpointed}, 64 * 4).saved.size(), 1u);
}
TEST(Cut, ResultsGivenToTheCallerAreSavedAsTheyAre) {
  const Graph joint = parse(R"(%0 = input index=0 : f32[8,64]
%1 = reduce %0 kind=sum axes=[1] : f32[8]
%2 = reshape %1 : f32[2,4]
%3 = input index=1 : f32[8]
%4 = mul %1 %3 : f32[8]
return %2 %4
)");
  const Cut cut = cut_joint(joint, 1, 1, {});
  EXPECT_EQ(cut.saved.size(), 0u);
  EXPECT_THAT(cut.saved_inputs, ::testing::ElementsAre(1));
  EXPECT_EQ(cut.backward.live()[0]->type, (Type{DType::F32, {2, 4}}));
}
// The keys that attention hands out beside its result: a moved part of a product that the backward keeps as it is.
constexpr const char* kKeys = R"(%0 = input index=0 : f32[1,8,4]
%1 = input index=1 : f32[1,6,4]
%2 = contract %0 %1 : f32[1,8,6]
%3 = slice %2 start=[0,0,2] step=[1,1,1] : f32[1,8,2]
%4 = permute %3 order=[0,2,1] : f32[1,2,8]
%5 = tanh %2 : f32[1,8,6]
%6 = reduce %5 kind=sum axes=[0,1,2] : f32[]
%7 = input index=2 : f32[]
%8 = reshape %7 : f32[1,1,1]
%9 = broadcast %8 : f32[1,8,6]
%10 = mul %9 %2 : f32[1,8,6]
return %6 %4 %10 none
)";
TEST(Cut, WhatIsMovedOutOfASavedValueIsDeferred) {
  const Graph joint = parse(kKeys);
  Cut cut = cut_joint(joint, 2, 2, {}, 1);
  EXPECT_THAT(cut.deferred_outputs, ::testing::ElementsAre(1));
  EXPECT_EQ(cut.forward.outputs[1].value, nullptr);
  EXPECT_EQ(cut.saved, std::vector<Type>{joint.live()[2]->type});
  EXPECT_EQ(cut.deferred.outputs.at(0).value->type, (Type{DType::F32, {1, 2, 8}}));
  cut = cut_joint(joint, 2, 2, {}, 65);  // 64 bytes are below that
  EXPECT_THAT(cut.deferred_outputs, ::testing::IsEmpty());
  EXPECT_NE(cut.forward.outputs[1].value, nullptr);
}
// A result beside a loss that the backward wants, as a reshape of it: the logits.
constexpr const char* kLogits = R"(%0 = input index=0 : f32[1,8,4]
%1 = input index=1 : f32[1,6,4]
%2 = contract %0 %1 : f32[1,8,6]
%3 = reshape %2 : f32[2,4,6]
%4 = reshape %2 : f32[8,6]
%5 = reduce %2 kind=sum axes=[0,1,2] : f32[]
%6 = input index=2 : f32[]
%7 = reshape %6 : f32[1,1]
%8 = broadcast %7 : f32[8,6]
%9 = mul %8 %4 : f32[8,6]
%10 = mul %9 %4 : f32[8,6]
return %5 %3 %10 none
)";
TEST(Cut, BesideALossWhatTheBackwardWantsIsSavedAndDeferred) {
  const Graph joint = parse(kLogits);
  Cut cut = cut_joint(joint, 2, 2, {}, 1);
  EXPECT_THAT(cut.deferred_outputs, ::testing::ElementsAre(1));
  EXPECT_EQ(cut.saved, (std::vector<Type>{{DType::F32, {1, 8, 6}}}));
  EXPECT_THAT(cut.saved_inputs, ::testing::IsEmpty());
  cut = cut_joint(joint, 2, 2, {});  // too small to be worth it: the caller's own is read
  EXPECT_THAT(cut.saved, ::testing::IsEmpty());
  EXPECT_THAT(cut.saved_inputs, ::testing::ElementsAre(3));
  std::string text = kLogits;
  const std::string loss = "return %5";
  text.replace(text.find(loss), loss.size(), "return none");
  cut = cut_joint(parse(text), 2, 2, {}, 1);  // without a loss he will look at it
  EXPECT_THAT(cut.deferred_outputs, ::testing::IsEmpty());
  EXPECT_THAT(cut.saved_inputs, ::testing::ElementsAre(3));
}
// exp(x - sum over the row): kept itself where rows are short, made again of x where they are long.
TEST(Cut, OfLongRowsWhatWasSummedIsKept) {
  for (const auto& [columns, kept] : {std::pair<int, Op>{16, Op::Exp}, {16384, Op::Contract}}) {
    const std::string n = std::to_string(columns);
    const Graph joint = parse(
        "%0 = input index=0 : f32[1,8,4]\n%1 = input index=1 : f32[1," + n + ",4]\n%2 = contract %0 %1 : f32[1,8," + n +
        "]\n" +
        "%3 = reduce %2 kind=sum axes=[2] : f32[1,8]\n%4 = reshape %3 : f32[1,8,1]\n%5 = broadcast %4 : f32[1,8," + n +
        "]\n" + "%6 = sub %2 %5 : f32[1,8," + n + "]\n%7 = exp %6 : f32[1,8," + n + "]\n%8 = input index=2 : f32[1,8," +
        n + "]\n" + "%9 = mul %7 %8 : f32[1,8," + n + "]\nreturn none %9\n");
    const Cut cut = cut_joint(joint, 2, 1, {});
    EXPECT_EQ(cut.forward.outputs.at(1).value->op, kept) << n;
  }
}
// The same over columns, as BatchNorm has them: the sums take a walk of their own as soon as a cache does not hold all.
TEST(Cut, OfLongColumnsWhatWasSummedIsKept) {
  for (const auto& [rows, kept] : {std::pair<int, Op>{64, Op::Exp}, {1024, Op::Contract}}) {
    const std::string shape = "f32[1," + std::to_string(rows) + ",16]";
    const Graph joint = parse(
        "%0 = input index=0 : f32[1," + std::to_string(rows) +
        ",4]\n%1 = input index=1 : f32[1,16,4]\n%2 = contract %0 %1 : " + shape + "\n" +
        "%3 = reduce %2 kind=sum axes=[0,1] : f32[16]\n%4 = reshape %3 : f32[1,1,16]\n%5 = broadcast %4 : " + shape +
        "\n" + "%6 = sub %2 %5 : " + shape + "\n%7 = exp %6 : " + shape + "\n%8 = input index=2 : " + shape + "\n" +
        "%9 = mul %7 %8 : " + shape + "\nreturn none %9\n");
    const Cut cut = cut_joint(joint, 2, 1, {});
    EXPECT_EQ(cut.forward.outputs.at(1).value->op, kept) << rows;
  }
}
TEST(Cut, WhatReadsAnInputIsNotDeferred) {  // the caller may write it before he reads the output
  std::string text = kKeys;
  const std::string keys = "permute %3 order=[0,2,1] : f32[1,2,8]";
  text.replace(text.find(keys), keys.size(), "mul %0 %0 : f32[1,8,4]");
  EXPECT_THAT(cut_joint(parse(text), 2, 2, {}, 1).deferred_outputs, ::testing::IsEmpty());
}
TEST(Cut, ForwardOutputThatDependsOnATangentIsRefused) {
  const Graph joint =
      parse("%0 = input index=0 : f32[4]\n%1 = input index=1 : f32[4]\n%2 = add %0 %1 : f32[4]\nreturn %2 %1\n");
  EXPECT_THROW(cut_joint(joint, 1, 1, {}), InternalError);
}

}  // namespace
}  // namespace trainc::schedule
