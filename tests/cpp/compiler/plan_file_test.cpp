// A plan outlives its compiler: saved to a file here, it is loaded and run by a process that has no LLVM in it, to the
// same bits.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "../common/golden.h"
#include "../common/random_graph.h"
#include "../common/run_plan.h"
#include "../schedule/graphs.h"
#include "compiler/compiler.h"
#include "graph/text.h"

namespace trainc {
namespace {

namespace fs = std::filesystem;

/// Elements of all outputs as bytes, by the runner; empty where it fails.
std::vector<std::string> run_elsewhere(const std::string& file, const std::vector<reference::Tensor>& inputs,
                                       size_t outputs) {
  static int directories = 0;
  const fs::path dir =
      fs::temp_directory_path() / ("trainc_plan_" + std::to_string(getpid()) + "_" + std::to_string(directories++));
  fs::create_directories(dir);
  const std::string path = dir / "plan";
  std::ofstream(path, std::ios::binary) << file;
  std::string command = std::string(TRAINC_PLAN_RUNNER) + " " + path;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto bytes = testing::to_bytes(inputs[i]);
    const std::string input = path + ".in" + std::to_string(i);
    std::ofstream(input, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    command += " " + input;
  }
  std::vector<std::string> results;
  if (std::system((command + " 2> " + path + ".err").c_str()) == 0)
    for (size_t i = 0; i < outputs; ++i) results.push_back(test::read_file(path + ".out" + std::to_string(i)));
  fs::remove_all(dir);
  return results;
}

TEST(PlanFile, RunsWithoutTheCompiler) {
  // Another test may have had tiles emulated in this process; in the runner's they are not.
  const CpuLevel level = has_tiles(cpu_level()) ? CpuLevel::Avx512Bf16 : cpu_level();
  for (const char* text : {testing::kLayerNorm, testing::kSoftmaxBackward, testing::kLinearGelu}) {
    Program program;
    program.graph = parse(text);
    const auto inputs = testing::random_inputs(program.graph, 4);
    const plan::Plan plan = compiler::compile(std::move(program), "filed", {.target = cpu_target(level)});
    const auto here = testing::run_plan(plan, inputs);
    const auto there = run_elsewhere(plan::save(plan), inputs, here.size());
    ASSERT_EQ(there.size(), here.size()) << "the runner failed";
    for (size_t i = 0; i < here.size(); ++i) {
      const auto bytes = testing::to_bytes(here[i]);
      EXPECT_EQ(there[i], std::string(bytes.begin(), bytes.end())) << "output " << i;
    }
  }
}

TEST(PlanFile, DamagedFileIsRefused) {
  Program program;
  program.graph = parse(testing::kSoftmax);
  const auto inputs = testing::random_inputs(program.graph, 4);
  std::string file = plan::save(compiler::compile(std::move(program), "filed", {.target = cpu_target(cpu_level())}));
  file[file.size() / 2] ^= 1;
  EXPECT_TRUE(run_elsewhere(file, inputs, 1).empty());
}

TEST(PlanFile, RunnerHasNoLlvm) {
  const auto has_llvm = [](const char* program) { return test::read_file(program).find("LLVM") != std::string::npos; };
  EXPECT_FALSE(has_llvm(TRAINC_PLAN_RUNNER));
  EXPECT_TRUE(has_llvm("/proc/self/exe")) << "the search finds nothing at all";
}

}  // namespace
}  // namespace trainc
