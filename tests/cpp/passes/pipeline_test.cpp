// What Pipeline does around a pass: verify, compare signatures, dump, skip, and leave the input of one that fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "graph/build.h"
#include "graph/text.h"
#include "passes/pipeline.h"
#include "passes/rewrite.h"

namespace trainc {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

const char* const kText =
    "%0 = input index=0 : f32[2]\n%1 = neg %0 : f32[2]\n%2 = neg %1 : f32[2]\n%3 = exp %2 : f32[2]\nreturn %3\n";

class PipelineTest : public ::testing::Test {
 protected:
  fs::path directory_ = fs::temp_directory_path() / ("trainc-pipeline-" + std::to_string(getpid()));
  void SetUp() override { setenv("TRAINC_DUMP_DIR", directory_.c_str(), 1); }
  void TearDown() override {
    for (const char* name : {"TRAINC_DUMP", "TRAINC_DUMP_DIR"}) unsetenv(name);
    fs::remove_all(directory_);
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    if (fs::exists(directory_))
      for (const auto& entry : fs::directory_iterator(directory_)) names.push_back(entry.path().filename());
    return names;
  }
  std::string read(const std::string& name) const {
    std::ifstream file(directory_ / name);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
};

TEST_F(PipelineTest, DumpsOneFileForEachPassThatChangesSomething) {
  setenv("TRAINC_DUMP", "loop,graph", 1);
  Pipeline p("step/1");
  const Graph g = optimize(parse(kText), p);
  EXPECT_THAT(files(), UnorderedElementsAre("step_1.00.input.graph", "step_1.03.simplify.graph"));
  EXPECT_EQ(read("step_1.00.input.graph"), kText);
  EXPECT_EQ(print(parse(read("step_1.03.simplify.graph"))), print(g));
}

TEST_F(PipelineTest, WritesNothingUnasked) {
  setenv("TRAINC_DUMP", "loop", 1);
  Pipeline p("g");
  optimize(parse(kText), p);
  EXPECT_TRUE(files().empty());
}

TEST_F(PipelineTest, RecordsAndDisables) {
  Pipeline p("g", {"other", "simplify"});
  EXPECT_EQ(print(optimize(parse(kText), p)), kText);
  ASSERT_EQ(p.records().size(), 5u);
  EXPECT_TRUE(p.records()[2].skipped);
  Pipeline q("g");
  optimize(parse(kText), q);
  EXPECT_TRUE(q.records()[2].changed && !q.records()[2].skipped && !q.records()[0].changed && !q.records()[1].changed);
  EXPECT_EQ(q.records()[2].nodes_before, 4);
  EXPECT_EQ(q.records()[2].nodes_after, 2);
}

TEST_F(PipelineTest, APassThatMayBeDisabledIsListed) {
  Pipeline p("g");
  EXPECT_THROW(p.run("unlisted", remove_dead, parse(kText)), InternalError);
}

TEST_F(PipelineTest, WhatIsNeededIsNotSkippedAndMayGiveResultsAnotherType) {
  const auto flat = [](const Graph&) {
    return parse("%0 = input index=0 : f32[2]\n%1 = reshape %0 : f32[2,1]\nreturn %1\n");
  };
  const auto fewer = [](const Graph&) { return parse("%0 = input index=0 : f32[2]\nreturn\n"); };
  Pipeline p("g", {"needed"});
  EXPECT_EQ(p.run_needed("needed", flat, parse(kText)).outputs[0].value->shape(), (Dims{2, 1}));
  ASSERT_EQ(p.records().size(), 1u);
  EXPECT_TRUE(p.records()[0].changed && !p.records()[0].skipped);
  EXPECT_THROW(p.run("simplify", flat, parse(kText)), InternalError);
  EXPECT_THROW(p.run_needed("needed", fewer, parse(kText)), InternalError);
}

void expect_failure(Pipeline& p, const std::function<Graph(const Graph&)>& pass, const char* told) {
  try {
    p.run("simplify", pass, parse(kText));
    ADD_FAILURE() << "no failure: " << told;
  } catch (const InternalError& e) {
    EXPECT_THAT(e.what(), ::testing::AllOf(
                              HasSubstr("pass simplify of g: "), HasSubstr(told),
                              HasSubstr(std::getenv("TRAINC_DUMP") ? "g.failed.simplify.graph" : "TRAINC_DUMP=graph")));
  }
}

TEST_F(PipelineTest, AFailureWritesNothingUnasked) {
  Pipeline p("g");
  expect_failure(p, [](const Graph&) -> Graph { throw InternalError("out of ideas"); }, "out of ideas");
  EXPECT_FALSE(fs::exists(directory_));
}

TEST_F(PipelineTest, AFailureNamesThePassAndLeavesItsInput) {
  setenv("TRAINC_DUMP", "graph", 1);
  Pipeline p("g");
  expect_failure(p, [](const Graph&) -> Graph { throw InternalError("out of ideas"); }, "out of ideas");
  EXPECT_EQ(read("g.failed.simplify.graph"), kText);
}

TEST_F(PipelineTest, CatchesWrongGraphsAndChangedSignatures) {
  Pipeline p("g");
  const auto changed = [](auto change) {
    return [change](const Graph& g) {
      Graph h = remove_dead(g);
      change(h);
      return h;
    };
  };
  expect_failure(p, changed([](Graph& g) { g.input_count = 0; }), "input 0 of a graph with 0");
  expect_failure(p, changed([](Graph& g) { g.input_count = 2; }), "the number of arguments has changed");
  expect_failure(p, changed([](Graph& g) { g.outputs.clear(); }), "the number of results has changed");
  expect_failure(p, changed([](Graph& g) { g.outputs[0].strides = {1}; }), "result 0 has changed");
  expect_failure(p, changed([](Graph& g) { g.outputs[0].value = Builder{g, {}}.reshape(g.outputs[0].value, {1, 2}); }),
                 "result 0 has changed");
}

TEST_F(PipelineTest, AUsersErrorPassesThrough) {
  Pipeline p("g");
  EXPECT_THROW(p.run("simplify", [](const Graph&) -> Graph { throw UserError("yours"); }, parse(kText)), UserError);
  EXPECT_TRUE(files().empty());
}

}  // namespace
}  // namespace trainc
