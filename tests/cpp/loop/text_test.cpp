// The text of nests: golden files that are read and printed back, names that cannot stand, errors with their place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "../common/golden.h"
#include "loop/loop.h"

namespace trainc::loop {
namespace {

using test::expect_golden;
constexpr auto& read = test::read_file;

TEST(LoopText, GoldenFilesPrintAsTheyAreRead) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TRAINC_TEST_DIR "/cpp/golden/loop")) {
    if (entry.path().extension() != ".loop") continue;
    expect_golden("loop/" + entry.path().filename().string(), print(parse(read(entry.path()))));
    ++files;
  }
  EXPECT_GE(files, 2);
}

TEST(LoopText, ParsesIntoTheNestThatItSays) {
  const LoopNest n = parse(read(TRAINC_TEST_DIR "/cpp/golden/loop/layer_norm.loop"));
  EXPECT_EQ(n.name, "layer_norm");
  EXPECT_EQ(n.parallel_extent, 8);
  EXPECT_EQ(n.flops, 49152);
  EXPECT_EQ(n.origins, std::vector<std::string>{"model.py:41 (aten.native_layer_norm)"});
  ASSERT_EQ(n.buffers.size(), 5u);
  EXPECT_EQ(n.buffers[2].dtype, DType::BF16);
  EXPECT_TRUE(n.buffers[2].written);
  EXPECT_FALSE(n.buffers[0].written);
  EXPECT_EQ(n.buffers[3].numel, 0);
  EXPECT_EQ(n.buffers[4].space, Space::Scratch);
  EXPECT_EQ(n.vars[1].extent, 768);
  EXPECT_EQ(n.scratch_bytes(), 3072);
  ASSERT_EQ(n.body->kind, StmtKind::For);
  EXPECT_EQ(n.body->loop, LoopKind::Parallel);
  EXPECT_EQ(n.body->body[0]->body[1]->lanes, 16);
  EXPECT_NO_THROW(verify(n));
}

TEST(LoopText, NamesThatCannotStandAreMended) {
  LoopNest n;
  n.name = "k";
  n.add_buffer({"%3", DType::F32, 4, Space::Argument, true});
  n.add_buffer({"sum", DType::F32, 4, Space::Argument, false});  // a word of the text
  n.add_buffer({"x", DType::F32, 4, Space::Argument, false});
  const int i = n.add_var("x", 4), j = n.add_var("", 4);  // taken; nameless
  const int t = n.add_local("2nd", DType::F32);
  n.body = for_loop(LoopKind::Serial, i, integer(4),
                    for_loop(LoopKind::Serial, j, integer(4),
                             block({let(t, n.load(1, n.var(i))),
                                    store(0, n.var(j), apply(Op::Add, {n.local(t), n.load(2, n.var(j))}))})));
  const std::string text = print(n);
  EXPECT_EQ(text, R"(kernel k
  argument _3: f32[4] written
  argument sum.1: f32[4]
  argument x: f32[4]
body:
  for x.1 in 4:
    for i in 4:
      let t2nd: f32 = sum.1[x.1]
      store _3[i] = t2nd + x[i]
)");
  EXPECT_EQ(print(parse(text)), text);
}

TEST(LoopText, OperatorsKeepTheirGrouping) {
  LoopNest n;
  n.name = "k";
  n.add_buffer({"o", DType::F32, 4, Space::Argument, true});
  const Expr a = real(1, DType::F32), b = real(2, DType::F32), c = real(3, DType::F32);
  auto text = [&](Expr e) {
    n.body = store(0, integer(0), std::move(e));
    const std::string all = print(n);
    EXPECT_EQ(print(parse(all)), all);
    const size_t at = all.find("o[0] = ") + 7;
    return all.substr(at, all.find('\n', at) - at);
  };
  EXPECT_EQ(text(apply(Op::Sub, {a, apply(Op::Sub, {b, c})})), "1.0 - (2.0 - 3.0)");
  EXPECT_EQ(text(apply(Op::Sub, {apply(Op::Sub, {a, b}), c})), "1.0 - 2.0 - 3.0");
  EXPECT_EQ(text(apply(Op::Mul, {apply(Op::Add, {a, b}), c})), "(1.0 + 2.0) * 3.0");
  EXPECT_EQ(text(apply(Op::Select, {apply(Op::Lt, {a, b}), b, apply(Op::Neg, {c})})),
            "select(1.0 < 2.0, 2.0, neg(3.0))");
  EXPECT_EQ(text(real(16777217, DType::F32)), "16777216.0");
  EXPECT_EQ(text(real(1.17549435e-38, DType::F32)), "1.1754944e-38");
}

TEST(LoopText, ErrorsNameTheirPlace) {
  struct Case {
    const char* body;
    const char* says;
  };
  const Case cases[] = {
      {"  store out[0] = y\n", "line 4, column 18: nothing is called 'y'"},
      {"  store x[0] = 1.0\n", "line 4, column 10: no buffer is called 'x'"},
      {"  store out[0] = exp(1.0, 2.0)\n", "expected ')'"},
      {"  store out[0] = 1.0 2.0\n", "more than was expected"},
      {"  for sum in 4:\n    pass\n", "'sum' means something else"},
      {"  for i in 4:\n  pass\n", "expected an indented block"},
      {"  pass\n    pass\n", "indented too far"},
      {"  store out[0] = 1.5:i32\n", "not a number of this dtype"},
      {"  store out[0] = 1 +\n", "expected an expression"},
      {"  let a: f33 = 1.0\n", "f33"},
  };
  for (const Case& c : cases) {
    try {
      parse(std::string("kernel k\n  argument out: f32[4] written\nbody:\n") + c.body);
      ADD_FAILURE() << "parsed: " << c.body;
    } catch (const InternalError& e) { EXPECT_THAT(e.what(), testing::HasSubstr(c.says)) << c.body; }
  }
  EXPECT_THROW(parse(""), InternalError);
  EXPECT_THROW(parse("kernel k\n"), InternalError);
}

}  // namespace
}  // namespace trainc::loop
