// Serial loops cut into runs: what is cut and how, what is left, and that the terms stay the same.
#include "loop/runs.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "interpret/interpret.h"

namespace trainc::loop {
namespace {

LoopNest nest_of(const std::string& body) {
  return parse(
      "kernel k\n  argument x: f32[100000]\n  argument d: f64[100000]\n  argument n: i64[100000]\n  argument out: "
      "f64[16] written\nbody:\n" +
      body);
}

std::string cut(const std::string& body, bool any_size = false, bool threads_to_come = false) {
  LoopNest nest = nest_of(body);
  nest.body = add_in_runs(nest, nest.body, any_size, threads_to_come);
  verify(nest);
  EXPECT_EQ(print(parse(print(nest))), print(nest));
  const std::string text = print(nest);
  return text.substr(text.find("body:\n") + 6);
}

TEST(Runs, ChainsAreCut) {
  const struct {
    const char *name, *from, *to;
  } cases[] = {
      {"a run is eight terms in f32, runs are added in f64",
       "  let s: f64 = 0.0:f64\n  for r in 100:\n    s = sum(s, x[r])\n  store out[0] = s\n",
       "  let s: f64 = 0.0:f64\n  for rb in 13:\n    let u1: f32 = 0.0\n    for ri in min(8, rb * -8 + 100) atmost "
       "8:\n      u1 = sum(u1, x[rb * 8 + ri])\n    s = sum(s, u1)\n  store out[0] = s\n"},
      {"a short loop is one run", "  let s: f64 = 0.0:f64\n  for r in 5:\n    s = sum(s, x[r])\n  store out[0] = s\n",
       "  let s: f64 = 0.0:f64\n  block:\n    let u1: f32 = 0.0\n    for r in 5:\n      u1 = sum(u1, x[r])\n    s = "
       "sum(s, u1)\n  store out[0] = s\n"},
      {"f64 has nothing wider: runs of runs",
       "  let s: f64 = 0.0:f64\n  for r in 1024:\n    s = sum(s, d[r])\n  store out[0] = s\n",
       "  let s: f64 = 0.0:f64\n  for rbb in 4:\n    let u2: f64 = 0.0:f64\n    for rbi in 32:\n      let u1: f64 = "
       "0.0:f64\n      for ri in 8:\n        u1 = sum(u1, d[rbb * 256 + rbi * 8 + ri])\n      u2 = sum(u2, u1)\n"
       "    s = sum(s, u2)\n  store out[0] = s\n"},
      {"loops in loops: the run holds whole inner loops",
       "  let s: f64 = 0.0:f64\n  for r in 40:\n    for c in 3:\n      s = sum(s, x[r * 3 + c])\n  store out[0] = s\n",
       "  let s: f64 = 0.0:f64\n  for rb in 20:\n    let u1: f32 = 0.0\n    for ri in 2:\n      for c in 3:\n        "
       "u1 = sum(u1, x[rb * 6 + ri * 3 + c])\n    s = sum(s, u1)\n  store out[0] = s\n"},
      {"several sums in one walk; what is no sum of floats stays",
       "  vector(16) j in 16:\n    let s: f64 = 0.0:f64\n    let m: f32 = -inf\n    let k: i64 = 0\n    for r in 16:\n "
       "     s = sum(s, x[r * 16 + j])\n      m = max(m, x[r * 16 + j])\n      k = sum(k, n[r])\n"
       "    store out[j] = s + cast<f64>(m) + cast<f64>(k)\n",
       "  vector(16) j in 16:\n    let s: f64 = 0.0:f64\n    let m: f32 = -inf\n    let k: i64 = 0\n    for rb in 2:\n "
       "     let u3: f32 = 0.0\n      for ri in 8:\n        u3 = sum(u3, x[rb * 128 + ri * 16 + j])\n"
       "        m = max(m, x[rb * 128 + ri * 16 + j])\n        k = sum(k, n[rb * 8 + ri])\n      s = sum(s, u3)\n    "
       "store out[j] = s + cast<f64>(m) + cast<f64>(k)\n"},
      {"a Vector loop keeps its own runs: around one, only f64 terms are cut",
       "  let s: f64 = 0.0:f64\n  let t: f64 = 0.0:f64\n  for r in 16:\n    vector(16) j in 99:\n      s = sum(s, x[r "
       "* 99 + j])\n      t = sum(t, d[r * 99 + j])\n  store out[0] = s + t\n",
       "  let s: f64 = 0.0:f64\n  let t: f64 = 0.0:f64\n  for rb in 2:\n    let u2: f64 = 0.0:f64\n    for ri in 8:\n  "
       "    vector(16) j in 99:\n        s = sum(s, x[rb * 792 + ri * 99 + j])\n        u2 = sum(u2, d[rb * 792 + ri * "
       "99 + j])\n"
       "    t = sum(t, u2)\n  store out[0] = s + t\n"},
  };
  for (const auto& c : cases) EXPECT_EQ(cut(c.from), c.to) << c.name;
}

TEST(Runs, WhatIsLeft) {
  for (const char* body : {
           // a running sum
           "  let s: f64 = 0.0:f64\n  for r in 16:\n    s = sum(s, x[r])\n    store out[r] = s\n",
           // no sum
           "  let m: f32 = -inf\n  for r in 99:\n    m = max(m, x[r])\n  store out[0] = cast<f64>(m)\n",
           // exact
           "  let k: i64 = 0\n  for r in 99:\n    k = sum(k, n[r])\n  store out[0] = cast<f64>(k)\n",
           // of unknown length
           "  let s: f64 = 0.0:f64\n  for r in n[0] atmost 16:\n    s = sum(s, x[r])\n  store out[0] = s\n",
       })
    EXPECT_EQ(cut(body), body);
  const char* around =
      "  let s: f32 = 0.0\n  for r in 16:\n    vector(16) j in 99:\n      s = sum(s, x[r * 99 + j])\n  store out[0] = "
      "cast<f64>(s)\n";
  EXPECT_EQ(cut(around, false, true), around)
      << "on a device loops around a Vector loop become one range of its threads";
  EXPECT_NE(cut(around), around);
}

TEST(Runs, WhereTheLocalIsWideForItsTermsNothingIsCut) {
  const std::string body =
      "  let s: f64 = 0.0:f64\n  for r in 1024:\n    s = sum(s, cast<f64>(x[r]))\n  store out[0] = s\n";
  LoopNest nest = nest_of(body);
  const std::string before = print(nest);
  nest.body = add_in_runs(nest, nest.body, false, false, {0});
  EXPECT_EQ(print(nest), before);
  nest.body = add_in_runs(nest, nest.body);
  EXPECT_NE(print(nest), before);
}

TEST(Runs, TheFormDoesNotDependOnSizesThatDivide) {
  const auto sum = [](int64_t extent) {
    return cut(
        fmt::format("  let s: f64 = 0.0:f64\n  for r in {}:\n    s = sum(s, x[r])\n  store out[0] = s\n", extent),
        true);
  };
  EXPECT_NE(sum(64).find("min(8, rb * -8 + 64)"), std::string::npos);
}

// Every term once: whole numbers, whose sums are exact in any order.
TEST(Runs, EveryTermIsAddedOnce) {
  std::vector<float> x(100000);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 91);
  const std::vector<double> d(x.begin(), x.end());
  const std::vector<int64_t> n(x.begin(), x.end());
  for (int64_t a : {1, 2, 3, 8, 9, 50, 300})
    for (int64_t b : {1, 2, 7, 8, 31, 257}) {
      const std::string body = fmt::format(
          "  let s: f64 = 0.0:f64\n  let t: f64 = 0.0:f64\n  let w: f64 = 0.0:f64\n  for r in {0}:\n    for c in "
          "{1}:\n      s = sum(s, x[r * {1} + c])\n      t = sum(t, d[r * {1} + c])\n"
          "    vector(8) j in {1}:\n      w = sum(w, d[r * {1} + j])\n  store out[0] = s\n  store out[1] = t\n  store "
          "out[2] = w\n",
          a, b);
      std::vector<double> sums[2];
      for (bool runs : {false, true}) {
        LoopNest nest = nest_of(body);
        if (runs) nest.body = add_in_runs(nest, nest.body);
        verify(nest);
        std::vector<interpret::Memory> m{interpret::memory_of(x), interpret::memory_of(d), interpret::memory_of(n),
                                         interpret::memory_of(std::vector<double>(16))};
        EXPECT_TRUE(interpret::run(nest, m).messages.empty());
        sums[runs] = interpret::values_of<double>(m[3]);
      }
      EXPECT_EQ(sums[0], sums[1]) << a << " x " << b;
    }
}

}  // namespace
}  // namespace trainc::loop
