// What the interpreter finds in device nests: a clean kernel, and the same with one bug of each kind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "interpret/interpret.h"

namespace trainc::interpret {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// out[i] = sum_j x[i, j], 3 rows of 100: two warps a block, combined through Shared memory.
const std::string kRowSum = R"(kernel row_sum
  parallel 3
  threads 64
  argument x: f32[300]
  argument out: f32[3] written
  shared parts: f32[2] written
body:
  parallel i in 3:
    let s: f32 = 0.0
    thread j in 100:
      s = sum(s, x[i * 100 + j])
    warp s = sum(s)
    thread t in 64:
      for first in cast<i64>(t % 32 == 0) atmost 1:
        store parts[t // 32] = s
    barrier
    thread one in 1:
      store out[i] = parts[0] + parts[1]
)";

std::string with(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::vector<float> ramp() {
  std::vector<float> x(300);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7);
  return x;
}

template <class T> struct Result {
  std::vector<std::string> messages;
  std::vector<T> out;
};
template <class T> Result<T> run_text(const std::string& text, const std::vector<T>& x, int64_t out_bytes) {
  const loop::LoopNest nest = loop::parse(text);
  loop::verify(nest);
  EXPECT_EQ(loop::print(loop::parse(loop::print(nest))), loop::print(nest));
  std::vector<Memory> arguments = {memory_of(x), output_of(out_bytes)};
  const Findings f = run(nest, arguments);
  return {f.messages, values_of<T>(arguments[1])};
}
Result<float> run_text(const std::string& text) { return run_text(text, ramp(), 12); }

TEST(Device, CleanKernel) {
  const Result<float> r = run_text(kRowSum);
  EXPECT_THAT(r.messages, IsEmpty());
  for (int i = 0; i < 3; ++i) {
    float sum = 0;
    for (int j = 0; j < 100; ++j) sum += ramp()[static_cast<size_t>(i * 100 + j)];
    EXPECT_EQ(r.out[static_cast<size_t>(i)], sum);
  }
}
TEST(Device, RemovedBarrier) {
  EXPECT_THAT(
      run_text(with(kRowSum, "    barrier\n", "")).messages,
      ElementsAre(
          "race on parts: read and written: element 1, thread 0 of block 0 and thread 32 of block 0 (first of 3)"));
}
TEST(Device, OffByOne) {
  EXPECT_THAT(run_text(with(kRowSum, "x[i * 100 + j]", "x[i * 100 + j + 1]")).messages,
              ElementsAre("load of x out of bounds: element 300 of 300 in thread 35 of block 2"));
  EXPECT_THAT(run_text(with(kRowSum, "store out[i]", "store out[i + 1]")).messages,
              ElementsAre("out is never written: element 0",
                          "store of out out of bounds: element 3 of 3 in thread 0 of block 2"));
}
TEST(Device, RaceBetweenThreads) {
  EXPECT_THAT(
      run_text(with(kRowSum, "parts[t // 32] = s", "parts[t // 64] = s")).messages,
      ElementsAre("race on parts: written twice: element 0, thread 32 of block 0 and thread 0 of block 0 (first of 3)",
                  "read of parts before it is written: element 1 in thread 0 of block 0 (first of 3)"));
}
TEST(Device, RaceBetweenBlocks) {
  const auto messages = run_text(with(kRowSum, "store out[i]", "store out[i // 2]")).messages;
  ASSERT_FALSE(messages.empty());
  EXPECT_THAT(messages,
              ElementsAre("out is never written: element 2",
                          "race on out: written twice: element 0, thread 0 of block 1 and thread 0 of block 0"));
}
TEST(Device, UninitialisedRead) {
  EXPECT_THAT(run_text(with(kRowSum, "t % 32 == 0", "t == 0")).messages,
              ElementsAre("read of parts before it is written: element 1 in thread 0 of block 0 (first of 3)"));
}
TEST(Device, DivergentBarrier) {
  // s differs from thread to thread before the warp's sum: some threads go around the barrier
  EXPECT_THAT(run_text(with(kRowSum, "    warp s = sum(s)\n",
                            "    for k in cast<i64>(s < 5.0) atmost 1:\n      barrier\n    warp s = sum(s)\n"))
                  .messages,
              ElementsAre(HasSubstr("a barrier that not all threads reach: ")));
}
TEST(Device, DivergentWarpReduce) {
  EXPECT_THAT(run_text(with(kRowSum, "    warp s = sum(s)\n",
                            "    for k in cast<i64>(s < 5.0) atmost 1:\n      warp s = sum(s)\n"))
                  .messages,
              ElementsAre(HasSubstr("a WarpReduce that not all threads of a warp reach: ")));
}
TEST(Device, RegistersAreAThreadsOwn) {
  const std::string text = R"(kernel own
  parallel 3
  threads 32
  argument x: f32[300]
  argument out: f32[3] written
  register r: f32[1] written
body:
  parallel i in 3:
    thread t in 1:
      store r[0] = x[i]
    thread u in 2:
      for last in u atmost 1:
        store out[i] = r[0]
)";
  EXPECT_THAT(run_text(text).messages,
              ElementsAre("read of r before it is written: element 0 in thread 1 of block 0 (first of 3)"));
}

const std::string kCopies = R"(kernel copies
  parallel 3
  threads 32
  argument x: f32[300]
  argument out: f32[3] written
  register r: f32[4] written
body:
  parallel i in 3:
    thread t in 1:
      copy(4) r[0] = x[i * 4]
      store out[i] = r[3]
)";
TEST(Device, Copies) {
  const Result<float> r = run_text(kCopies);
  EXPECT_THAT(r.messages, IsEmpty());
  EXPECT_THAT(r.out, ElementsAre(ramp()[3], ramp()[7], ramp()[11]));
  EXPECT_THAT(run_text(with(kCopies, "x[i * 4]", "x[i * 6]")).messages,
              ElementsAre("a copy of 4 elements of x that begins at no multiple: element 6 in thread 0 of block 1"));
  EXPECT_THAT(run_text(with(kCopies, "x[i * 4]", "x[i * 4 + 292]")).messages,
              ElementsAre("load of x out of bounds: element 300 of 300 in thread 0 of block 2 (first of 4)"));
  EXPECT_THAT(run_text(with(kCopies, "copy(4)", "copy(2)")).messages,
              ElementsAre("read of r before it is written: element 3 in thread 0 of block 0 (first of 3)"));
}

// Three rows of 64 elements, copied while the block goes on; each thread takes what another one copied.
const std::string kAsync = R"(kernel async
  parallel 3
  threads 32
  argument x: f32[300]
  argument out: f32[3] written
  shared s: f32[128] written
body:
  parallel i in 3:
    thread t in 16:
      copyasync(4) s[t * 4] = x[i * 64 + t * 4]
    commit
    thread t2 in 16:
      copyasync(4) s[t2 * 4 + 64] = x[i * 64 + t2 * 4 if t2 < 8]
    commit
    wait(1)
    barrier
    thread u in 1:
      store out[i] = s[5]
    wait(0)
    barrier
    thread v in 1:
      for again in cast<i64>(i == 0) atmost 1:
        store out[i] = s[69] + s[100]
)";
TEST(Device, AsynchronousCopies) {
  const Result<float> r = run_text(kAsync);
  EXPECT_THAT(r.messages, IsEmpty());
  EXPECT_THAT(r.out, ElementsAre(ramp()[5], ramp()[69], ramp()[133]));  // s[100] is a zero that exists nowhere
  const std::string unwaited = "read of s before a copy to it is waited for: element ";
  EXPECT_THAT(run_text(with(kAsync, "    wait(1)\n", "")).messages,
              ElementsAre(unwaited + "5 in thread 0 of block 0 (first of 3)"));
  EXPECT_THAT(run_text(with(kAsync, "wait(1)", "wait(2)")).messages,
              ElementsAre(unwaited + "5 in thread 0 of block 0 (first of 3)"));
  EXPECT_THAT(run_text(with(kAsync, "    commit\n", "")).messages,
              ElementsAre(unwaited + "5 in thread 0 of block 0 (first of 3)"));
  EXPECT_THAT(run_text(with(kAsync, "    wait(0)\n", "")).messages,
              ElementsAre(HasSubstr("a copy to s that is never waited for: element 64 in thread 0 of block 0"),
                          unwaited + "69 in thread 0 of block 0 (first of 2)"));
  EXPECT_THAT(
      run_text(with(kAsync, "wait(1)\n    barrier\n", "wait(1)\n")).messages,
      ElementsAre("race on s: read and written: element 5, thread 0 of block 0 and thread 1 of block 0 (first of 3)"));
  EXPECT_THAT(run_text(with(kAsync, "wait(0)\n    barrier\n", "wait(0)\n")).messages,
              ElementsAre("race on s: read and written: element 69, thread 0 of block 0 and thread 1 of block 0 (first "
                          "of 2)"));
  EXPECT_THAT(run_text(with(kAsync, "t2 * 4 + 64]", "t2 * 4]")).messages,
              ::testing::Contains(HasSubstr("write to s while a copy to it is under way: element 0 ")));
  EXPECT_THAT(run_text(with(kAsync, "    thread u in 1:\n      store out[i] = s[5]\n    wait(0)",
                            "    thread u in 1:\n      store out[i] = s[5]\n    thread w in 32:\n      store s[w + "
                            "80] = 1.0\n    wait(0)"))
                  .messages,
              ::testing::Contains(HasSubstr("write to s while a copy to it is under way: element 80 ")));
  EXPECT_THAT(run_text(with(kAsync, "x[i * 64 + t * 4]", "x[i * 65 + t * 4]")).messages,
              ElementsAre(HasSubstr("a copy of 4 elements of x that begins at no multiple: element 65 ")));
  EXPECT_THAT(run_text(with(kAsync, "x[i * 64 + t2 * 4 if", "x[i * 64 + t2 * 4 + 160 if")).messages,
              ElementsAre(HasSubstr("load of x out of bounds: element 300 of 300 ")));
}

// What lane l receives of the four matrices; the last thread's row is its own.
const std::string kMatrix = R"(kernel matrices
  parallel 1
  threads 32
  argument x: bf16[256]
  argument out: bf16[256] written
  shared s: bf16[256] written
  register r: bf16[8] written
body:
  parallel i in 1:
    thread t in 256:
      store s[t] = x[t]
    barrier
    thread l in 32:
      loadmatrix r[0] = s[l * 8]
      for j in 1:
        store out[l * 8] = r[0]
        store out[l * 8 + 1] = r[1]
        store out[l * 8 + 2] = r[2]
        store out[l * 8 + 3] = r[3]
        store out[l * 8 + 4] = r[4]
        store out[l * 8 + 5] = r[5]
        store out[l * 8 + 6] = r[6]
        store out[l * 8 + 7] = r[7]
)";
Result<uint16_t> matrices(const std::string& text) {
  std::vector<uint16_t> x(256);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint16_t>(i);
  return run_text(text, x, 512);
}
TEST(Device, Matrices) {
  const auto [found, straight] = matrices(kMatrix);
  EXPECT_THAT(found, IsEmpty());
  const auto [again, transposed] = matrices(with(kMatrix, "s[l * 8]", "s[l * 8] transposed"));
  EXPECT_THAT(again, IsEmpty());
  for (size_t lane = 0; lane < 32; ++lane)
    for (size_t i = 0; i < 8; ++i) {
      const size_t matrix = i / 2 * 64, row = lane / 4, column = lane % 4 * 2 + i % 2;
      EXPECT_EQ(straight[lane * 8 + i], matrix + row * 8 + column) << lane << " " << i;
      EXPECT_EQ(transposed[lane * 8 + i], matrix + column * 8 + row) << lane << " " << i;
    }
  EXPECT_THAT(matrices(with(kMatrix, "s[l * 8]", "s[l * 4]")).messages,
              ElementsAre("a matrix's row of s that begins at no multiple: element 4 in thread 1 of block 0 (first of "
                          "16)"));
  EXPECT_THAT(matrices(with(kMatrix, "s[l * 8]", "s[l * 8 + 8]")).messages,
              ElementsAre(HasSubstr("load of s out of bounds: element 256 of 256 ")));
  EXPECT_THAT(matrices(with(kMatrix, "      loadmatrix r[0] = s[l * 8]\n",
                            "      for half in cast<i64>(l < 16) atmost 1:\n        loadmatrix r[0] = s[l * 8]\n"))
                  .messages,
              ::testing::Contains(HasSubstr("a LoadMatrix that not all threads of a warp reach")));
}

TEST(Device, WhatTheVerifierRefuses) {
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      loop::verify(loop::parse(text));
    } catch (const InternalError& e) { return e.what(); }
    return "";
  };
  EXPECT_THAT(refusal(with(kRowSum, "    thread one in 1:\n      store out[i] = parts[0] + parts[1]\n",
                           "    store out[i] = parts[0] + parts[1]\n")),
              HasSubstr("every thread stores to out: a Thread loop is missing"));
  EXPECT_THAT(refusal(with(kRowSum, "thread j in 100:", "vector(4) j in 100:")),
              HasSubstr("a Vector loop in a nest for a device"));
  EXPECT_THAT(refusal(with(kRowSum, "threads 64", "threads 60")), HasSubstr("60 threads a block"));
  EXPECT_THAT(refusal(with(kRowSum, "  threads 64\n", "")), HasSubstr("in a nest for a CPU"));
  EXPECT_THAT(refusal(with(kRowSum, "parts: f32[2]", "parts: f32[20000]")), HasSubstr("80000 bytes of Shared buffers"));
  EXPECT_THAT(
      refusal(with(kRowSum, "      s = sum(s, x[i * 100 + j])\n", "      s = sum(s, x[i * 100 + j])\n      barrier\n")),
      HasSubstr("a Barrier in a Thread loop"));
  EXPECT_THAT(refusal(with(kCopies, "copy(4) r", "copy(8) r")), HasSubstr("a copy of 8 elements of f32"));
  EXPECT_THAT(refusal(with(kAsync, "copyasync(4) s[t * 4]", "copyasync(2) s[t * 4]")),
              HasSubstr("an asynchronous copy of 2 elements of f32"));
  EXPECT_THAT(refusal(with(kAsync, "s[t * 4] = x[", "s[t * 4] = out[")),
              HasSubstr("an asynchronous copy from out, which is written"));
  EXPECT_THAT(refusal(with(kAsync, "    thread u in 1:\n", "    thread u in 1:\n      wait(0)\n")),
              HasSubstr("a WaitCopies in a Thread loop"));
  EXPECT_THAT(refusal(with(kAsync, "    thread u in 1:\n", "    thread u in 1:\n      commit\n")),
              HasSubstr("a CommitCopies in a Thread loop"));
  EXPECT_THAT(refusal(with(kMatrix, "thread l in 32", "thread l in 16")),
              HasSubstr("a LoadMatrix outside a Thread loop over all threads"));
  EXPECT_THAT(refusal(with(kMatrix, "r[0] = s[l * 8]", "r[0] = x[l * 8]")), HasSubstr("a LoadMatrix from x to r"));
  EXPECT_THAT(refusal(with(kCopies, "r[0] = x[i * 4]", "out[0] = x[i * 4]")), HasSubstr("a copy from x to out"));
}

}  // namespace
}  // namespace trainc::interpret
