// Plans of one graph for different sizes that share kernels: the bits of plans of their own, and no code after the
// first.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "../common/copy_of.h"
#include "../common/levels.h"
#include "../common/random_joint.h"
#include "../common/run_plan.h"
#include "compiler/compiler.h"

namespace trainc {
namespace {

using testing::copy_of;
using Sizes = std::map<char, int64_t>;

/// `$B` is a size; `$BS` the product of two.
Graph at(std::string text, const Sizes& sizes, int64_t inputs) {
  for (size_t i = text.find('$'); i != std::string::npos; i = text.find('$')) {
    size_t end = i + 1;
    int64_t value = 1;
    while (end < text.size() && sizes.count(text[end])) value *= sizes.at(text[end++]);
    text.replace(i, end - i, std::to_string(value));
  }
  Graph graph = parse(text);
  graph.input_count = inputs;
  return graph;
}

// x [B,S,40] -> a product with weights, its softmax along S, a product over S, a mean over B and S, and columns' sums.
constexpr const char* kGraph = R"(%0 = input index=0 : f32[$B,$S,40]
%1 = input index=1 : f32[24,40]
%2 = reshape %0 : f32[1,$BS,40]
%3 = reshape %1 : f32[1,24,40]
%4 = contract %2 %3 : f32[1,$BS,24]
%5 = reshape %4 : f32[$B,$S,24]
%6 = contract %5 %5 : f32[$B,$S,$S]
%7 = reduce %6 kind=max axes=[2] : f32[$B,$S]
%8 = reshape %7 : f32[$B,$S,1]
%9 = broadcast %8 : f32[$B,$S,$S]
%10 = sub %6 %9 : f32[$B,$S,$S]
%11 = exp %10 : f32[$B,$S,$S]
%12 = reduce %11 kind=sum axes=[2] : f32[$B,$S]
%13 = reshape %12 : f32[$B,$S,1]
%14 = broadcast %13 : f32[$B,$S,$S]
%15 = div %11 %14 : f32[$B,$S,$S]
%16 = permute %5 order=[0,2,1] : f32[$B,24,$S]
%17 = contract %15 %16 : f32[$B,$S,24]
%18 = reduce %17 kind=sum axes=[0,1] : f32[24]
%19 = permute %2 order=[0,2,1] : f32[1,40,$BS]
%20 = permute %4 order=[0,2,1] : f32[1,24,$BS]
%21 = contract %20 %19 : f32[1,24,40]
return %17 %18 %21
)";

// Of a plan of its own: fixed blockings of f32 are not on tiles.
CpuLevel without_tiles(CpuLevel level) { return has_tiles(level) ? CpuLevel::Avx512Bf16 : level; }

struct Compiled {
  plan::Plan plan;
  int64_t code = 0;
};

Compiled compile(const Graph& graph, CpuLevel level, compiler::SharedKernels* shared) {
  compiler::Timing timing;
  plan::Plan plan =
      compiler::compile(copy_of(graph), "shared", {.target = cpu_target(level)}, {.shared = shared}, &timing);
  return {std::move(plan), timing.compiled_kernels};
}
void learn(const Graph& graph, CpuLevel level, compiler::SharedKernels& shared) {
  shared.learn(compiler::lower(copy_of(graph), "shared", {.target = cpu_target(level)}, {.shared = &shared}));
}

TEST(SharedKernels, GiveTheBitsOfPlansOfTheirOwn) {
  for (const CpuLevel level : testing::runnable_levels()) {
    SCOPED_TRACE(name_of(level));
    compiler::SharedKernels shared;
    for (const Sizes& sizes : {Sizes{{'B', 7}, {'S', 52}}, Sizes{{'B', 3}, {'S', 23}}, Sizes{{'B', 14}, {'S', 107}}})
      learn(at(kGraph, sizes, 2), level, shared);
    int64_t plans = 0, code = 0, later = 0;
    for (const Sizes& sizes : {Sizes{{'B', 5}, {'S', 34}}, Sizes{{'B', 4}, {'S', 50}}, Sizes{{'B', 2}, {'S', 97}},
                               Sizes{{'B', 9}, {'S', 31}}, Sizes{{'B', 3}, {'S', 64}}}) {
      const Graph graph = at(kGraph, sizes, 2);
      const auto inputs = testing::random_inputs(graph, 5, false);
      const Compiled own = compile(graph, without_tiles(level), nullptr), ours = compile(graph, level, &shared);
      const auto expected = testing::run_plan(own.plan, inputs), got = testing::run_plan(ours.plan, inputs);
      ASSERT_EQ(got.size(), expected.size());
      for (size_t o = 0; o < got.size(); ++o)
        EXPECT_EQ(testing::to_bytes(got[o]), testing::to_bytes(expected[o]))
            << "output " << o << " S=" << sizes.at('S');
      const auto kernels = static_cast<int64_t>(ours.plan.kernels.size());
      if (plans++ > 0) code += ours.code, later += kernels;
      else EXPECT_EQ(ours.code, kernels);
      EXPECT_EQ(plan::save(plan::load(plan::save(ours.plan))), plan::save(ours.plan));
    }
    EXPECT_LE(3 * code, later) << "kernels made again for other sizes";
  }
}

TEST(SharedKernels, LearnWithoutSamples) {
  compiler::SharedKernels shared;
  std::vector<int64_t> code;
  for (int64_t s : {34, 50, 70, 90, 66}) {
    const Graph graph = at(kGraph, {{'B', 4}, {'S', s}}, 2);
    const auto inputs = testing::random_inputs(graph, 5, true);
    const Compiled own = compile(graph, without_tiles(cpu_level()), nullptr),
                   ours = compile(graph, cpu_level(), &shared);
    const auto expected = testing::run_plan(own.plan, inputs), got = testing::run_plan(ours.plan, inputs);
    for (size_t o = 0; o < got.size(); ++o)
      for (size_t i = 0; i < got[o].f.size(); ++i)
        ASSERT_TRUE(got[o].f[i] == expected[o].f[i] || (std::isnan(got[o].f[i]) && std::isnan(expected[o].f[i])))
            << "output " << o << " S=" << s;
    code.push_back(ours.code);
  }
  EXPECT_GT(code[0], 0);
  EXPECT_LE(code.back(), 1);  // the last sizes show at most one number more
}

// x [B,S,40], w: h tanh(h)^2 for h = x w, and gradients through a sum over the rows of a tangent: the backward writes
// over what the arena holds where it may.
constexpr const char* kJoint = R"(%0 = input index=0 : f32[$B,$S,40]
%1 = input index=1 : f32[24,40]
%2 = input index=2 : f32[1,$BS,24]
%3 = reshape %0 : f32[1,$BS,40]
%4 = reshape %1 : f32[1,24,40]
%5 = contract %3 %4 : f32[1,$BS,24]
%6 = tanh %5 : f32[1,$BS,24]
%7 = mul %6 %6 : f32[1,$BS,24]
%8 = mul %7 %5 : f32[1,$BS,24]
%11 = exp %7 : f32[1,$BS,24]
%12 = tanh %11 : f32[1,$BS,24]
%13 = mul %12 %5 : f32[1,$BS,24]
%10 = mul %2 %13 : f32[1,$BS,24]
%22 = reduce %10 kind=sum axes=[2] : f32[1,$BS]
%23 = reshape %22 : f32[1,$BS,1]
%24 = broadcast %23 : f32[1,$BS,24]
%14 = sub %10 %24 : f32[1,$BS,24]
%15 = permute %14 order=[0,2,1] : f32[1,24,$BS]
%16 = permute %3 order=[0,2,1] : f32[1,40,$BS]
%17 = contract %15 %16 : f32[1,24,40]
%18 = reshape %17 : f32[24,40]
%19 = permute %4 order=[0,2,1] : f32[1,40,24]
%20 = contract %14 %19 : f32[1,$BS,40]
%21 = reshape %20 : f32[$B,$S,40]
return %8 %21 %18
)";

int64_t in_place(const plan::Plan& plan) {
  return std::count_if(plan.buffers.begin(), plan.buffers.end(), [](const plan::Buffer& b) { return b.over >= 0; });
}

TEST(SharedKernels, WriteInPlaceWhereThePlanMay) {
  compiler::SharedKernels shared;
  const auto options = [](bool share) {
    return compiler::CompileOptions{.target = cpu_target(share ? cpu_level() : without_tiles(cpu_level()))};
  };
  const auto job = [&](bool share) { return compiler::Job{.shared = share ? &shared : nullptr}; };
  const auto joint_of = [&](const Graph& graph) {
    return compiler::JointGraph(copy_of(graph), 2, 1, "joint", options(true));
  };
  for (const Sizes& sizes : {Sizes{{'B', 7}, {'S', 52}}, Sizes{{'B', 3}, {'S', 23}}}) {
    const compiler::JointGraph joint = joint_of(at(kJoint, sizes, 3));
    shared.learn(joint.lower_forward(options(true), job(true)));
    for (const bool overwrites : {true, false})
      shared.learn(joint.lower_backward({true}, options(true), job(true), nullptr, overwrites));
  }
  int64_t plans = 0, code = 0, kernels = 0, over = 0;
  for (const Sizes& sizes : {Sizes{{'B', 5}, {'S', 34}}, Sizes{{'B', 4}, {'S', 50}}, Sizes{{'B', 2}, {'S', 97}}}) {
    const Graph graph = at(kJoint, sizes, 3);
    const auto inputs = testing::random_inputs(graph, 5, false);
    const compiler::JointGraph joint = joint_of(graph);
    for (const bool overwrites : {true, false}) {
      std::vector<std::vector<std::vector<uint8_t>>> results;
      for (const bool share : {false, true}) {
        std::vector<uint8_t> memory(static_cast<size_t>(joint.saved_bytes()) + 64, 0xCD);
        void* arena = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
        compiler::Timing timing;
        auto got = testing::run_plan(joint.forward(options(share), job(share)), {inputs[0], inputs[1]}, arena);
        std::vector<reference::Tensor> in;
        for (const int64_t i : joint.saved_inputs())
          in.push_back(i < 2 ? inputs[static_cast<size_t>(i)] : got.at(static_cast<size_t>(i - 2)));
        in.push_back(inputs[2]);
        const plan::Plan backward = joint.backward({true}, options(share), job(share), &timing, overwrites);
        for (auto& t : testing::run_plan(backward, in, arena)) got.push_back(std::move(t));
        auto& bytes = results.emplace_back();
        for (const auto& t : got) bytes.push_back(testing::to_bytes(t));
        if (!share) continue;
        over += in_place(backward);
        if (plans > 0) code += timing.compiled_kernels, kernels += static_cast<int64_t>(backward.kernels.size());
      }
      EXPECT_EQ(results[0], results[1]) << "S=" << sizes.at('S') << (overwrites ? "" : ", keeping the arena");
    }
    ++plans;
  }
  EXPECT_GT(over, 0) << "nothing was written in place";
  EXPECT_LE(3 * code, kernels) << "kernels made again for other sizes";
}

}  // namespace
}  // namespace trainc
