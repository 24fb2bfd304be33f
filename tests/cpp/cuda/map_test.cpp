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

bool reads_var(const loop::Expr& e, int var) {
  return (e->kind == loop::ExprKind::Var && e->id == var) ||
         std::ranges::any_of(e->args, [&](const loop::Expr& a) { return reads_var(a, var); });
}

/// How many elements each access to memory takes in a nest, by the buffer's dtype; 1 where some access takes one, other
/// than of an element that a whole group shares.
int64_t lanes_of(const loop::LoopNest& nest) {
  int64_t widest = 0;
  bool single = false;
  int lane = -1;
  const std::function<void(const loop::Expr&)> loads = [&](const loop::Expr& e) {
    if (!e) return;
    if (e->kind == loop::ExprKind::Load && (lane < 0 || reads_var(e, lane)))
      single |= nest.buffers[static_cast<size_t>(e->id)].space == loop::Space::Argument;
    for (const loop::Expr& a : e->args) loads(a);
  };
  const std::function<void(const loop::Stmt&)> visit = [&](const loop::Stmt& s) {
    if (s->kind == loop::StmtKind::Copy) widest = std::max<int64_t>(widest, s->lanes);
    if (s->kind == loop::StmtKind::For && s->loop == loop::LoopKind::Unroll) lane = s->var;
    if (s->kind == loop::StmtKind::Let) loads(s->value);
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
      {"a number for all of a row",
       {8, 768},
       DType::F32,
       DType::F32,
       [](Builder& b, const Node* x, const Dims& s) {
         return b.mul(x, b.broadcast(b.input(1, {DType::F32, {s[0], 1}}), s));
       },
       4},
      {"a number says it for all of a row",
       {8, 768},
       DType::BF16,
       DType::BF16,
       [](Builder& b, const Node* x, const Dims& s) {
         const Node* which = b.broadcast(b.input(1, {DType::I64, {s[0], 1}}), s);
         const Node* some = b.binary(Op::Lt, which, b.broadcast(b.constant(DType::I64, 3), s));
         return b.select(some, x, b.broadcast(b.constant(x->dtype(), 0), s));
       },
       8},
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

int count_of(const loop::Stmt& s, loop::StmtKind kind) {
  int found = s->kind == kind;
  for (const loop::Stmt& inner : s->body) found += count_of(inner, kind);
  return found;
}

// Operands that are copied 16 bytes at a time while tiles before them are multiplied, or element by element; no request
// to Shared memory has a conflict, and what is copied is read by whole sectors.
TEST(Device, TilesAreCopiedAhead) {
  using loop::StmtKind;
  const struct {
    const char* what;
    int64_t batch, m, n, k, multiprocessors;
    int copied;            // operands
    int64_t shared_bytes;  // of all stages, in bf16; 0: not asked
  } cases[] = {
      {"four stages", 1, 64, 64, 224, 108, 2, 4 * 4096},
      {"the first tile of all", 1, 128, 128, 160, 1, 2, 3 * 16384},
      {"128 x 64", 2, 128, 64, 160, 2, 2, 4 * 12288},
      {"64 x 64", 2, 56, 128, 160, 4, 2, 4 * 8192},
      {"one tile of k", 3, 40, 72, 24, 1, 2, 0},
      {"two", 1, 64, 64, 48, 1, 2, 0},
      {"edges everywhere", 2, 136, 88, 104, 1, 2, 0},
      {"an odd k", 1, 40, 40, 71, 1, 0, 0},  // of operands that are contiguous along k
      {"an odd m", 1, 39, 40, 96, 1, 1, 0},  // where they are not
  };
  for (const auto& c : cases)
    for (const bool tf32 : {false, true})
      for (int transposed = 0; transposed < 4; ++transposed) {
        const bool l = transposed & 1, r = transposed & 2;
        SCOPED_TRACE(std::string(c.what) + (tf32 ? ", tf32" : ", bf16") + ", transposed " + std::to_string(transposed));
        lower::LoweringOptions lowering{gpu_target(Gpu::Sm90a)};
        lowering.target.multiprocessors = static_cast<int>(c.multiprocessors);
        lowering.tf32 = tf32;
        std::vector<loop::LoopNest> nests;
        expect_near(testing::contraction(c.batch, c.m, c.n, c.k, tf32 ? DType::F32 : DType::BF16, l, r), 1e-5, lowering,
                    &nests, true);
        const loop::LoopNest& nest = nests.back();
        const int64_t piece = tf32 ? 4 : 8;
        const auto fits = [&](bool turned, int64_t rows) { return (turned ? rows : c.k) % piece == 0; };
        const int copied = fits(l, c.m) + fits(r, c.n);
        // in the loop and before it, unless all of k is one tile
        EXPECT_EQ(count_of(nest.body, StmtKind::CopyAsync), copied * (c.k > (tf32 ? 16 : 32) ? 2 : 1))
            << loop::print(nest);
        if (!l && !r && c.copied != 1) { EXPECT_EQ(copied, c.copied); }
        EXPECT_EQ(count_of(nest.body, StmtKind::WaitCopies), copied > 0);
        EXPECT_EQ(count_of(nest.body, StmtKind::LoadMatrix), tf32 ? !l + !r : 2);
        EXPECT_EQ(count_of(nest.body, StmtKind::Barrier), 1);
        if (c.shared_bytes) { EXPECT_EQ(nest.shared_bytes(), c.shared_bytes); }
        EXPECT_EQ(loop::print(loop::parse(loop::print(nest))), loop::print(nest));
        for (const interpret::Traffic& t : interpret::traffic_of(nest)) {
          const bool whole = !t.written && copied == 2 && c.shared_bytes && t.buffer != "in2";  // the bias
          if (t.shared || whole) { EXPECT_EQ(t.units, t.least) << t.buffer << loop::print(nest); }
        }
        if (HasFailure()) return;
      }
}

// An operand that is computed as it is read goes element by element, beside one that is copied.
TEST(Device, AnOperandThatIsComputedIsNotCopied) {
  lower::LoweringOptions lowering{gpu_target(Gpu::Sm90a)};
  lowering.target.multiprocessors = 1;
  lowering.tf32 = true;
  for (int transposed = 0; transposed < 4; ++transposed) {
    Graph g;
    Builder b{g, {}};
    const auto [l, r] = testing::operands(b, 2, 40, 72, 96, DType::F32, transposed & 1, transposed & 2);
    g.outputs = {{b.contract(b.mul(l, b.broadcast(b.input(2, {DType::F32, {96}}), {2, 40, 96})), r), {}}};
    g.input_count = 3;
    std::vector<loop::LoopNest> nests;
    expect_near(g, 2e-3, lowering, &nests, true);  // products of eighths are rounded
    EXPECT_EQ(count_of(nests.back().body, loop::StmtKind::CopyAsync), 2) << loop::print(nests.back());
  }
  // heads, side by side in memory: [batch, length, heads, width]
  for (const int64_t width : {64, 60}) {
    Graph g;
    Builder b{g, {}};
    const auto heads = [&](int64_t input) {
      const Node* x = b.permute(b.input(input, {DType::BF16, {2, 48, 3, width}}), {0, 2, 1, 3});
      return b.cast(b.reshape(x, {6, 48, width}), DType::F32);
    };
    g.outputs = {{b.contract(heads(0), heads(1)), {}}};
    g.input_count = 2;
    std::vector<loop::LoopNest> nests;
    expect_near(g, 1e-5, lowering, &nests);
    EXPECT_EQ(count_of(nests.back().body, loop::StmtKind::CopyAsync), width == 64 ? 4 : 0) << loop::print(nests.back());
  }
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

// Each barrier, commit and wait is there for a reason: without it, there is a race, or a copy is read too early.
bool orders(const loop::StmtNode& s) {
  return s.kind == loop::StmtKind::Barrier || s.kind == loop::StmtKind::CommitCopies ||
         s.kind == loop::StmtKind::WaitCopies;
}
void without_each(const loop::Stmt& s, const std::function<void(const loop::Stmt&, const loop::StmtNode&)>& take) {
  for (size_t i = 0; i < s->body.size(); ++i) {
    auto copy = std::make_shared<loop::StmtNode>(*s);
    if (orders(*s->body[i])) {
      copy->body.erase(copy->body.begin() + static_cast<std::ptrdiff_t>(i));
      take(copy, *s->body[i]);
    } else {
      without_each(s->body[i], [&](const loop::Stmt& changed, const loop::StmtNode& removed) {
        copy->body[i] = changed;
        take(copy, removed);
      });
    }
  }
}
int expect_order_needed(const Graph& graph, int64_t bytes_out,
                        const lower::LoweringOptions& lowering = lower::LoweringOptions{gpu_target(Gpu::Sm90a)}) {
  std::vector<loop::LoopNest> nests;
  const auto inputs = testing::random_inputs(graph, 3);
  interpret(graph, inputs, lowering, &nests);
  int removed = 0;
  without_each(nests.back().body, [&](const loop::Stmt& body, const loop::StmtNode& what) {
    loop::LoopNest changed = nests.back();
    changed.body = body;
    std::vector<interpret::Memory> arguments;
    size_t input = 0;
    for (const loop::Buffer& b : changed.buffers)
      if (b.space == loop::Space::Argument)
        arguments.push_back(b.written ? interpret::output_of(bytes_out)
                                      : interpret::Memory{testing::to_bytes(inputs.at(input++))});
    const auto found = interpret::run(changed, arguments).messages;
    const std::string wanted = what.kind == loop::StmtKind::Barrier ? "race on" : "before a copy to it is waited for";
    EXPECT_TRUE(std::any_of(found.begin(), found.end(), [&](const std::string& f) {
      return f.find(wanted) != std::string::npos;
    })) << loop::print(changed);
    ++removed;
  });
  EXPECT_GT(removed, 0);
  return removed;
}
TEST(Device, EveryRemovedBarrierAndWaitIsFound) {
  expect_order_needed(softmax(3, 100), 1200);
  Graph product;
  Builder b{product, {}};
  product.outputs = {{b.contract(b.input(0, {DType::F32, {1, 40, 70}}), b.input(1, {DType::F32, {1, 40, 70}})), {}}};
  product.input_count = 2;
  expect_order_needed(product, 6400);
  lower::LoweringOptions tf32{gpu_target(Gpu::Sm90a)};
  tf32.tf32 = true;
  for (int transposed = 0; transposed < 4; ++transposed) {
    const auto all = [&](DType dtype, int64_t k) {
      Graph g;
      Builder b{g, {}};
      const auto [l, r] = testing::operands(b, 1, 40, 40, k, dtype, transposed & 1, transposed & 2);
      g.outputs = {{b.contract(b.cast(l, DType::F32), b.cast(r, DType::F32)), {}}};
      g.input_count = 2;
      return g;
    };
    EXPECT_EQ(expect_order_needed(all(DType::BF16, 200), 6400), 4);
    EXPECT_EQ(expect_order_needed(all(DType::F32, 200), 6400, tf32), 4);
    EXPECT_EQ(expect_order_needed(all(DType::BF16, 16), 6400), 3);  // one tile of k
  }
}

}  // namespace
}  // namespace trainc
