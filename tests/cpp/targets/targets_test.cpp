// One door for all devices: what is compiled for a device's target, and loaded and run by the device, computes the same
// on each, on one that the product does not know, too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "../common/compare.h"
#include "../common/copy_of.h"
#include "../common/random_graph.h"
#include "../common/run_plan.h"
#include "abacus.h"
#include "compiler/compiler.h"
#include "runtime/cuda/executable.h"
#include "runtime/interpret/device.h"

namespace trainc {
namespace {

using reference::Tensor;
using ::testing::AllOf;
using testing::copy_of;
using testing::expect_close;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Names of devices; "cuda:0" only where there is one.
std::vector<std::string> devices() {
  testing::register_abacus();
  runtime::cuda::register_devices();
  runtime::interpreted::register_devices();
  std::vector<std::string> names = {"cpu", "interpret", "interpret:cuda", "abacus"};
  try {
    runtime::device("cuda:0");
    names.push_back("cuda:0");
  } catch (const UserError&) {}
  return names;
}

std::shared_ptr<void> on(const runtime::Device& device, const std::vector<uint8_t>& bytes) {
  std::shared_ptr<void> memory = device.allocate(static_cast<int64_t>(bytes.size()) + 1);
  device.copy_in(memory.get(), bytes.data(), static_cast<int64_t>(bytes.size()));
  return memory;
}

/// The one way to run a graph anywhere: nothing here depends on the device but its name.
std::vector<Tensor> run_on(const std::string& name, const plan::Plan& plan, const std::vector<Tensor>& inputs) {
  const std::shared_ptr<const runtime::Device> device = runtime::device(name);
  const std::unique_ptr<runtime::Executable> executable = device->load(plan::load(plan::save(plan)));
  std::vector<std::shared_ptr<void>> memory;
  runtime::Call call;
  for (const Tensor& t : inputs)
    memory.push_back(on(*device, testing::to_bytes(t))), call.inputs.push_back(memory.back().get());
  for (int b : plan.outputs) {
    const bool fresh = b >= 0 && plan.buffers[b].space == plan::MemorySpace::Output;
    if (fresh) memory.push_back(device->allocate(plan.buffers[b].bytes + 1));
    call.outputs.push_back(fresh ? memory.back().get() : nullptr);
  }
  const std::shared_ptr<void> temp = device->allocate(plan.temp_bytes + 1);
  call.temp = temp.get();
  executable->run(call);
  device->synchronize();
  executable->finish();
  std::vector<Tensor> results;
  for (size_t i = 0; i < plan.outputs.size(); ++i) {
    const int b = plan.outputs[i];
    if (b < 0) {
      results.emplace_back();
      continue;
    }
    const plan::Buffer& buffer = plan.buffers[b];
    std::vector<uint8_t> bytes(static_cast<size_t>(buffer.bytes) + 1);
    device->copy_out(bytes.data(),
                     buffer.space == plan::MemorySpace::Input ? call.inputs[buffer.index] : call.outputs[i],
                     buffer.bytes);
    results.push_back(testing::from_bytes({buffer.dtype, buffer.shape}, bytes.data()));
  }
  return results;
}

compiler::CompileOptions options_for(const std::string& name) {
  return {.target = target_of(runtime::device(name)->target(), cpu_level())};
}

testing::RandomGraphOptions exact() {
  testing::RandomGraphOptions o;
  o.transcendental = false;
  return o;
}
std::vector<Tensor> oracle(const Graph& graph, const std::vector<Tensor>& inputs) {
  return reference::evaluate(graph, inputs, {.precision = reference::Precision::Rounded, .random = {}, .call = {}});
}

TEST(Targets, APlanComputesTheSameOnEveryDevice) {
  const std::vector<std::string> names = devices();
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    const Graph graph = testing::random_graph(seed, exact());
    const auto inputs = testing::halves(graph, seed);
    const auto expected = oracle(graph, inputs);
    for (const std::string& name : names) {
      SCOPED_TRACE(name + ", seed " + std::to_string(seed) + "\n" + print(graph));
      std::vector<Tensor> got;
      ASSERT_NO_THROW(got = run_on(name, compiler::compile(copy_of(graph), "any", options_for(name)), inputs));
      expect_close(got, expected);
      if (HasFailure()) return;
    }
  }
}

/// w - rate * g, over w.
Graph descent() {
  Graph g;
  Builder b{g, "train.py:3"};
  const Node *w = b.input(0, {DType::F32, {8}}), *gradient = b.input(1, {DType::F32, {8}}),
             *rate = b.input(2, {DType::F32, {}});
  g.outputs = {{b.sub(w, b.mul(gradient, b.broadcast(rate, {8}))), {}}};
  g.input_count = 3;
  return g;
}

TEST(Targets, AnUpdateOfManyTensorsRunsOnEveryDevice) {
  for (const std::string& name : devices()) {
    SCOPED_TRACE(name);
    const auto device = runtime::device(name);
    const auto step = device->load(compiler::compile_foreach(copy_of(descent()), {0}, "descent", options_for(name)));
    ASSERT_EQ(step->tensor_inputs(), 2);
    const std::vector<int64_t> numels = {5, 70000, 0, 1};
    std::vector<std::shared_ptr<void>> memory;
    std::vector<void*> pointers;
    for (const int64_t n : numels) {
      const std::vector<float> w(static_cast<size_t>(n) + 1, 3), gradient(static_cast<size_t>(n) + 1, 2);
      for (const auto* values : {&w, &gradient}) {
        memory.push_back(device->allocate((n + 1) * 4));
        device->copy_in(memory.back().get(), values->data(), (n + 1) * 4);
        pointers.push_back(memory.back().get());
      }
    }
    step->run(pointers, numels, std::vector<double>{0.25});
    device->synchronize();
    for (size_t t = 0; t < numels.size(); ++t) {
      std::vector<float> wanted(static_cast<size_t>(numels[t]), 2.5f), got(wanted.size() + 1);
      wanted.push_back(3);  // behind the tensor
      device->copy_out(got.data(), pointers[2 * t], static_cast<int64_t>(got.size()) * 4);
      EXPECT_EQ(got, wanted) << "tensor " << t;
    }
    EXPECT_THROW(step->run(pointers, numels, std::vector<double>{}), InternalError);
  }
}

/// Every set of capabilities that may stand together gives the same numbers: a stage that takes one for another is
/// found here.
TEST(Targets, AnySetOfCapabilitiesIsATarget) {
  devices();
  std::mt19937_64 random(5);
  const auto chance = [&] { return random() % 2 == 0; };
  int blocks = 0, in_place = 0;
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    Target t = testing::plain_abacus(
        {.l1d = 1 << 10, .l2 = 8 << 10, .l3 = 1 << 18, .cores = static_cast<int>(1 + random() % 9)});
    t.f32_lanes = chance() ? 8 : 16, t.vector_registers = chance() ? 16 : 32;
    t.launches_blocks = seed % 3 == 0;
    t.multiprocessors = t.launches_blocks ? static_cast<int>(1 + random() % 100) : 0;
    t.masks_as_bits = chance();
    t.writes_in_place = chance(), t.chunks_losses = chance(), t.shares_kernels = chance(), t.measures = chance();
    if (!t.launches_blocks)
      t.has_wide_totals = chance(), t.transposes_in_registers = chance(), t.fuses_chains = chance(),
      t.has_bf16_dot = chance(), t.has_tiles = t.has_bf16_dot && chance();
    register_target("abacus", [t](CpuLevel, const CacheSizes&) { return t; });
    const Graph graph = testing::random_graph(seed + 700, exact());
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + print(graph));
    const auto inputs = testing::halves(graph, seed);
    plan::Plan plan;
    std::vector<Tensor> got;
    ASSERT_NO_THROW(plan = compiler::compile(copy_of(graph), "any", options_for("abacus")));
    ASSERT_NO_THROW(got = run_on("abacus", plan, inputs));
    expect_close(got, oracle(graph, inputs));
    for (const plan::Kernel& k : plan.kernels) {
      EXPECT_EQ(k.threads > 0, t.launches_blocks) << k.name;
      blocks += k.threads > 0;
    }
    for (const plan::Buffer& b : plan.buffers) {
      EXPECT_TRUE(t.writes_in_place || b.over < 0) << b.name;
      EXPECT_TRUE(t.masks_as_bits || !b.bits) << b.name;
      in_place += b.over >= 0;
    }
    for (const plan::Step& s : plan.steps) EXPECT_TRUE(s.shifts.empty()) << s.name;
    if (HasFailure()) break;
  }
  EXPECT_GT(blocks, 10);
  EXPECT_GT(in_place, 0);
  register_target("abacus", [](CpuLevel, const CacheSizes& caches) { return testing::plain_abacus(caches); });
}

TEST(Targets, CapabilitiesThatExcludeEachOtherAreRefused) {
  Target t = testing::plain_abacus();
  t.launches_blocks = t.fuses_chains = true;
  register_target("crooked", [t](CpuLevel, const CacheSizes&) { return t; });
  EXPECT_THAT(
      [] { target_of("crooked", CpuLevel::Avx2); },
      ThrowsMessage<InternalError>(HasSubstr("target crooked: blocks of threads and fuses_chains do not go together")));
}

TEST(Targets, WordsThatAreNoneAreNamed) {
  devices();
  for (const char* word : {"slide_rule", "cuda", "cuda:", "cuda:x", "cuda:-1", "cpu:1", "interpret:x", "abacus:1", ""})
    EXPECT_THAT([&] { runtime::device(word); },
                ThrowsMessage<UserError>(
                    AllOf(HasSubstr("no such device; there are abacus; cpu; cuda:0, ...; interpret (device kernels"),
                          HasSubstr("null:sm_90a"))))
        << word;
  EXPECT_THROW(runtime::device("null:sm_1"), UserError);
  EXPECT_THAT([] { target_of("slide_rule", CpuLevel::Avx2); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("kernels are not made for slide_rule; there are abacus, cpu, "),
                                             HasSubstr("sm_90a"))));
  Target t = testing::plain_abacus();
  t.generator = "quill";
  EXPECT_THAT([&] { compiler::compile(copy_of(descent()), "lost", {.target = t}); },
              ThrowsMessage<InternalError>(HasSubstr("nobody generates code by 'quill'")));
}

TEST(Targets, APlanForAnotherTargetIsRefused) {
  devices();
  const plan::Plan plan = compiler::compile(copy_of(descent()), "moved", options_for("abacus"));
  EXPECT_EQ(plan.device, "abacus");
  EXPECT_EQ(plan.cpu, "");
  EXPECT_THAT(
      [&] { runtime::device("cpu")->load(plan); },
      ThrowsMessage<UserError>(HasSubstr("plan moved was compiled for abacus; this device is cpu. Compile it here.")));
  const plan::Foreach step = compiler::compile_foreach(copy_of(descent()), {0}, "descent", options_for("cpu"));
  EXPECT_THROW(runtime::device("interpret")->load(step), UserError);
  EXPECT_THROW(runtime::device("abacus")->seconds_of(step.kernel, 1, {}), InternalError);
}

TEST(Targets, ADeviceIsMadeOnce) {
  devices();
  EXPECT_EQ(runtime::device("interpret"), runtime::device("interpret"));
  const auto before = runtime::device("abacus");
  runtime::register_device("abacus", "abacus", [](const std::string&) { return std::make_shared<testing::Abacus>(); });
  EXPECT_NE(runtime::device("abacus"), before);
}

}  // namespace
}  // namespace trainc
