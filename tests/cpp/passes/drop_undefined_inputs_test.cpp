#include <gtest/gtest.h>

#include "../common/compare.h"
#include "../common/random_graph.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "passes/drop_undefined_inputs.h"

namespace trainc {
namespace {

struct Case {
  const char* what;
  const char* before;  // input 0 is defined, 1 and 2 are not
  const char* after;
};
const Case kCases[] = {
    {"zero + y is y",
     "%x = input index=0 : f32[2]\n%t = input index=1 : f32[2]\n%n = neg %t : f32[2]\n%r = add %n %x : f32[2]\nreturn "
     "%r\n",
     "inputs 3\n%0 = input index=0 : f32[2]\nreturn %0\n"},
    {"x - zero, zero - x",
     "%x = input index=0 : f32[2]\n%t = input index=1 : f32[2]\n%r = sub %x %t : f32[2]\n%s = sub %t %x : "
     "f32[2]\nreturn %r %s\n",
     "inputs 3\n%0 = input index=0 : f32[2]\n%1 = neg %0 : f32[2]\nreturn %0 %1\n"},
    {"a contraction vanishes",
     "%x = input index=0 : f32[1,2,3]\n%t = input index=1 : f32[1,4,3]\n%c = contract %x %t : f32[1,2,4]\n%r = reduce "
     "%c kind=sum axes=[1,2] : f32[1]\nreturn %r\n",
     "inputs 3\n%0 = constant value=0 : f32[]\n%1 = reshape %0 : f32[1]\nreturn %1\n"},
    {"scatter and pad onto zeros",
     "%i = input index=0 : i64[2]\n%t = input index=1 : f32[2]\n%z = constant value=0 : f32[]\n%w = reshape %z : "
     "f32[1]\n%b = broadcast %w : f32[5]\n"
     "%s = scatter %b %i %t axis=0 kind=sum : f32[5]\n%p = pad %s %z low=[1] high=[0] : f32[6]\n%u = input index=2 : "
     "f32[6]\n%r = mul %p %u : f32[6]\nreturn none %r\n",
     "inputs 3\n%0 = constant value=0 : f32[]\n%1 = reshape %0 : f32[1]\n%2 = broadcast %1 : f32[6]\nreturn none %2\n"},
    {"a zero that something else reads is written out",
     "%x = input index=0 : f32[2]\n%t = input index=1 : f32[2]\n%e = exp %t : f32[2]\n%r = mul %x %e : f32[2]\nreturn "
     "%r\n",
     "inputs 3\n%0 = input index=0 : f32[2]\n%1 = constant value=0 : f32[]\n%2 = reshape %1 : f32[1]\n%3 = broadcast "
     "%2 : f32[2]\n%4 = exp %3 : f32[2]\n%5 = mul %0 %4 : f32[2]\nreturn %5\n"},
    {"an output may be zero and have users",
     "%x = input index=0 : f32[2]\n%t = input index=1 : f32[2]\n%n = neg %t : f32[2]\n%r = add %x %n : f32[2]\nreturn "
     "%n %r\n",
     "inputs 3\n%0 = input index=0 : f32[2]\n%1 = constant value=0 : f32[]\n%2 = reshape %1 : f32[1]\n%3 = broadcast "
     "%2 : f32[2]\nreturn %3 %0\n"},
};

TEST(DropUndefinedInputs, Cases) {
  for (const Case& c : kCases) {
    Graph before = parse(c.before);
    before.input_count = 3;
    const Graph after = drop_undefined_inputs(before, {1, 2});
    verify(after);
    EXPECT_EQ(print(after), c.after) << c.what;
  }
}

// Whatever the graph: no undefined input is left, and the values are those for zeros. (Finite inputs without
// logarithms: a structural zero is a zero whatever it is multiplied with.)
TEST(DropUndefinedInputs, RandomGraphsHaveTheValuesOfZeros) {
  int compared = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Graph g = testing::random_graph(seed);
    const Graph h = drop_undefined_inputs(g, {1});
    verify(h);
    for (const Node* node : h.live())
      ASSERT_FALSE(node->op == Op::Input && node->as<InputAttr>().index == 1) << print(h);
    auto inputs = testing::random_inputs(g, seed);
    for (double& x : inputs[1].f) x = 0;
    for (int64_t& x : inputs[1].i) x = 0;
    const auto a = evaluate(g, inputs), b = evaluate(h, inputs);
    const std::vector<Output> outputs = g.outputs;
    for (const Node* node : g.live()) g.outputs.push_back({node, {}});
    bool finite = true;  // all the way: the sign of a NaN is a number again
    for (const auto& t : evaluate(g, inputs))
      for (double x : t.f) finite &= std::isfinite(x);
    g.outputs = outputs;
    if (!finite) continue;
    ++compared;
    for (size_t i = 0; i < a.size(); ++i) {
      for (size_t k = 0; k < a[i].f.size(); ++k)
        ASSERT_EQ(a[i].f[k], b[i].f[k]) << "seed " << seed << "\n" << print(g) << "-->\n" << print(h);
      ASSERT_EQ(a[i].i, b[i].i) << "seed " << seed << "\n" << print(g) << "-->\n" << print(h);
    }
  }
  EXPECT_GT(compared, 250);
}

}  // namespace
}  // namespace trainc
