// Random graphs, compiled and run, against the oracle: every stage from passes to machine code at once.
#include <gtest/gtest.h>

#include <cmath>

#include "../common/random_graph.h"
#include "../common/run_plan.h"
#include "compiler/compiler.h"
#include "graph/text.h"

namespace trainc {
namespace {

// Sums run in another order than the oracle's, and what follows may amplify that.
bool close(double a, double b, double tolerance) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (a == b) return true;
  return std::abs(a - b) <= tolerance * std::max({1.0, std::abs(a), std::abs(b)});
}

compiler::Options options() { return {.level = cpu_level(), .threads = 1, .progress = {}}; }

void expect_same(const Graph& graph, uint64_t seed, bool special, double tolerance) {
  auto inputs = testing::random_inputs(graph, seed, special);
  for (auto& t : inputs)  // halves: most sums are exact in any order, so that floor and comparisons do not hang on a rounding
    for (double& v : t.f) v = std::isfinite(v) ? std::round(v * 2) / 2 : v;
  const auto expected = reference::evaluate(graph, inputs, {.precision = reference::Precision::Rounded, .random = {}, .call = {}});
  const std::string text = print(graph);
  frontend::Imported imported;
  imported.graph = parse(text);
  imported.graph.input_count = graph.input_count;
  std::vector<reference::Tensor> got;
  try {
    got = testing::run_plan(compiler::compile(std::move(imported), "fuzz", options()), inputs);
  } catch (const std::exception& e) {
    FAIL() << "seed " << seed << ": " << e.what() << "\n" << text;
  }
  ASSERT_EQ(got.size(), expected.size());
  for (size_t o = 0; o < got.size(); ++o) {
    ASSERT_EQ(got[o].type, expected[o].type) << "seed " << seed;
    for (int64_t i = 0; i < got[o].type.numel(); ++i) {
      if (is_float(got[o].type.dtype))
        ASSERT_TRUE(close(got[o].f[i], expected[o].f[i], got[o].type.dtype == DType::F32 || got[o].type.dtype == DType::F64 ? tolerance : 2e-2))
            << "seed " << seed << " output " << o << " element " << i << ": " << got[o].f[i] << ", not " << expected[o].f[i] << "\n" << text;
      else
        ASSERT_EQ(got[o].i[i], expected[o].i[i]) << "seed " << seed << " output " << o << " element " << i << "\n" << text;
    }
  }
}

int count() { return std::getenv("TRAINC_FUZZ") ? std::atoi(std::getenv("TRAINC_FUZZ")) : 150; }
uint64_t first() { return std::getenv("TRAINC_SEED") ? std::atoi(std::getenv("TRAINC_SEED")) : 1; }

// Arithmetic that both sides round alike: any difference is a wrong index, a wrong order of kernels, a wrong mask.
TEST(Fuzz, ExactArithmetic) {
  testing::RandomGraphOptions o;
  o.transcendental = false;
  for (uint64_t seed = first(); seed < first() + count(); ++seed) {
    expect_same(testing::random_graph(seed, o), seed, false, 1e-4);
    if (HasFatalFailure()) return;
  }
}
TEST(Fuzz, SpecialValues) {
  testing::RandomGraphOptions o;
  o.transcendental = false;
  for (uint64_t seed = first() + 5000; seed < first() + 5000 + count(); ++seed) {
    expect_same(testing::random_graph(seed, o), seed, true, 1e-4);
    if (HasFatalFailure()) return;
  }
}

void expect_text(const char* text, double tolerance = 1e-5) { expect_same(parse(text), 7, false, tolerance); }

TEST(Compile, LayerNorm) {
  expect_text(R"(%0 = input index=0 : f32[5,7,33]
%1 = reduce %0 kind=sum axes=[2] : f32[5,7]
%2 = reshape %1 : f32[5,7,1]
%3 = broadcast %2 : f32[5,7,33]
%4 = sub %0 %3 : f32[5,7,33]
%5 = mul %4 %4 : f32[5,7,33]
%6 = reduce %5 kind=sum axes=[2] : f32[5,7]
%7 = rsqrt %6 : f32[5,7]
%8 = reshape %7 : f32[5,7,1]
%9 = broadcast %8 : f32[5,7,33]
%10 = mul %4 %9 : f32[5,7,33]
return %10 %7
)");
}

}  // namespace
}  // namespace trainc
