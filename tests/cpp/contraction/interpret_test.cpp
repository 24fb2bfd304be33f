// build_contraction under the interpreter: no access out of bounds, nothing read before it is written, no two tasks on
// one element; also for levels that this machine does not have.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "gemm.h"
#include "interpret/interpret.h"
#include "loop/nest_template.h"
#include "schedule/contraction_blocking.h"

namespace trainc {
namespace {

using namespace loop;
using namespace lower;
using namespace schedule;
using namespace testing;

/// `fixed_blocking`: the blocking of other sizes, whose template this nest is to have; its numbers are then parameters.
void expect_clean(const GemmCase& c, CpuLevel level, const CacheSizes& cache, Blocking* fixed_blocking = nullptr) {
  SCOPED_TRACE(std::to_string(c.batch) + "x" + std::to_string(c.m) + "x" + std::to_string(c.n) + "x" +
               std::to_string(c.k) + (c.lhs_k_contiguous ? "N" : "T") + (c.rhs_k_contiguous ? "T " : "N ") +
               std::string(name_of(level)));
  LoopNest nest;
  ContractionSpec spec = plain_spec(nest, c);
  spec.fixed_blocking = fixed_blocking;
  build_contraction(nest, spec, cpu_target(level, cache));
  verify(nest);
  const NestTemplate nest_template = template_of(nest);
  if (fixed_blocking) {
    const ParameterMask all{std::vector<bool>(nest_template.integers.size(), true),
                            std::vector<bool>(nest_template.reals.size(), true)};
    nest = parameterize(nest, all, nest_template.scratch);
    verify(nest);
    EXPECT_EQ(print(parse(print(nest))), print(nest));
  }
  std::mt19937 engine(3);
  std::uniform_int_distribution<int> small(-4, 4);  // every sum is exact: the result must be equal
  std::vector<float> lhs(c.batch * c.m * c.k), rhs(c.batch * c.n * c.k);
  for (float& x : lhs) x = float(small(engine));
  for (float& x : rhs) x = float(small(engine));
  std::vector<interpret::Memory> arguments = {interpret::memory_of(lhs), interpret::memory_of(rhs),
                                              interpret::output_of(c.batch * c.m * c.n * 4)};
  if (fixed_blocking) arguments.push_back(interpret::memory_of(nest_template.integers));
  if (fixed_blocking && !nest_template.reals.empty()) arguments.push_back(interpret::memory_of(nest_template.reals));
  interpret::Findings findings = interpret::run(nest, arguments);
  for (const std::string& message : findings.messages) ADD_FAILURE() << message;
  auto out = interpret::values_of<float>(arguments[kOut]);
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t i = 0; i < c.m; ++i)
      for (int64_t j = 0; j < c.n; ++j) {
        float sum = 0;
        for (int64_t k = 0; k < c.k; ++k) sum += lhs[c.lhs_at(b, i, k)] * rhs[c.rhs_at(b, j, k)];
        ASSERT_EQ(out[c.out_at(b, i, j)], sum) << b << "," << i << "," << j;
      }
}

TEST(ContractionInterpreted, NoFindings) {
  const CacheSizes tiny{.l1d = 1 << 10, .l2 = 16 << 10, .l3 = 1 << 18};  // several tasks and m blocks
  const int64_t sizes[][4] = {{1, 1, 1, 1},    {2, 13, 33, 7},   {1, 12, 32, 16}, {1, 25, 49, 70},
                              {1, 8, 48, 270}, {1, 61, 10, 260}, {3, 2, 17, 5}};
  for (CpuLevel level : {CpuLevel::Avx512, CpuLevel::Avx2})
    for (auto [batch, m, n, k] : sizes)
      for (int layout = 0; layout < 4; ++layout)
        expect_clean({batch, m, n, k, (layout & 1) != 0, (layout & 2) != 0}, level, tiny);
}

std::vector<std::pair<CpuLevel, int>> levels_and_layouts() {
  std::vector<std::pair<CpuLevel, int>> all;
  for (CpuLevel level : {CpuLevel::Avx512, CpuLevel::Avx2})
    for (int layout = 0; layout < 4; ++layout) all.push_back({level, layout});
  return all;
}

const int64_t kFixedSizes[][4] = {{2, 13, 33, 70},  {1, 1, 1, 1},    {1, 12, 32, 16}, {3, 61, 10, 5},
                                  {1, 40, 50, 192}, {1, 8, 48, 270}, {2, 5, 97, 400}};

// Nests of one fixed blocking, whatever the sizes: clean, right, and of one template but for whether there are partial
// sums.
TEST(ContractionInterpreted, FixedBlockings) {
  const CacheSizes tiny{.l1d = 1 << 10, .l2 = 16 << 10, .l3 = 1 << 18};
  for (CpuLevel level : {CpuLevel::Avx512, CpuLevel::Avx2})
    for (int layout = 0; layout < 4; ++layout) {
      Blocking fixed_blocking;
      for (auto [batch, m, n, k] : kFixedSizes)
        expect_clean({batch, m, n, k, (layout & 1) != 0, (layout & 2) != 0}, level, tiny, &fixed_blocking);
    }
}

TEST(ContractionInterpreted, FixedBlockingsHaveOneTemplate) {
  for (const auto& [level, layout] : levels_and_layouts()) {
    Blocking fixed_blocking;
    std::set<std::string> templates;
    for (auto [batch, m, n, k] : kFixedSizes) {
      LoopNest nest;
      ContractionSpec spec = plain_spec(nest, {batch, m, n, k, (layout & 1) != 0, (layout & 2) != 0});
      spec.fixed_blocking = &fixed_blocking;
      // as in a plan: what is small enough to stay in the cache is not known
      for (Buffer& b : nest.buffers) b.numel = 0;
      build_contraction(nest, spec, cpu_target(level));
      if (k > 1 && m > 1 && n > 1) templates.insert(template_of(nest).text);  // a stride of 1 is no number
    }
    EXPECT_EQ(templates.size(), 2u) << name_of(level) << " " << layout;
  }
}

// Every Prefetch of `buffer` made a store that marks the element, where it lies within.
Stmt marking(const Stmt& s, int buffer, int marks, int64_t numel) {
  if (s->kind == StmtKind::Prefetch && s->buffer == buffer)
    return store(marks, apply(Op::Select, {apply(Op::Lt, {s->index, integer(numel)}), s->index, integer(numel)}),
                 real(1, DType::F32));
  if (s->kind == StmtKind::Prefetch) return block({});
  auto copy = std::make_shared<StmtNode>(*s);
  for (Stmt& inner : copy->body) inner = marking(inner, buffer, marks, numel);
  return copy;
}

// All cache lines of both operands are asked for ahead, but for the blocks that the first task starts with.
TEST(ContractionInterpreted, WhatIsPackedNextIsAskedFor) {
  const CacheSizes small{.l1d = 1 << 10, .l2 = 80 << 10, .l3 = 1 << 18};
  for (const auto& [level, layout] : levels_and_layouts()) {
    const GemmCase c{1, 256, 96, 224, (layout & 1) != 0, (layout & 2) != 0};
    LoopNest nest;
    const ContractionSpec spec = plain_spec(nest, c);
    const int64_t numel = c.batch * c.m * c.k;
    const int marks = nest.add_buffer({"marks", DType::F32, numel + 1, Space::Argument, true});
    build_contraction(nest, spec, cpu_target(level, small));
    const Blocking b = choose_blocking(shape_of(spec), DType::F32, cpu_target(level, small));
    ASSERT_GE(nest.parallel_extent, 3);
    ASSERT_LT(b.block_m, b.task_m);
    ASSERT_GE(b.k_blocks, 2);
    const Stmt body = nest.body;
    for (int operand : {kLhs, kRhs}) {
      SCOPED_TRACE(std::string(name_of(level)) + " " + std::to_string(layout) + nest.buffers[size_t(operand)].name);
      nest.body = marking(body, operand, marks, numel);
      std::vector<float> values(size_t(numel), 1.0f), none(size_t(numel) + 1);
      // the rhs is smaller
      std::vector<interpret::Memory> arguments = {interpret::memory_of(values), interpret::memory_of(values),
                                                  interpret::output_of(c.batch * c.m * c.n * 4),
                                                  interpret::memory_of(none)};
      interpret::run(nest, arguments);  // its findings, tasks that mark the same element, mean nothing here
      const std::vector<float> marked = interpret::values_of<float>(arguments[size_t(marks)]);
      const bool along_k = operand == kLhs ? c.lhs_k_contiguous : c.rhs_k_contiguous;
      const int64_t first = operand == kLhs ? b.block_m * b.tile_m : b.task_n * b.tile_n;  // rows of the first block
      int missing = 0;
      for (int64_t batch = 0; batch < c.batch; ++batch)
        for (int64_t row = 0; row < (operand == kLhs ? c.m : c.n); ++row)
          for (int64_t k = 0; k < c.k; ++k) {
            if (batch == 0 && row < first && k < b.block_k) continue;
            // an element of the 16 that end here: of its line, or the one before where rows start within a line
            bool asked = false;
            for (int64_t back = 0; back < 16; ++back) {
              const int64_t r = along_k ? row : row - back, kk = along_k ? k - back : k;
              if (r >= 0 && kk >= 0)
                asked |= marked[size_t(operand == kLhs ? c.lhs_at(batch, r, kk) : c.rhs_at(batch, r, kk))] == 1;
            }
            if (!asked && ++missing <= 3) ADD_FAILURE() << "batch " << batch << " row " << row << " k " << k;
          }
      EXPECT_EQ(missing, 0);
    }
  }
}

TEST(ContractionInterpreted, EmptySumsAreStored) {
  for (int layout = 0; layout < 4; ++layout)
    expect_clean({2, 13, 33, 0, (layout & 1) != 0, (layout & 2) != 0}, CpuLevel::Avx2, {});
}

}  // namespace
}  // namespace trainc
