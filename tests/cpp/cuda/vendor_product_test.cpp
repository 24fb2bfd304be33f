// Contractions that go to the vendor's library: which, how it is asked, and what comes of it by the definition of such
// a call.
#include <gmock/gmock.h>

#include "../common/random_graph.h"
#include "device_run.h"
#include "graphs.h"
#include "runtime/cuda/cublaslt.h"
#include "runtime/interpret/driver.h"

namespace trainc {
namespace {

using reference::Tensor;
using ::testing::Contains;
using testing::copy_of;
using testing::expect_close;
using testing::halves;
using ::testing::HasSubstr;
using testing::oracle;
using ::testing::StartsWith;

compiler::CompileOptions with_vendor_products(bool interpreted = true) {
  compiler::CompileOptions o = testing::device_options(interpreted);
  o.vendor_product_flops = 1;
  return o;
}

/// lhs x rhs of this dtype, rounded to `out`.
Graph product(int64_t batch, int64_t m, int64_t n, int64_t k, DType dtype, DType out, bool lhs_transposed,
              bool rhs_transposed) {
  Graph g;
  Builder b{g, {}};
  const auto [l, r] = testing::operands(b, batch, m, n, k, dtype, lhs_transposed, rhs_transposed);
  const DType sums = dtype == DType::F64 ? DType::F64 : DType::F32;
  const Node* c = b.contract(dtype == sums ? l : b.cast(l, sums), dtype == sums ? r : b.cast(r, sums));
  g.outputs = {{out == sums ? c : b.cast(c, out), {}}};
  g.input_count = 2;
  return g;
}

/// Why contractions are kernels, by the plan's remarks.
std::vector<std::string> not_called(const plan::Plan& plan) {
  std::vector<std::string> reasons;
  for (const Remark& r : plan.remarks)
    if (r.what == missed::kVendorProduct) reasons.push_back(r.reason);
  return reasons;
}

int products(const plan::Plan& plan) {
  return static_cast<int>(std::count_if(plan.steps.begin(), plan.steps.end(),
                                        [](const plan::Step& s) { return s.kind == plan::StepKind::Product; }));
}

TEST(VendorProduct, EveryLayoutAgainstTheReference) {
  const struct {
    int64_t batch, m, n, k;
  } sizes[] = {{1, 5, 7, 3}, {2, 4, 6, 8}, {3, 1, 5, 2}, {2, 5, 1, 3}, {1, 3, 4, 1}, {2, 1, 1, 9}};
  const struct {
    DType in, out;
  } types[] = {{DType::F32, DType::F32},
               {DType::BF16, DType::F32},
               {DType::BF16, DType::BF16},
               {DType::F16, DType::F16},
               {DType::F64, DType::F64}};
  for (const auto& s : sizes)
    for (const auto& t : types)
      for (bool lhs : {false, true})
        for (bool rhs : {false, true}) {
          const Graph g = product(s.batch, s.m, s.n, s.k, t.in, t.out, lhs, rhs);
          SCOPED_TRACE(print(g));
          const plan::Plan plan =
              plan::load(plan::save(compiler::compile(copy_of(g), "product", with_vendor_products())));
          ASSERT_EQ(products(plan), 1) << plan::print(plan);
          const auto inputs = halves(g, 5);
          const auto driver = std::make_shared<runtime::interpreted::InterpretedDriver>();
          expect_close(testing::run_on_device(plan, driver, inputs), oracle(g, inputs));
          EXPECT_EQ(driver->held, 0);
          if (HasFailure()) return;
        }
}

TEST(VendorProduct, HowItIsAsked) {  // 2 batches of [4, 8] x [6, 8]^T: rows side by side are the library's columns
  const auto driver = std::make_shared<runtime::cuda::NullDriver>();
  const auto asked = [&](bool lhs, bool rhs) {
    const Graph g = product(2, 4, 6, 8, DType::BF16, DType::BF16, lhs, rhs);
    driver->calls.clear();
    testing::run_on_device(compiler::compile(copy_of(g), "product", with_vendor_products(false)), driver, halves(g, 5));
    EXPECT_THAT(driver->calls, ::testing::Not(Contains("graph")));  // its pointers would be fixed
    return driver->calls.back();
  };
  EXPECT_EQ(asked(false, false),
            "multiply 2 batches: a bf16[8 x 6, leading 8, batch 48, offset 0] transposed, b bf16[8 x 4, leading 8, "
            "batch 32, offset 0], "
            "d bf16[6 x 4, leading 6, batch 24, offset 0]");
  EXPECT_EQ(asked(true, true),
            "multiply 2 batches: a bf16[6 x 8, leading 6, batch 48, offset 0], b bf16[4 x 8, leading 4, batch 32, "
            "offset 0] transposed, "
            "d bf16[6 x 4, leading 6, batch 24, offset 0]");
}

// queries out of one product of all heads: a leading dimension beyond the columns, an offset
TEST(VendorProduct, PartsOfATensorAreReadWhereTheyLie) {
  Graph g;
  Builder b{g, {}};
  const Node* all = b.input(0, {DType::F32, {1, 6, 24}});
  const Node* part = b.slice(all, {0, 0, 8}, {1, 6, 8}, {1, 1, 1});
  g.outputs = {{b.contract(part, b.input(1, {DType::F32, {1, 5, 8}})), {}}};
  g.input_count = 2;
  const plan::Plan plan = compiler::compile(copy_of(g), "part", with_vendor_products());
  ASSERT_EQ(products(plan), 1);
  EXPECT_EQ(plan.steps[0].product.lhs.row_stride, 24);
  EXPECT_EQ(plan.steps[0].product.lhs.offset, 8);
  const auto inputs = halves(g, 3);
  expect_close(testing::run_on_device(plan, std::make_shared<runtime::interpreted::InterpretedDriver>(), inputs),
               oracle(g, inputs));
}

/// Compiles with the library, runs on the interpreted device, and compares with the reference; the plan.
plan::Plan computed(const Graph& g) {
  plan::Plan plan = compiler::compile(copy_of(g), "product", with_vendor_products());
  const auto inputs = halves(g, 3);
  expect_close(testing::run_on_device(plan, std::make_shared<runtime::interpreted::InterpretedDriver>(), inputs),
               oracle(g, inputs));
  return plan;
}

TEST(VendorProduct, WhatAnOperandIsComputedFromIsComputedBefore) {
  const auto product_of = [](auto&& lhs) {
    Graph g;
    Builder b{g, {}};
    const Node* l = lhs(b);
    g.outputs = {{b.contract(l, b.input(1, {DType::F32, {l->shape()[0], 6, 8}})), {}}};
    g.input_count = 2;
    return g;
  };
  const Graph elementwise =
      product_of([](Builder& b) { return b.unary(Op::Neg, b.input(0, {DType::F32, {1, 4, 8}})); });
  // heads side by side again, which no stride says
  const Graph heads = product_of([](Builder& b) {
    const Node* apart = b.input(0, {DType::F32, {2, 4, 4}});
    return b.reshape(b.permute(apart, {1, 0, 2}), {1, 4, 8});
  });
  const Graph repeated =
      product_of([](Builder& b) { return b.broadcast(b.input(0, {DType::F32, {1, 1, 8}}), {1, 4, 8}); });
  const Graph padded = product_of([](Builder& b) {
    return b.pad(b.input(0, {DType::F32, {1, 4, 7}}), b.constant(DType::F32, 0), {0, 0, 1}, {0, 0, 0});
  });
  for (const Graph* g : {&elementwise, &heads, &repeated, &padded}) {
    SCOPED_TRACE(print(*g));
    const plan::Plan plan = computed(*g);
    ASSERT_EQ(plan.steps.size(), 2u) << plan::print(plan);
    EXPECT_EQ(plan.steps[0].kind, plan::StepKind::Kernel);
    EXPECT_EQ(plan.steps[1].kind, plan::StepKind::Product);
  }
}

// what is copied for the library is as narrow as it multiplies
TEST(VendorProduct, ACopyOfAWidenedOperandIsNarrow) {
  Graph g;
  Builder b{g, {}};
  const Node* apart = b.cast(b.input(0, {DType::BF16, {2, 4, 4}}), DType::F32);
  const Node* rhs = b.cast(b.input(1, {DType::BF16, {1, 6, 8}}), DType::F32);
  g.outputs = {{b.cast(b.contract(b.reshape(b.permute(apart, {1, 0, 2}), {1, 4, 8}), rhs), DType::BF16), {}}};
  g.input_count = 2;
  const plan::Plan plan = computed(g);
  ASSERT_EQ(products(plan), 1) << plan::print(plan);
  const auto step = std::ranges::find(plan.steps, plan::StepKind::Product, &plan::Step::kind);
  EXPECT_EQ(step->product.lhs.dtype, DType::BF16);
  EXPECT_EQ(step->product.result.dtype, DType::BF16);
}

TEST(VendorProduct, WhatIsDoneWithTheResultIsDoneAfterwards) {
  const plan::Plan plan = computed(testing::contraction(1, 4, 6, 8, DType::F32, false, false));  // bias and relu
  ASSERT_EQ(plan.steps.size(), 2u) << plan::print(plan);
  EXPECT_EQ(plan.steps[0].kind, plan::StepKind::Product);
  EXPECT_EQ(plan.steps[1].kind, plan::StepKind::Kernel);
}

// a rounding is the library's where nobody wants the sums themselves
TEST(VendorProduct, SumsThatAreReadAreStored) {
  Graph g;
  Builder b{g, {}};
  const auto half = [&](int64_t i, Dims shape) { return b.cast(b.input(i, {DType::BF16, shape}), DType::F32); };
  const Node* c = b.contract(half(0, {1, 4, 8}), half(1, {1, 6, 8}));
  g.outputs = {{b.cast(c, DType::BF16), {}}, {c, {}}};
  g.input_count = 2;
  const plan::Plan plan = computed(g);
  ASSERT_EQ(products(plan), 1) << plan::print(plan);
  EXPECT_EQ(plan.steps[0].product.result.dtype, DType::F32);
}

// a sum over windows is no product of two matrices in memory, unless all windows were written out
TEST(VendorProduct, WindowsStayKernels) {
  Graph g;
  Builder b{g, {}};
  const Node* windows =
      b.window(b.input(0, {DType::F32, {1, 11}}), {.axes = {1}, .size = {4}, .step = {1}, .dilation = {1}});
  g.outputs = {{b.contract(windows, b.input(1, {DType::F32, {1, 6, 4}})), {}}};
  g.input_count = 2;
  const plan::Plan plan = computed(g);
  EXPECT_EQ(products(plan), 0) << plan::print(plan);
}

TEST(VendorProduct, RandomGraphs) {
  testing::RandomGraphOptions options;
  options.transcendental = false;
  options.max_numel = 600;
  int made = 0, kernels = 0;
  for (uint64_t seed = 1; seed <= 120 && !HasFailure(); ++seed) {
    options.few_sizes = seed % 2 == 0;
    const Graph g = testing::random_graph(seed, options);
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + print(g));
    const plan::Plan plan = computed(g);
    made += products(plan);
    for (const std::string& why : not_called(plan)) {
      ++kernels;
      EXPECT_THAT(why,
                  ::testing::AnyOf("its operands differ in dtype", "the vendor's library does not give this dtype"));
    }
  }
  EXPECT_GT(made, 4 * kernels);
  EXPECT_GT(made, 40);
}

TEST(VendorProduct, SmallProductsStayKernels) {
  compiler::CompileOptions o = testing::device_options(true);
  const Graph g = product(1, 16, 16, 16, DType::F32, DType::F32, false, false);
  EXPECT_EQ(products(compiler::compile(copy_of(g), "none", o)), 0);  // nobody has the library
  o.vendor_product_flops = 2 * 16 * 16 * 16 + 1;
  const plan::Plan small = compiler::compile(copy_of(g), "small", o);
  EXPECT_EQ(products(small), 0);
  EXPECT_THAT(not_called(small), ::testing::ElementsAre("it is too small for a launch of its own"));
  o.vendor_product_flops -= 1;
  const plan::Plan large = compiler::compile(copy_of(g), "large", o);
  EXPECT_EQ(products(large), 1);
  EXPECT_THAT(not_called(large), ::testing::IsEmpty());
}

TEST(VendorProduct, Tf32IsAskedForWhereTheFlagSaysSo) {
  const Graph g = product(1, 4, 6, 8, DType::F32, DType::F32, false, false);
  compiler::CompileOptions o = with_vendor_products();
  EXPECT_FALSE(compiler::compile(copy_of(g), "strict", o).steps.at(0).product.tf32);
  o.tf32 = true;
  const plan::Plan plan = compiler::compile(copy_of(g), "tf32", o);
  EXPECT_TRUE(plan.steps.at(0).product.tf32);
  auto inputs = halves(g, 3);
  inputs[0].f.assign(inputs[0].f.size(), 1 + 0x1p-12);  // lost in tf32
  inputs[1].f.assign(inputs[1].f.size(), 1);
  EXPECT_EQ(testing::run_on_device(plan, std::make_shared<runtime::interpreted::InterpretedDriver>(), inputs)[0].f[0],
            8);
}

TEST(VendorProduct, PlansNeedItWhereTheyWereCompiledForIt) {
  struct Without : runtime::cuda::NullDriver {
    bool multiplies() const override { return false; }
  };
  const Graph g = product(1, 4, 6, 8, DType::F32, DType::F32, false, false);
  const plan::Plan plan = compiler::compile(copy_of(g), "product", with_vendor_products(false));
  try {
    runtime::cuda::CudaExecutable executable(plan, std::make_shared<Without>());
    FAIL();
  } catch (const UserError& e) {
    EXPECT_THAT(e.what(),
                HasSubstr("plan product was compiled with cuBLASLt, which cannot be loaded here: compile it again"));
  }
}

}  // namespace
}  // namespace trainc
