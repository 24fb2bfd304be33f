// Products whose rows begin at no multiple of 16 bytes (logits over an odd number of words): forward, cut and backward.
#include "schedule/pad_products.h"

#include <gmock/gmock.h>

#include "device_run.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "runtime/interpret/driver.h"

namespace trainc {
namespace {

using reference::Tensor;
using testing::copy_of;
using testing::expect_close;
using testing::halves;
using testing::oracle;

struct Sizes { int64_t tokens, in, words; };

/// A linear layer over `words`, what a loss would make of its logits, and the gradients of weight, bias and input:
/// inputs are x [tokens, in], weight [words, in] in f32, bias [words], and tangents of the loss and of the logits.
Graph head(const Sizes& s, DType dtype, bool bias) {
  Graph g;
  Builder b{g, {}};
  const auto narrow = [&](const Node* x) { return b.cast(b.cast(x, dtype), DType::F32); };
  const auto matrix = [&](const Node* x) { return b.reshape(x, {1, x->shape()[0], x->shape()[1]}); };
  const auto turned = [&](const Node* x) { return b.permute(matrix(x), {0, 2, 1}); };
  const Node *x = narrow(b.input(0, {dtype, {s.tokens, s.in}})), *w = narrow(b.input(1, {DType::F32, {s.words, s.in}}));
  const Node* sums = b.reshape(b.contract(matrix(x), matrix(w)), {s.tokens, s.words});
  if (bias) sums = b.add(sums, b.broadcast(b.cast(b.input(2, {dtype, {s.words}}), DType::F32), sums->shape()));
  const Node* logits = narrow(sums);
  const Node* loss = b.reduce(ReduceKind::Sum, b.mul(logits, logits), {1});
  const Node* tangent = b.broadcast(b.input(2 + bias, {DType::F32, {s.tokens, 1}}), {s.tokens, s.words});
  const Node* other = b.cast(b.input(3 + bias, {dtype, {s.tokens, s.words}}), DType::F32);  // of the logits themselves
  const Node* scaled = b.mul(b.unary(Op::Abs, logits), tangent);
  const Node* mean = b.mul(b.reduce(ReduceKind::Sum, scaled, {1}, true), b.full(DType::F32, {s.tokens, 1}, 1. / 64));
  const Node* hit = b.binary(Op::Eq, b.iota(DType::I64, scaled->shape(), 1), b.iota(DType::I64, scaled->shape(), 0));
  const Node* one = b.select(hit, b.full(DType::F32, scaled->shape(), 1), b.full(DType::F32, scaled->shape(), 0));
  const Node* gradient = narrow(b.add(other, b.sub(b.sub(one, scaled), b.broadcast(mean, scaled->shape()))));
  const Node* dw = b.cast(b.contract(turned(gradient), turned(x)), dtype);
  const Node* dx = b.cast(b.contract(matrix(gradient), turned(w)), dtype);
  g.outputs = {{loss, {}}, {b.cast(dx, DType::F32), {}}, {b.cast(dw, DType::F32), {}}};
  if (bias) g.outputs.push_back({b.cast(b.reduce(ReduceKind::Sum, gradient, {0}), dtype), {}});
  g.input_count = 4 + bias;
  return g;
}

/// Where a product's rows begin at no multiple of 16 bytes.
std::string misaligned(const plan::Plan& plan) {
  for (const plan::Step& s : plan.steps)
    for (const plan::Matrix* m : {&s.product.lhs, &s.product.rhs, &s.product.result}) {
      if (s.kind != plan::StepKind::Product) continue;
      const int64_t leading = std::max(m->row_stride, m->column_stride);
      if (leading * size_of(m->dtype) % 16) return plan::print(plan);
    }
  return "";
}

TEST(PadProducts, RowsOfLogitsBeginAtMultiplesOf16Bytes) {
  for (const DType dtype : {DType::BF16, DType::F32})
    for (const bool bias : {false, true}) {
      const int64_t large = dtype == DType::BF16 ? 256 : 512;  // what a longer copy is worth
      const Graph g = head({large + 16, large, 35}, dtype, bias);
      SCOPED_TRACE(print(g));
      compiler::CompileOptions options = testing::device_options(true);
      options.vendor_product_flops = 1;
      const auto inputs = halves(g, 3);
      const auto wanted = oracle(g, inputs);
      const auto driver = std::make_shared<runtime::interpreted::InterpretedDriver>();

      const plan::Plan whole = compiler::compile(copy_of(g), "whole", options);
      EXPECT_EQ(testing::products(whole), 3) << plan::print(whole);
      EXPECT_EQ(misaligned(whole), "");
      expect_close(testing::run_on_device(whole, driver, inputs), wanted);

      for (const bool of_logits : {true, false}) {  // whether the logits themselves have a tangent
        auto given = inputs;
        if (!of_logits) std::ranges::fill(given.back().f, 0.0);
        const compiler::JointGraph joint(copy_of(g), 2 + bias, 1, "joint", options);
        std::vector<uint8_t> arena(joint.saved_bytes() + 1);
        const plan::Plan forward = joint.forward(options), backward = joint.backward({true, of_logits}, options);
        EXPECT_EQ(misaligned(forward) + misaligned(backward), "");
        EXPECT_EQ(testing::products(forward), 1);
        EXPECT_EQ(testing::products(backward), 2) << plan::print(backward);
        // The longer logits are what is kept: one kernel reads them, and makes of them what the products read.
        EXPECT_EQ(forward.steps.size(), 3u + bias) << plan::print(forward);
        const auto reads_logits = [&](const plan::Step& s) {
          return std::ranges::any_of(s.reads, [&](int b) {
            return backward.buffers[b].space == plan::MemorySpace::Saved &&
                   backward.buffers[b].bytes == (large + 16) * (dtype == DType::BF16 ? 80 : 144);
          });
        };
        EXPECT_EQ(std::ranges::count_if(backward.steps, reads_logits), 1) << plan::print(backward);
        std::vector<Tensor> got =
            testing::run_on_device(forward, driver, {given.begin(), given.end() - 2}, arena.data());
        std::vector<Tensor> in;
        for (int64_t i : joint.saved_inputs()) in.push_back(given[i]);
        in.insert(in.end(), given.end() - 2, given.end());
        for (Tensor& t : testing::run_on_device(backward, driver, in, arena.data())) got.push_back(std::move(t));
        expect_close(got, oracle(g, given));
        if (HasFailure()) return;
      }
    }
}

// as graphs, whatever pays
TEST(PadProducts, RandomGraphsMeanWhatTheyMeant) {
  testing::RandomGraphOptions options;
  options.transcendental = false;
  options.max_numel = 400;
  int padded = 0;
  for (uint64_t seed = 1; seed <= 6000 && !HasFailure(); ++seed) {
    options.few_sizes = seed % 2 == 0;
    const Graph g = testing::random_graph(seed, options);
    const std::optional<Graph> longer = schedule::pad_products(g, 1, 0);
    if (!longer) continue;
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + print(g) + "-->\n" + print(*longer));
    ++padded;
    verify(*longer);
    const auto inputs = halves(g, seed);
    expect_close(oracle(*longer, inputs), oracle(g, inputs));
  }
  EXPECT_GT(padded, 60);
}

TEST(PadProducts, WhatWouldNotPayIsLeft) {
  EXPECT_FALSE(schedule::pad_products(head({32, 32, 35}, DType::BF16, false), 1));    // a copy costs more
  EXPECT_FALSE(schedule::pad_products(head({256, 256, 40}, DType::BF16, false), 1));  // multiples of 16 bytes already
  EXPECT_FALSE(schedule::pad_products(head({256, 256, 35}, DType::BF16, false), 0));  // nobody has the library
  EXPECT_TRUE(schedule::pad_products(head({256, 256, 35}, DType::BF16, false), 1));
}

}  // namespace
}  // namespace trainc
