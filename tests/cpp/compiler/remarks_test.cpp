// What stands between a graph and a better plan is told in the plan: results that lie in no operand's memory,
// operations that run in the framework, contractions that no library computes, losses that are not cut into chunks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../common/copy_of.h"
#include "../common/random_loss.h"
#include "compiler/compiler.h"
#include "graph/build.h"
#include "graph/text.h"

namespace trainc::compiler {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// "reason (detail): lines", of one kind.
std::vector<std::string> reported(const plan::Plan& plan, const char* what) {
  std::vector<std::string> lines;
  for (const Remark& r : plan.remarks) {
    if (r.what != what) continue;
    std::string line = r.reason + (r.detail.empty() ? "" : " (" + r.detail + ")") + ":";
    for (const std::string& origin : r.origins) line += " " + origin;
    lines.push_back(line);
  }
  return lines;
}
plan::Plan plan_of(const Graph& graph, const Job& job = {}) {
  return compile(testing::copy_of(graph), "test", {}, job);
}
std::vector<std::string> reported(const char* text, const char* what) { return reported(plan_of(parse(text)), what); }

// --- in place

TEST(Remarks, InPlaceWhereItIs) {
  EXPECT_THAT(reported(R"(%0 = input index=0 : f32[4,8]
%1 = scan %0 axis=1 : f32[4,8]   // m.py:1
%2 = exp %1 : f32[4,8]   // m.py:2
%3 = scan %2 axis=1 : f32[4,8]   // m.py:3
return %3
)",
                       missed::kInPlace),
              IsEmpty());
}
TEST(Remarks, InPlaceWhereTheOperandIsReadLater) {
  EXPECT_THAT(reported(R"(%0 = input index=0 : f32[4,8]
%1 = scan %0 axis=1 : f32[4,8]   // m.py:1
%2 = exp %1 : f32[4,8]   // m.py:2
%3 = scan %2 axis=1 : f32[4,8]   // m.py:3
%4 = mul %1 %3 : f32[4,8]   // m.py:4
return %4
)",
                       missed::kInPlace),
              ElementsAre("the operand is read later: m.py:2 m.py:1"));
}
TEST(Remarks, InPlaceWhereItIsReadInAnotherOrder) {
  EXPECT_THAT(reported(R"(%0 = input index=0 : f32[8,8]
%1 = scan %0 axis=1 : f32[8,8]   // m.py:1
%2 = permute %1 axes=[1,0] : f32[8,8]
%3 = exp %2 : f32[8,8]   // m.py:2
%4 = scan %3 axis=1 : f32[8,8]   // m.py:3
return %4
)",
                       missed::kInPlace),
              ElementsAre("their strides differ: m.py:2 m.py:1"));
}

// --- calls of the framework

Graph call(const char* target, const char* reason = "") {
  Graph g;
  Builder b{g, "m.py:7"};
  const Type t{DType::F32, {4, 8}};
  const Node* made = b.result(
      b.extern_call(
          {.target = target, .arguments = R"({"args":[{"$":0}],"kwargs":{}})", .results = {t}, .reason = reason},
          {b.input(0, t)}),
      0);
  g.outputs = {{made, {}}};
  g.input_count = 1;
  return g;
}
TEST(Remarks, OperationsThatRunInTheFramework) {
  const plan::Plan plan = plan_of(call("aten.unheard_of.default", "trainc has no row for it"));
  EXPECT_THAT(reported(plan, missed::kCompile),
              ElementsAre("trainc has no row for it (aten.unheard_of.default): m.py:7"));
  EXPECT_EQ(plan.remarks.at(0).bytes, 4 * 8 * 4);
  EXPECT_EQ(plan.remarks.at(0).stage, "frontend");
  EXPECT_THAT(reported(plan_of(call("framework.product")), missed::kCompile), IsEmpty()) << "it was chosen";
}

// --- calls of a library

TEST(Remarks, ContractionsThatNoLibraryComputes) {
  const char* text = R"(%0 = input index=0 : f32[1,4,8]
%1 = input index=1 : f32[1,6,8]
%2 = contract %0 %1 : f32[1,4,6]   // m.py:1
%3 = input index=2 : f64[1,4,8]
%4 = input index=3 : f64[1,6,8]
%5 = contract %3 %4 : f64[1,4,6]   // m.py:2
return %2 %5
)";
  const auto job = [](const char* answer) {
    Job job;
    job.tuning = Tuning{.seconds = [](const plan::Kernel&, int64_t, const std::vector<int64_t>&) { return 1.0; },
                        .choose = [](const std::string&, int, const std::function<double(int)>&) { return 0; },
                        .framework = [answer](const FrameworkCandidate&) { return std::string(answer); }};
    return job;
  };
  const Graph g = parse(text);
  EXPECT_THAT(reported(plan_of(g, job("")), missed::kFrameworkCall),
              ElementsAre("its sums are not in f32: m.py:2", "measured to be no faster than a kernel: m.py:1"));
  EXPECT_THAT(reported(plan_of(g, job("it is twice as fast")), missed::kFrameworkCall),
              ElementsAre("its sums are not in f32: m.py:2"));
  EXPECT_THAT(reported(plan_of(g), missed::kFrameworkCall), IsEmpty()) << "nobody looked";
}

// --- of two halves

struct Joint {
  testing::RandomJoint joint;
  JointGraph compiled;
  explicit Joint(int64_t worth)
      : joint(testing::loss_joint({.batch = 4, .length = 10, .width = 6, .columns = 50})),
        compiled(testing::copy_of(joint.graph), joint.primals, joint.forward_outputs, "loss",
                 {.loss_chunk_rows = 10, .loss_chunk_bytes = worth}, std::numeric_limits<int64_t>::max()) {}
};
TEST(Remarks, TheForwardTellsOfTheJointGraph) {
  const char* refused = "it would save too little (3840 bytes)";
  EXPECT_THAT(reported(Joint(5000).compiled.forward({}), missed::kChunkRows), ElementsAre(HasSubstr(refused)));
  EXPECT_THAT(reported(Joint(1).compiled.forward({}), missed::kChunkRows), IsEmpty());
}
TEST(Remarks, AStepTellsOfBothHalves) {
  const Joint j(5000);
  const std::vector<bool> defined(j.joint.graph.input_count - j.joint.primals, true);
  const auto sum = [](const std::vector<Remark>& remarks) {
    int64_t count = 0;
    for (const Remark& r : remarks) count += r.count;
    return count;
  };
  const std::vector<LoweredPlan> parts = j.compiled.lower_parts_of_step(defined, {});
  const plan::Plan step = j.compiled.step(defined, {}, {}, {});
  EXPECT_GT(sum(parts[0].plan.remarks), 0);
  EXPECT_GT(sum(parts[1].plan.remarks), 0);
  EXPECT_EQ(sum(step.remarks), sum(parts[0].plan.remarks) + sum(parts[1].plan.remarks));
  const plan::Plan loaded = plan::load(plan::save(step));
  EXPECT_EQ(loaded.remarks, step.remarks);
}

// What is told changes nothing of what runs.
TEST(Remarks, AreTheLastPartOfThePlansText) {
  plan::Plan plan = plan_of(call("aten.unheard_of.default", "trainc has no row for it"));
  const std::string with = plan::print(plan), without = plan::print(plan, false);
  EXPECT_THAT(with, HasSubstr("remarks:\n  frontend: not compile: trainc has no row for it (aten.unheard_of.default); "
                              "1 x, 128 bytes   // m.py:7\n"));
  EXPECT_EQ(with.substr(0, without.size()), without);
  EXPECT_THAT(without, Not(HasSubstr("remarks:")));
  plan.remarks.clear();
  EXPECT_EQ(plan::print(plan), without);
}

}  // namespace
}  // namespace trainc::compiler
