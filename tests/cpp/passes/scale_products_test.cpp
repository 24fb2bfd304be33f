#include "passes/scale_products.h"

#include <gtest/gtest.h>

#include <cmath>

#include "../common/compare.h"
#include "../common/random_graph.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "passes/values.h"

namespace trainc {
namespace {

// q and k as PyTorch's attention with dropout has them: heads beside each other, cast, permuted.
const std::string kGiven =
    "%q = input index=0 : bf16[2,4,3,5]\n%k = input index=1 : bf16[2,6,3,5]\n%f = input index=2 : f32[6,4,5]\n"
    "%cq = cast %q : f32[2,4,3,5]\n%pq = permute %cq order=[0,2,1,3] : f32[2,3,4,5]\n"
    "%ck = cast %k : f32[2,6,3,5]\n%pk = permute %ck order=[0,2,3,1] : f32[2,3,5,6]\n"
    "%s = constant value=0.375 : f32[]\n%s4 = reshape %s : f32[1,1,1,1]\n"
    "%bq = broadcast %s4 : f32[2,3,4,5]\n%bk = broadcast %s4 : f32[2,3,5,6]\n";
const std::string kRhs = "%rk = reshape %mk : f32[6,5,6]\n%rhs = permute %rk order=[0,2,1] : f32[6,6,5]\n";
const std::string kProduct = "%lhs = reshape %mq : f32[6,4,5]\n" + kRhs + "%c = contract %lhs %rhs : f32[6,4,6]\n";

struct Case {
  const char* what;
  std::string lines;
  double scale;  // behind the product; 1: it stays
};
const Case kCases[] = {
    {"both", "%mq = mul %pq %bq : f32[2,3,4,5]\n%mk = mul %bk %pk : f32[2,3,5,6]\n" + kProduct + "return %c", 0.140625},
    {"both are read elsewhere, too",
     "%mq = mul %pq %bq : f32[2,3,4,5]\n%mk = mul %pk %bk : f32[2,3,5,6]\n" + kProduct + "return %c %mq %mk", 0.140625},
    {"one, twice",
     "%m = mul %pq %bq : f32[2,3,4,5]\n%mq = mul %m %bq : f32[2,3,4,5]\n%mk = reshape %pk : f32[2,3,5,6]\n" + kProduct +
         "return %c",
     0.140625},
    {"nothing", "%mq = reshape %pq : f32[2,3,4,5]\n%mk = reshape %pk : f32[2,3,5,6]\n" + kProduct + "return %c", 1},
    {"an operand of f32", "%mk = mul %pk %bk : f32[2,3,5,6]\n" + kRhs + "%c = contract %f %rhs : f32[6,4,6]\nreturn %c",
     1},
    {"scaled by values",
     "%g = reshape %f : f32[2,3,4,5]\n%mq = mul %pq %g : f32[2,3,4,5]\n%mk = mul %pk %bk : f32[2,3,5,6]\n" + kProduct +
         "return %c",
     1},
    {"something added", "%mq = add %pq %bq : f32[2,3,4,5]\n%mk = mul %pk %bk : f32[2,3,5,6]\n" + kProduct + "return %c",
     1},
    {"so small that the sum might leave f32's range before it is scaled",
     "%t = constant value=0.0009765625 : f32[]\n%t4 = reshape %t : f32[1,1,1,1]\n%bt = broadcast %t4 : f32[2,3,4,5]\n"
     "%mq = mul %pq %bt : f32[2,3,4,5]\n%mk = mul %pk %bk : f32[2,3,5,6]\n" +
         kProduct + "return %c",
     1},
    {"zero, by which infinity is NaN",
     "%z = constant value=0 : f32[]\n%z4 = reshape %z : f32[1,1,1,1]\n%bz = broadcast %z4 : f32[2,3,4,5]\n"
     "%mq = mul %pq %bz : f32[2,3,4,5]\n%mk = mul %pk %bk : f32[2,3,5,6]\n" +
         kProduct + "return %c",
     1},
};

TEST(ScaleProducts, OperandsOfBf16AreMultipliedAsTheyAre) {
  for (const Case& c : kCases) {
    const Graph before = parse(kGiven + c.lines + "\n");
    const Graph after = scale_products(before);
    SCOPED_TRACE(std::string(c.what) + "\n" + print(after));
    verify(after);
    const Node* result = after.outputs[0].value;
    if (c.scale == 1) {
      EXPECT_EQ(print(after), print(before));
    } else {
      ASSERT_EQ(result->op, Op::Mul);
      EXPECT_NEAR(float_of(uniform_constant(result->in(1))), c.scale, 1e-7);
      for (const Node* in : result->in(0)->inputs) {
        while (in->op == Op::Reshape || in->op == Op::Permute) in = in->in(0);
        EXPECT_EQ(in->op, Op::Cast);
      }
    }
    const auto inputs = testing::random_inputs(before, 1);
    const auto a = evaluate(before, inputs, {}), b = evaluate(after, inputs, {});
    ASSERT_EQ(a.size(), b.size());
    for (size_t o = 0; o < a.size(); ++o)
      for (size_t i = 0; i < a[o].f.size(); ++i)
        EXPECT_NEAR(a[o].f[i], b[o].f[i], 1e-6 * (1 + std::abs(a[o].f[i]))) << "result " << o;
    EXPECT_EQ(print(scale_products(after)), print(after)) << "again";
  }
}

}  // namespace
}  // namespace trainc
