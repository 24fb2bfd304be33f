// Masks by Philox: the oracle against published numbers, kernels against the oracle, and how a plan moves the generator
// on.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <array>
#include <cstring>

#include "device_run.h"
#include "interpret/device.h"
#include "lower/lower.h"
#include "nvrtc.h"
#include "reference/philox.h"
#include "runtime/interpret/driver.h"
#include "schedule/schedule.h"

namespace trainc {
namespace {

using testing::copy_of;
using testing::device_options;
using Words = std::array<uint32_t, 4>;

TEST(Philox, PublishedVectors) {  // Random123's tests/kat_vectors, "philox4x32 10": counter, key, numbers
  EXPECT_EQ(reference::philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(reference::philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(reference::philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

Graph mask(const Dims& shape, const RandomAttr& attr) {
  Graph g;
  Builder b{g, "model.py:7"};
  g.outputs = {{b.random(shape, attr), {}}};
  return g;
}

loop::LoopNest nest_of(const Graph& g, bool bits = false) {
  schedule::Schedule s = schedule::make_schedule(g, false);
  if (bits) s.bits.insert(g.outputs[0].value);
  const auto kernels = lower::lower(g, s, s.groups.at(0), lower::LoweringOptions{gpu_target(Gpu::Sm90a)});
  EXPECT_EQ(kernels.size(), 1u);
  EXPECT_EQ(kernels[0].arguments[0], nullptr);
  return kernels[0].nest;
}

std::vector<uint8_t> drawn(const loop::LoopNest& nest, uint64_t seed, uint64_t offset, int64_t numel) {
  std::array<uint64_t, 2> state = {seed, offset};
  std::vector<uint8_t> mask(static_cast<size_t>(numel), 0xcd);
  std::vector<interpret::View> arguments = {{reinterpret_cast<uint8_t*>(state.data()), 16, true, false},
                                            {mask.data(), numel, false, true}};
  const interpret::Findings found = interpret::run_on_device(nest, arguments, nest.parallel_extent);
  EXPECT_EQ(found.messages, std::vector<std::string>{});
  return mask;
}

TEST(Philox, KernelsDrawWhatTheFrameworksThreadsDo) {
  const struct {
    uint64_t seed, offset;
  } states[] = {
      {0, 0}, {42, 4}, {0xffffffffffffffff, 0x7ffffffffffffffc}, {0x123456789abcdef0, (uint64_t{1} << 34) - 4}};
  const double probabilities[] = {0.5, static_cast<float>(0.9), 0.9, 1e-9, 1 - 1e-9};
  size_t turn = 0;
  for (int64_t threads : {256, 1024})
    for (int64_t vector : {1, 2, 4, 8})
      for (int64_t numel : {1, 2, 3, 8, 255, 1000, 1026, 2048, 5000, 8200, 20000}) {
        if (numel % vector != 0) continue;
        const double p = probabilities[turn % std::size(probabilities)];
        const auto [seed, offset] = states[turn++ % std::size(states)];
        SCOPED_TRACE(fmt::format("threads {} vector {} numel {} p {} seed {} offset {}", threads, vector, numel, p,
                                 seed, offset));
        EXPECT_EQ(drawn(nest_of(mask({numel}, {0, p, threads, vector})), seed, offset, numel),
                  reference::dropout_mask(seed, offset, numel, threads, vector, p));
        if (HasFailure()) return;
      }
}

/// The same draws, an eighth of the bytes: what a byte has behind the last element is 0, and nothing behind it is
/// touched.
TEST(Philox, KernelsDrawBits) {
  for (int64_t threads : {256, 1024})
    for (int64_t vector : {2, 4, 8})
      for (int64_t numel : {2, 4, 8, 12, 1000, 1026, 2048, 8200, 20000}) {
        if (numel % vector != 0) continue;
        SCOPED_TRACE(fmt::format("threads {} vector {} numel {}", threads, vector, numel));
        const loop::LoopNest nest = nest_of(mask({numel}, {0, 0.9, threads, vector}), true);
        std::array<uint64_t, 2> state = {42, 8};
        std::vector<uint8_t> got(static_cast<size_t>(bytes_of_bits(numel)), 0xcd), want = got;
        std::fill_n(want.begin(), (numel + 7) / 8, 0);
        const std::vector<uint8_t> bytes = reference::dropout_mask(42, 8, numel, threads, vector, 0.9);
        for (size_t i = 0; i < bytes.size(); ++i) want[i / 8] = static_cast<uint8_t>(want[i / 8] | bytes[i] << i % 8);
        const std::vector<interpret::View> arguments = {{reinterpret_cast<uint8_t*>(state.data()), 16, true, false},
                                                        {got.data(), static_cast<int64_t>(got.size()), false, true}};
        EXPECT_EQ(interpret::run_on_device(nest, arguments, nest.parallel_extent).messages, std::vector<std::string>{});
        EXPECT_EQ(got, want);
        EXPECT_EQ(loop::print(loop::parse(loop::print(nest))), loop::print(nest));
        if (HasFailure()) return;
      }
}

TEST(Philox, WhatIsKeptIsDecidedAsInF32) {  // the largest u is 1, which is not less than a p below it
  for (double p : {static_cast<double>(0.1f), 0.1, 0.25, 0x1p-33, 0x1.8p-33, std::nextafter(1.0, 0.0)}) {
    const auto kept = [&](uint32_t x) { return static_cast<float>(x) * 0x1p-32f + 0x1p-33f < p; };
    // the threshold stands in the nest as the number that the words are compared with
    const std::string text = loop::print(nest_of(mask({4}, {0, p, 256, 4})));
    const size_t at = text.find(" < ", text.find("store "));
    ASSERT_NE(at, std::string::npos) << text;
    const int64_t threshold = std::stoll(text.substr(at + 3));
    EXPECT_TRUE(threshold == 0 || kept(static_cast<uint32_t>(threshold - 1))) << p << " " << threshold;
    EXPECT_TRUE(threshold > 0xffffffff || !kept(static_cast<uint32_t>(threshold))) << p << " " << threshold;
  }
}

TEST(Philox, CompilesForEveryArchitecture) {
  std::vector<loop::LoopNest> nests;
  for (int64_t vector : {1, 2, 4, 8}) nests.push_back(nest_of(mask({100000}, {0, 0.9, 270336, vector})));
  for (int64_t vector : {2, 4, 8})
    nests.push_back(nest_of(mask({100004 / vector * vector}, {0, 0.9, 270336, vector}), true));
  testing::expect_no_spills(nests);
}

struct Generator {
  std::array<uint64_t, 2> state;
  int reads = 0, writes = 0;
  runtime::Generator calls() {
    return {[this] {
              ++reads;
              std::vector<uint8_t> bytes(16);
              std::memcpy(bytes.data(), state.data(), 16);
              return bytes;
            },
            [this](const std::vector<uint8_t>& from, const std::vector<uint8_t>& to) {
              ++writes;
              EXPECT_EQ(std::memcmp(state.data(), from.data(), 16), 0);
              std::memcpy(state.data(), to.data(), 16);
              return true;
            }};
  }
};

Graph three_draws(bool framework_between) {
  Graph g;
  Builder b{g, {}};
  const Node *first = b.random({1000}, {0, 0.5, 256, 4}), *third = b.random({1001}, {2, 0.25, 256, 1});
  if (framework_between) {
    const Node* call = b.extern_call({"aten.bernoulli.p", "{}", {Type{DType::Bool, {4}}}, true, 1}, {});
    g.outputs = {{first, {}}, {b.result(call, 0), {}}, {third, {}}};
  } else {
    g.outputs = {{first, {}}, {b.random({500}, {1, 0.5, 256, 2}), {}}, {third, {}}};
  }
  return g;
}

std::vector<std::vector<uint8_t>> run(const plan::Plan& plan, std::shared_ptr<runtime::cuda::Driver> driver,
                                      Generator& generator) {
  runtime::cuda::CudaExecutable executable(plan, std::move(driver));
  std::vector<std::vector<uint8_t>> out;
  runtime::Call call;
  call.generator = generator.calls();
  std::vector<uint8_t> temp(plan.temp_bytes + 1), given = {1, 0, 1, 1};
  call.temp = temp.data();
  // the framework draws 4 numbers of each sequence itself
  call.extern_call = [&](const plan::Step&, const std::vector<void*>&) {
    generator.state[1] += 4;
    return std::vector<runtime::ExternTensor>{{given.data(), nullptr}};
  };
  for (int b : plan.outputs) out.emplace_back(plan.buffers[b].bytes, 0xcd);
  for (auto& bytes : out) call.outputs.push_back(bytes.data());
  executable.run(call);
  return out;
}

TEST(Philox, APlanMovesTheGeneratorOnOnce) {
  const plan::Plan plan =
      plan::load(plan::save(compiler::compile(copy_of(three_draws(false)), "masks", device_options(true))));
  Generator generator{{7, 100}};
  const auto driver = std::make_shared<runtime::interpreted::InterpretedDriver>();
  const auto got = run(plan, driver, generator);
  // 1,000 elements on 4 x 256 a turn: 4 numbers
  EXPECT_EQ(got[0], reference::dropout_mask(7, 100, 1000, 256, 4, 0.5));
  EXPECT_EQ(got[1], reference::dropout_mask(7, 104, 500, 256, 2, 0.5));
  EXPECT_EQ(got[2], reference::dropout_mask(7, 108, 1001, 256, 1, 0.25));
  EXPECT_EQ(generator.state, (std::array<uint64_t, 2>{7, 112}));
  EXPECT_EQ(generator.reads, 1);
  EXPECT_EQ(generator.writes, 1);
  EXPECT_THAT(driver->calls, ::testing::Contains("graph"));  // masks do not stand in its way
  EXPECT_NE(print(plan).find("random p=0.5, kernel random_philox over 1, increment 4"), std::string::npos)
      << print(plan);
}

TEST(Philox, TheFrameworksOwnDrawsKeepTheirPlace) {
  const plan::Plan plan = compiler::compile(copy_of(three_draws(true)), "masks", device_options(true));
  Generator generator{{7, 100}};
  const auto driver = std::make_shared<runtime::interpreted::InterpretedDriver>();
  const auto got = run(plan, driver, generator);
  // What the framework does may allocate: the graph holds our two kernels alone.
  EXPECT_THAT(driver->calls, ::testing::ElementsAre("record 2", "graph", "wait"));
  EXPECT_EQ(got[0], reference::dropout_mask(7, 100, 1000, 256, 4, 0.5));
  EXPECT_EQ(got[1], (std::vector<uint8_t>{1, 0, 1, 1}));
  EXPECT_EQ(got[2], reference::dropout_mask(7, 108, 1001, 256, 1, 0.25));  // after 4 of ours and 4 of the framework's
  EXPECT_EQ(generator.state[1], 112u);
}

}  // namespace
}  // namespace trainc
