// Products that are written in the order in which they are read: which ones, by whom, and with the numbers of the
// graph.
#include "schedule/product_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "../common/random_graph.h"
#include "../lower/run_schedule.h"
#include "graph/build.h"
#include "graph/text.h"
#include "schedule/prepare.h"
#include "schedule/schedule.h"

namespace trainc::schedule {
namespace {

/// Heads that a product has made, put beside each other for the next products: as rows of the one, and as the sum's
/// terms of the other (a weight's gradient).
struct Heads {
  int64_t batch = 2, heads = 3, tokens = 5, width = 8;
  bool bf16 = false, scaled = false, scaled_last = false, read_elsewhere = false, read_as_made = false;
};

Graph heads_graph(const Heads& c) {
  Graph graph;
  Builder b{graph, {}};
  const DType d = c.bf16 ? DType::BF16 : DType::F32;
  const int64_t all = c.batch * c.heads, rows = c.batch * c.tokens, columns = c.heads * c.width;
  const Node* y = b.contract(b.input(0, {DType::F32, {all, c.tokens, 6}}), b.input(1, {DType::F32, {all, c.width, 6}}));
  const auto scaled = [&](const Node* n) { return b.mul(n, b.full(n->dtype(), n->shape(), 0.25)); };
  const Node* x = b.cast(c.scaled ? scaled(y) : y, d);
  x = b.reshape(x, {c.batch, c.heads, c.tokens, c.width});
  if (c.scaled_last) x = scaled(x);
  x = b.permute(x, {0, 2, 1, 3});
  const Node* row = b.reshape(x, {1, rows, columns});
  const Node *out = b.contract(row, b.input(2, {d, {1, 7, columns}})),
             *gradient = b.contract(b.permute(row, {0, 2, 1}), b.input(3, {d, {1, 9, rows}}));
  graph.input_count = 4;
  graph.outputs = {{out, {}}, {gradient, {}}};
  if (c.read_elsewhere) graph.outputs.push_back({b.unary(Op::Tanh, b.cast(x, DType::F32)), {}});
  if (c.read_as_made) graph.outputs.push_back({y, {}});
  return graph;
}

Heads random_heads(uint64_t seed) {
  std::mt19937_64 rng(seed);
  const auto one_of = [&](std::initializer_list<int64_t> values) { return values.begin()[rng() % values.size()]; };
  Heads c{.batch = one_of({1, 2, 3}),
          .heads = one_of({1, 2, 5}),
          .tokens = one_of({1, 2, 7, 16, 33}),
          .width = one_of({1, 3, 4, 8, 17, 32})};
  for (bool* flag : {&c.bf16, &c.scaled, &c.scaled_last, &c.read_elsewhere, &c.read_as_made}) *flag = rng() % 3 == 0;
  return c;
}

int64_t written_in_order(const Schedule& s) {
  int64_t found = 0;
  for (const Group& g : s.groups)
    for (const Node* n : g.values) found += g.kind == GroupKind::Contract && is_written_in_order(n);
  return found;
}

TEST(ProductOrder, TheKernelOfAProductWritesItAsItIsRead) {
  const Graph graph = prepare(heads_graph({}));
  const Schedule s = make_schedule(graph, true);
  ASSERT_EQ(s.groups.size(), 3u) << print(graph);  // three products, and no copy between them
  EXPECT_EQ(written_in_order(s), 1);
  EXPECT_EQ(s.stored.size(), 3u) << "as the product has it nobody reads it";
}

TEST(ProductOrder, WhoReadsItElementByElementIsNoPartOfTheKernel) {
  const Graph graph = prepare(heads_graph({.read_elsewhere = true}));
  EXPECT_EQ(make_schedule(graph, true).groups.size(), 4u) << print(graph);
}

TEST(ProductOrder, NotWhereSomebodyReadsItAsItIsMade) {
  EXPECT_EQ(permutes_to_write(heads_graph({.read_as_made = true})).size(), 0u);
}

TEST(ProductOrder, NotWhereNothingLiesApart) {
  EXPECT_EQ(permutes_to_write(heads_graph({.heads = 1})).size(), 0u) << "a token's row is whole";
  EXPECT_EQ(permutes_to_write(heads_graph({.width = 2})).size(), 0u) << "rows too short to be stored as such";
}

TEST(ProductOrder, HeadsForTheNextProductStayAsTheyLie) {
  // queries: a head's rows lie a fixed stride apart
  EXPECT_EQ(permutes_to_write(
                parse("%a = input index=0 : f32[1,10,6]\n%w = input index=1 : f32[1,24,6]\n%k = input index=2 : "
                      "f32[6,5,8]\n%c = contract %a %w : f32[1,10,24]\n%s = reshape %c : f32[2,5,3,8]\n%p = permute %s "
                      "order=[0,2,1,3] : f32[2,3,5,8]\n%q = reshape %p : f32[6,5,8]\n%r = contract %q %k : "
                      "f32[6,5,5]\nreturn %r\n"))
                .size(),
            0u);
}

TEST(ProductOrder, ComputesTheGraphsNumbers) {
  int64_t found = 0;
  for (uint64_t seed = 1; seed <= 120 && !HasFailure(); ++seed) {
    const Heads c = random_heads(seed);
    const Graph given = heads_graph(c), graph = prepare(given);
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + print(graph));
    const Schedule s = make_schedule(graph, true);
    found += written_in_order(s);
    const auto inputs = testing::random_inputs(given, seed);
    const CpuLevel level = seed % 2 ? CpuLevel::Avx512 : CpuLevel::Avx2;
    const auto made = testing::interpret_schedule(graph, s, inputs, {cpu_target(level)});
    for (const std::string& finding : made.findings) ADD_FAILURE() << finding;
    const auto expected = reference::evaluate(given, inputs, {});
    for (size_t o = 0; o < expected.size(); ++o) {
      double scale = 1;
      for (double v : expected[o].f) scale = std::max(scale, std::abs(v));
      for (size_t i = 0; i < expected[o].f.size(); ++i)
        ASSERT_NEAR(made.outputs[o].f[i], expected[o].f[i], (c.bf16 ? 2e-2 : 1e-5) * scale)
            << "output " << o << " element " << i;
    }
  }
  EXPECT_GT(found, 30);
}

}  // namespace
}  // namespace trainc::schedule
