// cuda_driver.cpp itself, over a libcuda that watches its caller (checking/libcuda.cpp): contexts, the order of calls,
// what is released and when, whatever call fails.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <thread>
#include <utility>

#include "../common/adam.h"
#include "device_run.h"
#include "graphs.h"
#include "runtime/cuda/cuda_api.h"

namespace trainc {
namespace {

using runtime::cuda::DeviceLost;
using runtime::cuda::Driver;
using runtime::cuda::Stream;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// The library that watches, by the names of its own functions.
struct Checking {
  void* handle = dlopen(TRAINC_CHECKING_LIBCUDA, RTLD_NOW | RTLD_LOCAL);
  template <class F> F* function(const char* name) const { return reinterpret_cast<F*>(dlsym(handle, name)); }
  void reset(int64_t fail_at = -1, int failure = 0) const {
    function<void(int64_t, int)>("checking_reset")(fail_at, failure);
  }
  std::string findings() const { return function<const char*()>("checking_findings")(); }
  std::string live() const { return function<const char*()>("checking_live")(); }
  int64_t calls() const { return function<int64_t()>("checking_calls")(); }
  void* context() const {  // the calling thread's current one
    void* now = nullptr;
    return function<int(void**)>("cuCtxGetCurrent")(&now), now;
  }
};

class CheckedDriver : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(checking.handle, nullptr) << dlerror();
    setenv("TRAINC_LIBCUDA", TRAINC_CHECKING_LIBCUDA, 1);
    setenv("TRAINC_CUBLASLT", TRAINC_CHECKING_LIBCUDA, 1);
    checking.reset();
  }
  void TearDown() override {
    unsetenv("TRAINC_LIBCUDA");
    unsetenv("TRAINC_CUBLASLT");
  }
  const Checking checking;
};

Graph two_rows() {
  Graph g;
  Builder b{g, "model.py:7"};
  const Node* x = b.input(0, {DType::F32, {50, 30}});
  g.outputs = {{b.reduce(ReduceKind::Sum, b.scan(x, 1), {0}), {}}};
  g.input_count = 1;
  return g;
}

Graph large_product() {  // with a bias
  Graph g;
  Builder b{g, "model.py:9"};
  const Node* c = b.contract(b.input(0, {DType::F32, {1, 64, 64}}), b.input(1, {DType::F32, {1, 64, 64}}));
  g.outputs = {{b.add(c, b.broadcast(b.input(2, {DType::F32, {64}}), c->shape())), {}}};
  g.input_count = 3;
  return g;
}

/// What a training step asks of a driver: plans with a graph, with constants, with a product; an optimizer's step.
class Step {
 public:
  Step() {
    compiler::CompileOptions options = testing::device_options(false);
    plans_.push_back(compiler::compile(testing::copy_of(two_rows()), "rows", options));
    plans_.push_back(plans_[0]);
    plans_[1].name = "constants", plans_[1].constants.assign(4096, 7);
    for (plan::Buffer& b : plans_[1].buffers)
      if (b.space == plan::MemorySpace::Input) b.space = plan::MemorySpace::Constant, b.offset = 0;
    plans_[1].constants.resize(50 * 30 * 4);
    options.vendor_product_flops = 1;
    plans_.push_back(compiler::compile(testing::copy_of(large_product()), "product", options));
    foreach_ = compiler::compile_foreach(testing::copy_of(testing::adam(8)), {0, 2, 3}, "adam step", options);
  }

  /// Several steps on the streams, with what they were loaded for gone while the device is still at work.
  void run(const std::shared_ptr<Driver>& driver, const std::vector<uintptr_t>& streams) {
    runtime::cuda::CudaForeach update(foreach_, driver);  // goes after the plans, and waits for the device
    std::vector<std::unique_ptr<runtime::cuda::CudaExecutable>> loaded;
    for (const plan::Plan& p : plans_) loaded.push_back(std::make_unique<runtime::cuda::CudaExecutable>(p, driver));
    // Memory that is the same in each step: from the second on, the product is in a graph.
    std::vector<std::vector<uint8_t>> memory;
    const auto of = [&](int64_t bytes) {
      return static_cast<void*>(memory.emplace_back(static_cast<size_t>(bytes + 64)).data());
    };
    std::vector<runtime::Call> calls;
    for (const auto& e : loaded) {
      runtime::Call& call = calls.emplace_back();
      call.inputs.assign(e->plan().input_count, of(64 * 64 * 4));
      for (int b : e->plan().outputs) call.outputs.push_back(of(e->plan().buffers[b].bytes));
      call.temp = of(e->plan().temp_bytes);
    }
    bool first = true;
    for (uintptr_t s : streams) {
      const auto stream = reinterpret_cast<Stream>(s);
      for (size_t i = 0; i < loaded.size(); ++i) calls[i].stream = stream, loaded[i]->run(calls[i]);
      testing::AdamTensors tensors;
      for (int size : {1, 40}) {  // the second makes its table grow
        std::vector<void*> pointers;
        std::vector<int64_t> numels;
        for (int i = 0; i < size; ++i)
          pointers.insert(pointers.end(), tensors.pointers.begin(), tensors.pointers.begin() + update.tensor_inputs()),
              numels.push_back(tensors.numels[0]);
        static_cast<runtime::Foreach&>(update).run(pointers, numels, tensors.scalars, stream);
      }
      if (!std::exchange(first, false)) continue;  // what is queued afterwards is not waited for
      std::vector<uint8_t> back(64);
      const std::shared_ptr<void> block(driver->allocate(64), [&](void* p) { driver->release(p); });
      driver->load_data(block.get(), back.data(), 64);
      driver->read_data(back.data(), block.get(), 64);
    }
  }

 private:
  std::vector<plan::Plan> plans_;
  plan::Foreach foreach_;
};

TEST_F(CheckedDriver, StepsOnManyStreamsBreakNoRule) {
  Step step;
  const auto api = runtime::cuda::load_api();
  void* other = nullptr;  // the framework is on another GPU
  ASSERT_EQ(api.primary_retain(&other, 1), 0);
  ASSERT_EQ(api.context_push(other), 0);
  step.run(runtime::cuda::load_cuda_driver(0), {0, 8, 8, 16, 0, 8});
  EXPECT_EQ(checking.findings(), "");
  EXPECT_EQ(checking.context(), other);
  api.primary_release(1);
  EXPECT_EQ(checking.live(), "");
}

TEST_F(CheckedDriver, AThreadWithoutAContextHasNoneAfterwards) {
  Step step;
  void* left = this;
  std::thread([&] {
    step.run(runtime::cuda::load_cuda_driver(1), {8, 0});
    left = checking.context();
  }).join();
  EXPECT_EQ(left, nullptr);
  EXPECT_EQ(checking.findings(), "");
  EXPECT_EQ(checking.live(), "");
}

TEST_F(CheckedDriver, AnEpilogueThatTheLibraryHasNoAlgorithmForIsAKernel) {
  constexpr uint32_t kBias = 4;
  compiler::CompileOptions options = testing::device_options(false);
  options.vendor_product_flops = 1;
  const plan::Plan with_bias = compiler::compile(testing::copy_of(large_product()), "product", options);
  ASSERT_TRUE(with_bias.steps.at(0).product.bias);
  checking.function<void(uint32_t)>("checking_refuse_epilogues")(kBias);
  {
    const auto driver = runtime::cuda::load_cuda_driver(0);
    compiler::Job job;
    int asked = 0;
    job.library_has = [&](const plan::Product& p, int64_t bytes) { return ++asked, driver->has_algorithm(p, bytes); };
    const plan::Plan plan = compiler::compile(testing::copy_of(large_product()), "product", options, job);
    ASSERT_EQ(plan.steps.size(), 2u) << plan::print(plan);
    EXPECT_EQ(asked, 2);  // with the bias, and without
    EXPECT_EQ(plan.steps[0].kind, plan::StepKind::Product);
    EXPECT_FALSE(plan.steps[0].product.bias);
    EXPECT_EQ(plan.steps[1].kind, plan::StepKind::Kernel);
    EXPECT_NO_THROW(runtime::cuda::CudaExecutable(plan, driver));
    // a plan that was stored where the library had one
    EXPECT_THAT([&] { runtime::cuda::CudaExecutable(with_bias, driver); },
                ::testing::ThrowsMessage<UserError>(HasSubstr("has no algorithm for it: compile it again")));
  }
  EXPECT_EQ(checking.findings(), "");
  EXPECT_EQ(checking.live(), "");
}

plan::Product product_of(const plan::Plan& plan) { return plan.steps.at(0).product; }

plan::Plan large_product_plan() {
  compiler::CompileOptions options = testing::device_options(false);
  options.vendor_product_flops = 1;
  return compiler::compile(testing::copy_of(large_product()), "product", options);
}

TEST_F(CheckedDriver, AlgorithmsAreNamedMeasuredAndAskedForAgain) {
  constexpr int64_t kBytes = 1 << 20;
  plan::Plan plan = large_product_plan();
  plan::Product product = product_of(plan);
  {
    const auto driver = runtime::cuda::load_cuda_driver(0);
    // not the third, which adds up in whatever order
    EXPECT_THAT(driver->algorithms(product, kBytes, 8), ::testing::ElementsAre("130002:01", "130002:02"));
    EXPECT_THAT(driver->algorithms(product, kBytes, 1), ::testing::ElementsAre("130002:01"));
    const auto seconds = [&](const char* name) {
      product.algorithm = name;
      return runtime::cuda::seconds_of(*driver, product, kBytes);
    };
    EXPECT_NEAR(seconds("130002:01"), 3e-3 / 4, 1e-9);  // four runs a round
    EXPECT_NEAR(seconds("130002:02"), 1e-3 / 4, 1e-9);
    for (const char* name : {"130002:03", "130002:04", "130001:02", "130002:0", "130002:xy", "130002", "02"}) {
      product.algorithm = name;
      EXPECT_FALSE(driver->has_algorithm(product, kBytes)) << name;
      EXPECT_THROW(runtime::cuda::seconds_of(*driver, product, kBytes), InternalError) << name;
    }
    // A plan's product is made by it, but for memory that begins elsewhere than it was asked for.
    plan.steps[0].product.algorithm = "130002:02";
    runtime::cuda::CudaExecutable executable(plan::load(plan::save(plan)), driver);
    const int64_t matrix = 64 * 64 * 4;
    std::vector<uint8_t> memory(static_cast<size_t>(5 * matrix + plan.temp_bytes));
    auto* begin = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(memory.data()) + 255) / 256 * 256);
    for (const auto& [shift, algorithm] : {std::pair(0, uint64_t{2}), {4, 1}}) {
      runtime::Call call;
      call.inputs = {begin + shift, begin + matrix, begin + matrix}, call.outputs = {begin + 2 * matrix};
      call.temp = begin + 3 * matrix;
      executable.run(call);
      EXPECT_EQ(checking.function<uint64_t()>("checking_algorithm")(), algorithm) << shift;
    }
    driver->synchronize();
    checking.function<void(uint64_t)>("checking_algorithms")(1);
    const auto later = runtime::cuda::load_cuda_driver(0);
    EXPECT_THAT([&] { runtime::cuda::CudaExecutable(plan, later); },
                ::testing::ThrowsMessage<UserError>(HasSubstr("has no algorithm for it: compile it again")));
  }
  EXPECT_EQ(checking.findings(), "");
  EXPECT_EQ(checking.live(), "");
}

TEST_F(CheckedDriver, WhateverFailsAsItIsMeasuredNothingIsLeftBehind) {
  const plan::Plan plan = large_product_plan();
  plan::Product product = product_of(plan);
  product.algorithm = "130002:02";
  compiler::CompileOptions kernels = testing::device_options(false);
  const plan::Plan kernel = compiler::compile(testing::copy_of(large_product()), "kernel", kernels);
  for (int64_t n = 0;; ++n) {
    checking.reset(n, 2);
    std::string said;
    try {
      const auto driver = runtime::cuda::load_cuda_driver(0);
      runtime::cuda::seconds_of(*driver, product, 1 << 20);
      runtime::cuda::seconds_of(*driver, kernel.kernels.at(0), kernel.steps.at(0).parallel_extent,
                                {64 * 64 * 4, 64 * 64 * 4, 64 * 64 * 4, 64 * 4});
    } catch (const std::exception& e) { said = e.what(); }
    const bool failed = checking.calls() > n;
    EXPECT_EQ(checking.findings(), "") << "call " << n << ": " << said;
    EXPECT_EQ(checking.live(), "") << "call " << n << ": " << said;
    if (HasFailure()) return;
    if (!failed) {
      EXPECT_GT(n, 100);
      EXPECT_EQ(said, "");
      return;
    }
  }
}

TEST_F(CheckedDriver, WhateverCallFailsNothingIsLeftBehind) {
  Step step;
  for (int64_t n = 0;; ++n) {
    checking.reset(n, 2);
    std::string said;
    try {
      step.run(runtime::cuda::load_cuda_driver(0), {0, 8});
    } catch (const std::exception& e) { said = e.what(); }
    const bool failed = checking.calls() > n;
    EXPECT_EQ(checking.findings(), "") << "call " << n << ": " << said;
    EXPECT_EQ(checking.live(), "") << "call " << n << ": " << said;
    EXPECT_EQ(checking.context(), nullptr) << "call " << n;
    if (HasFailure()) return;
    if (!failed) {
      EXPECT_GT(n, 100);
      EXPECT_EQ(said, "");
      return;
    }
  }
}

TEST_F(CheckedDriver, ALostDeviceIsToldOnceInFull) {
  Step step;
  checking.reset();
  step.run(runtime::cuda::load_cuda_driver(0), {0, 8});
  const int64_t calls = checking.calls();
  for (int64_t n = 12; n < calls; ++n) {  // the first ones find the device
    checking.reset(n, 700);
    const auto driver = runtime::cuda::load_cuda_driver(0);
    std::string first, second;
    try {
      step.run(driver, {0, 8});
    } catch (const DeviceLost& e) { first = e.what(); }
    try {
      driver->synchronize();
    } catch (const DeviceLost& e) { second = e.what(); }
    EXPECT_EQ(checking.findings(), "") << n;
    if (first.empty()) continue;  // it was asked when what is released is waited for
    EXPECT_THAT(first, HasSubstr("refused by a test (700)")) << n;
    EXPECT_THAT(first, HasSubstr("Restart the process; CUDA_LAUNCH_BLOCKING=1 names the kernel"));
    EXPECT_THAT(second, StartsWith("the GPU was lost before (CUDA, ")) << n;
    if (HasFailure()) return;
  }
}

TEST_F(CheckedDriver, AFailedLaunchNamesPlanKernelAndLines) {
  Step step;
  setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  std::set<std::string> said;
  for (int64_t n = 12; n < 60; ++n) {
    checking.reset(n, 719);
    try {
      step.run(runtime::cuda::load_cuda_driver(0), {8});
    } catch (const std::exception& e) { said.insert(std::string(e.what()).substr(0, 60)); }
  }
  unsetenv("CUDA_LAUNCH_BLOCKING");
  EXPECT_THAT(said, ::testing::Contains(HasSubstr("plan rows, kernel scan from model.py:7: CUDA, running it")));
}

// --- the watcher itself sees each rule broken

void misuse(const runtime::cuda::DriverApi& api, const std::string& how) {
  void *context = nullptr, *stream = nullptr, *module = nullptr, *function = nullptr, *graph = nullptr;
  unsigned long long memory = 0, other = 0;
  const char host[64] = "";
  void* pinned = nullptr;
  api.primary_retain(&context, 0);
  if (how == "no context") return void(api.memory_allocate(&memory, 8));
  if (how == "popped too often") return void(api.context_pop(&context));
  api.context_push(context);
  api.memory_allocate(&memory, 64);
  api.stream_create(&stream, 1);
  api.module_load(&module, "\177ELF");
  api.module_function(&function, module, "kernel");
  const auto launch = [&](Stream on) {
    void* table = reinterpret_cast<void*>(memory);
    void* arguments[] = {&table};
    api.launch(function, 1, 1, 1, 32, 1, 1, 0, on, arguments, nullptr);
  };
  if (how == "double free") api.memory_free(memory), api.memory_free(memory);
  if (how == "pageable") api.copy_in(memory, host, 64, stream);
  if (how == "freed in use") launch(stream), api.memory_free(memory);
  if (how == "unloaded in use") launch(stream), api.module_unload(module);
  if (how == "launch after free") api.memory_free(memory), launch(stream);
  if (how == "not waited for") api.copy_in_and_wait(memory, host, 64), launch(stream), api.stream_wait(stream);
  if (how == "read too soon") launch(stream), api.copy_out_and_wait(&other, memory, 8);
  if (how == "capture left") api.capture_begin(stream, 2), api.stream_destroy(stream);
  if (how == "default captured") api.capture_begin(nullptr, 2);
  if (how == "capture not begun") api.capture_end(stream, &graph);
  if (how == "changed") {
    api.host_allocate(&pinned, 64, 1);
    api.copy_in(memory, pinned, 64, stream);
    static_cast<char*>(pinned)[3] ^= 1;
    api.stream_wait(stream);
  }
  if (how == "another context") {
    api.primary_retain(&context, 1);
    api.context_push(context);
    launch(stream);
  }
}

TEST_F(CheckedDriver, EachMisuseIsSeen) {
  const std::pair<const char*, const char*> table[] = {
      {"no context", "cuMemAlloc outside of a context"},
      {"double free", "cuMemFree: no such memory"},
      {"pageable", "from memory that is not pinned"},
      {"freed in use", "cuMemFree: a memory that a kernel still uses"},
      {"unloaded in use", "cuModuleUnload: a module that a kernel still uses"},
      {"launch after free", "cuLaunchKernel: memory that is not there"},
      {"not waited for", "a kernel: reads memory that a copy is still on its way to"},
      {"read too soon", "cuMemcpyDtoH: reads memory that a stream still works on"},
      {"capture left", "cuStreamDestroy: it is being captured"},
      {"default captured", "cuStreamBeginCapture: of the default stream"},
      {"capture not begun", "cuStreamEndCapture: it is not captured"},
      {"changed", "a copy: its source has changed meanwhile"},
      {"another context", "cuLaunchKernel: a function of another context"},
  };
  for (const auto& [how, words] : table) {
    checking.reset();
    misuse(runtime::cuda::load_api(), how);
    EXPECT_THAT(checking.findings(), HasSubstr(words)) << how;
  }
}

}  // namespace
}  // namespace trainc
