#include <gtest/gtest.h>

#include "../common/compare.h"
#include "../common/random_graph.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "passes/turn_products.h"

namespace trainc {
namespace {

const std::string kGiven =
    "%a = input index=0 : f32[6,4,5]\n%b = input index=1 : f32[6,3,5]\n%c = contract %a %b : f32[6,4,3]\n";

struct Case {
  const char* what;
  const char* lines;
  bool turned;
  int permutes;  // that are left
};
const Case kCases[] = {
    {"rows innermost", "%r = permute %c order=[0,2,1] : f32[6,3,4]\nreturn %r", true, 0},
    {"two readers of one permute", "%r = permute %c order=[0,2,1] : f32[6,3,4]\n%s = neg %r : f32[6,3,4]\nreturn %r %s",
     true, 0},
    {"casts and a reshape between",
     "%d = cast %c : f64[6,4,3]\n%e = reshape %d : f64[2,3,2,2,3]\n%f = cast %e : f32[2,3,2,2,3]\n%r = permute %f "
     "order=[4,0,1,2,3] : f32[3,2,3,2,2]\nreturn %r",
     true, 1},
    {"scaled by numbers",
     "%h = constant value=0.25 : f32[]\n%h3 = reshape %h : f32[1,1,1]\n%d = broadcast %h3 : f32[6,4,3]\n%e = mul %d %c "
     ": f32[6,4,3]\n%f = reshape %e : "
     "f32[2,3,4,3]\n%h4 = reshape %h : f32[1,1,1,1]\n%g = broadcast %h4 : f32[2,3,4,3]\n%i = div %f %g : "
     "f32[2,3,4,3]\n%r = permute %i order=[0,1,3,2] : "
     "f32[2,3,3,4]\nreturn %r",
     true, 0},
    {"a number over it",
     "%h = constant value=0.25 : f32[]\n%h3 = reshape %h : f32[1,1,1]\n%d = broadcast %h3 : f32[6,4,3]\n%e = div %d %c "
     ": f32[6,4,3]\n%r = permute %e "
     "order=[0,2,1] : f32[6,3,4]\nreturn %r",
     false, 1},
    {"rows innermost but for axes of one",
     "%d = reshape %c : f32[6,1,4,3,1]\n%r = permute %d order=[0,3,2,1,4] : f32[6,3,4,1,1]\nreturn %r", true, 0},
    {"an outer axis of the rows innermost",
     "%d = reshape %c : f32[6,2,2,3]\n%r = permute %d order=[0,3,2,1] : f32[6,3,2,2]\nreturn %r", false, 1},
    {"columns innermost", "%r = permute %c order=[1,0,2] : f32[4,6,3]\nreturn %r", false, 1},
    {"batches innermost", "%r = permute %c order=[1,2,0] : f32[4,3,6]\nreturn %r", false, 1},
    {"rows and columns in one axis",
     "%d = reshape %c : f32[6,2,6]\n%r = permute %d order=[0,2,1] : f32[6,6,2]\nreturn %r", false, 1},
    {"somebody reads it as it is", "%r = permute %c order=[0,2,1] : f32[6,3,4]\nreturn %r %c", false, 1},
    {"a cast that somebody reads",
     "%d = cast %c : f64[6,4,3]\n%r = permute %d order=[0,2,1] : f64[6,3,4]\nreturn %r %d", false, 1},
};

TEST(TurnProducts, SameBitsAndNoPermuteWhereRowsAreInnermost) {
  for (const Case& c : kCases) {
    const Graph before = parse(kGiven + c.lines + "\n"), after = turn_products(before);
    verify(after);
    int permutes = 0;
    bool turned = false;
    for (const Node* n : after.live()) {
      permutes += n->op == Op::Permute;
      if (n->op == Op::Contract) turned = n->shape() == Dims{6, 3, 4};
    }
    EXPECT_EQ(turned, c.turned) << c.what << "\n" << print(after);
    EXPECT_EQ(permutes, c.permutes) << c.what << "\n" << print(after);
    const auto inputs = testing::random_inputs(before, 1);
    const auto a = evaluate(before, inputs, {}), b = evaluate(after, inputs, {});
    for (size_t i = 0; i < a.size(); ++i)
      EXPECT_EQ(testing::difference(a[i], b[i]), "") << c.what << "\n" << print(after);
  }
}

TEST(TurnProducts, ConvolutionsStay) {
  const Graph after = turn_products(parse(
      "%a = input index=0 : f32[1,8,3]\n%w = input index=1 : f32[1,4,6]\n%x = window %a axes=[1] size=[2] step=[1] "
      "dilation=[1] : f32[1,7,3,2]\n%y = reshape %x : f32[1,7,6]\n%c = contract %y %w : f32[1,7,4]\n%r = permute %c "
      "order=[0,2,1] : f32[1,4,7]\nreturn %r\n"));
  EXPECT_EQ(after.outputs[0].value->op, Op::Permute);
}

TEST(TurnProducts, OriginsOfTheProductStay) {
  const Graph after = turn_products(
      parse("%a = input index=0 : f32[1,4,5]\n%b = input index=1 : f32[1,3,5]\n%c = contract %a %b : f32[1,4,3]   // "
            "train.py:7 (dot)\n%r = permute %c order=[0,2,1] : f32[1,3,4]   // train.py:7 (transpose)\nreturn %r\n"));
  const std::vector<std::string> both{"train.py:7 (transpose)", "train.py:7 (dot)"};
  EXPECT_EQ(after.origins(after.outputs[0].value), both);
}

}  // namespace
}  // namespace trainc
