#include <gtest/gtest.h>

#include "../common/compare.h"
#include "../common/random_graph.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "passes/channels_last.h"
#include "passes/rules.h"

namespace trainc {
namespace {

// x lies channels last and is seen channels first, s is a number a channel, y is an argument channels first. Integers:
// sums are exact in any order.
const std::string kGiven =
    "%x.last = input index=0 : i64[2,4,5,3]\n%s = input index=1 : i64[3]\n%y = input index=2 : i64[2,3,4,5]\n%z = "
    "constant value=7 : i64[]\n"
    "%x = permute %x.last order=[0,3,1,2] : i64[2,3,4,5]\n%s1 = reshape %s : i64[1,3,1,1]\n%sb = broadcast %s1 : "
    "i64[2,3,4,5]\n";

struct Case {
  const char* what;
  const char* lines;
  int permutes;  // that are left
};
const Case kCases[] = {
    {"elementwise, a number a channel, and back",
     "%a = mul %x %sb : i64[2,3,4,5]\n%b = neg %a : i64[2,3,4,5]\n%r = permute %b order=[0,2,3,1] : "
     "i64[2,4,5,3]\nreturn %r",
     0},
    {"a scalar of the shape",
     "%c = reshape %z : i64[1,1,1,1]\n%d = broadcast %c : i64[2,3,4,5]\n%a = add %x %d : i64[2,3,4,5]\n%r = permute %a "
     "order=[0,2,3,1] : i64[2,4,5,3]\nreturn %r",
     0},
    {"pad, slice, positions",
     "%a = pad %x %z low=[0,0,1,2] high=[0,1,0,1] : i64[2,4,5,8]\n%i = iota axis=1 : i64[2,4,5,8]\n%b = add %a %i : "
     "i64[2,4,5,8]\n"
     "%c = slice %b start=[0,1,2,0] step=[1,1,1,3] : i64[2,2,3,3]\n%r = permute %c order=[0,2,3,1] : "
     "i64[2,3,3,2]\nreturn %r",
     0},
    {"a sum over places", "%r = reduce %x kind=sum axes=[2,3] : i64[2,3]\nreturn %r", 0},
    {"a sum over images and places", "%r = reduce %x kind=sum axes=[0,2,3] : i64[3]\nreturn %r", 0},
    {"a sum that leaves channels before places", "%r = reduce %x kind=max axes=[3] : i64[2,3,4]\nreturn %r", 1},
    {"an argument decides nothing",
     "%a = add %x %y : i64[2,3,4,5]\n%r = permute %a order=[0,2,3,1] : i64[2,4,5,3]\nreturn %r", 1},
    {"an output is channels first", "%a = neg %x : i64[2,3,4,5]\nreturn %a", 1},
    {"another permute stays",
     "%a = permute %x.last order=[0,2,1,3] : i64[2,5,4,3]\n%r = neg %a : i64[2,5,4,3]\nreturn %r", 1},
    {"a reshape stays above it", "%a = reshape %x : i64[2,60]\n%r = neg %a : i64[2,60]\nreturn %r", 1},
};

TEST(ChannelsLast, SameValuesAndPermutesThatMeetVanish) {
  for (const Case& c : kCases) {
    const Graph before = parse(kGiven + c.lines + "\n");
    Graph after = channels_last(before);
    verify(after);
    after = simplify(after);
    int permutes = 0;
    for (const Node* n : after.live()) permutes += n->op == Op::Permute;
    EXPECT_EQ(permutes, c.permutes) << c.what << "\n" << print(after);
    const auto inputs = testing::random_inputs(before, 1);
    const auto a = evaluate(before, inputs, {}), b = evaluate(after, inputs, {});
    for (size_t i = 0; i < a.size(); ++i)
      EXPECT_EQ(testing::difference(a[i], b[i]), "") << c.what << "\n" << print(after);
  }
}

}  // namespace
}  // namespace trainc
