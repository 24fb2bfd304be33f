#include <gtest/gtest.h>

#include <algorithm>

#include "../common/compare.h"
#include "../common/random_graph.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "passes/join_products.h"

namespace trainc {
namespace {

// Three steps of a recurrence with 8 rows each of 2: `g` are gradients of what a step multiplies, [2, 24], and `h` what
// it multiplied, [2, 16]. A step's gradient of the weight is g^T h.
std::string given() {
  std::string text;
  for (int t = 0; t < 3; ++t) {
    const std::string n = std::to_string(t);
    text += "%g" + n + " = input index=" + std::to_string(2 * t) + " : f32[2,24]\n" +  //
            "%h" + n + " = input index=" + std::to_string(2 * t + 1) + " : f32[2,16]\n" + "%gt" + n + " = permute %g" +
            n + " order=[1,0] : f32[24,2]\n" + "%l" + n + " = reshape %gt" + n + " : f32[1,24,2]\n" + "%ht" + n +
            " = permute %h" + n + " order=[1,0] : f32[16,2]\n" + "%r" + n + " = reshape %ht" + n + " : f32[1,16,2]\n" +
            "%c" + n + " = contract %l" + n + " %r" + n + " : f32[1,24,16]\n" + "%p" + n + " = reshape %c" + n +
            " : f32[24,16]\n";
  }
  return text;
}

struct Case {
  const char* what;
  const char* lines;
  std::vector<int64_t> depths;  // k of the contractions that are left
  int concats;                  // that are left
  int reduces = 0;
};
const Case kCases[] = {
    {"a sum", "%s = add %p0 %p1 : f32[24,16]\n%t = add %s %p2 : f32[24,16]\nreturn %t", {6}, 2},
    {"another order of additions", "%s = add %p1 %p2 : f32[24,16]\n%t = add %p0 %s : f32[24,16]\nreturn %t", {6}, 2},
    {"products of bf16, each rounded by itself",
     "%a = cast %l0 : bf16[1,24,2]\n%b = cast %a : f32[1,24,2]\n%d = cast %r0 : bf16[1,16,2]\n%e = cast %d : "
     "f32[1,16,2]\n%f = contract %b %e : f32[1,24,16]\n%g = cast %f : bf16[1,24,16]\n%h = reshape %g : "
     "bf16[24,16]\n%i = cast %h : f32[24,16]\n%j = cast %l1 : bf16[1,24,2]\n%k = cast %j : f32[1,24,2]\n%m = cast %r1 "
     ": bf16[1,16,2]\n%n = cast %m : f32[1,16,2]\n%o = contract %k %n : f32[1,24,16]\n%q = cast %o : "
     "bf16[1,24,16]\n%u = reshape %q : bf16[24,16]\n%v = cast %u : f32[24,16]\n%t = add %i %v : f32[24,16]\nreturn %t",
     {4},
     2},
    {"beside other summands",
     "%x = input index=6 : f32[24,16]\n%s = add %p0 %x : f32[24,16]\n%t = add %s %p1 : f32[24,16]\nreturn %t",
     {4},
     2},
    {"a product that somebody reads",
     "%s = add %p0 %p1 : f32[24,16]\n%t = add %s %p2 : f32[24,16]\nreturn %t %p1",
     {2, 4},
     2},
    {"a sum so far that somebody reads",
     "%s = add %p0 %p1 : f32[24,16]\n%t = add %s %p2 : f32[24,16]\nreturn %t %s",
     {2, 4},
     2},
    {"a product twice", "%s = add %p0 %p0 : f32[24,16]\nreturn %s", {2}, 0},
    {"one product alone", "%x = input index=6 : f32[24,16]\n%s = add %p0 %x : f32[24,16]\nreturn %s", {2}, 0},
    {"other sizes",
     "%a = input index=6 : f32[1,24,3]\n%b = input index=7 : f32[1,16,3]\n%d = contract %a %b : f32[1,24,16]\n%e = "
     "reshape %d : f32[24,16]\n%s = add %p0 %e : f32[24,16]\nreturn %s",
     {5},
     2},
    {"batches",
     "%a = input index=6 : f32[2,4,3]\n%b = input index=7 : f32[2,5,3]\n%d = contract %a %b : f32[2,4,5]\n%m = input "
     "index=8 : f32[2,4,3]\n%n = input index=9 : f32[2,5,3]\n%e = contract %m %n : f32[2,4,5]\n%s = add %d %e : "
     "f32[2,4,5]\nreturn %s",
     {3, 3},
     0},
    // their operands would take 3 * (24 + 16) elements to put together, for one sum of 24 less
    {"few results",
     "%a = input index=6 : f32[1,4,6]\n%b = input index=7 : f32[1,6,6]\n%d = contract %a %b : f32[1,4,6]\n%m = input "
     "index=8 : f32[1,4,6]\n%n = input index=9 : f32[1,6,6]\n%e = contract %m %n : f32[1,4,6]\n%s = add %d %e : "
     "f32[1,4,6]\nreturn %s",
     {6, 6},
     0},
    {"put together already, the other way round",
     "%u0 = reshape %g0 : f32[1,2,24]\n%u1 = reshape %g1 : f32[1,2,24]\n%u2 = reshape %g2 : f32[1,2,24]\n%u = concat "
     "%u0 %u1 %u2 axis=0 : f32[3,2,24]\n%s = add %p2 %p1 : f32[24,16]\n%t = add %s %p0 : f32[24,16]\nreturn %t %u",
     {6},
     2},
    {"two of three put together already",
     "%u = concat %h1 %h2 axis=0 : f32[4,16]\n%s = add %p0 %p1 : f32[24,16]\n%t = add %s %p2 : f32[24,16]\nreturn %u "
     "%t",
     {6},
     3},
    {"put together with zeros added",
     "%z = constant value=0 : f32[]\n%z2 = reshape %z : f32[1,1]\n%z3 = broadcast %z2 : f32[2,24]\n%u0 = add %g0 %z3 : "
     "f32[2,24]\n%u1 = add %g1 %z3 : f32[2,24]\n%s = add %p1 %p0 : f32[24,16]\n%u = concat %u0 %u1 axis=0 : "
     "f32[4,24]\nreturn %s %u",
     {4},
     2},
    {"put together with what the sum gives",
     "%s = add %p0 %p1 : f32[24,16]\n%x = slice %s start=[0,0] step=[1,1] : f32[2,16]\n%u = concat %h0 %h1 %x axis=0 : "
     "f32[6,16]\nreturn %u",
     {4},
     3},
    {"a constant among the operands",
     "%z = constant value=0 : f32[]\n%z2 = reshape %z : f32[1,1,1]\n%z3 = broadcast %z2 : f32[1,16,2]\n%d = contract "
     "%l2 %z3 "
     ": f32[1,24,16]\n%e = reshape %d : f32[24,16]\n%s = add %p0 %p1 : f32[24,16]\n%t = add %s %e : f32[24,16]\nreturn "
     "%t",
     {6},
     2},
    {"sums beside the products",
     "%b0 = reduce %g0 kind=sum axes=[0] : f32[24]\n%b1 = reduce %g1 kind=sum axes=[0] : f32[24]\n%b2 = reduce %g2 "
     "kind=sum axes=[0] : f32[24]\n%v = add %b2 %b1 : f32[24]\n%w = add %v %b0 : f32[24]\n%s = add %p0 %p1 : "
     "f32[24,16]\n%t = add %s %p2 : f32[24,16]\nreturn %t %w",
     {6},
     2,
     1},
    {"a sum that is there",
     "%u = concat %g0 %g1 axis=0 : f32[4,24]\n%b = reduce %u kind=sum axes=[0] : f32[24]\n%b0 = reduce %g0 kind=sum "
     "axes=[0] : f32[24]\n%b1 = reduce %g1 kind=sum axes=[0] : f32[24]\n%v = add %b1 %b0 : f32[24]\nreturn %v %b",
     {},
     1,
     1},
    {"sums alone",
     "%b0 = reduce %g0 kind=sum axes=[0] : f32[24]\n%b1 = reduce %g1 kind=sum axes=[0] : f32[24]\n%v = add %b0 %b1 : "
     "f32[24]\nreturn %v",
     {},
     0,
     2},
    // [4,8] transposed and split into 16 rows of 2 is no exchange of the axes of [2,16]
    {"another split of the same elements",
     "%a0 = input index=6 : f32[4,8]\n%a1 = input index=7 : f32[4,8]\n%b0 = permute %a0 order=[1,0] : f32[8,4]\n%b1 = "
     "permute %a1 order=[1,0] : f32[8,4]\n%d0 = reshape %b0 : f32[1,16,2]\n%d1 = reshape %b1 : f32[1,16,2]\n%e0 = "
     "contract %l0 %d0 : f32[1,24,16]\n%e1 = contract %l1 %d1 : f32[1,24,16]\n%s = add %e0 %e1 : f32[1,24,16]\nreturn "
     "%s",
     {4},
     2},
    {"put together behind what is no whole row",
     "%a = input index=6 : f32[3]\n%z = input index=7 : f32[45]\n%u0 = reshape %g0 : f32[48]\n%u1 = reshape %g1 : "
     "f32[48]\n%u = concat %a %u0 %u1 %z axis=0 : f32[144]\n%s = add %p0 %p1 : f32[24,16]\nreturn %s %u",
     {4},
     2},
    {"put together in what is no number of rows",
     "%a = input index=6 : f32[24]\n%z = input index=7 : f32[5]\n%u0 = reshape %g0 : f32[48]\n%u1 = reshape %g1 : "
     "f32[48]\n%u = concat %a %u0 %u1 %z axis=0 : f32[125]\n%s = add %p0 %p1 : f32[24,16]\nreturn %s %u",
     {4},
     2},
    {"a sum that is there, of some of the terms",
     "%u = concat %g0 %g1 axis=0 : f32[4,24]\n%b = reduce %u kind=sum axes=[0] : f32[24]\n%b0 = reduce %g0 kind=sum "
     "axes=[0] : f32[24]\n%b1 = reduce %g1 kind=sum axes=[0] : f32[24]\n%b2 = reduce %g2 kind=sum axes=[0] : "
     "f32[24]\n%v = add %b0 %b1 : f32[24]\n%w = add %v %b2 : f32[24]\n%s = add %p0 %p1 : f32[24,16]\n%t = add %s %p2 : "
     "f32[24,16]\nreturn %t %w %b",
     {6},
     3,
     2},
};

constexpr double kAll = 1e6;  // however long the chains are

TEST(JoinProducts, OneProductOfAllSteps) {
  for (const Case& c : kCases) {
    const Graph before = parse(given() + c.lines + "\n"), after = join_products(before, kAll);
    verify(after);
    std::vector<int64_t> depths;
    int concats = 0, reduces = 0;
    for (const Node* n : after.live()) {
      if (n->op == Op::Contract) depths.push_back(n->in(0)->shape()[2]);
      concats += n->op == Op::Concat;
      reduces += n->op == Op::Reduce;
    }
    std::sort(depths.begin(), depths.end());
    EXPECT_EQ(depths, c.depths) << c.what << "\n" << print(after);
    EXPECT_EQ(concats, c.concats) << c.what << "\n" << print(after);
    EXPECT_EQ(reduces, c.reduces) << c.what << "\n" << print(after);
    const auto inputs = testing::random_inputs(before, 1);
    SCOPED_TRACE(c.what);
    testing::expect_close(evaluate(after, inputs, {}), evaluate(before, inputs, {}), 1e-12);
    EXPECT_EQ(print(join_products(after, kAll)), print(after)) << c.what;  // nothing is left to join
  }
}

// Chains are no longer than 1.6 times the root of all k, and never than a block.
TEST(JoinProducts, ManyStepsAreSeveralProducts) {
  const auto depths = [](int terms, int64_t k) {
    Graph graph;
    Builder b{graph, {}};
    const Node* sum = nullptr;
    for (int t = 0; t < terms; ++t) {
      const Node* term =
          b.contract(b.input(2 * t, {DType::F32, {1, 512, k}}), b.input(2 * t + 1, {DType::F32, {1, 256, k}}));
      sum = sum ? b.add(sum, term) : term;
    }
    graph.outputs.push_back({sum, {}});
    graph.input_count = 2 * terms;
    const Graph after = join_products(graph);
    verify(after);
    std::vector<int64_t> found;
    for (const Node* n : after.live())
      if (n->op == Op::Contract) found.push_back(n->in(0)->shape()[2]);
    std::sort(found.begin(), found.end());
    return found;
  };
  EXPECT_EQ(depths(4, 20), (std::vector<int64_t>{20, 20, 20, 20}));
  EXPECT_EQ(depths(10, 4), (std::vector<int64_t>{8, 8, 8, 8, 8}));
  std::vector<int64_t> pairs(17, 40);
  pairs.insert(pairs.begin(), 20);
  EXPECT_EQ(depths(35, 20), pairs);
}

}  // namespace
}  // namespace trainc
