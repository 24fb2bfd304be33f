// Two plans as one: what steps name are the joined plan's buffers.
#include <gtest/gtest.h>

#include "../common/plans.h"
#include "compiler/step.h"

namespace trainc::compiler {
namespace {

using namespace plan;

/// y = three(a), where a = one(x), and then two(a) in its place where g.
Plan guarded(const std::string& name) {
  Plan p{.name = name, .cpu = "avx2"};
  p.buffers = {buffer("x", MemorySpace::Input, 8, 0),
               buffer("a", MemorySpace::Temp, 8),
               buffer("b", MemorySpace::Temp, 8),
               buffer("y", MemorySpace::Output, 8, 0),
               {.name = name + "_g", .dtype = DType::Bool, .bytes = 1}};
  p.buffers[2].over = 1;
  p.kernels = {{.name = "k", .code = {0xc3}}};
  p.steps = {kernel_step("one", {0}, {1, 4}), kernel_step("two", {1}, {2}), kernel_step("three", {2}, {3})};
  p.steps[1].guard = 4, p.steps[1].guard_value = false, p.steps[1].reads.push_back(4);
  p.input_count = 1, p.output_count = 1, p.outputs = {3};
  plan_memory(p);
  return p;
}

TEST(Join, AGuardIsTheBufferThatItWas) {
  Plan p = join(guarded("early"), guarded("late"), {0}, 1);  // the second reads the first one's input
  plan_memory(p);
  EXPECT_NO_THROW(verify(p));
  ASSERT_EQ(p.steps.size(), 6u);
  for (const auto& [step, name] : {std::pair{1, "early_g"}, {4, "late_g"}}) {
    EXPECT_EQ(p.buffers.at(p.steps[step].guard).name, name);
    EXPECT_FALSE(p.steps[step].guard_value);
  }
}

}  // namespace
}  // namespace trainc::compiler
