// The host side of a device without a GPU: plans through the null driver, and through the one that interprets their
// kernels.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "../common/adam.h"
#include "../common/random_joint.h"
#include "device_run.h"
#include "graph/text.h"
#include "graphs.h"
#include "runtime/cuda/executable.h"
#include "runtime/interpret/driver.h"

namespace trainc {
namespace {

using reference::Tensor;
using runtime::cuda::NullDriver;
using testing::copy_of;
using testing::device_options;
using ::testing::ElementsAre;
using testing::expect_close;
using testing::halves;
using ::testing::HasSubstr;
using testing::oracle;
using testing::run_on_device;
using ::testing::ThrowsMessage;

TEST(DeviceRuntime, PlansRunOnTheInterpretedDevice) {
  testing::RandomGraphOptions o;
  o.transcendental = false;
  const auto driver = std::make_shared<runtime::interpreted::InterpretedDriver>();
  for (uint64_t seed = 1; seed < 60; ++seed) {
    const Graph graph = testing::random_graph(seed, o);
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + print(graph));
    const auto inputs = halves(graph, seed);
    std::vector<Tensor> got;
    ASSERT_NO_THROW(
        got = run_on_device(plan::load(plan::save(compiler::compile(copy_of(graph), "fuzz", device_options(true)))),
                            driver, inputs));
    expect_close(got, oracle(graph, inputs));
    if (HasFailure()) return;
  }
  EXPECT_GT(driver->launches, 60);
  EXPECT_EQ(driver->held, 0);
}

TEST(DeviceRuntime, ForwardAndBackwardShareTheHandle) {
  testing::RandomGraphOptions o;
  o.transcendental = false;
  const auto driver = std::make_shared<runtime::interpreted::InterpretedDriver>();
  for (uint64_t seed = 300; seed < 320; ++seed) {
    const testing::RandomJoint joint = testing::random_joint(seed, o);
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + print(joint.graph));
    const auto inputs = halves(joint.graph, seed);
    const compiler::JointGraph compiled(copy_of(joint.graph), joint.primals, joint.forward_outputs, "joint",
                                        device_options(true), -1);
    std::vector<uint8_t> arena(compiled.saved_bytes() + 1);
    std::vector<Tensor> got = run_on_device(compiled.forward(device_options(true)), driver,
                                            {inputs.begin(), inputs.begin() + joint.primals}, arena.data()),
                        in;
    for (int64_t i : compiled.saved_inputs()) in.push_back(i < joint.primals ? inputs[i] : got.at(i - joint.primals));
    in.insert(in.end(), inputs.begin() + joint.primals, inputs.end());
    const std::vector<bool> defined(inputs.size() - joint.primals, true);
    for (Tensor& t : run_on_device(compiled.backward(defined, device_options(true)), driver, in, arena.data()))
      got.push_back(std::move(t));
    if (!compiled.deferred_outputs().empty()) continue;
    expect_close(got, oracle(joint.graph, inputs));
    if (HasFailure()) return;
  }
}

TEST(DeviceRuntime, OneGraphAPlanOnTheNullDriver) {
  const auto driver = std::make_shared<NullDriver>();
  const Graph graph = testing::softmax(3, 100);
  // cubins: NVRTC alone is needed
  const plan::Plan plan = compiler::compile(copy_of(graph), "softmax", device_options(false));
  EXPECT_EQ(plan.device, "sm_90a");
  EXPECT_EQ(std::string(plan.kernels.at(0).code.begin() + 1, plan.kernels[0].code.begin() + 4), "ELF");
  EXPECT_EQ(plan.kernels[0].threads, 128);
  run_on_device(plan, driver, halves(graph, 1));
  const std::string table = "copy in " + std::to_string(8 * plan.buffers.size()) + " bytes";
  EXPECT_THAT(driver->calls, ElementsAre("record 1", table, "graph", "launch rows_reduce_exp_div 3 x 128", "wait"));
  EXPECT_EQ(driver->held, 0);
  EXPECT_EQ(driver->launched.at(0).slots, plan.steps.at(0).arguments);
}

/// A plan that runs more than once on the null driver, with memory for all that it asks for.
struct Repeated {
  std::shared_ptr<NullDriver> driver = std::make_shared<NullDriver>();
  std::unique_ptr<runtime::cuda::CudaExecutable> executable;
  std::vector<std::vector<uint8_t>> memory;
  runtime::Call call;

  explicit Repeated(const Graph& graph, bool waits = false, int64_t vendor_flops = 0,
                    std::shared_ptr<NullDriver> on = nullptr) {
    struct Waiting : NullDriver {
      bool waits() const override { return true; }
    };
    if (waits) driver = std::make_shared<Waiting>();
    if (on) driver = std::move(on);
    compiler::CompileOptions options = device_options(false);
    options.vendor_product_flops = vendor_flops;
    const plan::Plan plan = compiler::compile(copy_of(graph), "plan", options);
    executable = std::make_unique<runtime::cuda::CudaExecutable>(plan, driver);
    const auto of = [&](int64_t bytes) {
      memory.emplace_back(static_cast<size_t>(bytes + 64));
      return static_cast<void*>(memory.back().data());
    };
    for (const Tensor& t : halves(graph, 1)) call.inputs.push_back(of(t.type.bytes()));
    for (int b : plan.outputs) call.outputs.push_back(of(plan.buffers[b].bytes));
    call.temp = of(plan.temp_bytes);
  }
  std::vector<std::string> run(runtime::cuda::Stream stream = nullptr) {
    driver->calls.clear();
    call.stream = stream;
    executable->run(call);
    return driver->calls;
  }
};

Graph two_kernels() {  // from two lines of a model
  Graph g;
  const Node* x = Builder{g, "model.py:3"}.input(0, {DType::F32, {50, 30}});
  Builder first{g, "model.py:7 (aten.cumsum)"}, second{g, "model.py:8 (aten.sum)"};
  g.outputs = {{second.reduce(ReduceKind::Sum, first.scan(x, 1), {0}), {}}};
  g.input_count = 1;
  return g;
}

TEST(DeviceRuntime, AStepAllocatesNothingAndWaitsForNothing) {
  Repeated plan(two_kernels());
  const int64_t held = plan.driver->held;
  for (int step = 0; step < 3; ++step) {
    const auto calls = plan.run();
    ASSERT_GE(calls.size(), 4u);
    EXPECT_THAT(calls[0], ::testing::StartsWith("copy in "));  // all pointers at once
    EXPECT_EQ(calls[1], "graph");
    for (size_t i = 2; i < calls.size(); ++i) EXPECT_THAT(calls[i], ::testing::StartsWith("launch "));
    EXPECT_EQ(plan.driver->held, held);
  }
  // Another stream waits for the one that still reads the table; the host does not.
  EXPECT_EQ(plan.run(reinterpret_cast<runtime::cuda::Stream>(8))[0], "order 0x0 0x8");
  EXPECT_THAT(plan.run(reinterpret_cast<runtime::cuda::Stream>(8))[0], ::testing::StartsWith("copy in "));
}

/// A product, what follows it, and a call of the framework in the middle, where one is wanted.
Graph product_and_kernels(bool with_call) {
  Graph g;
  Builder b{g, "model.py:4"};
  const Node* c = b.contract(b.input(0, {DType::F32, {1, 8, 16}}), b.input(1, {DType::F32, {1, 4, 16}}));
  if (with_call) {
    ExternAttr call;
    call.target = "aten.something";
    call.results = {c->type};
    c = b.result(b.extern_call(call, {b.unary(Op::Neg, c)}), 0);
    c = b.contract(c, b.input(2, {DType::F32, {1, 3, 4}}));
  }
  g.outputs = {{b.reduce(ReduceKind::Sum, b.unary(Op::Exp, c), {2}), {}}};
  g.input_count = 2 + with_call;
  return g;
}

TEST(DeviceRuntime, ProductsAreInThePlansGraph) {
  Repeated plan(product_and_kernels(false), false, 1);
  using ::testing::Not, ::testing::Contains;
  EXPECT_THAT(plan.run(), Not(Contains("graph")));  // the library loads what it needs
  EXPECT_THAT(plan.run(), Contains("record 2"));
  const auto third = plan.run();
  const int64_t held = plan.driver->held;
  ASSERT_EQ(third.size(), 4u);
  EXPECT_THAT(third[0], ::testing::StartsWith("copy in "));
  EXPECT_EQ(third[1], "graph");
  EXPECT_THAT(third[2], ::testing::StartsWith("multiply 1 batches"));
  EXPECT_THAT(third[3], ::testing::StartsWith("launch "));
  EXPECT_EQ(plan.run(), third);  // nothing else: nobody waits, nothing is recorded or allocated
  EXPECT_EQ(plan.driver->held, held);
  EXPECT_THAT(plan.executable->notes(), ElementsAre());

  // Memory that comes from two places in turn has two graphs, and no more are kept than a few.
  void* const first = plan.call.inputs[0];
  std::vector<std::vector<uint8_t>> places(20, std::vector<uint8_t>(8 * 16 * 4));
  for (int step = 0; step < 6; ++step) {
    plan.call.inputs[0] = step % 2 ? first : places[0].data();
    const auto calls = plan.run();
    if (step < 3) continue;
    EXPECT_THAT(calls, Contains("graph")) << step;
    EXPECT_THAT(calls, Not(Contains("record 2"))) << step;
  }
  for (auto& place : places)
    for (int twice = 0; twice < 2; ++twice) plan.call.inputs[0] = place.data(), plan.run();
  EXPECT_LE(plan.driver->held, held + 3);
  plan.executable.reset();
  EXPECT_EQ(plan.driver->held, 0);
}

// the interpreted driver computes what a graph holds: with stale pointers, other numbers
TEST(DeviceRuntime, AReplayReadsAndWritesWhereThisRunLies) {
  const Graph g = product_and_kernels(false);
  compiler::CompileOptions options = device_options(true);
  options.vendor_product_flops = 1;
  const plan::Plan plan = compiler::compile(copy_of(g), "plan", options);
  const auto driver = std::make_shared<runtime::interpreted::InterpretedDriver>();
  runtime::cuda::CudaExecutable executable(plan, driver);
  std::vector<std::vector<uint8_t>> kept;  // so that no memory comes twice unless it is meant to
  for (int place = 0; place < 3; ++place) {
    runtime::Call call;
    const auto of = [&](int64_t bytes) {
      return static_cast<void*>(kept.emplace_back(static_cast<size_t>(bytes + 64)).data());
    };
    kept.reserve(64);
    for (const plan::Buffer& b : plan.buffers)
      if (b.space == plan::MemorySpace::Input) call.inputs.resize(2), call.inputs[b.index] = of(b.bytes);
    call.outputs = {of(plan.buffers[plan.outputs[0]].bytes)};
    call.temp = of(plan.temp_bytes);
    for (uint64_t step = 0; step < 4; ++step) {
      const auto inputs = halves(g, 10 * place + step);
      for (size_t i = 0; i < 2; ++i) {
        const auto bytes = testing::to_bytes(inputs[i]);
        std::copy(bytes.begin(), bytes.end(), static_cast<uint8_t*>(call.inputs[i]));
      }
      executable.run(call);
      const plan::Buffer& out = plan.buffers[plan.outputs[0]];
      SCOPED_TRACE("place " + std::to_string(place) + ", step " + std::to_string(step));
      expect_close({testing::from_bytes({out.dtype, out.shape}, static_cast<uint8_t*>(call.outputs[0]))},
                   oracle(g, inputs));
    }
  }
  EXPECT_THAT(driver->calls, ::testing::Contains("graph").Times(9));
}

TEST(DeviceRuntime, ACallOfTheFrameworkSplitsTheGraph) {
  Repeated plan(product_and_kernels(true), false, 1);
  std::vector<uint8_t> result(8 * 4 * 4);
  plan.call.extern_call = [&](const plan::Step&, const std::vector<void*>&) {
    plan.driver->calls.push_back("call");
    return std::vector<runtime::ExternTensor>{{result.data(), std::make_shared<int>(0)}};
  };
  plan.run(), plan.run();
  const auto calls = plan.run();
  EXPECT_EQ(plan.run(), calls);
  std::vector<std::string> kinds;
  for (const std::string& c : calls) kinds.push_back(c.substr(0, c.find(' ')));
  EXPECT_THAT(kinds, ElementsAre("copy", "graph", "multiply", "launch", "call", "copy", "graph", "multiply", "launch"));
  EXPECT_THAT(plan.executable->notes(),
              ElementsAre("2 CUDA graphs instead of one: between them PyTorch runs aten.something"));
}

TEST(DeviceRuntime, WhatCannotBeRecordedRunsStepByStep) {
  struct Refusing : NullDriver {
    runtime::cuda::Graph record(const std::vector<runtime::cuda::GraphNode>&) override {
      throw InternalError("CUDA: operation not permitted when stream is capturing (900)");
    }
  };
  Repeated plan(product_and_kernels(false), false, 1, std::make_shared<Refusing>());
  const auto first = plan.run();
  for (int step = 0; step < 3; ++step) EXPECT_EQ(plan.run(), first);
  EXPECT_THAT(
      plan.executable->notes(),
      ElementsAre("steps 0 to 1 are no CUDA graph: plan plan, recording its graph: CUDA: operation not permitted "
                  "when stream is capturing (900)"));
}

TEST(DeviceRuntime, RefusedLaunchesNameTheKernelAndItsLines) {
  const auto failure = [](Repeated& plan) -> std::string {
    try {
      plan.run();
    } catch (const InternalError& e) { return e.what(); }
    return "nothing";
  };
  Repeated launches(two_kernels(), true);  // CUDA_LAUNCH_BLOCKING=1: no graph, each launch waited for
  EXPECT_THAT(launches.run(), ::testing::Not(::testing::Contains("graph")));
  launches.driver->fail_at = static_cast<int64_t>(launches.driver->launched.size()) + 1;
  const std::string second = failure(launches);
  EXPECT_THAT(second, HasSubstr("plan plan, kernel columns"));
  EXPECT_THAT(second, HasSubstr(" from model.py:8 (aten.sum): CUDA: out of resources (701)"));
  launches.driver->fail_at = static_cast<int64_t>(launches.driver->launched.size());
  EXPECT_THAT(failure(launches), HasSubstr("kernel scan from model.py:7 (aten.cumsum): CUDA"));

  Repeated graph(two_kernels());
  graph.driver->fail_at = 0;
  EXPECT_THAT(failure(graph), HasSubstr("plan plan, its graph of 2 steps (CUDA_LAUNCH_BLOCKING=1 tells which): CUDA"));
}

// a thread a result would leave most of the device idle: BatchNorm's and LayerNorm's gradients, a bias's
TEST(DeviceRuntime, SumsOfFewResultsAreMadeInStages) {
  const struct {
    Dims shape, axes;
    DType dtype;
  } cases[] = {{{1024, 48}, {0}, DType::F32},
               {{1024, 48}, {0}, DType::BF16},
               {{8, 197, 32}, {0, 1}, DType::F32},
               {{16, 5, 20, 30}, {0, 2, 3}, DType::F32},
               {{64, 3, 8, 40}, {0, 1, 2}, DType::F32},
               {{1, 512, 1, 520}, {1}, DType::BF16},  // a bias of patches: behind an axis of one element
               {{8, 1, 128, 48}, {0, 2}, DType::F32}};
  for (const auto& [shape, axes, dtype] : cases)
    for (ReduceKind kind : {ReduceKind::Sum, ReduceKind::Max}) {
      Graph g;
      Builder b{g, {}};
      const Node* x = b.input(0, {dtype, shape});
      g.outputs = {{b.reduce(kind, b.mul(x, x), axes), {}}};
      g.input_count = 1;
      SCOPED_TRACE(print(g));
      const plan::Plan plan = compiler::compile(copy_of(g), "sums", device_options(true));
      ASSERT_GE(plan.steps.size(), 2u) << plan::print(plan);
      const plan::Step& first = plan.steps[0];
      const int64_t threads = first.parallel_extent * plan.kernels[first.kernel].threads;
      EXPECT_GE(threads, 8 * g.outputs[0].value->type.numel()) << plan::print(plan);
      const auto inputs = halves(g, 3);
      expect_close(run_on_device(plan, std::make_shared<runtime::interpreted::InterpretedDriver>(), inputs),
                   oracle(g, inputs));
      if (HasFailure()) return;
    }
}

TEST(DeviceRuntime, ScattersKeepADeviceBusy) {
  const struct {
    Dims places, sources;
    DType dtype;
    ScatterKind kind;
  } cases[] = {
      {{3, 40}, {1024, 40}, DType::F32, ScatterKind::Sum},  // in stages
      {{3, 8, 5}, {1024, 8, 5}, DType::BF16, ScatterKind::Sum},
      {{2, 36}, {1000, 36}, DType::F64, ScatterKind::Sum},
      {{300, 40}, {1024, 40}, DType::F32, ScatterKind::Sum},    // dealt by place
      {{300, 300}, {1000, 300}, DType::F32, ScatterKind::Sum},  // two blocks a part, neither chunk nor columns full
      {{300, 8, 5}, {1000, 8, 5}, DType::BF16, ScatterKind::Sum},
      {{300, 40}, {1024, 40}, DType::F32, ScatterKind::Last},
      {{3, 40}, {1024, 40}, DType::F32, ScatterKind::Last},
      {{61}, {33000}, DType::F32, ScatterKind::Sum}};
  for (const auto& [places, sources, dtype, kind] : cases) {
    Graph g;
    Builder b{g, {}};
    Dims column(sources.size(), int64_t{1});
    column[0] = sources[0];
    const Node* init = b.input(0, {dtype, places});
    const Node* index = b.broadcast(b.reshape(b.input(1, {DType::I64, {sources[0]}}), column), sources);
    g.outputs = {{b.scatter(kind, init, index, b.input(2, {dtype, sources}), 0), {}}};
    g.input_count = 3;
    SCOPED_TRACE(print(g));
    const plan::Plan plan = compiler::compile(copy_of(g), "scatter", device_options(true));
    int64_t threads = 0;
    for (const plan::Step& s : plan.steps)
      threads = std::max(threads, s.parallel_extent * plan.kernels[s.kernel].threads);
    const int64_t columns = g.outputs[0].value->type.numel() / places[0];
    EXPECT_GE(threads, std::min<int64_t>(8, places[0]) * columns) << plan::print(plan);
    if (places[0] == 300) {  // a block looks at an index once
      const auto& code = plan.kernels[plan.steps.back().kernel].code;
      EXPECT_THAT(std::string(code.begin(), code.end()), HasSubstr("shared place: i32[")) << plan::print(plan);
    }
    auto inputs = halves(g, 3);
    for (size_t i = 0; i < inputs[1].i.size(); ++i) inputs[1].i[i] = (i * i + i / 7) % places[0];
    const auto run = [&] {
      return run_on_device(plan, std::make_shared<runtime::interpreted::InterpretedDriver>(), inputs);
    };
    expect_close(run(), oracle(g, inputs));
    inputs[1].i[1] = places[0];
    EXPECT_THROW(run(), IndexError);
    if (HasFailure()) return;
  }
}

TEST(DeviceRuntime, AnotherArchitectureIsRefused) {
  const plan::Plan plan = compiler::compile(copy_of(testing::softmax(3, 100)), "softmax", device_options(true));
  try {
    runtime::cuda::CudaDevice(std::make_shared<NullDriver>()).load(plan);
    FAIL();
  } catch (const UserError& e) {
    EXPECT_THAT(e.what(),
                HasSubstr("plan softmax was compiled for interpret; this device is sm_90a. Compile it here."));
  }
}

TEST(DeviceRuntime, WhatIsStartedBesideKernelsIsRefused) {
  plan::Plan plan = compiler::compile(copy_of(testing::softmax(3, 100)), "softmax", device_options(false));
  const plan::Step start{.kind = plan::StepKind::Start, .name = "send", .target = "sleep", .token = 0};
  plan.steps.push_back(start);
  plan.steps.push_back({.kind = plan::StepKind::Wait, .name = "wait", .token = 0});
  ASSERT_NO_THROW(plan::verify(plan));
  const auto driver = std::make_shared<NullDriver>();
  EXPECT_THAT([&] { runtime::cuda::CudaExecutable(plan, driver); },
              ThrowsMessage<InternalError>(HasSubstr("step send: nothing is started beside a device's kernels")));
  EXPECT_EQ(driver->held, 0);
}

TEST(DeviceRuntime, WhatCannotBeLoadedLeavesNothingBehind) {
  struct Refusing : NullDriver {
    std::string at;  // which call is refused
    runtime::cuda::Function load(const plan::Kernel& k) override {
      return held > 0 && at == "load" ? throw InternalError("CUDA: out of memory (2)") : NullDriver::load(k);
    }
    uint32_t* allocate_status(int64_t words) override {
      return at == "status" ? throw InternalError("CUDA: out of memory (2)") : NullDriver::allocate_status(words);
    }
    runtime::cuda::Graph record(const std::vector<runtime::cuda::GraphNode>& nodes) override {
      return at == "record" ? throw InternalError("CUDA: out of memory (2)") : NullDriver::record(nodes);
    }
  };
  const plan::Plan plan = compiler::compile(copy_of(two_kernels()), "plan", device_options(false));
  for (const char* at : {"load", "status", "record"}) {
    const auto driver = std::make_shared<Refusing>();
    driver->at = at;
    EXPECT_THROW(runtime::cuda::CudaExecutable(plan, driver), InternalError) << at;
    EXPECT_EQ(driver->held, 0) << at;
  }
}

TEST(DeviceRuntime, FindingsNameTheKernel) {
  plan::Plan plan = compiler::compile(copy_of(testing::softmax(3, 100)), "softmax", device_options(true));
  std::string text(plan.kernels.at(0).code.begin(), plan.kernels[0].code.end());
  const size_t at = text.find("    barrier\n");
  ASSERT_NE(at, std::string::npos);
  text.erase(at, 12);
  plan.kernels[0].code.assign(text.begin(), text.end());
  try {
    run_on_device(plan, std::make_shared<runtime::interpreted::InterpretedDriver>(),
                  halves(testing::softmax(3, 100), 1));
    FAIL();
  } catch (const InternalError& e) {
    EXPECT_THAT(e.what(), HasSubstr("rows_reduce_exp_div: race on parts: read and written"));
  }
}

TEST(DeviceRuntime, FailedChecksAreIndexErrors) {
  Graph g;
  Builder b{g, {}};
  g.outputs.push_back({b.gather(b.input(0, {DType::F32, {5}}), b.input(1, {DType::I64, {4}}), 0), {}});
  g.input_count = 2;
  auto inputs = halves(g, 1);
  inputs[1].i = {0, 4, 5, 1};
  const plan::Plan plan = compiler::compile(copy_of(g), "gather", device_options(true));
  EXPECT_THROW(run_on_device(plan, std::make_shared<runtime::interpreted::InterpretedDriver>(), inputs), IndexError);
  inputs[1].i = {0, 4, 3, 1};
  EXPECT_NO_THROW(run_on_device(plan, std::make_shared<runtime::interpreted::InterpretedDriver>(), inputs));
}

TEST(DeviceRuntime, OptimizerStepInOneLaunch) {
  Program program = copy_of(testing::adam(8));
  const plan::Foreach step = plan::load_foreach(
      plan::save(compiler::compile_foreach(std::move(program), {0, 2, 3}, "adam step", device_options(true))));
  EXPECT_EQ(step.device, "interpret");
  const auto driver = std::make_shared<runtime::interpreted::InterpretedDriver>();
  {
    runtime::cuda::CudaForeach foreach (step, driver);
    testing::AdamTensors tensors;
    foreach
      .run(tensors.pointers, tensors.numels, tensors.scalars, nullptr);
    EXPECT_EQ(driver->launches, 1);
    for (size_t t = 0; t < tensors.numels.size(); ++t) {
      expect_close(tensors.written(t), oracle(testing::adam(tensors.numels[t]), tensors.inputs[t]));
      EXPECT_EQ(tensors.trespassed(t), "");
    }
  }
  EXPECT_EQ(driver->held, 0);
  // the same step as a cubin
  EXPECT_NO_THROW(compiler::compile_foreach(copy_of(testing::adam(8)), {0, 2, 3}, "adam step", device_options(false)));
}

TEST(DeviceRuntime, WithoutAGpuItSaysSo) {
  try {
    const auto driver = runtime::cuda::cuda_driver();
    EXPECT_THAT(driver->architecture(), HasSubstr("sm_"));  // there is one
  } catch (const UserError& e) { EXPECT_THAT(e.what(), HasSubstr("a plan for a GPU needs one")); }
}

}  // namespace
}  // namespace trainc
