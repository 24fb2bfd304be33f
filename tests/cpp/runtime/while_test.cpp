// Loops whose trips are known at run time, of hand-made bodies whose kernels are functions of this file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "../common/jump_kernel.h"
#include "../common/plans.h"
#include "runtime/cpu_device.h"
#include "runtime/operation.h"
#include "support/error.h"
#include "support/while_operation.h"

namespace trainc::runtime {
namespace {

using namespace plan;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using trainc::testing::jump_kernel;

float& at(void* p) { return *static_cast<float*>(p); }
void add(void* const* a, void*, uint32_t*, int64_t, int64_t) { at(a[2]) = at(a[0]) + at(a[1]); }
void is_below_10(void* const* a, void*, uint32_t*, int64_t, int64_t) { *static_cast<bool*>(a[1]) = at(a[0]) < 10; }

Step call(int kernel, std::vector<int> reads, std::vector<int> writes) {
  Step s = kernel_step("k" + std::to_string(kernel), std::move(reads), std::move(writes));
  s.kernel = kernel, s.parallel_extent = 1, s.bytes = 1;
  return s;
}
Buffer flag(const std::string& name, MemorySpace space, int64_t index) {
  return {.name = name, .space = space, .index = index, .dtype = DType::Bool, .bytes = 1};
}

/// x + step, and whether that is below 10.
Plan body(bool in_place) {
  Plan p{.name = "body"};
  p.buffers = {buffer("x", MemorySpace::Input, 1, 0), buffer("step", MemorySpace::Input, 1, 1),
               buffer("y", MemorySpace::Output, 1, 0), flag("goes_on", MemorySpace::Output, 1)};
  if (in_place) p.buffers[2].over = 0;
  p.kernels = {jump_kernel("add", add), jump_kernel("is_below_10", is_below_10)};
  p.steps = {call(0, {0, 1}, {2}), call(1, {2}, {3})};
  p.input_count = 2, p.output_count = 2, p.outputs = {2, 3};
  return p;
}
/// y: x + step + step + ..., begun where `first`.
Plan loop(const Plan& body) {
  Plan p{.name = "loop"};
  p.buffers = {buffer("x", MemorySpace::Input, 1, 0), buffer("step", MemorySpace::Input, 1, 1),
               flag("first", MemorySpace::Input, 2), buffer("y", MemorySpace::Output, 1, 0)};
  Step start = start_step("loop", 0, {0, 1, 2}, {3}, kWhile);
  start.arguments_json = R"({"carried": 1, "body": 0, "flushes_denormals": false})";
  p.steps = {start, wait_step(start)};
  const std::string bytes = save(body);
  p.bodies.emplace_back(bytes.begin(), bytes.end());
  p.input_count = 3, p.output_count = 1, p.outputs = {3};
  return p;
}
float run(const Plan& plan, float x, float step, bool first) {
  float y = -1;
  Call call;
  call.inputs = {&x, &step, &first}, call.outputs = {&y};
  CpuExecutable(load(save(plan))).run(call);
  return y;
}

TEST(While, RunsUntilItsBodySaysThatItIsOver) {
  for (bool in_place : {false, true}) {
    const Plan plan = loop(body(in_place));
    EXPECT_EQ(run(plan, 1, 2, true), 11);
    EXPECT_EQ(run(plan, 1, 4, true), 13);
    EXPECT_EQ(run(plan, 50, 1, true), 51) << "the first trip is not asked for by the body";
    EXPECT_EQ(run(plan, 1, 2, false), 1) << "no trip";
  }
}

TEST(While, ABodyMayGiveBackWhatItGot) {
  Plan last = body(false);
  last.outputs[0] = 1, last.buffers[2].space = MemorySpace::Temp;  // step, as it is
  plan_memory(last);
  EXPECT_EQ(run(loop(last), 1, 20, true), 20);
}

TEST(While, ACheckThatFailsInATripEndsIt) {
  Plan p = body(true);
  p.kernels[0] = jump_kernel("fails", [](void* const* a, void*, uint32_t* status, int64_t, int64_t) {
    at(a[2]) = at(a[0]) + at(a[1]);
    if (at(a[2]) > 4) *status = 1;
  });
  EXPECT_EQ(run(loop(p), 1, 2, false), 1);
  EXPECT_THROW(run(loop(p), 1, 2, true), IndexError);
}

TEST(While, AGuardIsLookedAtInEachTrip) {
  Plan p = body(true);
  p.buffers.push_back(buffer("once", MemorySpace::Temp, 1, 0));
  p.buffers.push_back(flag("small", MemorySpace::Temp, 0));
  p.kernels.push_back(jump_kernel("is_below_4", [](void* const* a, void*, uint32_t*, int64_t, int64_t) {
    *static_cast<bool*>(a[1]) = at(a[0]) < 4;
  }));
  static int ran;
  ran = 0;
  p.kernels.push_back(
      jump_kernel("counts", [](void* const* a, void*, uint32_t*, int64_t, int64_t) { ++ran, at(a[2]) = 0; }));
  p.steps.insert(p.steps.begin(), {call(2, {0}, {5}), call(3, {5, 0}, {4})});
  p.steps[1].guard = 5;
  plan_memory(p);
  EXPECT_EQ(run(loop(p), 1, 2, true), 11);  // of 1, 3, 5, 7 and 9 two are below 4
  EXPECT_EQ(ran, 2);
}

/// x + step in each trip of the innermost, `deep` loops around it.
Plan within(int deep) {
  Plan p = body(true);
  for (int i = 1; i < deep; ++i) {
    Plan outer = loop(p);
    outer.name = "body", outer.input_count = 2;
    outer.buffers = {buffer("x", MemorySpace::Input, 1, 0), buffer("step", MemorySpace::Input, 1, 1),
                     flag("first", MemorySpace::Temp, 0), buffer("y", MemorySpace::Output, 1, 0),
                     flag("goes_on", MemorySpace::Output, 1)};
    outer.kernels = {jump_kernel("is_below_10", is_below_10)};
    outer.steps.insert(outer.steps.begin(), call(0, {0}, {2}));
    outer.steps.push_back(call(0, {3}, {4}));
    outer.output_count = 2, outer.outputs = {3, 4};
    plan_memory(outer);
    p = outer;
  }
  return loop(p);
}

TEST(While, HasADepth) {
  EXPECT_EQ(run(within(2), 1, 2, true), 11);
  EXPECT_EQ(run(within(kDeepestLoop), 1, 2, true), 11);
  for (const int deep : {kDeepestLoop + 1, 100})
    EXPECT_THAT([&] { CpuExecutable(load(save(within(deep)))); },
                ThrowsMessage<UserError>(HasSubstr("a loop within 32 others")));
  EXPECT_EQ(run(within(kDeepestLoop), 1, 2, true), 11) << "after a refusal";
}

TEST(While, TellsItsTrips) {
  const CpuExecutable loaded(loop(body(true)));
  const auto told = [&] { return loaded.operation(0)->loop(); };
  EXPECT_EQ(told().body->plan().name, "body");
  EXPECT_EQ(told().trips, 0);
  EXPECT_EQ(loaded.operation(1), nullptr);
}

TEST(While, SaysWhatDoesNotFit) {
  const auto refused = [](const char* words, const std::function<void(Plan&)>& change, Plan of = body(true)) {
    Plan p = loop(of);
    change(p);
    EXPECT_THAT([&] { CpuExecutable{p}; }, ThrowsMessage<InternalError>(HasSubstr(words)));
  };
  const auto nothing = [](Plan&) {};
  refused("it is not told what it runs", [](Plan& p) { p.steps[0].arguments_json = "{}"; });
  refused("its body is not there", [](Plan& p) { p.bodies.clear(); });
  refused("carries other values",
          [](Plan& p) { p.steps[0].arguments_json = R"({"carried": 2, "body": 0, "flushes_denormals": false})"; });
  Plan other = body(true);
  other.input_count = 3;
  refused("takes other operands", nothing, other);
  other = body(true);
  other.buffers[1] = buffer("step", MemorySpace::Input, 2, 1);
  refused("takes an operand of another size", nothing, other);
  EXPECT_THAT(
      [] {
        Plan p = loop(body(true));
        p.bodies[0].back() ^= 1;
        CpuExecutable{p};
      },
      ThrowsMessage<UserError>(HasSubstr("damaged")));
}

}  // namespace
}  // namespace trainc::runtime
