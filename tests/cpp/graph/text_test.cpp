// The textual form: what it looks like, that it parses back, and what a wrong text is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "../common/random_graph.h"
#include "graph/build.h"
#include "graph/text.h"
#include "graph/verify.h"

namespace trainc {
namespace {

TEST(Text, Form) {
  Graph g;
  Builder b{g, "model.py:41 (aten.mm)"};
  const Node* x = b.input(0, {DType::F32, {1, 8, 16}});
  const Node* w = b.input(2, {DType::F32, {1, 64, 16}}, {1024, 1, 64});
  b.origin = "model.py:42";
  const Node* sum = b.reduce(ReduceKind::Max, b.contract(x, w), {2});
  g.outputs = {{b.permute(sum, {1, 0}), {1, 8}}, {}, {sum, {}}};
  g.input_count = 4;
  EXPECT_EQ(print(g),
            "inputs 4\n"
            "%0 = input index=0 : f32[1,8,16]   // model.py:41 (aten.mm)\n"
            "%1 = input index=2 strides=[1024,1,64] : f32[1,64,16]   // model.py:41 (aten.mm)\n"
            "%2 = contract %0 %1 : f32[1,8,64]   // model.py:42\n"
            "%3 = reduce %2 kind=max axes=[2] : f32[1,8]   // model.py:42\n"
            "%4 = permute %3 order=[1,0] : f32[8,1]   // model.py:42\n"
            "return %4:strides=[1,8] none %3\n");
}

// Each line is the body of a graph that prints as it stands.
const char* const kBodies[] = {
    "%0 = constant value=1.5 : f32[]\n",
    "%0 = constant value=-0 : f32[]\n",
    "%0 = constant value=0.10000000149011612 : f32[]\n",
    "%0 = constant value=nan : bf16[]\n",
    "%0 = constant bits=0x7ff8000000000001 : f32[]\n",
    "%0 = constant value=-inf : f16[]\n",
    "%0 = constant value=-9223372036854775808 : i64[]\n",
    "%0 = constant value=1 : bool[]\n",
    "%0 = iota axis=1 : i64[2,3]\n",
    "%0 = random draw=3 p=0.9 : bool[4]\n",
    "%0 = input index=0 : f32[2,3]\n%1 = reduce %0 kind=argmax axes=[1] : i64[2]\n",
    "%0 = input index=0 : f32[5,4]\n%1 = slice %0 start=[1,0] step=[2,1] : f32[2,4]\n",
    "%0 = input index=0 : f32[5,4]\n%1 = window %0 axes=[0] size=[2] step=[2] dilation=[1] : f32[2,4,2]\n",
    "%0 = constant value=0 : f32[]\n%1 = input index=0 : f32[5]\n%2 = pad %1 %0 low=[1] high=[2] : f32[8]\n",
    "%0 = input index=0 : i64[3]\n%1 = input index=1 : f32[5]\n%2 = gather %1 %0 axis=0 : f32[3]\n%3 = scatter %1 %0 "
    "%2 axis=0 kind=last : f32[5]\n",
    "%0 = input index=0 : f32[3]\n%1 = reverse %0 axes=[0] : f32[3]\n%2 = concat %0 %1 %0 axis=0 : f32[9]\n",
    "%0 = input index=0 : f32[3]\n"
    "%1 = extern %0 target=\"aten.x\" arguments=\"{\\\"args\\\": [\\\"a\\\\\\\\b\\\"]}\" results=[f32[2],bool[0]] "
    "random=true draw=2 : f32[2]\n"
    "%2 = result %1 index=1 : bool[0]\n",
    "%0 = input index=0 : f32[3]\n%1 = extern %0 target=\"aten.x\" arguments=\"{}\" results=[f32[3]] aliases=[0] : "
    "f32[3]\n%2 = result %1 index=0 : f32[3]\n",
};

std::string with_return(std::string body) {
  const size_t last = body.rfind("\n%") == std::string::npos ? 0 : body.rfind("\n%") + 1;
  return body + "return " + body.substr(last, body.find(' ', last) - last) + "\n";
}

TEST(Text, EveryAttributeParsesBack) {
  for (const char* body : kBodies) {
    const std::string text = with_return(body);
    EXPECT_EQ(print(parse(text)), text);
  }
}

TEST(Text, RandomGraphsParseBack) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    testing::RandomGraphOptions options;
    options.random_masks = true;
    const std::string text = print(testing::random_graph(seed, options));
    EXPECT_EQ(print(parse(text)), text) << "seed " << seed;
  }
}

TEST(Text, MergedNodesKeepAllOrigins) {
  const std::string text = "%0 = input index=0 : f32[]   // a.py:1 | b.py:2\nreturn %0\n";
  EXPECT_EQ(print(parse(text)), text);
}

TEST(Text, NamesAndComments) {
  const Graph g = parse("// a comment\n\n%x = input index=0 : f32[2]\n  %y.1 = neg %x : f32[2] // why\nreturn %y.1");
  EXPECT_EQ(print(g), "%0 = input index=0 : f32[2]\n%1 = neg %0 : f32[2]   // why\nreturn %1\n");
}

TEST(Text, WrongTextIsToldWhere) {
  const std::pair<const char*, const char*> cases[] = {
      {"%x = input index=0 : f32[2]\n%y = neg %z : f32[2]\nreturn %y", "2:12: %z is not known here"},
      {"%x = input index=0 : f33[2]\nreturn %x", "1:21: no dtype is called 'f33'"},
      {"%x = input index=0 : f32[2]\n%y = minus %x : f32[2]\nreturn %y", "2:11: no operation is called 'minus'"},
      {"%x = input index=0 : f32[2]\n%y = neg %x : f32[3]\nreturn %y",
       "2:1: neg (f32[2]) : f32[3]: operands and result differ in shape"},
      {"%x = input index=0 axis=2 : f32[2]\nreturn %x", "input has no 'axis'"},
      {"%x = input index=0 : f32[2]\n", "no return line"},
      {"%x = constant value=1.5 : i64[]\nreturn %x", "'1.5' is no value of i64"},
      {"%x = constant value=0.1 : f32[]\nreturn %x", "none of the dtype"},
      {"%x = input index=0 : f32[2]\n%x = neg %x : f32[2]\nreturn %x", "%x is defined twice"},
      {"%x = extern target=\"a", "a string does not end"},
  };
  for (const auto& [text, told] : cases) {
    try {
      parse(text);
      ADD_FAILURE() << "parsed: " << text;
    } catch (const InternalError& e) { EXPECT_THAT(e.what(), ::testing::HasSubstr(told)); }
  }
}

}  // namespace
}  // namespace trainc
