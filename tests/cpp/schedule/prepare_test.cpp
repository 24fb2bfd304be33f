// Each promise of prepare.h, and that values stay what they were.
#include "schedule/prepare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "../common/compare.h"
#include "../common/random_graph.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "schedule/schedule.h"

namespace trainc::schedule {
namespace {

/// The elements in the order in which they lie in the caller's memory.
reference::Tensor in_memory_order(const reference::Tensor& t, const Dims& strides) {
  if (strides.empty() || t.type.numel() == 0) return t;
  reference::Tensor out = t;
  const Dims dense = contiguous_strides(t.type.shape);
  for (int64_t i = 0; i < t.type.numel(); ++i) {
    int64_t at = 0;
    for (size_t k = 0; k < dense.size(); ++k) at += i / dense[k] % t.type.shape[k] * strides[k];
    if (!t.f.empty()) out.f.at(at) = t.f[i];
    else out.i.at(at) = t.i[i];
  }
  return out;
}

void expect_promises(const Graph& graph, uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + print(graph));
  const Graph prepared = prepare(graph);
  verify(prepared);
  ASSERT_EQ(prepared.outputs.size(), graph.outputs.size());
  EXPECT_EQ(prepared.input_count, graph.input_count);
  for (const Node* n : prepared.live()) {
    if (n->op != Op::Reduce) continue;
    const ReduceKind kind = n->as<ReduceAttr>().kind;
    EXPECT_FALSE(kind == ReduceKind::ArgMax || kind == ReduceKind::ArgMin);
    EXPECT_NE(n->in(0)->dtype(), DType::Bool);
    EXPECT_FALSE(n->in(0)->type.numel() == 0 && n->type.numel() > 0) << "a sum over nothing";
  }
  std::set<const Node*> bases;
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    const Node *before = graph.outputs[i].value, *after = prepared.outputs[i].value;
    ASSERT_EQ(before == nullptr, after == nullptr);
    if (!after || after->op == Op::Input) continue;  // handed through
    EXPECT_TRUE(bases.insert(base_of(after)).second) << "two outputs share memory";
    EXPECT_NE(base_of(after)->op, Op::Input) << "an input's memory is given out";
  }
  const auto inputs = testing::random_inputs(graph, seed);
  const auto expected = reference::evaluate(graph, inputs, testing::rounded_oracle()),
             got = reference::evaluate(prepared, inputs, testing::rounded_oracle());
  for (size_t i = 0; i < got.size(); ++i) {
    if (!graph.outputs[i].value) continue;
    reference::Tensor want = in_memory_order(expected[i], prepared.outputs[i].strides);
    want.type = got[i].type;
    ASSERT_EQ(want.type.numel(), expected[i].type.numel());
    EXPECT_EQ(testing::difference(got[i], want), "") << "output " << i;
  }
}

/// x [batch, m, k] and y [batch, n, k], of which `order` gives x's axes in memory.
Graph product(int64_t m, int64_t n, int64_t k, DType dtype = DType::F32, const Dims& order = {0, 1, 2}) {
  Graph g;
  Builder b{g, "here"};
  const Dims shape{2, m, k};
  Dims lies, back(3);
  for (int64_t axis : order) lies.push_back(shape[axis]);
  for (size_t i = 0; i < 3; ++i) back[order[i]] = static_cast<int64_t>(i);
  const Node *x = b.permute(b.input(0, {dtype, lies}), back), *y = b.input(1, {dtype, {2, n, k}});
  g.input_count = 2;
  g.outputs.push_back({b.contract(x, y), {}});
  return g;
}
bool contracts(const Graph& graph) {
  const Graph prepared = prepare(graph);
  const auto live = prepared.live();
  return std::any_of(live.begin(), live.end(), [](const Node* n) { return n->op == Op::Contract; });
}

/// As expect_promises, of sums whose products are rounded before they are added.
void expect_near(const Graph& graph, double tolerance) {
  const Graph prepared = prepare(graph);
  verify(prepared);
  const auto inputs = testing::random_inputs(graph, 1);
  const auto expected = reference::evaluate(graph, inputs, testing::rounded_oracle()),
             got = reference::evaluate(prepared, inputs, testing::rounded_oracle());
  ASSERT_EQ(got[0].type, expected[0].type);
  ASSERT_EQ(got[0].f.size(), expected[0].f.size());
  for (size_t i = 0; i < got[0].f.size(); ++i)
    EXPECT_NEAR(got[0].f[i], expected[0].f[i], tolerance * (1 + std::abs(expected[0].f[i])));
}

TEST(Prepare, ProductsOfAVectorWithRowsAreSums) {
  const auto tolerance = [](DType dtype) { return dtype == DType::BF16 ? 1e-2 : dtype == DType::F16 ? 2e-3 : 1e-5; };
  for (DType dtype : {DType::F32, DType::F64, DType::BF16, DType::F16}) {
    EXPECT_FALSE(contracts(product(30, 1, 64, dtype)));
    EXPECT_FALSE(contracts(product(1, 30, 70, dtype)));
    expect_near(product(30, 1, 64, dtype), tolerance(dtype));
    expect_near(product(1, 30, 70, dtype), tolerance(dtype));
  }
  expect_near(product(3, 1, 1 << 15), 1e-3);  // in two steps
  EXPECT_TRUE(contracts(product(30, 2, 64))) << "a matrix";
  EXPECT_TRUE(contracts(product(30, 1, 63))) << "short rows";
  EXPECT_TRUE(contracts(product(64, 1, 64, DType::F32, {0, 2, 1}))) << "columns lie along memory";
  EXPECT_FALSE(contracts(product(64, 1, 64, DType::F32, {1, 0, 2}))) << "rows do, however far apart";
  expect_promises(product(0, 1, 64), 4);
}

TEST(Prepare, AVectorThatIsComputedIsComputedOnce) {
  Graph g;
  Builder b{g, "here"};
  const Node* x = b.input(0, {DType::F32, {1, 30, 64}});
  const Node* y = b.unary(Op::Tanh, b.input(1, {DType::F32, {1, 1, 64}}));
  g.input_count = 2;
  g.outputs.push_back({b.contract(x, y), {}});
  const Graph prepared = prepare(g);
  const auto live = prepared.live();
  EXPECT_EQ(std::count_if(live.begin(), live.end(), [](const Node* n) { return n->op == Op::Slice; }), 1);  // a copy
  expect_near(g, 1e-5);
}

/// Of `times` products of one matrix [n, k] with m rows: how often it is copied.
int64_t copies(int64_t times, int64_t m, int64_t n, int64_t k, DType dtype = DType::F32, bool transposed = false) {
  Graph g;
  Builder b{g, "here"};
  const Node* matrix = b.input(0, {dtype, transposed ? Dims{1, k, n} : Dims{1, n, k}});
  if (transposed) matrix = b.permute(matrix, {0, 2, 1});
  for (int64_t t = 1; t <= times; ++t) g.outputs.push_back({b.contract(b.input(t, {dtype, {1, m, k}}), matrix), {}});
  g.input_count = times + 1;
  const Graph prepared = prepare(g);
  verify(prepared);
  if (dtype == DType::F32) expect_promises(g, 4);
  const auto live = prepared.live();
  return std::count_if(live.begin(), live.end(),
                       [](const Node* node) { return node->op == Op::Slice && node->shape() == node->in(0)->shape(); });
}

TEST(Prepare, AMatrixThatFewRowsMeetAgainAndAgainIsCopiedIntoPanelsOnce) {
  EXPECT_EQ(copies(8, 3, 16, 32), 1);
  EXPECT_EQ(copies(7, 3, 16, 32), 0);
  EXPECT_EQ(copies(8, 3, 16, 33), 1) << "no squares";
  EXPECT_EQ(copies(8, 25, 16, 32), 0) << "more rows than a tile";
  EXPECT_EQ(copies(8, 3, 13, 32), 1) << "less than a panel";
  EXPECT_EQ(copies(8, 3, 40, 32), 1) << "a part of a panel";
  EXPECT_EQ(copies(8, 3, 16, 32, DType::F32, true), 0) << "its rows are neighbours already";
  EXPECT_EQ(copies(8, 3, 272, 32, DType::F32, true), 1) << "but long ones";
  EXPECT_EQ(copies(8, 3, 16, 32, DType::BF16), 0) << "pairs along k";
  EXPECT_EQ(copies(8, 1, 16, 32), 0) << "one row: no product";
}

TEST(Prepare, RandomGraphs) {
  testing::RandomGraphOptions options;
  options.random_masks = true;
  for (uint64_t seed = 1; seed <= 300 && !HasFailure(); ++seed) {
    Graph graph = testing::random_graph(seed, options);
    std::mt19937_64 rng(seed);
    graph.outputs.push_back(graph.outputs[0]);  // twice the same
    graph.outputs.push_back({nullptr, {}});
    for (Output& o : graph.outputs) {  // some in permuted memory
      if (!o.value || rng() % 2) continue;
      const int64_t rank = o.value->type.rank();
      Dims order(rank);
      for (int64_t k = 0; k < rank; ++k) order[k] = k;
      for (int64_t k = rank; k > 1; --k) std::swap(order[k - 1], order[rng() % k]);
      o.strides.assign(rank, 0);
      int64_t stride = 1;
      for (int64_t k = rank; k-- > 0;)
        o.strides[order[k]] = stride, stride *= std::max<int64_t>(o.value->shape()[order[k]], 1);
    }
    expect_promises(graph, seed);
  }
}

TEST(Prepare, InputHandedThroughStaysTheInput) {
  const Graph prepared = prepare(parse("%0 = input index=0 : f32[4,5]\n%1 = reshape %0 : f32[20]\nreturn %0 %1 %0\n"));
  EXPECT_EQ(prepared.outputs[0].value->op, Op::Input);
  EXPECT_EQ(prepared.outputs[2].value->op, Op::Input);
  EXPECT_EQ(base_of(prepared.outputs[1].value)->op, Op::Slice);  // another shape of it: a copy
}
TEST(Prepare, ArenaIsNeverHandedThrough) {
  const Graph g = parse("%0 = input index=0 : f32[4]\n%1 = input index=1 : f32[4]\nreturn %0 %1 %0\n");
  const Graph prepared = prepare(g, 1, 2);  // input 1 and output 2 lie in an arena
  EXPECT_EQ(prepared.outputs[0].value->op, Op::Input);
  EXPECT_EQ(prepared.outputs[1].value->op, Op::Slice);
  EXPECT_EQ(prepared.outputs[2].value->op, Op::Slice);
}
TEST(Prepare, PermutedResultIsPermutedBackAtNoCost) {
  const Graph prepared = prepare(parse(R"(%0 = input index=0 : f32[4,5]
%1 = exp %0 : f32[4,5]
%2 = permute %1 axes=[1,0] : f32[5,4]
return %2:strides=[1,5]
)"));
  EXPECT_EQ(prepared.outputs[0].value->op, Op::Exp);
  EXPECT_EQ(prepared.outputs[0].strides, (Dims{1, 5}));
}
TEST(Prepare, StridesOfNoPermutationBecomeRowMajor) {
  Graph g = parse("%0 = input index=0 : f32[4,5]\n%1 = exp %0 : f32[4,5]\nreturn %1\n");
  for (Dims strides : {Dims{0, 1}, Dims{10, 1}, Dims{5, 2}}) {
    g.outputs[0].strides = strides;
    EXPECT_TRUE(prepare(g).outputs[0].strides.empty());
  }
}
int64_t sums(const char* text) {
  const Graph prepared = prepare(parse(text));
  const auto live = prepared.live();
  return std::count_if(live.begin(), live.end(), [](const Node* n) { return n->op == Op::Reduce; });
}
TEST(Prepare, LongSumIsSplitInTwo) {
  EXPECT_EQ(sums("%0 = input index=0 : f32[65536]\n%1 = reduce %0 kind=sum axes=[0] : f32[]\nreturn %1\n"), 2);
  EXPECT_EQ(sums("%0 = input index=0 : f32[65536]\n%1 = reduce %0 kind=max axes=[0] : f32[]\nreturn %1\n"), 2);
  EXPECT_EQ(sums("%0 = input index=0 : f32[32,2048]\n%1 = reduce %0 kind=sum axes=[1] : f32[32]\nreturn %1\n"), 1)
      << "rows enough";
  EXPECT_EQ(sums("%0 = input index=0 : f32[1024]\n%1 = reduce %0 kind=sum axes=[0] : f32[]\nreturn %1\n"), 1)
      << "short";
}
TEST(Prepare, SplitSumsOfEveryShape) {
  for (const char* text :
       {"%0 = input index=0 : i64[3,40,300]\n%1 = reduce %0 kind=sum axes=[0,1,2] : i64[]\nreturn %1\n",
        "%0 = input index=0 : i64[3,40,300]\n%1 = reduce %0 kind=sum axes=[1,2] : i64[3]\nreturn %1\n",
        "%0 = input index=0 : i64[300,3,40]\n%1 = reduce %0 kind=sum axes=[0,2] : i64[3]\nreturn %1\n",
        "%0 = input index=0 : i64[40,3,300]\n%1 = reduce %0 kind=max axes=[0,2] : i64[3]\nreturn %1\n"}) {
    EXPECT_EQ(sums(text), 2) << text;
    expect_promises(parse(text), 5);
  }
}
TEST(Prepare, SumOverNothing) {
  expect_promises(parse("%0 = input index=0 : f32[3,0]\n%1 = reduce %0 kind=sum axes=[1] : f32[3]\n%2 = reduce %0 "
                        "kind=prod axes=[1] : f32[3]\nreturn %1 %2\n"),
                  1);
}
TEST(Prepare, SumsOverBool) {
  expect_promises(parse("%0 = input index=0 : bool[3,5]\n%1 = reduce %0 kind=max axes=[1] : bool[3]\n%2 = reduce %0 "
                        "kind=min axes=[0] : bool[5]\nreturn %1 %2\n"),
                  1);
}
TEST(Prepare, ExternOperandsAreNoReshapes) {
  Graph g;
  Builder b{g, {}};
  const Node* x = b.reshape(b.unary(Op::Exp, b.input(0, {DType::F32, {4, 5}})), {20});
  ExternAttr attr;
  attr.target = "aten.sort.default";
  attr.results = {{DType::F32, {20}}};
  g.outputs = {{b.result(b.extern_call(attr, {x}), 0), {}}};
  const Graph prepared = prepare(g);
  const auto live = prepared.live();
  const auto call = std::find_if(live.begin(), live.end(), [](const Node* n) { return n->op == Op::Extern; });
  ASSERT_NE(call, live.end());
  EXPECT_EQ((*call)->in(0)->op, Op::Slice);
  EXPECT_EQ(base_of(prepared.outputs[0].value)->op, Op::Slice) << "the framework's memory is given out";
}

TEST(Prepare, WhatACallReadsIsNotGivenOutInAnotherLayout) {
  const auto given_out_itself = [](const std::function<const Node*(Builder&, const Node*)>& view, Dims strides) {
    Graph g;
    Builder b{g, {}};
    const Node* x = b.unary(Op::Exp, b.input(0, {DType::F32, {4, 4}}));
    ExternAttr attr;
    attr.target = "aten.cumprod.default";
    attr.results = {{DType::F32, {4, 4}}};
    g.outputs = {{b.result(b.extern_call(attr, {x}), 0), {}}, {view(b, x), std::move(strides)}};
    return base_of(prepare(g).outputs[1].value)->op == Op::Exp;
  };
  const auto itself = [](Builder&, const Node* x) { return x; };
  const auto transposed = [](Builder& b, const Node* x) { return b.permute(x, {1, 0}); };
  const auto flat = [](Builder& b, const Node* x) { return b.reshape(x, {16}); };
  EXPECT_TRUE(given_out_itself(itself, {}));
  EXPECT_TRUE(given_out_itself(itself, {4, 1}));
  EXPECT_FALSE(given_out_itself(transposed, {1, 4}));  // the same memory, seen in another way
  EXPECT_FALSE(given_out_itself(flat, {}));
}

}  // namespace
}  // namespace trainc::schedule
