// Kernels under the interpreter: the oracle's results, and no race, no access out of bounds, nothing read before it is
// written.
#include "lower/lower.h"

#include <gtest/gtest.h>

#include <cmath>
#include <regex>

#include "../common/compare.h"
#include "../common/golden.h"
#include "../schedule/graphs.h"
#include "graph/text.h"
#include "run_schedule.h"
#include "schedule/bits.h"
#include "schedule/prepare.h"

namespace trainc::lower {
namespace {

using namespace schedule;

const LoweringOptions kLowerings[] = {{cpu_target(CpuLevel::Avx512)},
                                      {cpu_target(CpuLevel::Avx512Bf16)},
                                      {cpu_target(CpuLevel::Amx)},
                                      {cpu_target(CpuLevel::Avx2, {.l1d = 1 << 10, .l2 = 16 << 10, .l3 = 1 << 18})}};

void expect_clean(const Graph& graph, uint64_t seed, const LoweringOptions& lowering, double tolerance = 1e-4) {
  const Graph prepared = prepare(graph);
  SCOPED_TRACE("seed " + std::to_string(seed) + " " + lowering.target.cpu + "\n" + print(prepared));
  Schedule schedule = make_schedule(prepared, true);
  schedule.bits = masks_as_bits(prepared);
  const auto inputs = testing::halves(graph, seed);
  testing::Interpreted got;
  ASSERT_NO_THROW(got = testing::interpret_schedule(prepared, schedule, inputs, lowering));
  for (const std::string& finding : got.findings) ADD_FAILURE() << finding;
  EXPECT_EQ(got.status, 0u);
  reference::Options options{
      .precision = reference::Precision::Rounded, .random = testing::random_mask, .call = testing::extern_results};
  const auto expected = reference::evaluate(prepared, inputs, options);
  options.precision = reference::Precision::Truth;
  const auto truth = reference::evaluate(prepared, inputs, options);
  ASSERT_EQ(got.outputs.size(), expected.size());
  for (size_t o = 0; o < expected.size(); ++o) {
    const Type& type = expected[o].type;
    const double t = type.dtype == DType::F32 || type.dtype == DType::F64 ? tolerance : 2e-2;
    double scale = 1;  // terms that cancel leave an error of the size of the terms
    for (double v : expected[o].f) scale = std::isfinite(v) ? std::max(scale, std::abs(v)) : scale;
    for (int64_t i = 0; i < type.numel(); ++i) {
      // Where the oracle does not agree with itself, the graph amplifies roundings (a floor of a sum), and promises
      // nothing.
      if (is_float(type.dtype) ? !testing::close(expected[o].f[i], truth[o].f[i], t / 3)
                               : expected[o].i[i] != truth[o].i[i])
        continue;
      if (!is_float(type.dtype)) {
        ASSERT_EQ(got.outputs[o].i[i], expected[o].i[i]) << "output " << o << " element " << i;
        continue;
      }
      const double a = got.outputs[o].f[i], b = expected[o].f[i];
      ASSERT_TRUE((std::isnan(a) && std::isnan(b)) || a == b || std::abs(a - b) <= t * scale)
          << "output " << o << " element " << i << ": " << a << ", not " << b;
    }
  }
}

TEST(Lower, RandomGraphs) {
  testing::RandomGraphOptions options;
  options.transcendental = false;
  options.random_masks = true;
  options.max_numel = 1500;
  for (uint64_t seed = 1; seed <= 400 && !HasFailure(); ++seed)
    expect_clean(testing::random_graph(seed, options), seed, kLowerings[seed % std::size(kLowerings)]);
}

// Kernels of many values, with externs and draws between them.
TEST(Lower, RandomGraphsOfFewSizes) {
  testing::RandomGraphOptions options;
  options.transcendental = false;
  options.random_masks = options.externs = options.few_sizes = true;
  options.max_numel = 800;
  options.nodes = 50;
  options.outputs = 5;
  for (uint64_t seed = 1; seed <= 200 && !HasFailure(); ++seed)
    expect_clean(testing::random_graph(seed, options), seed, kLowerings[seed % std::size(kLowerings)]);
}

TEST(Lower, WhatTrainingIsMadeOf) {
  for (const char* text : {testing::kLayerNorm, testing::kLayerNormBackward, testing::kSoftmax,
                           testing::kSoftmaxBackward, testing::kLinearGelu})
    for (const LoweringOptions& lowering : kLowerings) expect_clean(parse(text), 3, lowering, 2e-4);
}

// lower_transpose: both sides by whole vectors where sizes divide; which side is transposed, several axes as one,
// backwards, roundings.
TEST(Lower, ValuesInAnotherOrder) {
  const struct {
    bool transposed;
    const char* text;
  } forms[] = {
      {true, "%0 = input index=0 : f32[64,16,3,3]\n%1 = permute %0 axes=[2,3,1,0] : f32[3,3,16,64]\nreturn %1\n"},
      {true,
       "%0 = input index=0 : f32[32,16,3,3]\n%1 = reverse %0 axes=[2,3] : f32[32,16,3,3]\n%2 = permute %1 "
       "axes=[2,3,1,0] : f32[3,3,16,32]\nreturn %2\n"},
      {true, "%0 = input index=0 : f32[3,3,16,64]\n%1 = permute %0 axes=[3,2,0,1] : f32[64,16,3,3]\nreturn %1\n"},
      {true,
       "%0 = input index=0 : f32[96,144]\n%1 = permute %0 axes=[1,0] : f32[144,96]\n%2 = cast %1 : "
       "bf16[144,96]\nreturn %2\n"},
      {true,
       "%0 = input index=0 : bf16[96,144]\n%1 = permute %0 axes=[1,0] : bf16[144,96]\n%2 = cast %1 : "
       "f32[144,96]\nreturn %2\n"},
      {true, "%0 = input index=0 : f32[5,32,2,48]\n%1 = permute %0 axes=[2,3,0,1] : f32[2,48,5,32]\nreturn %1\n"},
      {false, "%0 = input index=0 : f32[65,80]\n%1 = permute %0 axes=[1,0] : f32[80,65]\nreturn %1\n"},
      {false,
       "%0 = input index=0 : f32[80,16,2,3]\n%1 = slice %0 start=[0,0,0,1] step=[1,1,1,1] : f32[80,16,2,2]\n%2 = "
       "permute %1 axes=[2,3,1,0] : f32[2,2,16,80]\n%3 = mul %2 %2 : f32[2,2,16,80]\nreturn %3\n"},
  };
  for (const auto& form : forms)
    for (const LoweringOptions& lowering : kLowerings) {
      expect_clean(parse(form.text), 5, lowering);
      const Graph graph = prepare(parse(form.text));
      const Schedule schedule = make_schedule(graph, true);
      bool transposed = false;
      for (const Group& group : schedule.groups)
        for (const LoweredKernel& k : lower(graph, schedule, group, lowering))
          transposed = transposed || loop::print(k.nest).find("transpose(") != std::string::npos;
      EXPECT_EQ(transposed, form.transposed) << form.text;
    }
}

TEST(Lower, SingleForms) {
  const char* forms[] = {
      // column sums: runs of 32 and what is left; kept axes before, between, after; few columns; two in one walk
      "%0 = input index=0 : f32[70,50]\n%1 = reduce %0 kind=sum axes=[0] : f32[50]\n%2 = mul %0 %0 : f32[70,50]\n%3 = "
      "reduce %2 kind=max axes=[0] : f32[50]\nreturn %1 %3\n",
      "%0 = input index=0 : f32[3,41,5]\n%1 = reduce %0 kind=sum axes=[1] : f32[3,5]\nreturn %1\n",
      "%0 = input index=0 : f32[9,4,35]\n%1 = reduce %0 kind=sum axes=[0,2] : f32[4]\nreturn %1\n",
      "%0 = input index=0 : f32[6,4,3,70]\n%1 = reduce %0 kind=min axes=[0,2] : f32[4,70]\nreturn %1\n",
      "%0 = input index=0 : bf16[64,20]\n%1 = reduce %0 kind=max axes=[0] : bf16[20]\nreturn %1\n",
      "%0 = input index=0 : f32[40,8]\n%1 = permute %0 axes=[1,0] : f32[8,40]\n%2 = reduce %1 kind=sum axes=[0] : "
      "f32[40]\nreturn %2\n",
      // scatter: along the first, a middle and the last axis; indices that meet
      "%0 = input index=0 : f32[7,20]\n%1 = iota axis=0 : i64[30,20]\n%2 = constant value=7 : i64[]\n%3 = reshape %2 : "
      "i64[1,1]\n%4 = broadcast %3 : i64[30,20]\n"
      "%5 = mod %1 %4 : i64[30,20]\n%6 = input index=1 : f32[30,20]\n%7 = scatter %0 %5 %6 axis=0 kind=sum : "
      "f32[7,20]\nreturn %7\n",
      "%0 = input index=0 : f32[3,20]\n%1 = iota axis=1 : i64[3,30]\n%2 = constant value=20 : i64[]\n%3 = reshape %2 : "
      "i64[1,1]\n%4 = broadcast %3 : i64[3,30]\n"
      "%5 = mod %1 %4 : i64[3,30]\n%6 = input index=1 : f32[3,30]\n%7 = scatter %0 %5 %6 axis=1 kind=last : "
      "f32[3,20]\nreturn %7\n",
      "%0 = input index=0 : f32[5,3,1]\n%1 = iota axis=0 : i64[4,3,1]\n%2 = input index=1 : f32[4,3,1]\n%3 = scatter "
      "%0 %1 %2 axis=0 kind=sum : f32[5,3,1]\nreturn %3\n",
      // concatenation, stored by pieces and read through; a permuted piece
      "%0 = input index=0 : f32[5,4]\n%1 = input index=1 : f32[5,9]\n%2 = concat %0 %1 %0 axis=1 : f32[5,17]\n%3 = exp "
      "%2 : f32[5,17]\nreturn %2 %3\n",
      "%0 = input index=0 : f32[5,4]\n%1 = permute %0 axes=[1,0] : f32[4,5]\n%2 = input index=1 : f32[6,5]\n%3 = "
      "concat %1 %2 axis=0 : f32[10,5]\nreturn %3\n",
      // scans along each axis
      "%0 = input index=0 : f32[5,21]\n%1 = scan %0 axis=0 : f32[5,21]\n%2 = scan %0 axis=1 : f32[5,21]\nreturn %1 "
      "%2\n",
      "%0 = input index=0 : i64[3,4,5]\n%1 = scan %0 axis=1 : i64[3,4,5]\nreturn %1\n",
      // long runs in pieces of 4096, the last one shorter; rows longer than a piece
      "%0 = input index=0 : f32[20000]\n%1 = neg %0 : f32[20000]\nreturn %1\n",
      "%0 = input index=0 : f32[2,9001]\n%1 = reduce %0 kind=sum axes=[1] : f32[2]\n%2 = reshape %1 : f32[2,1]\n%3 = "
      "broadcast %2 : f32[2,9001]\n"
      "%4 = sub %0 %3 : f32[2,9001]\nreturn %4\n",
      // sums over nothing, reached through a slice
      // bf16 operands, as they are, rounded on the way, permuted; an odd k
      "%0 = input index=0 : f32[2,9,11]\n%1 = cast %0 : bf16[2,9,11]\n%2 = input index=1 : bf16[2,7,11]\n%3 = contract "
      "%1 %2 : bf16[2,9,7]\n%4 = add %3 %3 : bf16[2,9,7]\n"
      "return %4\n",
      "%0 = input index=0 : f32[1,31,20]\n%1 = cast %0 : bf16[1,31,20]\n%2 = permute %1 axes=[0,2,1] : "
      "bf16[1,20,31]\n%3 = input index=1 : bf16[1,31,40]\n"
      "%4 = permute %3 axes=[0,2,1] : bf16[1,40,31]\n%5 = mul %4 %4 : bf16[1,40,31]\n%6 = contract %2 %5 : "
      "bf16[1,20,40]\nreturn %6\n",
      "%0 = input index=0 : f32[16,0]\n%1 = slice %0 start=[2,0] step=[1,1] : f32[14,0]\n%2 = reshape %1 : "
      "f32[1,14,0]\n%3 = contract %2 %2 : f32[1,14,14]\nreturn %3\n",
      // rows of an odd length beyond a piece: padded, with a number a row, one after the other
      "%0 = input index=0 : f32[2,3,9001]\n%1 = input index=1 : f32[2,3,1]\n%2 = broadcast %1 : f32[2,3,9001]\n%3 = "
      "mul %0 %2 : f32[2,3,9001]\n%4 = constant value=2.5 : f32[]\n%5 = pad %3 %4 low=[0,1,0] high=[0,2,0] : "
      "f32[2,6,9001]\nreturn %5\n",
      // a gather of rows; a padded slice; factors that do not fit one chain
      "%0 = input index=0 : f32[9,33]\n%1 = iota axis=0 : i64[4,33]\n%2 = gather %0 %1 axis=0 : f32[4,33]\n%3 = exp %2 "
      ": f32[4,33]\nreturn %3\n",
      "%0 = input index=0 : f32[5,7]\n%1 = slice %0 start=[1,0] step=[2,2] : f32[2,4]\n%2 = constant value=2.5 : "
      "f32[]\n%3 = pad %1 %2 low=[1,0] high=[2,3] : f32[5,7]\n"
      "%4 = add %3 %0 : f32[5,7]\nreturn %4\n",
      "%0 = input index=0 : f32[4,9]\n%1 = permute %0 axes=[1,0] : f32[9,4]\n%2 = reshape %1 : f32[6,6]\n%3 = permute "
      "%2 axes=[1,0] : f32[6,6]\n%4 = neg %3 : f32[6,6]\n"
      "return %4\n"};
  for (const char* text : forms)
    for (const LoweringOptions& lowering : kLowerings) expect_clean(parse(text), 5, lowering);
}

// What lies beside each other is read beside each other: no lane divides to find its place, whether it is padding, or
// its row's number.
TEST(Lower, LongRowsAreReadWithoutDivisions) {
  const char* texts[] = {
      "%0 = input index=0 : f32[2,3,9001]\n%1 = constant value=2.5 : f32[]\n%2 = neg %0 : f32[2,3,9001]\n%3 = pad %2 "
      "%1 low=[0,1,0] high=[0,2,0] : f32[2,6,9001]\nreturn %3\n",
      "%0 = input index=0 : f32[6,9001]\n%1 = input index=1 : f32[6,1]\n%2 = broadcast %1 : f32[6,9001]\n%3 = mul %0 "
      "%2 : f32[6,9001]\nreturn %3\n",
      "%0 = input index=0 : f32[3,5,64]\n%1 = constant value=2.5 : f32[]\n%2 = pad %0 %1 low=[0,1,0] high=[0,2,0] : "
      "f32[3,8,64]\nreturn %2\n"};
  for (const char* text : texts) {
    const Graph graph = prepare(parse(text));
    const Schedule schedule = make_schedule(graph, true);
    for (const LoweredKernel& kernel : lower(graph, schedule, schedule.groups[0], {cpu_target(CpuLevel::Avx512)})) {
      const std::string nest = print(kernel.nest);
      EXPECT_FALSE(std::regex_search(nest, std::regex("j[0-9]+\\)? (//|%)"))) << nest;
    }
  }
}

// Sums over the taps of windows, channels along vectors: pieces of channels that are equal, and a number that has none.
TEST(Lower, WindowsAreReadWithoutDivisions) {
  for (const char* channels : {"60", "67", "120", "144", "131"}) {
    const std::string text = std::regex_replace(
        std::string("%0 = input index=0 : f32[1,5,6,C]\n%1 = input index=1 : f32[3,3,C]\n%2 = window %0 axes=[1,2] "
                    "size=[3,3] step=[1,1] dilation=[1,1] : f32[1,3,4,C,3,3]\n%3 = permute %2 order=[0,1,2,4,5,3] : "
                    "f32[1,3,4,3,3,C]\n%4 = reshape %1 : f32[1,1,1,3,3,C]\n%5 = broadcast %4 : f32[1,3,4,3,3,C]\n"
                    "%6 = mul %3 %5 : f32[1,3,4,3,3,C]\n%7 = reduce %6 kind=sum axes=[3,4] : f32[1,3,4,C]\n"
                    "return %7\n"),
        std::regex("C"), channels);
    const Graph graph = prepare(parse(text));
    const Schedule schedule = make_schedule(graph, true);
    for (const Group& group : schedule.groups)
      for (const LoweredKernel& kernel : lower(graph, schedule, group, {cpu_target(CpuLevel::Avx512)})) {
        const std::string nest = print(kernel.nest);
        EXPECT_FALSE(std::regex_search(nest, std::regex("j[0-9]*\\)* (//|%)"))) << nest;
      }
  }
}

void expect_index_errors(const char* text) {
  const Graph graph = prepare(parse(text));
  const Schedule schedule = make_schedule(graph, true);
  for (int64_t wrong :
       {int64_t{-1}, int64_t{4}, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()}) {
    reference::Tensor table, index;
    table.type = {DType::F32, {4, 5}}, table.f.assign(20, 1.0);
    index.type = {DType::I64, {4, 5}}, index.i.assign(20, 3);
    EXPECT_EQ(testing::interpret_schedule(graph, schedule, {table, index}, kLowerings[0]).status, 0u);
    index.i[7] = wrong;
    const auto got = testing::interpret_schedule(graph, schedule, {table, index}, kLowerings[0]);
    EXPECT_NE(got.status, 0u) << wrong;
    for (const std::string& finding : got.findings) ADD_FAILURE() << finding;
  }
}
TEST(Lower, IndexOutOfBoundsIsReportedAndTouchesNothing) {
  expect_index_errors(
      "%0 = input index=0 : f32[4,5]\n%1 = input index=1 : i64[4,5]\n%2 = gather %0 %1 axis=0 : f32[4,5]\nreturn %2\n");
  expect_index_errors(
      "%0 = input index=0 : f32[4,5]\n%1 = input index=1 : i64[4,5]\n%2 = scatter %0 %1 %0 axis=0 kind=sum : "
      "f32[4,5]\nreturn %2\n");
}

// --- golden: what becomes of a graph, to be read
std::string story(const char* text) {
  const Graph graph = prepare(parse(text));
  const Schedule schedule = make_schedule(graph, true);
  std::string out = print(graph);
  for (const Group& g : schedule.groups) {
    out += "\n# " + std::to_string(g.rows) + " x " + std::to_string(g.columns) + ":";
    for (const Node* n : g.values) out += " " + std::string(name_of(n->op)) + (schedule.stored.count(n) ? "!" : "");
    out += "   (! is stored)\n";
    for (const LoweredKernel& k : lower(graph, schedule, g, {cpu_target(CpuLevel::Avx512)})) out += print(k.nest);
  }
  return out;
}
TEST(Golden, ScheduleOfLayerNorm) { test::expect_golden("lower/layer_norm.txt", story(testing::kLayerNorm)); }
TEST(Golden, ScheduleOfSoftmaxBackward) {
  test::expect_golden("lower/softmax_backward.txt", story(testing::kSoftmaxBackward));
}
TEST(Golden, ScheduleOfLinearGelu) { test::expect_golden("lower/linear_gelu.txt", story(testing::kLinearGelu)); }

}  // namespace
}  // namespace trainc::lower
