// When one argument may lie over another: nests that pass, and twins that must not.
#include "loop/in_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainc::loop {
namespace {

std::string refusal(const std::string& body, const std::string& x = "f32", const std::string& more = "") {
  const LoopNest nest = parse("kernel k\n  parallel 8\n  argument x: " + x + "[?]\n  argument y: f32[?] written\n" +
                              more + "body:\n" + body);
  return refuse_in_place(nest, 1, 0);
}

// A row is walked three times, and written in the last walk.
constexpr const char* kSoftmax = R"(  parallel p in 8:
    let top: f32 = -inf
    vector(16) a in 100:
      top = max(top, x[p * 100 + a])
    let all: f32 = 0.0
    for r in 4:
      vector(16) b in 25:
        all = sum(all, x[p * 100 + r * 25 + b] - top)
    vector(16) c in 100:
      let e: f32 = x[p * 100 + c] / all
      store y[p * 100 + c] = e
)";
TEST(InPlace, ElementsThatAreReadBeforeTheyAreWritten) {
  EXPECT_EQ(refusal(kSoftmax), "");
  EXPECT_EQ(refusal("  parallel p in 8:\n    vector(16) j in 100:\n      store y[p * 100 + j] = exp(x[p * 100 + j])\n"),
            "");
  // chunks of a long run, the last one shorter
  EXPECT_EQ(refusal("  parallel p in 8:\n    vector(16) j in min(4096, 30000 - p * 4096):\n      store y[p * 4096 + j] "
                    "= x[p * 4096 + j]\n"),
            "");
  EXPECT_EQ(refusal("  vector(16) j in 100:\n    store y[j] = x[j]\n"), "");
}

// A contraction's epilogue that adds to a sum so far: asked for in the last block of k, in blocks of tiles of which the
// last is shorter, tasks in two directions.
constexpr const char* kAddsTo = R"(  parallel p in 8:
    for k in 3:
      for m in 4:
        for t in max(0, min(22, min(85, p // 2 * -85 + 300) - m * 22)):
          for last in cast<i64>(k == 2):
            for row in min(8, t * -8 - m * 176 - p // 2 * 680 + 2390):
              vector(16) c in 48:
                let v: f32 = x[p // 2 * 65280 + m * 16896 + t * 768 + row * 96 + p % 2 * 48 + c] + 1.0
                store y[p // 2 * 65280 + m * 16896 + t * 768 + row * 96 + p % 2 * 48 + c] = v
)";
TEST(InPlace, ACopyOntoItselfIsNothing) {
  const auto is_copy_of = [](const std::string& stored) {
    return is_copy(
        parse("kernel k\n  parallel 4\n  argument x: f32[64]\n  argument y: f32[64] written\nbody:\n  parallel p in "
              "4:\n    vector(16) j in 16:\n      store y[p * 16 + j] = " +
              stored + "\n"));
  };
  EXPECT_TRUE(is_copy_of("x[p * 16 + j]"));
  EXPECT_FALSE(is_copy_of("x[j * 4 + p]"));
  EXPECT_FALSE(is_copy_of("x[p * 16 + j] + x[p * 16 + j]"));
  EXPECT_FALSE(is_copy_of("y[p * 16 + j]"));
}

TEST(InPlace, TilesInTheLastBlockOfK) { EXPECT_EQ(refusal(kAddsTo), ""); }

std::string changed(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST(InPlace, RefusedByItsWords) {
  using testing::HasSubstr;
  // written in an earlier walk than the last that reads
  EXPECT_THAT(refusal(changed(kSoftmax, "      top = max(top, x[p * 100 + a])\n",
                              "      top = max(top, x[p * 100 + a])\n      store y[p * 100 + a] = 0.0\n")),
              HasSubstr("after it was overwritten"));
  // in one walk, but behind the store
  EXPECT_THAT(
      refusal("  parallel p in 8:\n    for j in 9:\n      store y[p * 9 + j] = 1.0\n      let v: f32 = x[p * 9 + j]\n"),
      HasSubstr("after it was overwritten"));
  // the neighbour's element
  EXPECT_THAT(refusal("  parallel p in 8:\n    for j in 9:\n      store y[p * 9 + j] = x[p * 9 + j + 1]\n"),
              HasSubstr("two iterations"));
  // another row's elements
  EXPECT_THAT(refusal("  parallel p in 8:\n    for j in 9:\n      store y[p * 9 + j] = x[j]\n"),
              HasSubstr("strides differ"));
  EXPECT_THAT(refusal("  parallel p in 8:\n    for j in 8:\n      store y[p * 8 + j] = x[p + j * 8]\n"),
              HasSubstr("strides differ"));
  // rows that overlap
  EXPECT_THAT(refusal("  parallel p in 8:\n    for j in 9:\n      store y[p * 8 + j] = x[p * 8 + j]\n"),
              HasSubstr("two iterations"));
  // a row value: every element of the row reads it
  EXPECT_THAT(refusal("  parallel p in 8:\n    for j in 9:\n      store y[p] = x[p]\n"), HasSubstr("two iterations"));
  // an index that is no sum
  EXPECT_THAT(refusal("  parallel p in 8:\n    for j in 9:\n      store y[p * 9 + j] = x[p * 9 + j % 3]\n"),
              HasSubstr("no sum"));
  // before the threads start, by each of them
  EXPECT_THAT(refusal("  let v: f32 = x[0]\n  parallel p in 8:\n    store y[p] = v\n"),
              HasSubstr("beside the parallel loop"));
  EXPECT_THAT(refusal("  vector(16) j in 100:\n    store y[j] = cast<f32>(x[j])\n", "i32"), HasSubstr("dtype"));
  EXPECT_THAT(refusal(kSoftmax, "f32", "  argument z: f32[?] written over x\n"), HasSubstr("something else"));
}

TEST(InPlace, TilesThatAreRefused) {
  using testing::HasSubstr;
  // in each block of k
  EXPECT_THAT(refusal(changed(kAddsTo, "cast<i64>(k == 2)", "2")), HasSubstr("two iterations"));
  EXPECT_THAT(refusal(changed(kAddsTo, "cast<i64>(k == 2)", "cast<i64>(k != 2)")), HasSubstr("two iterations"));
  // tiles beyond the task's: 88 of them, where the next task begins after 85
  EXPECT_THAT(refusal(changed(kAddsTo, "min(22, min(85, p // 2 * -85 + 300) - m * 22)", "min(22, 88 - m * 22)")),
              HasSubstr("two iterations"));
  EXPECT_THAT(refusal(changed(kAddsTo, "min(22, min(85, p // 2 * -85 + 300) - m * 22)",
                              "min(23, min(85, p // 2 * -85 + 300) - m * 22)")),
              HasSubstr("two iterations"));
  EXPECT_THAT(refusal(changed(kAddsTo, "- m * 22)", "- m * 21)")), HasSubstr("two iterations"));
  // half of a task's columns are another's
  EXPECT_THAT(refusal(changed(changed(kAddsTo, "p % 2 * 48", "p % 2 * 24"), "p % 2 * 48", "p % 2 * 24")),
              HasSubstr("two iterations"));
  // quotient and remainder of two numbers say less than the task
  EXPECT_THAT(refusal(changed(changed(kAddsTo, "p % 2 * 48", "p % 3 * 48"), "p % 2 * 48", "p % 3 * 48")),
              HasSubstr("no sum"));
  EXPECT_THAT(refusal(changed(changed(kAddsTo, "p % 2 * 48", "0"), "p % 2 * 48", "0")), HasSubstr("two iterations"));
}

TEST(InPlace, VerifyRefusesAnUnsoundNest) {
  const std::string head = "kernel k\n  parallel 8\n  argument y: f32[?] written over x\n  argument x: f32[?]\nbody:\n";
  const LoopNest sound = parse(head + kSoftmax);
  EXPECT_NO_THROW(verify(sound));
  EXPECT_EQ(print(parse(print(sound))), print(sound));
  EXPECT_THROW(verify(parse(head + "  parallel p in 8:\n    store y[p] = x[7 - p]\n")), InternalError);
}

}  // namespace
}  // namespace trainc::loop
