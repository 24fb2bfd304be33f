// Attention as one kernel: what is found, and that it computes what the separate kernels compute.
#include "schedule/matmul_chain.h"

#include <gtest/gtest.h>

#include <cmath>

#include "../common/random_attention.h"
#include "../lower/run_schedule.h"
#include "graph/text.h"
#include "schedule/bits.h"
#include "schedule/prepare.h"
#include "schedule/product_order.h"

namespace trainc::schedule {
namespace {

const lower::LoweringOptions kLowerings[] = {
    {cpu_target(CpuLevel::Avx512)},
    {cpu_target(CpuLevel::Avx512Bf16, {.l1d = 1 << 10, .l2 = 8 << 10, .l3 = 1 << 18})},
    // small caches: many blocks
    {cpu_target(CpuLevel::Avx2, {.l1d = 1 << 10, .l2 = 4 << 10, .l3 = 1 << 18})},
    {cpu_target(CpuLevel::Amx)},
    {cpu_target(CpuLevel::Amx, {.l1d = 1 << 10, .l2 = 8 << 10, .l3 = 1 << 18})}};

int64_t chains_in(const Schedule& s) {
  return std::count_if(s.groups.begin(), s.groups.end(),
                       [](const Group& g) { return g.kind == GroupKind::MatmulChain; });
}

testing::Interpreted interpret(const Graph& prepared, bool fuse_chains, const std::vector<reference::Tensor>& inputs,
                               const lower::LoweringOptions& lowering) {
  Schedule schedule = make_schedule(prepared, fuse_chains);
  schedule.bits = masks_as_bits(prepared);
  return testing::interpret_schedule(prepared, schedule, inputs, lowering);
}

bool same(double a, double b, double tolerance, double scale) {
  return (std::isnan(a) && std::isnan(b)) || a == b || std::abs(a - b) <= tolerance * scale;
}

/// The chains' results are those of separate kernels, bit for bit; those whose sum runs over the rows (all but the
/// first) have another order. So have those of either where there are tiles: chains multiply bf16 on them and f32 by
/// FMAs, separate kernels as their sizes have it.
void expect_same(const testing::AttentionCase& c, uint64_t seed, const lower::LoweringOptions& lowering, bool special) {
  const Graph graph = prepare(testing::attention_graph(c));
  SCOPED_TRACE("seed " + std::to_string(seed) + " " + lowering.target.cpu + "\n" + print(graph));
  auto inputs = testing::random_inputs(graph, seed, special);
  if (c.additive && seed % 2)  // some rows see nothing, others not all
    for (size_t i = 0; i < inputs[3].f.size(); ++i)
      if (i / c.columns % 4 == 1 || i % 7 == 3) inputs[3].f[i] = -std::numeric_limits<double>::infinity();
  testing::Interpreted fused, apart;
  ASSERT_NO_THROW(fused = interpret(graph, true, inputs, lowering));
  ASSERT_NO_THROW(apart = interpret(graph, false, inputs, lowering));
  for (const std::string& finding : fused.findings) ADD_FAILURE() << finding;
  ASSERT_EQ(fused.outputs.size(), apart.outputs.size());
  for (size_t o = 0; o < fused.outputs.size(); ++o) {
    const bool other_order = o > 0 || lowering.target.has_tiles;
    double scale = 1;
    for (double v : apart.outputs[o].f) scale = std::isfinite(v) ? std::max(scale, std::abs(v)) : scale;
    for (int64_t i = 0; i < fused.outputs[o].type.numel(); ++i) {
      const double a = fused.outputs[o].f[i], b = apart.outputs[o].f[i];
      ASSERT_TRUE(same(a, b,
                       !other_order ? 0
                       : c.bf16     ? 2e-2
                                    : 1e-5,
                       scale))
          << "output " << o << " element " << i << ": " << a << ", not " << b;
    }
  }
}

TEST(MatmulChain, ComputesWhatSeparateKernelsCompute) {
  for (uint64_t seed = 1; seed <= 90 && !HasFailure(); ++seed)
    expect_same(testing::random_attention_case(seed), seed, kLowerings[seed % std::size(kLowerings)],
                seed % 5 == 0 && !testing::random_attention_case(seed).causal);
}

// bf16 goes on AMX tiles: more than a tile, a step or a block of k of each size, and some that are no whole ones.
TEST(MatmulChain, MultipliesOnTiles) {
  struct Sizes { int64_t rows, columns, width; };
  for (const auto& [rows, columns, width] : {Sizes{70, 70, 40}, {40, 300, 16}, {33, 47, 65}})
    for (int which = 0; which < 8 && !HasFailure(); ++which) {
      testing::AttentionCase c{.batch = 1, .heads = 8, .groups = 8, .rows = rows, .columns = columns, .width = width};
      c.bf16 = true, c.backward = which & 1, c.causal = which & 2, c.transposed_rhs = which & 4;
      c.diagonal = std::max<int64_t>(0, columns - rows);
      const lower::LoweringOptions lowering{cpu_target(
          CpuLevel::Amx, which & 4 ? CacheSizes{.l1d = 1 << 10, .l2 = 8 << 10, .l3 = 1 << 18} : CacheSizes{})};
      expect_same(c, static_cast<uint64_t>(which), lowering, false);
      const Graph graph = prepare(testing::attention_graph(c));
      const Schedule s = make_schedule(graph, true);
      for (const Group& g : s.groups)
        if (g.kind == GroupKind::MatmulChain)
          EXPECT_EQ(loop::print(lower::lower(graph, s, g, lowering)[0].nest).find(" fma("), std::string::npos);
    }
}

TEST(MatmulChain, WritesItsResultsAsTheyAreRead) {
  int64_t written = 0;
  for (uint64_t seed = 1; seed <= 45 && !HasFailure(); ++seed) {
    testing::AttentionCase c = testing::random_attention_case(seed);
    c.merged = true;
    const Graph graph = prepare(testing::attention_graph(c));
    const Schedule s = make_schedule(graph, true);
    for (const Group& g : s.groups)
      for (const Node* n : g.values) written += g.kind == GroupKind::MatmulChain && is_written_in_order(n);
    expect_same(c, seed, kLowerings[seed % std::size(kLowerings)], false);
  }
  EXPECT_GT(written, 15);
}

TEST(MatmulChain, IsFoundInEverySpelling) {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    testing::AttentionCase c = testing::random_attention_case(seed);
    if (c.columns < 2 || c.batch * c.heads == 1) continue;
    const Graph graph = prepare(testing::attention_graph(c));
    SCOPED_TRACE(print(graph));
    const Schedule s = make_schedule(graph, true);
    EXPECT_EQ(chains_in(s), 1);
    // Enough heads: the backward is one kernel too, and nothing of the matrix's size is in memory but what was given or
    // drawn.
    if (c.batch * c.heads < 8 && c.backward) continue;
    for (const Node* n : s.stored) {
      const bool given = std::any_of(graph.outputs.begin(), graph.outputs.end(),
                                     [&](const Output& o) { return base_of(o.value) == n; });
      EXPECT_TRUE(given || n->op == Op::Random || n->type.numel() != c.batch * c.heads * c.rows * c.columns)
          << name_of(n->op);
    }
    for (const Group& g : s.groups) EXPECT_NE(g.kind, GroupKind::Contract);
  }
}

/// Whether the matmul chain of `graph` passes over columns.
bool passes_over(const Graph& graph) {
  const Schedule s = make_schedule(graph, true);
  for (const Group& g : s.groups)
    if (g.kind == GroupKind::MatmulChain)
      return loop::print(lower::lower(graph, s, g, kLowerings[2])[0].nest).find("let columns") != std::string::npos;
  ADD_FAILURE() << "no matmul chain";
  return false;
}
std::string replaced(std::string text, const std::string& from, const std::string& to) {
  EXPECT_NE(text.find(from), std::string::npos) << from;
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

TEST(MatmulChain, PassesOverWhatACausalMaskHides) {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    testing::AttentionCase c = testing::random_attention_case(seed);
    if (c.rows < 16 || c.columns < c.rows || c.batch * c.heads < 8) continue;
    c.safe = false;
    c.causal = true;
    const Graph causal = prepare(testing::attention_graph(c));
    const std::string text = print(causal);
    SCOPED_TRACE(text);
    EXPECT_TRUE(passes_over(causal));
    // A mask that hides other columns, or hides them with a number that leaves something; all the rest is as it was.
    EXPECT_FALSE(passes_over(parse(replaced(text, " = le ", " = ne "))));
    EXPECT_FALSE(passes_over(parse(replaced(text, "value=-inf", "value=-65536"))));
    EXPECT_FALSE(passes_over(parse(replaced(text, "value=-inf", "value=inf"))));
    c.causal = false;
    EXPECT_FALSE(passes_over(prepare(testing::attention_graph(c))));
  }
}

}  // namespace
}  // namespace trainc::schedule
