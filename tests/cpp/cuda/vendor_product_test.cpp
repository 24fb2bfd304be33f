// Contractions that go to the vendor's library: which, how it is asked, and what comes of it by the definition of such
// a call.
#include <gmock/gmock.h>

#include <functional>

#include "../common/random_graph.h"
#include "cost/memory.h"
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
          ASSERT_EQ(testing::products(plan), 1) << plan::print(plan);
          const auto inputs = halves(g, 5);
          const auto driver = std::make_shared<runtime::interpreted::InterpretedDriver>();
          expect_close(testing::run_on_device(plan, driver, inputs), oracle(g, inputs));
          EXPECT_EQ(driver->held, 0);
          if (HasFailure()) return;
        }
}

/// The last product that a driver noted.
std::string multiplied(const runtime::cuda::NullDriver& driver) {
  std::string last;
  for (const std::string& call : driver.calls)
    if (call.starts_with("multiply")) last = call;
  return last;
}

TEST(VendorProduct, HowItIsAsked) {  // 2 batches of [4, 8] x [6, 8]^T: rows side by side are the library's columns
  const auto driver = std::make_shared<runtime::cuda::NullDriver>();
  const auto asked = [&](bool lhs, bool rhs) {
    const Graph g = product(2, 4, 6, 8, DType::BF16, DType::BF16, lhs, rhs);
    driver->calls.clear();
    testing::run_on_device(compiler::compile(copy_of(g), "product", with_vendor_products(false)), driver, halves(g, 5));
    EXPECT_THAT(driver->calls, ::testing::Not(Contains("graph")));  // its pointers would be fixed
    return multiplied(*driver);
  };
  EXPECT_EQ(asked(false, false),
            "multiply 2 batches: a bf16[8 x 6, leading 8, batch 48, offset 0] transposed, b bf16[8 x 4, leading 8, "
            "batch 32, offset 0], "
            "d bf16[6 x 4, leading 6, batch 24, offset 0]");
  driver->calls.clear();
  Graph added;
  Builder b{added, {}};
  const auto [l, r] = testing::operands(b, 1, 4, 6, 8, DType::BF16, false, false);
  const auto wide = [&](int64_t i, Dims shape) { return b.cast(b.input(i, {DType::BF16, shape}), DType::F32); };
  const Node* sum = b.add(b.contract(b.cast(l, DType::F32), b.cast(r, DType::F32)), wide(2, {1, 4, 6}));
  added.outputs = {{b.cast(b.add(sum, b.broadcast(wide(3, {6}), {1, 4, 6})), DType::BF16), {}}};
  added.input_count = 4;
  testing::run_on_device(compiler::compile(copy_of(added), "added", with_vendor_products(false)), driver,
                         halves(added, 5));
  EXPECT_THAT(multiplied(*driver), ::testing::EndsWith("d bf16[6 x 4, leading 6, batch 24, offset 0], + c, + bias"));
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
  ASSERT_EQ(testing::products(plan), 1);
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
  ASSERT_EQ(testing::products(plan), 1) << plan::print(plan);
  const auto step = std::ranges::find(plan.steps, plan::StepKind::Product, &plan::Step::kind);
  EXPECT_EQ(step->product.lhs.dtype, DType::BF16);
  EXPECT_EQ(step->product.result.dtype, DType::BF16);
}

// attention's probabilities, in f32, times values in bf16: one matrix for all heads, one third of what was projected
TEST(VendorProduct, OperandsOfTwoDtypesAreWidened) {
  const auto with = [](auto&& values) {
    Graph g;
    Builder b{g, {}};
    const Node* lhs = b.input(0, {DType::F32, {4, 5, 8}});
    g.outputs = {{b.contract(lhs, values(b)), {}}};
    g.input_count = 2;
    return g;
  };
  const Graph plain = with([](Builder& b) { return b.cast(b.input(1, {DType::BF16, {4, 6, 8}}), DType::F32); });
  const Graph shared = with([](Builder& b) {
    const Node* x = b.cast(b.input(1, {DType::BF16, {1, 8, 6}}), DType::F32);
    return b.broadcast(b.permute(x, {0, 2, 1}), {4, 6, 8});
  });
  const Graph third = with([](Builder& b) {
    const Node* x = b.slice(b.input(1, {DType::BF16, {8, 4, 18}}), {0, 0, 6}, {8, 4, 6}, {1, 1, 1});
    return b.cast(b.permute(x, {1, 2, 0}), DType::F32);
  });
  for (const auto& [g, elements] : {std::pair{&plain, 4 * 6 * 8}, {&shared, 8 * 6}, {&third, 8 * 4 * 6}}) {
    SCOPED_TRACE(print(*g));
    const plan::Plan plan = computed(*g);
    ASSERT_EQ(testing::products(plan), 1) << plan::print(plan);
    ASSERT_EQ(plan.steps.size(), 2u) << plan::print(plan);
    EXPECT_EQ(plan.steps[1].product.lhs.dtype, DType::F32);
    EXPECT_EQ(plan.steps[1].product.rhs.dtype, DType::F32);
    EXPECT_EQ(plan.temp_bytes - cost::kVendorWorkspace, elements * 4) << "as little is copied as is read";
  }
}

TEST(VendorProduct, WhatIsDoneWithTheResultIsDoneAfterwards) {
  const plan::Plan plan = computed(testing::contraction(1, 4, 6, 8, DType::F32, false, false));  // bias and relu
  ASSERT_EQ(plan.steps.size(), 2u) << plan::print(plan);
  EXPECT_EQ(plan.steps[0].kind, plan::StepKind::Product);
  EXPECT_TRUE(plan.steps[0].product.bias);
  EXPECT_EQ(plan.steps[1].kind, plan::StepKind::Kernel);
}

/// A product of two inputs in `in`, and what `rest` makes of its sums [batch, m, n].
Graph then(int64_t batch, int64_t m, int64_t n, DType in, int inputs,
           const std::function<const Node*(Builder&, const Node*)>& rest) {
  Graph g;
  Builder b{g, {}};
  const auto [l, r] = testing::operands(b, batch, m, n, 5, in, false, true);
  g.outputs = {{rest(b, b.contract(b.cast(l, DType::F32), b.cast(r, DType::F32))), {}}};
  g.input_count = inputs;
  return g;
}

// the one step, which writes the result itself: through reshapes as the framework has them
TEST(VendorProduct, ABiasAndAnAddendAreTheLibrarys) {
  for (const auto& [batch, m, n] : {std::tuple<int64_t, int64_t, int64_t>{1, 4, 6}, {2, 3, 5}, {1, 2, 1}, {3, 1, 4}})
    for (DType in : {DType::F32, DType::BF16, DType::F16})
      for (DType out : {DType::F32, in})
        for (int added = 0; added < 8; ++added) {
          const bool bias = added & 1, addend = added & 2, addend_first = added & 4;
          if (addend_first && !(bias && addend)) continue;
          const Graph g = then(batch, m, n, in, 2 + bias + addend, [&](Builder& b, const Node* c) {
            const Dims flat = {batch * m, n};
            const Node* sum = b.reshape(c, flat);
            const auto add_bias = [&] {
              sum = b.add(sum, b.broadcast(b.cast(b.input(2, {out, {n}}), DType::F32), flat));
            };
            const auto add_addend = [&] {
              const Node* x = b.cast(b.input(2 + bias, {out, {batch, m, n}}), DType::F32);
              sum = b.reshape(b.add(x, b.reshape(sum, {batch, m, n})), flat);
            };
            if (addend_first) add_addend();
            if (bias) add_bias();
            if (addend && !addend_first) add_addend();
            return b.reshape(b.cast(sum, out), {m * batch * n});
          });
          SCOPED_TRACE(print(g));
          const plan::Plan plan = computed(g);
          ASSERT_EQ(plan.steps.size(), 1u) << plan::print(plan);
          EXPECT_EQ(plan.steps[0].product.bias, bias && batch * m > 1);
          EXPECT_EQ(plan.steps[0].product.addend, addend || (bias && batch * m == 1));
          EXPECT_EQ(plan::print(plan::load(plan::save(plan))), plan::print(plan));
          if (HasFailure()) return;
        }
}

// each is not what the library would give, bit for bit, or nothing that it reads
TEST(VendorProduct, WhatTheLibraryDoesNotAdd) {
  using Rest = std::function<const Node*(Builder&, const Node*)>;
  const auto vector = [](Builder& b, int64_t i, DType d, int64_t n) {
    return b.cast(b.input(i, {d, {n}}), DType::F32);
  };
  const struct {
    const char* why;
    DType in;
    int inputs;
    Rest rest;
    bool bias, addend;
  } cases[] = {
      {"a vector with an element a row", DType::F32, 3,
       [&](Builder& b, const Node* c) {
         return b.add(c, b.broadcast(b.reshape(vector(b, 2, DType::F32, 4), {1, 4, 1}), c->shape()));
       },
       false, false},
      {"a bias in f32, of a result that is rounded", DType::BF16, 3,
       [&](Builder& b, const Node* c) {
         return b.cast(b.add(c, b.broadcast(vector(b, 2, DType::F32, 6), c->shape())), DType::BF16);
       },
       true, false},  // the sums in f32 have it; they are rounded afterwards
      {"a bias in bf16, of sums in f32", DType::BF16, 3,
       [&](Builder& b, const Node* c) { return b.add(c, b.broadcast(vector(b, 2, DType::BF16, 6), c->shape())); },
       false, false},
      {"a rounded product, to which something is added", DType::BF16, 3,
       [&](Builder& b, const Node* c) {
         const Node* rounded = b.cast(b.cast(c, DType::BF16), DType::F32);
         return b.cast(b.add(rounded, b.broadcast(vector(b, 2, DType::BF16, 6), c->shape())), DType::BF16);
       },
       false, false},
      {"the same without widening", DType::BF16, 3,
       [&](Builder& b, const Node* c) {
         return b.add(b.cast(c, DType::BF16), b.broadcast(b.input(2, {DType::BF16, {6}}), c->shape()));
       },
       false, false},
      {"a part of a vector", DType::F32, 3,
       [&](Builder& b, const Node* c) {
         const Node* part = b.slice_axis(b.input(2, {DType::F32, {9}}), 0, 3, 6);
         return b.add(c, b.broadcast(part, c->shape()));
       },
       false, false},
      {"a transposed matrix", DType::F32, 3,
       [&](Builder& b, const Node* c) { return b.add(c, b.permute(b.input(2, {DType::F32, {1, 6, 4}}), {0, 2, 1})); },
       false, false},
      {"something subtracted", DType::F32, 3,
       [&](Builder& b, const Node* c) { return b.sub(c, b.broadcast(vector(b, 2, DType::F32, 6), c->shape())); }, false,
       false},
      {"a number", DType::F32, 2,
       [&](Builder& b, const Node* c) { return b.add(c, b.full(DType::F32, c->shape(), 2)); }, false, false},
      {"a second vector", DType::F32, 4,
       [&](Builder& b, const Node* c) {
         const Node* once = b.add(c, b.broadcast(vector(b, 2, DType::F32, 6), c->shape()));
         return b.add(once, b.broadcast(vector(b, 3, DType::F32, 6), c->shape()));
       },
       true, false},
      {"f32 sums of f32, rounded to bf16", DType::F32, 2,
       [&](Builder& b, const Node* c) { return b.cast(c, DType::BF16); }, false, false},
  };
  for (const auto& [why, in, inputs, rest, bias, addend] : cases) {
    SCOPED_TRACE(why);
    const Graph g = then(1, 4, 6, in, inputs, rest);
    const plan::Plan plan = computed(g);
    ASSERT_EQ(testing::products(plan), 1) << plan::print(plan);
    EXPECT_GE(plan.steps.size(), 2u) << plan::print(plan);
    const auto step = std::ranges::find(plan.steps, plan::StepKind::Product, &plan::Step::kind);
    EXPECT_EQ(step->product.bias, bias);
    EXPECT_EQ(step->product.addend, addend);
  }
}

// sums that somebody else reads, too, are what the library writes
TEST(VendorProduct, ABiasOfSumsThatAreReadIsAddedAfterwards) {
  Graph g = then(1, 4, 6, DType::F32, 3, [&](Builder& b, const Node* c) {
    return b.add(c, b.broadcast(b.input(2, {DType::F32, {6}}), c->shape()));
  });
  g.outputs.push_back({g.outputs[0].value->in(0), {}});
  const plan::Plan plan = computed(g);
  ASSERT_EQ(testing::products(plan), 1) << plan::print(plan);
  EXPECT_FALSE(plan.steps[0].product.bias);
}

// gradients of an input of several products in f32: each is added to what is there
TEST(VendorProduct, ProductsAreAddedToProducts) {
  Graph g;
  Builder b{g, {}};
  const Node* sum = nullptr;
  for (int64_t i = 0; i < 3; ++i) {
    const Node* c = b.contract(b.input(2 * i, {DType::F32, {1, 4, 8}}), b.input(2 * i + 1, {DType::F32, {1, 6, 8}}));
    sum = sum ? b.add(b.reshape(sum, {4, 6}), b.reshape(c, {4, 6})) : c;
  }
  g.outputs = {{sum, {}}};
  g.input_count = 6;
  const plan::Plan plan = computed(g);
  ASSERT_EQ(plan.steps.size(), 3u) << plan::print(plan);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(plan.steps[i].product.addend, i > 0);
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
  ASSERT_EQ(testing::products(plan), 1) << plan::print(plan);
  EXPECT_EQ(plan.steps[0].product.result.dtype, DType::F32);
}

/// The gradients of a weight and of its bias, as a linear layer has them: dy^T x ([out, in]), or x^T dy ([in, out]), of
/// x [tokens, in] and dy [tokens, out].
Graph gradients(DType dtype, DType sums, bool weight_transposed,
                const std::function<const Node*(Builder&, const Node*)>& summed) {
  constexpr int64_t tokens = 6, in = 5, out = 4;
  Graph g;
  Builder b{g, {}};
  const Node *x = b.cast(b.input(0, {dtype, {tokens, in}}), DType::F32),
             *dy = b.cast(b.input(1, {dtype, {tokens, out}}), DType::F32);
  const auto operand = [&](const Node* n) { return b.permute(b.reshape(n, {1, tokens, n->shape()[1]}), {0, 2, 1}); };
  const Node* dw = weight_transposed ? b.contract(operand(x), operand(dy)) : b.contract(operand(dy), operand(x));
  g.outputs = {{b.cast(b.reshape(dw, {dw->shape()[1], dw->shape()[2]}), dtype), {}},
               {b.cast(b.reshape(summed(b, dy), {1, out}), sums), {}}};
  g.input_count = 2;
  return g;
}

const Node* over_tokens(Builder& b, const Node* dy) { return b.reduce(ReduceKind::Sum, dy, {0}); }

TEST(VendorProduct, TheGradientOfABiasIsSummedOnTheWay) {
  for (DType dtype : {DType::F32, DType::BF16, DType::F16})
    for (bool transposed : {false, true}) {
      const Graph g = gradients(dtype, dtype, transposed, over_tokens);
      SCOPED_TRACE(print(g));
      const plan::Plan plan = computed(g);
      ASSERT_EQ(plan.steps.size(), 1u) << plan::print(plan);
      EXPECT_EQ(plan.steps[0].product.sums_of, transposed ? plan::SumsOf::Rhs : plan::SumsOf::Lhs);
      EXPECT_EQ(plan::print(plan::load(plan::save(plan))), plan::print(plan));
      if (HasFailure()) return;
    }
  // A convolution's have an axis of one element in front.
  const Graph behind = gradients(DType::BF16, DType::BF16, false, [](Builder& b, const Node* dy) {
    return b.reduce(ReduceKind::Sum, b.reshape(dy, {1, 6, 4}), {1});
  });
  EXPECT_EQ(computed(behind).steps.size(), 1u);
  // Frameworks ask for the sums of a where it lies as it is multiplied, and of b where it is transposed.
  const auto driver = std::make_shared<runtime::cuda::NullDriver>();
  const auto asked = [&](bool transposed) {
    const Graph g = gradients(DType::BF16, DType::BF16, transposed, over_tokens);
    testing::run_on_device(compiler::compile(copy_of(g), "gradients", with_vendor_products(false)), driver,
                           halves(g, 5));
    return multiplied(*driver);
  };
  EXPECT_EQ(asked(true),
            "multiply 1 batches: a bf16[4 x 6, leading 4, batch 0, offset 0], b bf16[5 x 6, leading 5, batch 0, offset "
            "0] transposed, d bf16[4 x 5, leading 4, batch 20, offset 0], sums of a");
  EXPECT_EQ(asked(false),
            "multiply 1 batches: a bf16[5 x 6, leading 5, batch 0, offset 0], b bf16[4 x 6, leading 4, batch 0, offset "
            "0] transposed, d bf16[5 x 4, leading 5, batch 20, offset 0], sums of b");
}

/// Compiles for a library that has algorithms for some products alone, and compares with the reference.
plan::Plan computed_with(const Graph& g, const std::function<bool(const plan::Product&)>& library_has) {
  compiler::Job job;
  job.library_has = [&](const plan::Product& p, int64_t) { return library_has(p); };
  plan::Plan plan = compiler::compile(copy_of(g), "product", with_vendor_products(), job);
  for (const plan::Step& s : plan.steps)
    if (s.kind == plan::StepKind::Product) EXPECT_TRUE(library_has(s.product)) << plan::print(plan);
  const auto inputs = halves(g, 3);
  expect_close(testing::run_on_device(plan, std::make_shared<runtime::interpreted::InterpretedDriver>(), inputs),
               oracle(g, inputs));
  return plan;
}

TEST(VendorProduct, WhatTheLibraryHasNoAlgorithmForIsAKernel) {
  const Graph added = then(2, 3, 5, DType::BF16, 4, [](Builder& b, const Node* c) {
    const Dims flat = {6, 5};
    const Node* bias = b.broadcast(b.cast(b.input(2, {DType::BF16, {5}}), DType::F32), flat);
    const Node* addend = b.cast(b.input(3, {DType::BF16, flat}), DType::F32);
    return b.cast(b.add(b.add(b.reshape(c, flat), bias), addend), DType::BF16);
  });
  const Graph summed = gradients(DType::BF16, DType::BF16, false, over_tokens);
  for (int refused = 0; refused < 8; ++refused) {
    SCOPED_TRACE(refused);
    const auto library_has = [&](const plan::Product& p) {
      return !(refused & 1 && p.bias) && !(refused & 2 && p.addend) &&
             !(refused & 4 && p.sums_of != plan::SumsOf::None);
    };
    const plan::Plan plan = computed_with(added, library_has);
    EXPECT_EQ(testing::products(plan), 1) << plan::print(plan);
    EXPECT_EQ(plan.steps.size(), refused & 3 ? 2u : 1u) << plan::print(plan);
    EXPECT_EQ(plan.steps[0].product.bias, !(refused & 3));  // both are added before the one rounding, or none
    EXPECT_EQ(plan.notes.empty(), !(refused & 3));
    EXPECT_EQ(testing::products(computed_with(summed, library_has)), 1);
    EXPECT_EQ(computed_with(summed, library_has).steps.size() > 1, refused >= 4);
  }
  // not even the product alone: a kernel of ours does all
  const auto nothing = [](const plan::Product&) { return false; };
  for (const Graph* g : {&added, &summed}) {
    const plan::Plan plan = computed_with(*g, nothing);
    EXPECT_EQ(testing::products(plan), 0) << plan::print(plan);
    EXPECT_THAT(not_called(plan), Contains("the vendor's library has no algorithm for it"));
  }
}

// The forward casts a weight; the backward, which multiplies by it again, reads what lies in the arena.
TEST(VendorProduct, WeightsAreCastOnceAStep) {
  Graph g;
  Builder b{g, {}};
  const auto narrow = [&](const Node* x) { return b.cast(b.cast(x, DType::BF16), DType::F32); };
  const Node *w = narrow(b.input(0, {DType::F32, {1, 136, 128}})), *x = narrow(b.input(1, {DType::F32, {1, 4, 128}})),
             *dy = narrow(b.input(2, {DType::F32, {1, 4, 136}}));
  g.outputs = {{b.contract(x, w), {}}, {}, {b.contract(dy, b.permute(w, {0, 2, 1})), {}}};
  g.input_count = 3;
  for (int64_t vendor_flops : {0, 1}) {
    compiler::CompileOptions options = testing::device_options(true);
    options.vendor_product_flops = vendor_flops;
    const compiler::JointGraph joint(copy_of(g), 2, 1, "joint", options);
    // else it reads the weight itself, and casts it again
    EXPECT_EQ(joint.saved_inputs(), vendor_flops ? std::vector<int64_t>{} : std::vector<int64_t>{0});
    EXPECT_GE(joint.saved_bytes(), vendor_flops ? 136 * 128 * 2 : 0);
  }
}

TEST(VendorProduct, OtherSumsAreKernels) {
  const std::pair<const char*, std::function<const Node*(Builder&, const Node*)>> cases[] = {
      {"a maximum", [](Builder& b, const Node* dy) { return b.reduce(ReduceKind::Max, dy, {0}); }},
      {"of what is computed from it", [](Builder& b, const Node* dy) { return over_tokens(b, b.mul(dy, dy)); }},
      {"of a part", [](Builder& b, const Node* dy) { return over_tokens(b, b.slice(dy, {1, 0}, {5, 4}, {1, 1})); }},
      {"of another tensor",
       [](Builder& b, const Node*) { return over_tokens(b, b.cast(b.input(2, {DType::BF16, {6, 4}}), DType::F32)); }},
  };
  for (const auto& [why, summed] : cases) {
    SCOPED_TRACE(why);
    Graph g = gradients(DType::BF16, DType::BF16, false, summed);
    if (std::string(why) == "of another tensor") g.input_count = 3;
    const plan::Plan plan = computed(g);
    EXPECT_EQ(testing::products(plan), 1);
    EXPECT_GE(plan.steps.size(), 2u) << plan::print(plan);
  }
  // sums that are not rounded, beside a product that is
  EXPECT_EQ(computed(gradients(DType::BF16, DType::F32, false, over_tokens)).steps.size(), 2u);
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
  EXPECT_EQ(testing::products(plan), 0) << plan::print(plan);
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
    made += testing::products(plan);
    for (const std::string& why : not_called(plan)) {
      ++kernels;
      EXPECT_EQ(why, "the vendor's library does not give this dtype");
    }
  }
  EXPECT_GT(made, 4 * kernels);
  EXPECT_GT(made, 40);
}

TEST(VendorProduct, SmallProductsStayKernels) {
  compiler::CompileOptions o = testing::device_options(true);
  const Graph g = product(1, 16, 16, 16, DType::F32, DType::F32, false, false);
  EXPECT_EQ(testing::products(compiler::compile(copy_of(g), "none", o)), 0);  // nobody has the library
  o.vendor_product_flops = 2 * 16 * 16 * 16 + 1;
  const plan::Plan small = compiler::compile(copy_of(g), "small", o);
  EXPECT_EQ(testing::products(small), 0);
  EXPECT_THAT(not_called(small), ::testing::ElementsAre("it is too small for a launch of its own"));
  o.vendor_product_flops -= 1;
  const plan::Plan large = compiler::compile(copy_of(g), "large", o);
  EXPECT_EQ(testing::products(large), 1);
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
