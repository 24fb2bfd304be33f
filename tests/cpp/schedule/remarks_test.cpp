// What the schedule refuses, it says: which two values of which lines, and why.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../common/random_attention.h"
#include "../lower/run_schedule.h"
#include "graph/build.h"
#include "graph/remarks.h"
#include "graph/text.h"
#include "lower/lower.h"
#include "schedule/prepare.h"
#include "schedule/schedule.h"

namespace trainc::schedule {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// "not fuse: why: a <- b", one a remark, in the order of the text.
std::vector<std::string> reported(std::vector<Remark> remarks) {
  std::vector<std::string> lines;
  for (const Remark& r : remarks) {
    std::string line = r.what + ": " + r.reason + ":";
    for (const std::string& origin : r.origins) line += " " + origin;
    lines.push_back(line + (r.count > 1 ? " x" + std::to_string(r.count) : ""));
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

/// What is refused to the schedule of a graph as text.
std::vector<Remark> refused(const Graph& graph, bool fuse_chains = true) {
  const Graph prepared = prepare(graph);
  Remarks remarks;
  make_schedule(prepared, fuse_chains, &remarks);
  return remarks.take();
}
std::vector<std::string> refused(const std::string& text) { return reported(refused(parse(text))); }

TEST(Remarks, OfALineThatAnArgumentIsNot) {
  const Graph g = parse(R"(%0 = input index=0 : f32[4]   // primals_1
%1 = exp %0 : f32[4]   // m.py:1
%2 = reshape %1 : f32[2,2]
return %2
)");
  Remarks all;
  const NodeRemarks remarks(g, "schedule", &all);
  const std::vector<const Node*> nodes = g.live();
  for (const Node* n : nodes) remarks.missed(missed::kFuse, "no", n, nullptr, 1);
  // a reshape of the compiler's own is of what it reshapes
  EXPECT_THAT(reported(all.take()), ElementsAre("fuse: no:", "fuse: no: m.py:1 x2"));
  const NodeRemarks nobody(g, "schedule", nullptr);
  EXPECT_FALSE(nobody);
  nobody.missed(missed::kFuse, "no", nodes[0], nullptr, 1);
}

/// Layers' outputs that are added up and all wanted: a CPU makes them in one loop, a device a few at a time, whose
/// threads hold some of each.
TEST(Remarks, ADevicesKernelMakesAFewTensors) {
  std::string text, results = "return";
  for (int i = 0; i < 21; ++i) text += fmt::format("%{} = input index={} : f32[64,64]\n", i, i);
  for (int i = 0; i < 20; ++i) {
    text += fmt::format("%{} = add %{} %{} : f32[64,64]   // m.py:{}\n", 21 + i, i == 0 ? 20 : 20 + i, i, i);
    results += fmt::format(" %{}", 21 + i);
  }
  const Graph graph = parse(text + results + "\n");
  EXPECT_THAT(reported(refused(graph)), IsEmpty());
  const std::vector<Remark> said = refused(graph, false);
  ASSERT_EQ(said.size(), 2u);  // 8, 8 and 4
  for (const Remark& r : said) EXPECT_EQ(r.reason, "a device's kernel would make too many tensors at once");
}

TEST(Remarks, NoneWhereAllIsOneKernel) {
  EXPECT_THAT(refused(R"(%0 = input index=0 : f32[4,8]
%1 = reduce %0 kind=sum axes=[1] : f32[4]   // m.py:1
%2 = reshape %1 : f32[4,1]
%3 = broadcast %2 : f32[4,8]
%4 = div %0 %3 : f32[4,8]   // m.py:2
return %4
)"),
              IsEmpty());
}

TEST(Remarks, AnotherPlace) {
  EXPECT_THAT(refused(R"(%0 = input index=0 : f32[8,8]
%1 = exp %0 : f32[8,8]   // m.py:1
%2 = permute %1 axes=[1,0] : f32[8,8]   // m.py:2
%3 = tanh %2 : f32[8,8]   // m.py:3
return %3 %1
)"),
              ElementsAre("fuse: it reads other elements than the one at its place: m.py:3 m.py:1"));
}

TEST(Remarks, AnotherNumberOfElements) {
  EXPECT_THAT(refused(R"(%0 = input index=0 : f32[4,8]
%1 = exp %0 : f32[4,8]   // m.py:1
%2 = slice %1 start=[0,2] step=[1,1] : f32[4,3]   // m.py:2
%3 = tanh %2 : f32[4,3]   // m.py:3
return %3 %1
)"),
              ElementsAre("fuse: they have different numbers of elements: m.py:3 m.py:1"));
}

TEST(Remarks, KernelsOfTheirOwn) {
  EXPECT_THAT(refused(R"(%0 = input index=0 : f32[4,8]
%1 = scan %0 axis=1 : f32[4,8]   // m.py:1
%2 = tanh %1 : f32[4,8]   // m.py:2
return %2
)"),
              ElementsAre("fuse: a scan is a kernel of its own: m.py:2 m.py:1"));
  EXPECT_THAT(refused(R"(%0 = input index=0 : f32[4,8]
%1 = reduce %0 kind=sum axes=[0] : f32[8]   // m.py:1
%2 = tanh %1 : f32[8]   // m.py:2
return %2
)"),
              ElementsAre("fuse: a sum over leading axes is whole at its kernel's end alone: m.py:2 m.py:1"));
  EXPECT_THAT(refused(R"(%0 = random draw=0 p=0.5 : bool[4,8]   // m.py:1
%1 = not %0 : bool[4,8]   // m.py:2
return %1
)"),
              ElementsAre("fuse: a draw is a step of its own: m.py:2 m.py:1"));
}

TEST(Remarks, ContractionsTakeWhatIsElementwise) {
  EXPECT_THAT(refused(R"(%0 = input index=0 : f32[1,4,8]
%1 = input index=1 : f32[1,6,8]
%2 = contract %0 %1 : f32[1,4,6]   // m.py:1
%3 = reduce %2 kind=sum axes=[2] : f32[1,4]   // m.py:2
return %3
)"),
              ElementsAre("fuse: a sum of a contraction's result is no epilogue: m.py:2 m.py:1"));
}

// Refused at first, united later: a row group takes in the contraction's sum where both become a matmul chain.
TEST(Remarks, WhatBecameOneKernelAfterAllIsNotRefused) {
  const Graph g = prepare(testing::attention_graph({}));
  Remarks remarks;
  const Schedule s = make_schedule(g, true, &remarks);
  ASSERT_EQ(s.groups.size(), 1u);
  EXPECT_THAT(reported(remarks.take()), IsEmpty());
}

TEST(Remarks, SumsOverOtherAxes) {
  EXPECT_THAT(refused(R"(%0 = input index=0 : f32[4,6,8]
%1 = reduce %0 kind=sum axes=[0] : f32[6,8]   // m.py:1
%2 = reduce %0 kind=sum axes=[0,1] : f32[8]   // m.py:2
return %1 %2
)"),
              ElementsAre("fuse: they sum the same tensor over different axes: m.py:2 m.py:1"));
}

TEST(Remarks, ACircle) {
  EXPECT_THAT(refused(R"(%0 = input index=0 : f32[4,8]
%1 = exp %0 : f32[4,8]   // m.py:1
%2 = scan %1 axis=1 : f32[4,8]   // m.py:2
%3 = mul %1 %2 : f32[4,8]   // m.py:3
return %3
)"),
              ElementsAre("fuse: a scan is a kernel of its own: m.py:3 m.py:2",
                          "fuse: another kernel must run between them: m.py:3 m.py:1"));
}

TEST(Remarks, TooMuchWork) {
  std::string text = "%0 = input index=0 : f32[4,8]\n";
  for (int i = 1; i <= 80; ++i)
    text += "%" + std::to_string(i) + " = " + (i % 2 ? "tanh" : "exp") + " %" + std::to_string(i - 1) +
            " : f32[4,8]   // m.py:" + std::to_string(i <= 40 ? 1 : 2) + "\n";
  const std::vector<std::string> lines = refused(text + "return %80\n");
  ASSERT_FALSE(lines.empty());
  for (const std::string& line : lines)
    EXPECT_THAT(line, ::testing::StartsWith("fuse: the kernel would hold too much work:"));
}

TEST(Remarks, EqualLayersAreOne) {
  std::string text = "%0 = input index=0 : f32[4,8]\n";
  int n = 0;
  for (int layer = 0; layer < 12; ++layer)
    for (const char* operation : {"scan %N axis=1 : f32[4,8]   // m.py:1\n", "exp %N : f32[4,8]   // m.py:2\n"}) {
      std::string line = operation;
      line.replace(line.find('N'), 1, std::to_string(n));
      text += "%" + std::to_string(++n) + " = " + line;
    }
  EXPECT_THAT(refused(text + "return %" + std::to_string(n) + "\n"),
              ElementsAre("fuse: a scan is a kernel of its own: m.py:2 m.py:1 x12"));
}

TEST(Remarks, OfTheMemoryBetweenTheTwo) {
  const std::vector<Remark> remarks = refused(parse(R"(%0 = input index=0 : f32[8,8]
%1 = exp %0 : f32[8,8]
%2 = permute %1 axes=[1,0] : f32[8,8]
%3 = tanh %2 : f32[8,8]
return %3 %1
)"));
  ASSERT_EQ(remarks.size(), 1u);
  EXPECT_EQ(remarks[0].bytes, 8 * 8 * 4);
  EXPECT_EQ(remarks[0].stage, "schedule");
}

// --- matmul chains

/// softmax(q k^T) v, each operation with its line: m.py:1 to 3.
Graph chain(int64_t batch, int64_t rows, int64_t columns, int64_t width, int64_t out, bool transposed = false) {
  Graph g;
  Builder b{g, {}};
  const Node *q = b.input(0, {DType::F32, {batch, rows, width}}),
             *k = b.input(1, {DType::F32, {batch, columns, width}});
  const Node* v = b.input(2, {DType::F32, {batch, out, transposed ? rows : columns}});
  b.origin = "m.py:1";
  const Node* s = b.contract(q, k);
  b.origin = "m.py:2";
  const Node* e = b.unary(Op::Exp, b.sub(s, b.broadcast(b.reduce(ReduceKind::Max, s, {2}, true), s->shape())));
  const Node* p = b.div(e, b.broadcast(b.reduce(ReduceKind::Sum, e, {2}, true), s->shape()));
  b.origin = "m.py:3";
  g.outputs = {{b.contract(transposed ? b.permute(p, {0, 2, 1}) : p, v), {}}};
  g.input_count = 3;
  return g;
}
std::vector<std::string> chains_refused(const Graph& g) {
  std::vector<Remark> remarks = refused(g);
  std::erase_if(remarks, [](const Remark& r) { return r.what != missed::kMatmulChain; });
  return reported(std::move(remarks));
}

TEST(Remarks, ChainsThatAreFused) {
  EXPECT_THAT(reported(refused(chain(8, 16, 32, 8, 8))), IsEmpty());
  EXPECT_THAT(reported(refused(chain(8, 16, 32, 8, 8, true))), IsEmpty());
}
TEST(Remarks, ChainsTooWide) {
  EXPECT_THAT(chains_refused(chain(8, 16, 32, 300, 8)),
              ElementsAre("matmul chain: its operands are wider than an attention head: m.py:1"));
  EXPECT_THAT(
      chains_refused(chain(8, 16, 32, 8, 300)),
      ElementsAre("matmul chain: the next contraction's result is wider than an attention head: m.py:1 m.py:3"));
}
TEST(Remarks, ChainsNotWorthIt) {
  EXPECT_THAT(chains_refused(chain(1, 16, 32, 64, 8)),
              ElementsAre("matmul chain: the matrix is no larger than what it is made of: m.py:1"));
  EXPECT_THAT(chains_refused(chain(4, 16, 32, 8, 8, true)),
              ElementsAre("matmul chain: the sums over all rows would be too few tasks: m.py:1 m.py:3"));
}
TEST(Remarks, ChainsInAnotherOrder) {
  EXPECT_THAT(chains_refused(parse(R"(%0 = input index=0 : f32[8,16,4]
%1 = input index=1 : f32[8,16,4]
%2 = contract %0 %1 : f32[8,16,16]   // m.py:1
%3 = reduce %2 kind=max axes=[2] : f32[8,16]   // m.py:2
%4 = reshape %3 : f32[8,16,1]
%5 = broadcast %4 : f32[8,16,16]
%6 = sub %2 %5 : f32[8,16,16]   // m.py:2
%7 = tanh %6 : f32[8,16,16]   // m.py:2
%8 = input index=2 : f32[8,5,16]
%9 = contract %8 %7 : f32[8,5,16]   // m.py:3
return %9
)")),
              ElementsAre("matmul chain: the next contraction reads the matrix in another order: m.py:1 m.py:3"));
}
TEST(Remarks, ChainsWhoseRowsAreNotReadByElements) {
  EXPECT_THAT(chains_refused(parse(R"(%0 = input index=0 : f32[8,16,4]
%1 = input index=1 : f32[8,32,4]
%2 = contract %0 %1 : f32[8,16,32]   // m.py:1
%3 = exp %2 : f32[8,16,32]   // m.py:2
%4 = reduce %3 kind=sum axes=[2] : f32[8,16]   // m.py:2
%5 = reshape %4 : f32[8,16,1]
%6 = broadcast %5 : f32[8,16,32]
%7 = div %3 %6 : f32[8,16,32]   // m.py:2
%8 = input index=2 : f32[8,5,32]
%9 = contract %7 %8 : f32[8,16,5]   // m.py:3
return %9
)")),
              ElementsAre("matmul chain: no value of a row goes into a value of its elements: m.py:1"));
}
// A layer of a network, and the next: nothing that needs whole rows lies between, so nobody looked for a chain.
TEST(Remarks, LayersAreNoChain) {
  EXPECT_THAT(chains_refused(parse(R"(%0 = input index=0 : f32[1,16,300]
%1 = input index=1 : f32[1,32,300]
%2 = contract %0 %1 : f32[1,16,32]   // m.py:1
%3 = tanh %2 : f32[1,16,32]   // m.py:2
%4 = input index=2 : f32[1,8,32]
%5 = contract %3 %4 : f32[1,16,8]   // m.py:3
return %5
)")),
              IsEmpty());
}

// --- causal masks

std::vector<std::string> lowered(const testing::AttentionCase& c) {
  Graph g = testing::attention_graph(c);
  for (const Node* n : g.live())
    if (n->op == Op::Select) g.add_origin(n, "m.py:1");
  const Graph prepared = prepare(g);
  const Schedule s = make_schedule(prepared, true);
  Remarks remarks;
  bool chain = false;
  for (const Group& group : s.groups)
    chain = chain || group.kind == GroupKind::MatmulChain,
    lower::lower(prepared, s, group, {cpu_target(CpuLevel::Avx2)}, &remarks);
  EXPECT_TRUE(chain);
  return reported(remarks.take());
}
TEST(Remarks, MasksThatHideNothing) {
  EXPECT_THAT(lowered({.causal = true}), IsEmpty());
  EXPECT_THAT(lowered({}), IsEmpty()) << "there is no mask";
  EXPECT_THAT(lowered({.dropout = true}), IsEmpty()) << "a draw hides nothing for good";
  EXPECT_THAT(lowered({.safe = true}), IsEmpty()) << "rows are selected, not elements";
  // Five columns more than a causal mask shows.
  EXPECT_THAT(lowered({.diagonal = 5, .causal = true}),
              ElementsAre("skip masked: not proven to hide with zeros all that lies above the diagonal: m.py:1"));
}

}  // namespace
}  // namespace trainc::schedule
