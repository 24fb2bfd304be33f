// Contractions of bf16: pairs along k, f32 sums; by the dot product, and on tiles. On machines without the former the
// nests run under the interpreter alone; without the latter their code runs on emulated tiles.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>

#include "gemm.h"
#include "interpret/amx.h"
#include "interpret/interpret.h"
#include "loop/nest_template.h"

namespace trainc {
namespace {

using namespace loop;
using namespace lower;
using namespace schedule;
using namespace testing;

constexpr CpuLevel kLevels[] = {CpuLevel::Avx512Bf16, CpuLevel::Amx};

bool runs(CpuLevel level) {
  return level == CpuLevel::Amx ? interpret::emulate_amx() : has_bf16_dot(machine_cpu_level());
}

// How an operand comes: as bf16, or as f32 that packing rounds.
enum class From { Bf16, F32 };

struct Problem {
  CpuLevel level;
  GemmCase gemm;
  LoopNest nest;
  std::vector<float> lhs, rhs;  // as stored; rounded where From::F32

  // `runs`: read along its contiguous direction, an operand comes in the shortest runs that divide its size, as a
  // window's or a head's does.
  // `fixed`: the blocking of other sizes.
  Problem(CpuLevel l, GemmCase c, From from, const CacheSizes& cache, bool runs = false, Blocking* fixed = nullptr)
      : level(l), gemm(c) {
    c.dtype = from == From::Bf16 ? DType::BF16 : DType::F32;
    ContractionSpec spec = plain_spec(nest, c);
    spec.fixed_blocking = fixed;
    if (from == From::F32)
      for (auto* operand : {&spec.lhs, &spec.rhs})
        *operand = [plain = *operand](Expr b, Expr row, Expr k) { return cast(plain(b, row, k), DType::BF16); };
    const auto in_runs = [](const auto& plain, int64_t run) {
      return [=](Expr b, Expr other, Expr major, Expr minor) { return plain(b, other, major * run + minor); };
    };
    const auto along_k = [plain = spec.lhs](Expr b, Expr other, Expr at) { return plain(b, other, at); };
    const auto along_rows = [plain = spec.rhs](Expr b, Expr other, Expr at) { return plain(b, at, other); };
    const auto across_k = [plain = spec.lhs](Expr b, Expr other, Expr at) { return plain(b, at, other); };
    if (runs && c.lhs_k_contiguous && c.k > 1)
      spec.lhs_run = shortest_run(c.k), spec.lhs_in_run = in_runs(along_k, spec.lhs_run);
    if (runs && !c.lhs_k_contiguous && c.m > 1)
      spec.lhs_run = shortest_run(c.m), spec.lhs_in_run = in_runs(across_k, spec.lhs_run);
    if (runs && !c.rhs_k_contiguous && c.n > 1)
      spec.rhs_run = shortest_run(c.n), spec.rhs_in_run = in_runs(along_rows, spec.rhs_run);
    const auto rhs_along_k = [plain = spec.rhs](Expr b, Expr other, Expr at) { return plain(b, other, at); };
    if (runs && c.rhs_k_contiguous && c.k > 1)
      spec.rhs_k_run = shortest_run(c.k), spec.rhs_in_k_run = in_runs(rhs_along_k, spec.rhs_k_run);
    build_contraction(nest, spec, cpu_target(level, cache));
    verify(nest);
    EXPECT_EQ(nest.buffers[kOut].dtype, DType::F32);
    gemm.dtype = c.dtype;
    lhs.resize(size_t(c.batch * c.m * c.k)), rhs.resize(size_t(c.batch * c.n * c.k));
  }

  static int64_t shortest_run(int64_t size) {
    int64_t run = 2;
    while (size % run != 0) ++run;
    return run;
  }

  // Small whole numbers: every sum is exact. Else normal variates, which bf16 rounds.
  void fill(bool whole) {
    std::mt19937 engine(5);
    std::normal_distribution<float> normal(0, whole ? 3 : 1);
    for (auto* operand : {&lhs, &rhs})
      for (float& x : *operand) x = whole ? std::round(normal(engine)) : normal(engine);
  }

  interpret::Memory memory(const std::vector<float>& values) const {
    if (gemm.dtype == DType::F32) return interpret::memory_of(values);
    return interpret::memory_of(std::vector<Bf16>(values.begin(), values.end()));
  }

  std::vector<float> interpreted() const { return interpreted(nest, {}); }

  // The nest's template, given its numbers as arguments.
  std::vector<float> interpreted_with_parameters() const {
    const NestTemplate numbers = template_of(nest);
    const ParameterMask all{std::vector<bool>(numbers.integers.size(), true),
                            std::vector<bool>(numbers.reals.size(), true)};
    std::vector<interpret::Memory> more = {interpret::memory_of(numbers.integers)};
    if (!numbers.reals.empty()) more.push_back(interpret::memory_of(numbers.reals));
    const LoopNest with_parameters = parameterize(nest, all, numbers.scratch);
    verify(with_parameters);
    return interpreted(with_parameters, std::move(more));
  }

  std::vector<float> interpreted(const LoopNest& n, std::vector<interpret::Memory> more) const {
    std::vector<interpret::Memory> arguments = {memory(lhs), memory(rhs),
                                                interpret::output_of(gemm.batch * gemm.m * gemm.n * 4)};
    std::move(more.begin(), more.end(), std::back_inserter(arguments));
    for (const std::string& message : interpret::run(n, arguments).messages) ADD_FAILURE() << message;
    return interpret::values_of<float>(arguments[kOut]);
  }

  // Operands end where a page does that faults.
  std::vector<float> compiled() const {
    const Code code(emit::compile(nest, level));
    Scratch scratch(nest);
    Guarded operands[2], out(size_t(gemm.batch * gemm.m * gemm.n * 4));
    for (int i = 0; i < 2; ++i) {
      const interpret::Memory m = memory(i == 0 ? lhs : rhs);
      operands[i] = Guarded(m.bytes.size());
      // memcpy takes no null pointer, not even of nothing
      std::copy(m.bytes.begin(), m.bytes.end(), operands[i].as<uint8_t>());
    }
    void* arguments[] = {operands[0].as<void>(), operands[1].as<void>(), out.as<void>()};
    uint32_t status = 0;
    code.kernel(arguments, scratch.data(), &status, 0, nest.parallel_extent);
    return {out.as<float>(), out.as<float>() + gemm.batch * gemm.m * gemm.n};
  }

  // Against sums in double of the rounded operands.
  void expect_product(const std::vector<float>& out, bool whole) const {
    int bad = 0;
    for (int64_t b = 0; b < gemm.batch; ++b)
      for (int64_t i = 0; i < gemm.m; ++i)
        for (int64_t j = 0; j < gemm.n; ++j) {
          double sum = 0, magnitude = 0;
          for (int64_t k = 0; k < gemm.k; ++k) {
            const double product =
                double(Bf16(lhs[size_t(gemm.lhs_at(b, i, k))])) * double(Bf16(rhs[size_t(gemm.rhs_at(b, j, k))]));
            sum += product, magnitude += std::fabs(product);
          }
          const double got = out[size_t(gemm.out_at(b, i, j))],
                       bound = whole ? 0 : 4 * double(std::numeric_limits<float>::epsilon()) * magnitude;
          if (!(std::fabs(got - sum) <= bound) && ++bad <= 3)
            ADD_FAILURE() << "at " << b << "," << i << "," << j << ": " << got << " for " << sum;
        }
    EXPECT_EQ(bad, 0);
  }
};

std::string describe(CpuLevel level, const GemmCase& c, From from) {
  return std::string(name_of(level)) + " " + std::to_string(c.batch) + " x " + std::to_string(c.m) + "x" +
         std::to_string(c.n) + "x" + std::to_string(c.k) + (c.lhs_k_contiguous ? " N" : " T") +
         (c.rhs_k_contiguous ? "T" : "N") + (from == From::F32 ? " of f32" : "");
}

// Odd k, k of 1, short last blocks, several m blocks and tasks.
constexpr int64_t kSizes[][4] = {{1, 1, 1, 1},    {2, 13, 33, 7},  {1, 12, 32, 16}, {1, 25, 49, 131},
                                 {1, 8, 48, 431}, {1, 61, 10, 33}, {3, 2, 17, 5},   {1, 5, 40, 0}};

TEST(ContractionBf16, InterpretedWithoutFindings) {
  const CacheSizes tiny{.l1d = 1 << 10, .l2 = 16 << 10, .l3 = 1 << 18};
  for (CpuLevel level : kLevels)
    for (const auto& [batch, m, n, k] : kSizes)
      for (int layout = 0; layout < 4; ++layout)
        for (From from : {From::Bf16, From::F32})
          for (bool runs : {false, true}) {
            Problem p(level, {batch, m, n, k, (layout & 1) != 0, (layout & 2) != 0}, from, tiny, runs);
            SCOPED_TRACE(describe(level, p.gemm, from) + (runs ? " in runs" : ""));
            p.fill(true);
            p.expect_product(p.interpreted(), true);
          }
}

TEST(ContractionBf16, Compiled) {
  const CacheSizes small{.l1d = 4 << 10, .l2 = 64 << 10, .l3 = 1 << 20};
  std::vector<GemmCase> cases = {{1, 100, 97, 800}, {1, 16, 300, 385}, {2, 64, 64, 64}};
  for (const auto& [batch, m, n, k] : kSizes) cases.push_back({batch, m, n, k});
  for (CpuLevel level : kLevels)
    for (GemmCase c : cases)
      for (int layout = 0; layout < 4; ++layout)
        for (From from : {From::Bf16, From::F32})
          for (bool runs : {false, true}) {
            if (from == From::F32 && (runs || level == CpuLevel::Amx)) continue;  // the interpreter has it
            c.lhs_k_contiguous = (layout & 1) != 0, c.rhs_k_contiguous = (layout & 2) != 0;
            // the interpreter above holds the loops; the code alone is compiled (Nests, test_emit)
            if (!trainc::runs(level)) continue;
            Problem p(level, c, from, small, runs);
            SCOPED_TRACE(describe(level, c, from) + (runs ? " in runs" : ""));
            p.fill(true);
            p.expect_product(p.compiled(), true);
            p.fill(false);
            p.expect_product(p.compiled(), false);
          }
}

// The half of a pair that does not exist is zero on both sides: NaN and infinity in the last k stay in their row and
// column.
TEST(ContractionBf16, NotANumberStaysInItsRowAndColumn) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (CpuLevel level : kLevels)
    for (int layout = 0; layout < 4; ++layout) {
      Problem p(level, {1, 9, 35, 21, (layout & 1) != 0, (layout & 2) != 0}, From::Bf16, {});
      SCOPED_TRACE(describe(level, p.gemm, From::Bf16));
      p.fill(false);
      p.lhs[size_t(p.gemm.lhs_at(0, 8, 20))] = nan;
      p.rhs[size_t(p.gemm.rhs_at(0, 34, 20))] = inf;
      std::vector<std::vector<float>> results = {p.interpreted()};
      if (runs(level)) results.push_back(p.compiled());
      for (const auto& out : results)
        for (int64_t i = 0; i < 9; ++i)
          for (int64_t j = 0; j < 35; ++j) {
            const float got = out[size_t(p.gemm.out_at(0, i, j))];
            if (i == 8) ASSERT_TRUE(std::isnan(got)) << j;
            else if (j == 34) ASSERT_TRUE(std::isinf(got)) << i;
            else ASSERT_TRUE(std::isfinite(got)) << i << "," << j;
          }
    }
}

// What the tests above mean by level amx: tiles in every shape, and none where few rows would waste them.
TEST(ContractionBf16, TilesWhereTheyAreWorthIt) {
  const auto on_tiles = [](int64_t m, int64_t n, int64_t k) {
    GemmCase c{1, m, n, k, true, false};
    c.dtype = DType::BF16;
    return print(plain_gemm(c, CpuLevel::Amx, {})).find("tiledot") != std::string::npos;
  };
  EXPECT_TRUE(on_tiles(100, 97, 800)) << "2 x 2";
  EXPECT_TRUE(on_tiles(13, 33, 7)) << "1 x 3";
  EXPECT_TRUE(on_tiles(12, 32, 16)) << "1 x 2";
  EXPECT_TRUE(on_tiles(61, 10, 33)) << "3 x 1";
  EXPECT_FALSE(on_tiles(4, 768, 768));
  EXPECT_FALSE(on_tiles(25, 49, 0));
}

// Of kernels that shapes share: whatever the sizes are, on tiles if the first ones are.
TEST(ContractionBf16, FixedBlockings) {
  const CacheSizes tiny{.l1d = 1 << 10, .l2 = 16 << 10, .l3 = 1 << 18};
  constexpr int64_t kFixed[][4] = {{1, 40, 50, 192}, {2, 13, 33, 70},  {1, 2, 3, 5},   {1, 32, 32, 32},
                                   {3, 61, 10, 6},   {1, 17, 33, 800}, {1, 3, 50, 801}};
  for (CpuLevel level : kLevels)
    for (int layout = 0; layout < 4; ++layout)
      for (From from : {From::Bf16, From::F32}) {
        Blocking fixed;
        for (const auto& [batch, m, n, k] : kFixed) {
          Problem p(level, {batch, m, n, k, (layout & 1) != 0, (layout & 2) != 0}, from, tiny, false, &fixed);
          SCOPED_TRACE(describe(level, p.gemm, from));
          EXPECT_EQ(on_tiles(p.nest), level == CpuLevel::Amx);
          p.fill(true);
          p.expect_product(p.interpreted_with_parameters(), true);
          if (batch > 1 || !runs(level)) continue;
          p.fill(false);
          const std::vector<float> got = p.compiled();
          p.expect_product(got, false);
          Problem own(level, p.gemm, from, tiny);
          own.fill(false);
          if (on_tiles(own.nest) == on_tiles(p.nest)) { EXPECT_EQ(got, own.compiled()); }
        }
      }
}

TEST(ContractionBf16, FixedBlockingsOnTilesHaveOneTemplate) {
  for (int layout = 0; layout < 4; ++layout) {
    Blocking fixed;
    std::set<std::string> templates;
    for (int64_t k : {800, 64, 70, 384, 801, 1700, 33})
      for (const auto& [m, n] : {std::pair<int64_t, int64_t>{100, 97}, {33, 64}, {250, 48}}) {
        LoopNest nest;
        GemmCase c{1, m, n, k, (layout & 1) != 0, (layout & 2) != 0};
        c.dtype = DType::BF16;
        ContractionSpec spec = plain_spec(nest, c);
        spec.fixed_blocking = &fixed;
        for (Buffer& b : nest.buffers) b.numel = 0;
        build_contraction(nest, spec, cpu_target(CpuLevel::Amx));
        EXPECT_TRUE(on_tiles(nest));
        templates.insert(template_of(nest).text);
      }
    // partial sums or none, k even or odd
    EXPECT_EQ(templates.size(), 4u) << layout;
  }
}

TEST(ContractionBf16, RefusedWhereTheLevelHasNoDotProduct) {
  GemmCase c{1, 8, 8, 8};
  c.dtype = DType::BF16;
  EXPECT_THROW(plain_gemm(c, CpuLevel::Avx512, {}), InternalError);
}

}  // namespace
}  // namespace trainc
