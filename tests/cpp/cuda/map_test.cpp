// Random graphs, mapped to a device and run by the interpreter, against the oracle: values, and nothing that a device
// may not do.
#include <gtest/gtest.h>

#include <cmath>

#include "../common/compare.h"
#include "../common/copy_of.h"
#include "../common/random_graph.h"
#include "../lower/run_schedule.h"
#include "graph/text.h"
#include "graphs.h"
#include "interpret/device.h"
#include "passes/pipeline.h"
#include "schedule/prepare.h"

namespace trainc {
namespace {

using reference::Tensor;
using testing::column_sums;
using testing::contraction;
using testing::scatter;
using testing::softmax;

int count(int n) { return std::getenv("TRAINC_FUZZ") ? std::atoi(std::getenv("TRAINC_FUZZ")) : n; }
uint64_t first() { return std::getenv("TRAINC_SEED") ? std::atoi(std::getenv("TRAINC_SEED")) : 1; }

void expect_same(const Graph& graph, uint64_t seed, bool special, const lower::LoweringOptions& lowering) {
  SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + print(graph));
  const auto inputs = testing::halves(graph, seed, special);
  Pipeline pipeline("device");
  const Graph prepared = schedule::prepare(optimize(testing::copy_of(graph).graph, pipeline));
  const schedule::Schedule s = schedule::make_schedule(prepared, false);
  testing::Interpreted got;
  ASSERT_NO_THROW(got = testing::interpret_schedule(prepared, s, inputs, lowering));
  EXPECT_EQ(got.findings, std::vector<std::string>{});
  const auto expected =
      reference::evaluate(graph, inputs, {.precision = reference::Precision::Rounded, .random = {}, .call = {}});
  testing::expect_close(got.outputs, expected);
  for (const loop::LoopNest& n : got.nests) EXPECT_GT(n.threads, 0) << n.name;
}

TEST(Device, RandomGraphs) {
  testing::RandomGraphOptions o;
  o.transcendental = false;
  for (uint64_t seed = first(); seed < first() + count(150); ++seed) {
    expect_same(testing::random_graph(seed, o), seed, seed % 3 == 0, lower::LoweringOptions{gpu_target(Gpu::Sm90a)});
    if (HasFailure()) return;
  }
}

// --- sizes at which blocks have several warps, and each thread several elements

std::vector<Tensor> interpret(const Graph& graph, const std::vector<Tensor>& inputs,
                              const lower::LoweringOptions& lowering, std::vector<loop::LoopNest>* nests = nullptr) {
  const Graph prepared = schedule::prepare(graph);
  testing::Interpreted got =
      testing::interpret_schedule(prepared, schedule::make_schedule(prepared, false), inputs, lowering);
  EXPECT_EQ(got.findings, std::vector<std::string>{});
  if (nests) *nests = got.nests;
  return got.outputs;
}

void expect_near(const Graph& graph, double tolerance,
                 const lower::LoweringOptions& lowering = lower::LoweringOptions{gpu_target(Gpu::Sm90a)},
                 std::vector<loop::LoopNest>* nests = nullptr, bool eighths = false) {
  SCOPED_TRACE(print(graph));
  auto inputs = testing::random_inputs(graph, 3);
  if (eighths)  // exact in tf32
    for (auto& t : inputs)
      for (double& v : t.f) v = std::round(v * 8) / 8;
  const auto got = interpret(graph, inputs, lowering, nests),
             expected = reference::evaluate(graph, inputs,
                                            {.precision = reference::Precision::Truth, .random = {}, .call = {}});
  testing::expect_close(got, expected, tolerance);
}

TEST(Device, SoftmaxOfAnyWidth) {
  for (int64_t columns : {1, 31, 32, 33, 100, 257, 1000, 9000}) {
    expect_near(softmax(3, columns), 1e-5);
    if (HasFailure()) return;
  }
}

TEST(Device, ColumnSums) {
  for (int64_t rows : {1, 33, 200})
    for (int64_t columns : {1, 63, 130}) {
      expect_near(column_sums(rows, columns), 1e-5);
      if (HasFailure()) return;
    }
}

// --- accesses of up to 16 bytes

/// How many elements each access to memory takes in a nest, by the buffer's dtype; 1 where some access takes one.
int64_t lanes_of(const loop::LoopNest& nest) {
  int64_t widest = 0;
  bool single = false;
  const std::function<void(const loop::Expr&)> loads = [&](const loop::Expr& e) {
    if (!e) return;
    if (e->kind == loop::ExprKind::Load)
      single |= nest.buffers[static_cast<size_t>(e->id)].space == loop::Space::Argument;
    for (const loop::Expr& a : e->args) loads(a);
  };
  const std::function<void(const loop::Stmt&)> visit = [&](const loop::Stmt& s) {
    if (s->kind == loop::StmtKind::Copy) widest = std::max<int64_t>(widest, s->lanes);
    if (s->kind == loop::StmtKind::Store) {
      single |= nest.buffers[static_cast<size_t>(s->buffer)].space == loop::Space::Argument;
      loads(s->value);
    }
    for (const loop::Stmt& inner : s->body) visit(inner);
  };
  visit(nest.body);
  return single ? 1 : widest;
}

/// Elementwise graphs whose operands lie in memory in many ways, and how many elements of them a thread takes at a
/// time.
TEST(Device, NeighboursAreReadAndWrittenAtOnce) {
  Target target = gpu_target(Gpu::Sm90a);
  target.multiprocessors = 1;  // few elements are many
  struct Case {
    const char* what;
    Dims shape;
    DType in, out;
    std::function<const Node*(Builder&, const Node* x, const Dims&)> f;
    int64_t lanes;
  };
  const auto same = [](Builder&, const Node* x, const Dims&) { return x; };
  const Case cases[] = {
      {"f32", {6, 1024}, DType::F32, DType::F32, same, 4},
      {"an odd row", {64, 99}, DType::F32, DType::F32, same, 4},  // the whole is one range
      {"bf16", {6, 1024}, DType::BF16, DType::BF16, same, 8},
      {"both", {6, 1024}, DType::F32, DType::BF16, same, 4},
      {"f64", {6, 1024}, DType::F64, DType::F64, same, 2},
      {"an odd number", {61, 101}, DType::F32, DType::F32, same, 1},
      {"a row for all",
       {8, 768},
       DType::F32,
       DType::F32,
       [](Builder& b, const Node* x, const Dims& s) {
         return b.add(x, b.broadcast(b.input(1, {DType::F32, {s[1]}}), s));
       },
       4},
      {"an odd row for all",
       {8, 767},
       DType::F32,
       DType::F32,
       [](Builder& b, const Node* x, const Dims& s) {
         return b.add(x, b.broadcast(b.input(1, {DType::F32, {s[1]}}), s));
       },
       1},
      {"heads",
       {2, 4, 16, 64},
       DType::F32,
       DType::F32,
       [](Builder& b, const Node* x, const Dims&) { return b.permute(x, {0, 2, 1, 3}); },
       4},
      {"heads of an odd width",
       {2, 4, 16, 63},
       DType::F32,
       DType::F32,
       [](Builder& b, const Node* x, const Dims&) { return b.permute(x, {0, 2, 1, 3}); },
       1},
      {"transposed",
       {64, 128},
       DType::F32,
       DType::F32,
       [](Builder& b, const Node* x, const Dims&) { return b.permute(x, {1, 0}); },
       1},
      {"from the fourth on",
       {9, 1024},
       DType::F32,
       DType::F32,
       [](Builder& b, const Node* x, const Dims&) { return b.slice_axis(x, 1, 4, 900); },
       4},
      {"from the fifth on",
       {9, 1024},
       DType::F32,
       DType::F32,
       [](Builder& b, const Node* x, const Dims&) { return b.slice_axis(x, 1, 5, 901); },
       1},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    Graph g;
    Builder b{g, {}};
    const Node* x = c.f(b, b.input(0, {c.in, c.shape}), c.shape);
    const DType exact = c.in == DType::F64 ? DType::F64 : DType::F32;
    const Node* y = b.cast(x, exact);
    g.outputs = {{b.cast(b.mul(y, y), c.out), {}}};
    g.input_count = std::string(c.what).find("for all") == std::string::npos ? 1 : 2;
    std::vector<loop::LoopNest> nests;
    expect_near(g, c.out == DType::BF16 ? 1e-2 : 1e-5, lower::LoweringOptions{target}, &nests);
    ASSERT_EQ(nests.size(), 1u);
    EXPECT_EQ(lanes_of(nests[0]), c.lanes) << loop::print(nests[0]);
    EXPECT_EQ(loop::print(loop::parse(loop::print(nests[0]))), loop::print(nests[0]));
  }
}

// --- tensors in another order

/// The worst of a nest's requests to memory, and to Shared memory: so many times the least.
std::pair<double, double> excess(const loop::LoopNest& nest) {
  double memory = 1, shared = 1;
  for (const interpret::Traffic& t : interpret::traffic_of(nest)) {
    double& worst = t.shared ? shared : memory;
    worst = std::max(worst, t.units / t.least);
  }
  return {memory, shared};
}

TEST(Device, ATensorInAnotherOrderGoesThroughSharedMemory) {
  const struct {
    const char* text;
    double memory, shared;  // times the least, at most
  } forms[] = {
      {"%0 = input index=0 : f32[256,128]\n%1 = permute %0 axes=[1,0] : f32[128,256]\nreturn %1\n", 1, 1},
      {"%0 = input index=0 : bf16[256,128]\n%1 = permute %0 axes=[1,0] : bf16[128,256]\nreturn %1\n", 1, 1},
      {"%0 = input index=0 : f64[96,144]\n%1 = permute %0 axes=[1,0] : f64[144,96]\nreturn %1\n", 1, 2},
      {"%0 = input index=0 : f32[96,160]\n%1 = permute %0 axes=[1,0] : f32[160,96]\n%2 = cast %1 : "
       "bf16[160,96]\nreturn %2\n",
       1, 1},
      // a convolution's weight, backwards: axes of it, and of its neighbours
      {"%0 = input index=0 : f32[64,32,3,3]\n%1 = reverse %0 axes=[2,3] : f32[64,32,3,3]\n%2 = permute %1 "
       "axes=[2,3,1,0] : f32[3,3,32,64]\nreturn %2\n",
       1.5, 2},
      {"%0 = input index=0 : bf16[96,70]\n%1 = reverse %0 axes=[0,1] : bf16[96,70]\n%2 = permute %1 "
       "axes=[1,0] : bf16[70,96]\nreturn %2\n",
       1.5, 1},
      // heads put side by side and turned, which two permutes with a reshape between them say; a third of a projection
      {"%0 = input index=0 : f32[4,3,96,32]\n%1 = permute %0 axes=[0,2,1,3] : f32[4,96,3,32]\n%2 = reshape %1 : "
       "f32[1,384,96]\n%3 = permute %2 axes=[0,2,1] : f32[1,96,384]\nreturn %3\n",
       1, 1},
      {"%0 = input index=0 : bf16[2,64,192]\n%1 = slice %0 start=[0,0,128] step=[1,1,1] : bf16[2,64,64]\n%2 = reshape "
       "%1 : "
       "bf16[2,64,2,32]\n%3 = permute %2 axes=[0,2,3,1] : bf16[2,2,32,64]\nreturn %3\n",
       1, 1},
      // sizes that no tile divides
      {"%0 = input index=0 : f32[65,81]\n%1 = permute %0 axes=[1,0] : f32[81,65]\nreturn %1\n", 1.5, 1},
      {"%0 = input index=0 : bf16[3,197,130]\n%1 = permute %0 axes=[0,2,1] : bf16[3,130,197]\nreturn %1\n", 1.5, 1},
      // channels last and first, a convolution's weight, keys of heads, a part of a tensor
      {"%0 = input index=0 : f32[2,32,14,14]\n%1 = permute %0 axes=[0,2,3,1] : f32[2,14,14,32]\nreturn %1\n", 1.5, 1},
      {"%0 = input index=0 : f32[2,14,14,32]\n%1 = permute %0 axes=[0,3,1,2] : f32[2,32,14,14]\nreturn %1\n", 1.5, 1},
      {"%0 = input index=0 : f32[64,16,3,3]\n%1 = permute %0 axes=[2,3,1,0] : f32[3,3,16,64]\nreturn %1\n", 1.5, 2},
      {"%0 = input index=0 : f32[64,64,3,3]\n%1 = permute %0 axes=[0,2,3,1] : f32[64,3,3,64]\nreturn %1\n", 1.5, 2},
      {"%0 = input index=0 : bf16[2,64,4,32]\n%1 = permute %0 axes=[0,2,3,1] : bf16[2,4,32,64]\nreturn %1\n", 1, 1},
      {"%0 = input index=0 : f32[80,100]\n%1 = slice %0 start=[0,8] step=[1,1] : f32[80,64]\n%2 = permute %1 "
       "axes=[1,0] : f32[64,80]\nreturn %2\n",
       1.5, 1},
  };
  for (const auto& form : forms) {
    std::vector<loop::LoopNest> nests;
    expect_near(parse(form.text), 1e-2, lower::LoweringOptions{gpu_target(Gpu::Sm90a)}, &nests);
    ASSERT_EQ(nests.size(), 1u) << form.text;
    const std::string text = loop::print(nests[0]);
    EXPECT_NE(text.find("shared"), std::string::npos) << text;
    const auto [memory, shared] = excess(nests[0]);
    EXPECT_LE(memory, form.memory) << text;
    EXPECT_LE(shared, form.shared) << text;
  }
}

TEST(Device, WhatIsReadByWholeSectorsIsCopiedAtOnce) {
  for (const char* text :
       {"%0 = input index=0 : f32[16,64,48]\n%1 = permute %0 axes=[1,0,2] : f32[64,16,48]\nreturn %1\n",
        "%0 = input index=0 : f32[2,5000]\n%1 = permute %0 axes=[1,0] : f32[5000,2]\nreturn %1\n"}) {
    std::vector<loop::LoopNest> nests;
    expect_near(parse(text), 0, lower::LoweringOptions{gpu_target(Gpu::Sm90a)}, &nests);
    ASSERT_EQ(nests.size(), 1u) << text;
    EXPECT_EQ(loop::print(nests[0]).find("shared"), std::string::npos) << loop::print(nests[0]);
    EXPECT_LE(excess(nests[0]).first, 1);
  }
}

TEST(Device, ScatterAddsInOrder) { expect_near(scatter(70, 11, 300), 1e-5); }

bool has_mma(const loop::Stmt& s) {
  bool found = s->kind == loop::StmtKind::Mma;
  for (const loop::Stmt& inner : s->body) found |= has_mma(inner);
  return found;
}

TEST(Device, Contractions) {
  lower::LoweringOptions exact = lower::LoweringOptions{gpu_target(Gpu::Sm80)}, tf32 = exact;
  tf32.tf32 = true;
  struct Size { int64_t batch, m, n, k; };
  for (const Size& s : {Size{1, 1, 1, 1}, Size{2, 33, 65, 17}, Size{3, 64, 32, 40}, Size{1, 130, 40, 70},
                        Size{27, 120, 120, 5}, Size{108, 100, 120, 1}})
    for (int transposed = 0; transposed < (s.batch > 3 ? 1 : 4); ++transposed) {  // the last two: larger tiles
      const bool l = transposed & 1, r = transposed & 2;
      std::vector<loop::LoopNest> nests;
      expect_near(contraction(s.batch, s.m, s.n, s.k, DType::F32, l, r), 1e-5, exact, &nests);
      EXPECT_FALSE(has_mma(nests.back().body));
      expect_near(contraction(s.batch, s.m, s.n, s.k, DType::BF16, l, r), 1e-5, exact, &nests);
      EXPECT_TRUE(has_mma(nests.back().body));
      expect_near(contraction(s.batch, s.m, s.n, s.k, DType::F32, l, r), 1e-5, tf32, &nests, true);
      EXPECT_TRUE(has_mma(nests.back().body));
      EXPECT_EQ(loop::print(loop::parse(loop::print(nests.back()))), loop::print(nests.back()));
      if (HasFailure()) return;
    }
  Graph g;
  Builder b{g, {}};
  g.outputs = {{b.contract(b.input(0, {DType::F64, {1, 33, 21}}), b.input(1, {DType::F64, {1, 40, 21}})), {}}};
  g.input_count = 2;
  expect_near(g, 1e-5, exact);
}

TEST(Device, Tf32IsRoundedTo) {
  const Graph g = contraction(1, 1, 1, 1, DType::F32, false, false);
  auto inputs = testing::random_inputs(g, 1);
  inputs[0].f = {1.0 + 0x1p-11}, inputs[1].f = {1.0 + 0x1p-12}, inputs[2].f = {0};
  lower::LoweringOptions lowering = lower::LoweringOptions{gpu_target(Gpu::Sm80)};
  EXPECT_EQ(interpret(g, inputs, lowering)[0].f[0],
            static_cast<double>(static_cast<float>((1.0 + 0x1p-11) * (1.0 + 0x1p-12))));
  lowering.tf32 = true;
  EXPECT_EQ(interpret(g, inputs, lowering)[0].f[0], 1.0 + 0x1p-10);  // ties go away from zero
}

// Each barrier is there for a reason: without it, there is a race.
void without_each_barrier(const loop::Stmt& s, const std::function<void(const loop::Stmt&)>& take) {
  for (size_t i = 0; i < s->body.size(); ++i) {
    auto copy = std::make_shared<loop::StmtNode>(*s);
    if (s->body[i]->kind == loop::StmtKind::Barrier) {
      copy->body.erase(copy->body.begin() + static_cast<std::ptrdiff_t>(i));
      take(copy);
    } else {
      without_each_barrier(s->body[i], [&](const loop::Stmt& changed) {
        copy->body[i] = changed;
        take(copy);
      });
    }
  }
}
void expect_barriers_needed(const Graph& graph, int64_t bytes_out) {
  std::vector<loop::LoopNest> nests;
  const auto inputs = testing::random_inputs(graph, 3);
  interpret(graph, inputs, lower::LoweringOptions{gpu_target(Gpu::Sm90a)}, &nests);
  int removed = 0;
  without_each_barrier(nests.back().body, [&](const loop::Stmt& body) {
    loop::LoopNest changed = nests.back();
    changed.body = body;
    std::vector<interpret::Memory> arguments;
    size_t input = 0;
    for (const loop::Buffer& b : changed.buffers)
      if (b.space == loop::Space::Argument)
        arguments.push_back(b.written ? interpret::output_of(bytes_out)
                                      : interpret::Memory{testing::to_bytes(inputs.at(input++))});
    const auto found = interpret::run(changed, arguments).messages;
    EXPECT_TRUE(!found.empty() && found[0].find("race on") == 0) << loop::print(changed);
    ++removed;
  });
  EXPECT_GT(removed, 0);
}
TEST(Device, EveryRemovedBarrierIsFound) {
  expect_barriers_needed(softmax(3, 100), 1200);
  Graph product;
  Builder b{product, {}};
  product.outputs = {{b.contract(b.input(0, {DType::F32, {1, 40, 70}}), b.input(1, {DType::F32, {1, 40, 70}})), {}}};
  product.input_count = 2;
  expect_barriers_needed(product, 6400);
}

}  // namespace
}  // namespace trainc
