// Compiled plans in which some results are in flight for a while, as gradients are while they are summed over ranks:
// ordered, laid out and run, they give the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "../common/compare.h"
#include "../common/copy_of.h"
#include "../common/plans.h"
#include "../common/random_joint.h"
#include "../common/run_plan.h"
#include "../common/sleep_operation.h"
#include "compiler/compiler.h"
#include "compiler/lower_plan.h"
#include "compiler/step.h"

namespace trainc {
namespace {

using plan::MemorySpace;
using plan::Plan;
using plan::Step;
using plan::StepKind;
using reference::Tensor;
using testing::copy_of;

compiler::CompileOptions of_this_cpu() { return {.target = cpu_target(cpu_level())}; }

/// Some results are written over with themselves, or read, by somebody who sleeps: as soon as they are made, and waited
/// for at once.
Plan with_sleepers(Plan p, uint64_t seed) {
  std::mt19937_64 random(seed);
  int tokens = 0;
  std::vector<Step> steps;
  for (Step& made : p.steps) {
    steps.push_back(std::move(made));
    if (steps.back().kind != StepKind::Kernel || random() % 2) continue;
    const int b = steps.back().writes[random() % steps.back().writes.size()];
    if (p.buffers[b].bits || p.buffers[b].bytes == 0) continue;
    Step start = plan::start_step("sleep" + std::to_string(tokens), tokens, {b},
                                  random() % 3 ? std::vector<int>{b} : std::vector<int>{});
    ++tokens;
    start.seconds = static_cast<double>(random() % 100) * 1e-6;
    start.arguments_json = R"({"seconds": 0.0002})";
    steps.push_back(start);
    steps.push_back(plan::wait_step(start));
  }
  p.steps = std::move(steps);
  return p;
}

Graph descend(int64_t n) {
  Graph g;
  Builder b{g, {}};
  const Node *p = b.input(0, {DType::F32, {n}}), *grad = b.input(1, {DType::F32, {n}}),
             *rate = b.input(2, {DType::F32, {}});
  g.outputs = {{b.add(p, b.mul(b.broadcast(rate, {n}), grad)), {}}};
  g.input_count = 3;
  return g;
}

/// How many steps run while something is in flight.
int64_t covered(const Plan& p) {
  int64_t steps = 0, in_flight = 0;
  for (const Step& s : p.steps) {
    in_flight += s.kind == StepKind::Start ? 1 : s.kind == StepKind::Wait ? -1 : 0;
    steps += in_flight > 0 && s.kind == StepKind::Kernel;
  }
  return steps;
}

TEST(Async, StepsWithResultsInFlightGiveTheSameBits) {
  testing::register_sleep();
  testing::RandomGraphOptions o;
  o.transcendental = false;
  const std::vector<plan::Foreach> formulas{
      compiler::compile_foreach(copy_of(descend(8)), {0}, "descend", of_this_cpu())};
  int64_t beside = 0, updated = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const testing::RandomJoint joint = testing::random_joint(seed, o);
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + print(joint.graph));
    std::vector<Tensor> inputs = testing::halves(joint.graph, seed);
    const auto rate = static_cast<int64_t>(inputs.size());
    inputs.push_back({{DType::F32, {}}, {0.25}, {}});
    std::vector<compiler::Update> updates;
    for (size_t i = joint.forward_outputs; i < joint.graph.outputs.size(); ++i) {
      const Node* n = joint.graph.outputs[i].value;
      if (!n || n->dtype() != DType::F32 || i % 4 == 3) continue;
      updates.push_back({.formula = 0,
                         .gradient = static_cast<int64_t>(i) - joint.forward_outputs,
                         .inputs = {static_cast<int64_t>(inputs.size()), -1, rate}});
      inputs.push_back({n->type, std::vector<double>(n->type.numel(), 1.5), {}});
    }
    updated += static_cast<int64_t>(updates.size());
    const compiler::JointGraph compiled(copy_of(joint.graph), joint.primals, joint.forward_outputs, "async",
                                        of_this_cpu(), std::numeric_limits<int64_t>::max());
    std::vector<Plan> parts;
    for (compiler::LoweredPlan& part :
         compiled.lower_parts_of_step(std::vector<bool>(joint.graph.input_count - joint.primals, true), of_this_cpu()))
      parts.push_back(compiler::generate(std::move(part), of_this_cpu()));
    const auto step = [&](const Plan& forward, const Plan& backward) {
      Plan p = compiler::consume(compiler::join(forward, backward, compiled.saved_inputs(), joint.primals),
                                 joint.forward_outputs, formulas, updates);
      p.input_count = static_cast<int64_t>(inputs.size());
      return compiler::finished(std::move(p));
    };
    const Plan plain = step(parts[0], parts[1]),
               flying = step(with_sleepers(parts[0], seed), with_sleepers(parts[1], seed + 1));
    beside += covered(flying);
    std::vector<Tensor> after, after_flying;
    const std::vector<Tensor> expected = testing::run_plan(plain, inputs, nullptr, {}, &after),
                              got = testing::run_plan(flying, inputs, nullptr, {}, &after_flying);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_EQ(testing::difference(got.at(i), expected[i]), "") << "output " << i;
    for (size_t i = 0; i < after.size(); ++i)
      EXPECT_EQ(testing::difference(after_flying.at(i), after[i]), "") << "input " << i << " afterwards";
    if (HasFailure()) return;
  }
  EXPECT_GT(beside, 40) << "nothing runs beside anything";
  EXPECT_GT(updated, 20);
}

// Without a Start, a plan is what it was: laying it out again moves nothing.
TEST(Async, PlansWithoutAStartAreLeftAsTheyAre) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Plan p = compiler::compile(copy_of(testing::random_graph(seed, {})), "plain", of_this_cpu());
    EXPECT_EQ(plan::print(compiler::finished(p)), plan::print(p)) << seed;
  }
}

}  // namespace
}  // namespace trainc
