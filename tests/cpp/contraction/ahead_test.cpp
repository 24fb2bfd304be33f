// What a contraction asks for ahead of its epilogue: the lines that the next tile reads and writes.
#include <gtest/gtest.h>

#include "gemm.h"
#include "schedule/contraction_blocking.h"

namespace trainc {
namespace {

using namespace loop;
using namespace lower;
using namespace schedule;

// out[m, n] = (lhs rhs^T)[m, n] + bias[n] + residual[m, n] + table[row_of[m], n]
std::string text_of(int64_t m, int64_t n, int64_t k, DType residual) {
  LoopNest nest;
  nest.name = "ahead";
  const int lhs = nest.add_buffer({"lhs", DType::F32, m * k}), rhs = nest.add_buffer({"rhs", DType::F32, n * k}),
            out = nest.add_buffer({"out", DType::F32, m * n, Space::Argument, true});
  // (A buffer of 0 elements: of a number that is not known.)
  const int bias = nest.add_buffer({"bias", DType::F32, 0}), added = nest.add_buffer({"residual", residual, m * n});
  const int table = nest.add_buffer({"table", DType::F32, 4096 * n}),
            row_of = nest.add_buffer({"row_of", DType::I64, m});
  ContractionSpec spec{1, m, n, k};
  spec.lhs = [&](Expr, Expr row, Expr kk) { return nest.load(lhs, row * k + kk); };
  spec.rhs = [&](Expr, Expr row, Expr kk) { return nest.load(rhs, row * k + kk); };
  spec.epilogue = [&](Expr, Expr row, Expr column, Expr sum) {
    const auto plus = [](const Expr& a, const Expr& b) { return apply(Op::Add, {a, b}); };
    const Expr gathered = nest.load(table, nest.load(row_of, row) * n + column);
    return store(
        out, row * n + column,
        plus(plus(plus(sum, nest.load(bias, column)), cast(nest.load(added, row * n + column), DType::F32)), gathered));
  };
  build_contraction(nest, spec, cpu_target(CpuLevel::Avx512));
  verify(nest);
  return print(nest);
}
int count(const std::string& text, const std::string& word) {
  int found = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
  return found;
}

TEST(ContractionAhead, AsksForWhatTheNextTileReadsAndWrites) {
  for (const int64_t k : {64, 768}) {  // one block of k, and four
    const std::string text = text_of(960, 96, k, DType::F32);
    // 24 lines of 8 rows x 48 columns, or 12 x 32, in 8 groups of steps; in 24
    EXPECT_EQ(count(text, "prefetch(1) residual["), k == 64 ? 3 : 1) << text;
    EXPECT_EQ(count(text, "prefetch(1) out["), k == 64 ? 3 : 0);  // or the next tile is long
    EXPECT_EQ(count(text, "prefetch(1) bias["), 0);               // all rows read it
    EXPECT_EQ(count(text, "prefetch(1) table["), 0);              // memory alone knows where
  }
  EXPECT_EQ(count(text_of(960, 96, 64, DType::BF16), "prefetch(1) residual["), 2);  // half as many lines
}

// In all blocks of k but the last, the slots ask for one line, again and again.
TEST(ContractionAhead, AsksInTheLastBlockOfK) {
  const std::string text = text_of(960, 96, 768, DType::F32);
  const size_t at = text.find("prefetch(1) residual[");
  ASSERT_NE(at, std::string::npos);
  EXPECT_NE(text.substr(at, text.find('\n', at) - at).find("k_block == 3"), std::string::npos) << text.substr(at, 200);
}

// 20 rows are one tile, which reads a rhs whose rows lie side by side where it is, the next block of k on its way.
TEST(ContractionAhead, AsksForARhsThatIsReadWhereItLies) {
  const auto text = [](int64_t m) {
    LoopNest nest = testing::plain_gemm({.m = m, .n = 650, .k = 2600, .rhs_k_contiguous = false}, CpuLevel::Avx512, {});
    verify(nest);
    return print(nest);
  };
  EXPECT_EQ(count(text(20), "rhs_pack"), 0) << text(20);
  EXPECT_GT(count(text(20), "prefetch(2) rhs["), 0) << text(20);
  EXPECT_GT(count(text(40), "rhs_pack"), 0);
}

}  // namespace
}  // namespace trainc
