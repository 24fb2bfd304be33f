// tune="max" on a GPU: the library's algorithms and a kernel are measured by a clock with a script, and what is chosen
// becomes part of the plan.
#include <gmock/gmock.h>

#include <algorithm>

#include "device_run.h"
#include "graphs.h"
#include "runtime/interpret/driver.h"

namespace trainc {
namespace {

using runtime::cuda::CudaDevice;
using runtime::cuda::CudaExecutable;
using runtime::cuda::NullDriver;
using runtime::interpreted::InterpretedDriver;
using testing::copy_of;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using testing::expect_close;
using testing::halves;
using ::testing::HasSubstr;
using testing::oracle;

/// Products of bf16 with a bias and a residual; `count` of them, of the same sizes.
Graph products(int count) {
  Graph g;
  Builder b{g, "model.py:5"};
  const auto wide = [&](int64_t i, Dims shape) { return b.cast(b.input(i, {DType::BF16, shape}), DType::F32); };
  for (int i = 0; i < count; ++i) {
    const Node* c = b.contract(wide(4 * i, {1, 12, 16}), wide(4 * i + 1, {1, 24, 16}));
    const Node* bias = b.broadcast(wide(4 * i + 2, {24}), {1, 12, 24});
    g.outputs.push_back({b.cast(b.add(b.add(c, wide(4 * i + 3, {1, 12, 24})), bias), DType::BF16), {}});
  }
  g.input_count = 4 * count;
  return g;
}

/// A gradient of a weight, and the sums that are a bias's.
Graph with_sums() {
  Graph g;
  Builder b{g, "model.py:8"};
  const auto wide = [&](int64_t i, Dims shape) { return b.cast(b.input(i, {DType::BF16, shape}), DType::F32); };
  const Node *dy = wide(0, {6, 4}), *x = wide(1, {6, 5});
  const Node* dw = b.contract(b.reshape(b.permute(dy, {1, 0}), {1, 4, 6}), b.reshape(b.permute(x, {1, 0}), {1, 5, 6}));
  g.outputs = {{b.cast(b.reshape(dw, {4, 5}), DType::BF16), {}},
               {b.cast(b.reduce(ReduceKind::Sum, dy, {0}), DType::BF16), {}}};
  g.input_count = 2;
  return g;
}

struct Tuned {
  plan::Plan plan;
  std::vector<std::vector<std::string>> asked;  // the ways of each product that was measured
  std::vector<std::vector<double>> seconds;
};
/// The least of what the driver's clock says is taken.
Tuned tuned(const Graph& g, const std::shared_ptr<NullDriver>& driver, bool interpreted = true) {
  Tuned tuned;
  const auto device = std::make_shared<CudaDevice>(driver);
  compiler::Job job;
  job.tuning = compiler::Tuning{
      .seconds = [=](const plan::Kernel& k, int64_t extent,
                     const std::vector<int64_t>& bytes) { return device->seconds_of(k, extent, bytes); },
      .choose = [](const std::string&, int, const std::function<double(int)>&) -> int {
        throw InternalError("a GPU's contractions have no cuts to choose from");
      },
      .algorithms = [=](const plan::Product& p, int64_t bytes) { return device->algorithms(p, bytes, 8); },
      .product_seconds = [=](const plan::Product& p, int64_t bytes) { return device->seconds_of(p, bytes); },
      .choose_way =
          [&](const std::string&, const std::vector<std::string>& ways, const std::function<double(int)>& measure) {
            std::vector<double> seconds;
            for (size_t i = 0; i < ways.size(); ++i) seconds.push_back(measure(static_cast<int>(i)));
            tuned.asked.push_back(ways), tuned.seconds.push_back(seconds);
            const auto best = std::ranges::min_element(seconds);
            return std::isfinite(*best) ? ways[static_cast<size_t>(best - seconds.begin())] : std::string();
          }};
  compiler::CompileOptions options = testing::device_options(interpreted);
  options.vendor_product_flops = 1;
  tuned.plan = compiler::compile(copy_of(g), "tuned", options, job);
  return tuned;
}

void expect_right(const Graph& g, const plan::Plan& plan, const std::shared_ptr<NullDriver>& driver) {
  const auto inputs = halves(g, 5);
  expect_close(testing::run_on_device(plan::load(plan::save(plan)), driver, inputs), oracle(g, inputs));
  EXPECT_EQ(driver->held, 0);
}

TEST(TuneOnAGpu, TheFastestAlgorithmIsInThePlan) {
  const Graph g = products(1);
  const auto driver = std::make_shared<InterpretedDriver>();
  const Tuned t = tuned(g, driver);
  EXPECT_EQ(driver->held, 0);
  EXPECT_THAT(t.asked, ElementsAre(ElementsAre("first", "second", "third", "kernel")));
  EXPECT_THAT(t.seconds, ElementsAre(::testing::Pointwise(::testing::DoubleNear(1e-9), {3e-3, 1e-3, 2e-3, 4e-3})));
  ASSERT_EQ(t.plan.steps.size(), 1u) << plan::print(t.plan);
  EXPECT_EQ(t.plan.steps[0].product.algorithm, "second");
  EXPECT_THAT(plan::print(t.plan), HasSubstr(", by second"));
  EXPECT_THAT(t.plan.notes, ElementsAre("tune=\"max\": 1 products, 4 ways to compute them: 1 by another algorithm than "
                                        "the library's first, 0 by kernels of trainc's"));
  driver->calls.clear();
  expect_right(g, t.plan, driver);
}

TEST(TuneOnAGpu, AStoredPlanIsRefusedWhereTheLibraryNoLongerHasIt) {
  const auto driver = std::make_shared<NullDriver>();
  const Tuned t = tuned(products(1), driver, false);
  const plan::Plan stored = plan::load(plan::save(t.plan));
  EXPECT_EQ(stored.steps.at(0).product.algorithm, "second");
  EXPECT_NO_THROW(CudaExecutable(stored, driver));
  driver->scripted.erase(driver->scripted.begin() + 1);
  EXPECT_THAT([&] { CudaExecutable(stored, driver); },
              ::testing::ThrowsMessage<UserError>(HasSubstr("has no algorithm for it: compile it again")));
}

TEST(TuneOnAGpu, AKernelTakesTheProductsPlaceWhereItIsFaster) {
  const Graph g = products(1);
  const auto driver = std::make_shared<InterpretedDriver>();
  driver->seconds_of_a_launch = 5e-4;
  const Tuned t = tuned(g, driver);
  ASSERT_EQ(t.plan.steps.size(), 1u) << plan::print(t.plan);
  EXPECT_EQ(t.plan.steps[0].kind, plan::StepKind::Kernel);
  EXPECT_THAT(t.plan.notes, ElementsAre(EndsWith("0 by another algorithm than the library's first, 1 by kernels of "
                                                 "trainc's")));
  expect_right(g, t.plan, driver);
}

TEST(TuneOnAGpu, SumsOfAnOperandAreTheLibrarysAlone) {
  const Graph g = with_sums();
  const auto driver = std::make_shared<InterpretedDriver>();
  driver->seconds_of_a_launch = 5e-4;
  const Tuned t = tuned(g, driver);
  EXPECT_THAT(t.asked, ElementsAre(ElementsAre("first", "second", "third")));
  ASSERT_EQ(t.plan.steps.size(), 1u) << plan::print(t.plan);
  EXPECT_EQ(t.plan.steps[0].product.algorithm, "second");
  expect_right(g, t.plan, driver);
}

TEST(TuneOnAGpu, EqualProductsAreMeasuredOnce) {
  const auto driver = std::make_shared<NullDriver>();
  const Tuned t = tuned(products(3), driver, false);
  EXPECT_EQ(t.asked.size(), 1u);
  EXPECT_EQ(std::ranges::count_if(t.plan.steps, [](const auto& s) { return s.product.algorithm == "second"; }), 3);
  EXPECT_THAT(t.plan.notes, ElementsAre(HasSubstr("3 products, 4 ways to compute them: 3 by another")));
}

TEST(TuneOnAGpu, WhatCannotBeMeasuredIsTheLibrarysChoice) {
  struct Full : InterpretedDriver {
    bool full = true;
    void* allocate(int64_t bytes) override {
      if (full) throw InternalError("CUDA, allocating a table: out of memory (2)");
      return InterpretedDriver::allocate(bytes);
    }
  };
  const Graph g = products(1);
  const auto driver = std::make_shared<Full>();
  const Tuned t = tuned(g, driver);
  EXPECT_EQ(t.plan.steps.at(0).product.algorithm, "");
  EXPECT_THAT(t.plan.notes, ::testing::Contains("tune=\"max\": 1 products could not be measured, and are the library's "
                                                "choice"));
  driver->full = false;
  expect_right(g, t.plan, driver);
}

TEST(TuneOnAGpu, WhereTheLibraryNamesNoneNothingIsMeasured) {
  const auto driver = std::make_shared<NullDriver>();
  driver->scripted.clear();
  const Tuned t = tuned(products(1), driver, false);
  EXPECT_TRUE(t.asked.empty());
  EXPECT_EQ(t.plan.steps.at(0).product.algorithm, "");
  EXPECT_TRUE(t.plan.notes.empty());
}

}  // namespace
}  // namespace trainc
