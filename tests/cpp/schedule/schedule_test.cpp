// Which values share a kernel: the rules by which they join, each with a case where they must not, and what holds of
// every schedule.
#include "schedule/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "../common/random_graph.h"
#include "graph/build.h"
#include "graph/text.h"
#include "graphs.h"
#include "schedule/prepare.h"

namespace trainc::schedule {
namespace {

struct Scheduled {
  Graph graph;
  Schedule schedule;
  explicit Scheduled(const Graph& g) : graph(prepare(g)), schedule(make_schedule(graph, true)) {}
  explicit Scheduled(const char* text) : Scheduled(parse(text)) {}
  size_t groups() const { return schedule.groups.size(); }
  int group_of_output(size_t i) const { return schedule.group_of.at(base_of(graph.outputs.at(i).value)); }
};

void expect_sound(const Graph& graph, const Schedule& s) {
  std::unordered_set<const Node*> made;
  int64_t last_draw = -1;
  for (size_t g = 0; g < s.groups.size(); ++g) {
    ASSERT_FALSE(s.groups[g].values.empty());
    for (const Node* n : s.groups[g].values) {
      EXPECT_TRUE(s.values.count(n));
      EXPECT_EQ(s.group_of.at(n), static_cast<int>(g));
      for (const Read& r : reads_of(n, s.values, n->type.numel(), 1)) {
        if (r.value->op == Op::Input) continue;
        ASSERT_TRUE(made.count(r.value)) << name_of(n->op) << " reads " << name_of(r.value->op) << " before it is made";
        EXPECT_TRUE(s.group_of.at(r.value) == static_cast<int>(g) || s.stored.count(r.value))
            << "read from another group, and has no memory";
      }
      EXPECT_TRUE(made.insert(n).second) << "in two groups";
      if (n->op == Op::Random) {
        EXPECT_LT(last_draw, n->as<RandomAttr>().draw);
        last_draw = n->as<RandomAttr>().draw;
      }
    }
  }
  EXPECT_EQ(made.size(), s.values.size()) << "a value is in no group";
  for (const Output& o : graph.outputs)
    EXPECT_TRUE(!o.value || o.value->op == Op::Input || s.stored.count(base_of(o.value)));
  for (const Node* n : graph.live()) {
    const bool always = n->op == Op::Contract || n->op == Op::Scatter || n->op == Op::Scan || n->op == Op::Random ||
                        n->op == Op::Reduce;
    EXPECT_TRUE(!always || s.values.count(n)) << name_of(n->op);
  }
}

// A path from a group out and back may lead through a group that was begun before it (here: the contraction, and what
// it reads is made in one kernel with what reads the row sums).
TEST(Schedule, NoCircleThroughGroupsThatAreOlder) {
  const Scheduled s(R"(%0 = input index=0 : f32[1,6,4]
%1 = exp %0 : f32[1,6,4]
%2 = input index=1 : f32[1,5,4]
%3 = contract %1 %2 : f32[1,6,5]
%4 = input index=2 : f32[6,9]
%5 = reduce %4 kind=sum axes=[1] : f32[6]
%6 = reshape %5 : f32[1,6,1]
%7 = broadcast %6 : f32[1,6,4]
%8 = mul %1 %7 : f32[1,6,4]
%9 = slice %3 start=[0,0,0] step=[1,1,1] : f32[1,6,1]
%10 = reshape %9 : f32[6]
%11 = mul %10 %5 : f32[6]
return %8 %11
)");
  expect_sound(s.graph, s.schedule);
}
// Draws run in the program's order, so a draw is on the way from all that an earlier one reads.
TEST(Schedule, NoCircleThroughTheOrderOfDraws) {
  Graph graph;
  Builder b{graph, {}};
  const Type type{DType::F32, {6, 4}};
  const Node* early = b.unary(Op::Exp, b.input(0, type));
  ExternAttr attr{"aten.native_dropout.default", R"({"args": [{"$": 0}, 0.5, true], "kwargs": {}})", {type}, true, 0};
  const Node* drawn = b.result(b.extern_call(attr, {early}), 0);
  const Node* mask = b.random(type.shape, {1, 0.5});
  graph.outputs = {{drawn, {}}, {b.select(mask, early, b.full(DType::F32, type.shape, 0)), {}}};
  graph.input_count = 1;
  const Scheduled s(graph);
  expect_sound(s.graph, s.schedule);
}

void expect_sound_on_random_graphs(const testing::RandomGraphOptions& options, uint64_t first, uint64_t count) {
  for (uint64_t seed = first; seed < first + count && !::testing::Test::HasFailure(); ++seed) {
    const Graph graph = prepare(testing::random_graph(seed, options));
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + print(graph));
    Schedule schedule;
    ASSERT_NO_THROW(schedule = make_schedule(graph, seed % 2));
    expect_sound(graph, schedule);
  }
}
TEST(Schedule, SoundOnRandomGraphs) {
  testing::RandomGraphOptions options;
  options.random_masks = true;
  options.nodes = 40;
  options.outputs = 5;
  expect_sound_on_random_graphs(options, 1, 400);
}
// Values that fit each other, so that they join wherever no circle comes of it.
TEST(Schedule, SoundWhereMostValuesFitEachOther) {
  testing::RandomGraphOptions options;
  options.random_masks = options.externs = options.few_sizes = true;
  options.outputs = 6;
  const int count = std::getenv("TRAINC_FUZZ") ? std::atoi(std::getenv("TRAINC_FUZZ")) : 1500;
  for (int nodes : {20, 60, 150}) {
    options.nodes = nodes;
    expect_sound_on_random_graphs(options, 1000 * static_cast<uint64_t>(nodes), static_cast<uint64_t>(count));
  }
}

// A gradient under autocast: rounded to bf16, in another shape than it was made in, and multiplied. The bf16 is stored,
// not what it was rounded from.
TEST(Schedule, ANarrowedOperandIsStoredNarrow) {
  const Scheduled s(R"(%0 = input index=0 : f32[6,20]
%1 = exp %0 : f32[6,20]
%2 = reduce %1 kind=sum axes=[1] : f32[6]
%3 = reshape %2 : f32[6,1]
%4 = broadcast %3 : f32[6,20]
%5 = div %1 %4 : f32[6,20]
%6 = reshape %5 : f32[2,3,20]
%7 = cast %6 : bf16[2,3,20]
%8 = reshape %7 : bf16[6,20]
%9 = cast %8 : f32[6,20]
%10 = permute %9 order=[1,0] : f32[20,6]
%11 = reshape %10 : f32[1,20,6]
%12 = input index=1 : f32[1,4,6]
%13 = contract %11 %12 : f32[1,20,4]
%14 = reshape %9 : f32[1,6,20]
%15 = input index=2 : f32[1,5,20]
%16 = contract %14 %15 : f32[1,6,5]
return %13 %16
)");
  expect_sound(s.graph, s.schedule);
  for (const Node* n : s.schedule.stored)
    EXPECT_FALSE(n->dtype() == DType::F32 && n->type.numel() == 120) << name_of(n->op) << " is stored in f32";
  EXPECT_EQ(std::count_if(s.schedule.stored.begin(), s.schedule.stored.end(),
                          [](const Node* n) { return n->dtype() == DType::BF16; }),
            1);
}

// Each contraction adds to the sum so far, or all of them would be kept for the last.
TEST(Schedule, ContractionsAreAddedUpOneByOne) {
  Graph graph;
  Builder b{graph, {}};
  const Node* sum = nullptr;
  for (int64_t i = 0; i < 4; ++i) {
    const Node* product =
        b.contract(b.input(2 * i, {DType::F32, {1, 9, 5}}), b.input(2 * i + 1, {DType::F32, {1, 7, 5}}));
    sum = sum ? b.add(sum, product) : product;
  }
  graph.outputs = {{b.mul(sum, sum), {}}};
  graph.input_count = 8;
  const Scheduled s(graph);
  expect_sound(s.graph, s.schedule);
  int kept = 0;
  for (size_t g = 0; g < s.groups(); ++g) {
    int read = 0;
    for (const Node* n : s.schedule.groups[g].values)
      for (const Read& r : reads_of(n, s.schedule.values, n->type.numel(), 1))
        read += s.schedule.group_of.count(r.value) && s.schedule.group_of.at(r.value) != static_cast<int>(g);
    kept = std::max(kept, read);
  }
  EXPECT_EQ(kept, 1) << "a group reads more than the sum so far";
}

// What is picked from logits is a kernel of its own before the one that writes their gradient; of what is no larger
// than the index, it is not.
TEST(Schedule, APickOutOfAContractionComesBeforeItIsOverwritten) {
  const auto text = [](const std::string& columns) {
    return "%0 = input index=0 : f32[1,6,4]\n%1 = input index=1 : f32[1," + columns +
           ",4]\n%2 = contract %0 %1 : f32[1,6," + columns + "]\n%3 = reshape %2 : f32[6," + columns +
           "]\n%4 = input index=2 : i64[6,1]\n%5 = gather %3 %4 axis=1 : f32[6,1]\n%6 = reduce %3 kind=max axes=[1] : "
           "f32[6]\n%7 = reshape %6 : f32[6,1]\n%8 = sub %5 %7 : f32[6,1]\n"
           "%9 = broadcast %7 : f32[6," +
           columns + "]\n%10 = sub %3 %9 : f32[6," + columns + "]\nreturn %8 %10\n";
  };
  const auto gathers = [](const Scheduled& s) {
    return std::count_if(s.schedule.values.begin(), s.schedule.values.end(),
                         [](const Node* n) { return n->op == Op::Gather; });
  };
  const Scheduled wide(parse(text("100"))), narrow(parse(text("10")));
  expect_sound(wide.graph, wide.schedule);
  ASSERT_EQ(gathers(wide), 1);
  EXPECT_EQ(gathers(narrow), 0);
  const Node* pick = *std::find_if(wide.schedule.values.begin(), wide.schedule.values.end(),
                                   [](const Node* n) { return n->op == Op::Gather; });
  EXPECT_LT(wide.schedule.group_of.at(pick), wide.group_of_output(1));
}

// What is made of the tensor that it is put into is made before: the scatter may write where that lies. Of many
// elements, and of another tensor, it is read as it is put.
TEST(Schedule, AFewElementsAreMadeBeforeTheyArePutWhereTheyComeFrom) {
  const auto made_before = [](const std::string& from, const std::string& rows) {
    const Scheduled s(parse(
        "%0 = input index=0 : f32[1,40,4]\n%1 = input index=1 : f32[1,40,4]\n%2 = input index=2 : "
        "i64[1," +
        rows + ",4]\n%3 = input index=3 : i64[1," + rows + ",4]\n%4 = gather %" + from + " %2 axis=1 : f32[1," + rows +
        ",4]\n%5 = neg %4 : f32[1," + rows + ",4]\n%6 = scatter %0 %3 %5 axis=1 kind=last : f32[1,40,4]\nreturn %6\n"));
    expect_sound(s.graph, s.schedule);
    return s.schedule.values.size() == 2;
  };
  EXPECT_TRUE(made_before("0", "1"));
  EXPECT_FALSE(made_before("1", "1"));
  EXPECT_FALSE(made_before("0", "10"));
}

/// The most elements of values that another group has yet to read, results for the caller aside.
int64_t most_kept(const Scheduled& s) {
  std::unordered_map<const Node*, size_t> last;
  for (size_t g = 0; g < s.schedule.groups.size(); ++g)
    for (const Node* n : s.schedule.groups[g].values)
      for (const Read& r : reads_of(n, s.schedule.values, n->type.numel(), 1)) last[r.value] = g;
  for (const Output& o : s.graph.outputs) last.erase(base_of(o.value));
  int64_t most = 0;
  for (size_t g = 0; g < s.schedule.groups.size(); ++g) {
    int64_t now = 0;
    for (auto [value, end] : last)
      if (auto it = s.schedule.group_of.find(value);
          it != s.schedule.group_of.end() && it->second <= static_cast<int>(g) && end >= g)
        now += value->type.numel();
    most = std::max(most, now);
  }
  return most;
}

// A backward as the outputs ask for it: first all the way down, then the weights' gradients, though each could be made
// on the way.
TEST(Schedule, WhatFreesMemoryComesEarly) {
  Graph g;
  Builder b{g, {}};
  const Type type{DType::F32, {1, 8, 8}};
  g.input_count = 13;
  const auto input = [&](int64_t i) { return g.make(Op::Input, InputAttr{i, {}}, {}, type); };
  std::vector<const Node*> d{b.unary(Op::Exp, input(0))}, gradients;
  for (int64_t i = 1; i <= 6; ++i) d.push_back(g.make(Op::Contract, NoAttr{}, {d.back(), input(i)}, type));
  for (int64_t i = 0; i < 6; ++i) gradients.push_back(g.make(Op::Contract, NoAttr{}, {d[i], input(7 + i)}, type));
  g.outputs.push_back({d.back(), {}});
  for (const Node* n : gradients) g.outputs.push_back({n, {}});
  EXPECT_EQ(most_kept(Scheduled(g)), 2 * 64);  // one and the next: 6 without an order that looks at memory
}

TEST(Schedule, OneKernelEach) {
  for (const char* text : {testing::kLayerNorm, testing::kLayerNormBackward, testing::kSoftmax,
                           testing::kSoftmaxBackward, testing::kLinearGelu})
    EXPECT_EQ(Scheduled(text).groups(), 1u) << text;
}
TEST(Schedule, GeluAndItsBackwardAreOneKernelEach) {  // by tanh, as GPT-2 has it
  EXPECT_EQ(Scheduled(R"(%0 = input index=0 : f32[6,18]
%1 = mul %0 %0 : f32[6,18]
%2 = mul %1 %0 : f32[6,18]
%3 = add %0 %2 : f32[6,18]
%4 = tanh %3 : f32[6,18]
%5 = add %4 %4 : f32[6,18]
%6 = mul %0 %5 : f32[6,18]
%7 = input index=1 : f32[6,18]
%8 = mul %4 %4 : f32[6,18]
%9 = sub %4 %8 : f32[6,18]
%10 = mul %7 %9 : f32[6,18]
return %6 %10
)")
                .groups(),
            1u);
}

// --- rule 1: the domains agree
TEST(Schedule, ElementwiseJoinsWhatItReads) {
  EXPECT_EQ(Scheduled("%0 = input index=0 : f32[4,8]\n%1 = exp %0 : f32[4,8]\n%2 = tanh %1 : f32[4,8]\nreturn %1 %2\n")
                .groups(),
            1u);
}
TEST(Schedule, ReshapesDoNotCount) {
  EXPECT_EQ(Scheduled("%0 = input index=0 : f32[4,8]\n%1 = exp %0 : f32[4,8]\n%2 = reshape %1 : f32[32]\n%3 = tanh %2 "
                      ": f32[32]\nreturn %1 %3\n")
                .groups(),
            1u);
}
TEST(Schedule, AnotherDomainStaysApart) {
  EXPECT_EQ(
      Scheduled(
          "%0 = input index=0 : f32[4,8]\n%1 = exp %0 : f32[4,8]\n%2 = slice %1 start=[0,0] step=[1,1] : f32[4,4]\n"
          "%3 = tanh %2 : f32[4,4]\nreturn %1 %3\n")
          .groups(),
      2u);
  EXPECT_EQ(Scheduled(R"(%0 = input index=0 : f32[4,8]
%1 = reduce %0 kind=sum axes=[1] : f32[4]
%2 = reshape %1 : f32[2,2]
%3 = reduce %2 kind=sum axes=[1] : f32[2]
return %1 %3
)")
                .groups(),
            2u)
      << "a sum over rows of rows is another domain";
}
// --- rule 2: aligned reads
TEST(Schedule, PermutedReadStaysApart) {
  EXPECT_EQ(Scheduled("%0 = input index=0 : f32[8,8]\n%1 = exp %0 : f32[8,8]\n%2 = permute %1 axes=[1,0] : f32[8,8]\n"
                      "%3 = tanh %2 : f32[8,8]\nreturn %1 %3\n")
                .groups(),
            2u);
}
TEST(Schedule, ReversedReadStaysApart) {
  EXPECT_EQ(Scheduled("%0 = input index=0 : f32[8]\n%1 = exp %0 : f32[8]\n%2 = reverse %1 axes=[0] : f32[8]\n%3 = tanh "
                      "%2 : f32[8]\nreturn %1 %3\n")
                .groups(),
            2u);
}
constexpr const char* kSubtractSum = R"(%0 = input index=0 : f32[8,8]
%1 = reduce %0 kind=sum axes=[1] : f32[8]
%2 = reshape %1 : f32[8,1]
%3 = broadcast %2 : f32[8,8]
%4 = sub %0 %3 : f32[8,8]
return %4
)";
TEST(Schedule, SumBroadcastAlongItsRowJoins) { EXPECT_EQ(Scheduled(kSubtractSum).groups(), 1u); }
TEST(Schedule, SumBroadcastAcrossRowsStaysApart) {
  std::string text = kSubtractSum;
  text.replace(text.find("f32[8,1]"), 8, "f32[1,8]");
  EXPECT_EQ(Scheduled(text.c_str()).groups(), 2u);
}
// --- rule 3: no way out and back
TEST(Schedule, NoGroupAroundAContraction) {
  const Scheduled s(R"(%0 = input index=0 : f32[1,8,8]
%1 = exp %0 : f32[1,8,8]
%2 = contract %1 %1 : f32[1,8,8]
%3 = add %1 %2 : f32[1,8,8]
return %1 %3
)");
  EXPECT_EQ(s.groups(), 2u);
  EXPECT_NE(s.group_of_output(0), s.group_of_output(1));
}
TEST(Schedule, NoGroupAroundAnotherGroup) {  // exp, its permuted tanh, and both again aligned with exp
  EXPECT_EQ(Scheduled(R"(%0 = input index=0 : f32[8,8]
%1 = exp %0 : f32[8,8]
%2 = permute %1 axes=[1,0] : f32[8,8]
%3 = tanh %2 : f32[8,8]
%4 = permute %3 axes=[1,0] : f32[8,8]
%5 = add %1 %4 : f32[8,8]
return %1 %3 %5
)")
                .groups(),
            3u);
}
// --- rows that meet
constexpr const char* kTwoSums = R"(%0 = input index=0 : f32[8,6]
%1 = input index=1 : f32[8,6]
%2 = reduce %0 kind=sum axes=[1] : f32[8]
%3 = reduce %1 kind=sum axes=[1] : f32[8]
%4 = reshape %2 : f32[8,1]
%5 = broadcast %4 : f32[8,6]
%6 = reshape %3 : f32[8,1]
%7 = broadcast %6 : f32[8,6]
%8 = mul %5 %7 : f32[8,6]
return %8
)";
TEST(Schedule, RowGroupsThatMeetAreUnited) { EXPECT_EQ(Scheduled(kTwoSums).groups(), 1u); }
TEST(Schedule, RowGroupsOfOtherColumnsAreNot) {
  std::string text = kTwoSums;
  text.replace(text.find("index=1 : f32[8,6]"), 18, "index=1 : f32[8,7]");
  EXPECT_EQ(Scheduled(text.c_str()).groups(), 2u);
}
// --- epilogues
constexpr const char* kEpilogue = R"(%0 = input index=0 : f32[1,8,6]
%1 = contract %0 %0 : f32[1,8,8]
%2 = tanh %1 : f32[1,8,8]
return %2
)";
TEST(Schedule, ElementwiseJoinsItsContraction) {
  const Scheduled s(kEpilogue);
  ASSERT_EQ(s.groups(), 1u);
  EXPECT_EQ(s.schedule.groups[0].kind, GroupKind::Contract);
  EXPECT_EQ(s.schedule.stored.size(), 1u) << "the sum itself needs no memory";
}
TEST(Schedule, SumsAndMovedReadsDoNot) {
  EXPECT_EQ(Scheduled("%0 = input index=0 : f32[1,8,6]\n%1 = contract %0 %0 : f32[1,8,8]\n%2 = reduce %1 kind=max "
                      "axes=[2] : f32[1,8]\nreturn %2\n")
                .groups(),
            2u);
  EXPECT_EQ(Scheduled("%0 = input index=0 : f32[1,8,6]\n%1 = contract %0 %0 : f32[1,8,8]\n%2 = reverse %1 axes=[2] : "
                      "f32[1,8,8]\n%3 = tanh %2 : f32[1,8,8]\n"
                      "return %3\n")
                .groups(),
            2u);
}
// --- columns
constexpr const char* kColumns = R"(%0 = input index=0 : f32[8,6]
%1 = input index=1 : f32[8,6]
%2 = reduce %0 kind=sum axes=[0] : f32[6]
%3 = mul %0 %1 : f32[8,6]
%4 = reduce %3 kind=sum axes=[0] : f32[6]
return %2 %4
)";
TEST(Schedule, ColumnSumsOfOneTensorAreOneWalk) {
  const Scheduled s(kColumns);
  ASSERT_EQ(s.groups(), 1u);
  EXPECT_EQ(s.schedule.groups[0].kind, GroupKind::Columns);
}
TEST(Schedule, ColumnSumsWithNothingInCommonAreNot) {
  std::string text = kColumns;
  text.replace(text.find("mul %0 %1"), 9, "mul %1 %1");
  EXPECT_EQ(Scheduled(text.c_str()).groups(), 2u);
}
TEST(Schedule, ColumnSumThatNeedsTheOtherIsNot) {
  EXPECT_EQ(Scheduled(R"(%0 = input index=0 : f32[8,6]
%1 = reduce %0 kind=sum axes=[0] : f32[6]
%2 = reshape %1 : f32[1,6]
%3 = broadcast %2 : f32[8,6]
%4 = sub %0 %3 : f32[8,6]
%5 = reduce %4 kind=max axes=[0] : f32[6]
return %1 %5
)")
                .groups(),
            2u);
}

// --- what is a value
TEST(Schedule, CheapWorkIsDoneAgainDearWorkIsKept) {
  auto stored = [](const char* op) {  // used by two contractions
    const std::string text = std::string("%0 = input index=0 : f32[1,8,8]\n%1 = ") + op +
                             " %0 : f32[1,8,8]\n%2 = contract %1 %0 : f32[1,8,8]\n" +
                             "%3 = contract %0 %1 : f32[1,8,8]\nreturn %2 %3\n";
    return Scheduled(text.c_str()).schedule.stored.size();
  };
  EXPECT_EQ(stored("neg"), 2u);
  EXPECT_EQ(stored("exp"), 3u);
}
TEST(Schedule, DrawsKeepTheirOrder) {
  const Scheduled s(R"(%0 = random draw=1 p=0.5 : bool[8]
%1 = random draw=0 p=0.5 : bool[8]
%2 = not %0 : bool[8]
%3 = and %2 %1 : bool[8]
return %3
)");
  expect_sound(s.graph, s.schedule);
}

}  // namespace
}  // namespace trainc::schedule
