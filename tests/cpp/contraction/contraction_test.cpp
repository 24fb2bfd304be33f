// build_contraction, compiled and run on every level of this machine, against three loops in double.
#include "lower/contraction.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "../common/levels.h"
#include "gemm.h"
#include "schedule/contraction_blocking.h"

namespace trainc {
namespace {

using namespace loop;
using namespace lower;
using namespace schedule;
using namespace testing;

std::string describe(const GemmCase& c, CpuLevel level) {
  return std::to_string(c.batch) + " x " + std::to_string(c.m) + "x" + std::to_string(c.n) + "x" + std::to_string(c.k) +
         (c.lhs_k_contiguous ? " N" : " T") + (c.rhs_k_contiguous ? "T " : "N ") + std::string(name_of(c.dtype)) + " " +
         std::string(name_of(level));
}

void run(const Code& code, const LoopNest& nest, const std::vector<void*>& arguments, Scratch& scratch, int64_t begin,
         int64_t end) {
  uint32_t status = 0;
  code.kernel(arguments.data(), scratch.data(), &status, begin, end);
  EXPECT_EQ(status, 0u) << nest.name;
}

template <class T>
Guarded multiply(const GemmCase& c, CpuLevel level, const Guarded& lhs, const Guarded& rhs,
                 const CacheSizes& cache = {}) {
  LoopNest nest = plain_gemm(c, level, cache);
  verify(nest);
  Code code(emit::compile(nest, level));
  Scratch scratch(nest);
  Guarded out(c.batch * c.m * c.n * sizeof(T));
  for (int64_t i = 0; i < c.batch * c.m * c.n; ++i) out.as<T>()[i] = T(12345);
  run(code, nest, {lhs.as<void>(), rhs.as<void>(), out.as<void>()}, scratch, 0, nest.parallel_extent);
  return out;
}

// The sum, and the sum of magnitudes that bounds its error.
template <class T>
std::pair<double, double> exact(const GemmCase& c, const T* lhs, const T* rhs, int64_t b, int64_t i, int64_t j) {
  long double sum = 0, magnitude = 0;
  for (int64_t k = 0; k < c.k; ++k) {
    long double product = static_cast<long double>(lhs[c.lhs_at(b, i, k)]) * rhs[c.rhs_at(b, j, k)];
    sum += product, magnitude += std::fabs(product);
  }
  return {double(sum), double(magnitude)};
}

template <class T>
void expect_product(const GemmCase& c, CpuLevel level, const CacheSizes& cache = {}) {
  SCOPED_TRACE(describe(c, level));
  Guarded lhs = random_array<T>(c.batch * c.m * c.k, 1), rhs = random_array<T>(c.batch * c.n * c.k, 2);
  Guarded out = multiply<T>(c, level, lhs, rhs, cache);
  const double epsilon = std::numeric_limits<T>::epsilon();
  int bad = 0;
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t i = 0; i < c.m; ++i)
      for (int64_t j = 0; j < c.n; ++j) {
        auto [sum, magnitude] = exact<T>(c, lhs.as<T>(), rhs.as<T>(), b, i, j);
        const double got = out.as<T>()[c.out_at(b, i, j)];
        // The roundings of k sums add like a random walk; a wrong element is off by a whole product, 1e5 times this.
        const double bound = 4 * epsilon * magnitude;
        if (!(std::fabs(got - sum) <= bound) && ++bad <= 3)
          ADD_FAILURE() << "at " << b << "," << i << "," << j << ": " << got << " for " << sum;
      }
  EXPECT_EQ(bad, 0);
}

TEST(Contraction, RandomSizesAndLayouts) {
  std::mt19937 engine(7);
  std::uniform_int_distribution<int64_t> size(1, 70), batch(1, 3);
  for (CpuLevel level : runnable_levels())
    for (int layout = 0; layout < 4; ++layout)
      for (int repeat = 0; repeat < 3; ++repeat)
        expect_product<float>(
            {batch(engine), size(engine), size(engine), size(engine), (layout & 1) != 0, (layout & 2) != 0}, level);
}

TEST(Contraction, SizesAroundTileAndBlockEdges) {
  // several m blocks and tasks at sizes that test fast
  const CacheSizes small{.l1d = 4 << 10, .l2 = 64 << 10, .l3 = 1 << 20};
  const int64_t sizes[][3] = {{1, 1, 1},    {12, 32, 192},  {13, 33, 193}, {11, 31, 191}, {8, 48, 384},
                              {9, 49, 385}, {121, 97, 513}, {24, 48, 8},   {1, 300, 20},  {300, 1, 20},
                              {2, 129, 65}, {5, 64, 300},   {200, 65, 64}, {97, 200, 1},  {385, 20, 520}};
  for (CpuLevel level : runnable_levels())
    for (auto [m, n, k] : sizes)
      for (int layout = 0; layout < 4; ++layout)
        expect_product<float>({1, m, n, k, (layout & 1) != 0, (layout & 2) != 0}, level, small);
}

TEST(Contraction, Double) {
  for (CpuLevel level : runnable_levels())
    for (int layout = 0; layout < 4; ++layout)
      expect_product<double>({2, 29, 35, 300, (layout & 1) != 0, (layout & 2) != 0, DType::F64}, level);
}

TEST(Contraction, AttentionShapes) {
  for (CpuLevel level : runnable_levels()) {
    expect_product<float>({3, 256, 256, 64, true, true}, level);
    expect_product<float>({3, 256, 64, 256, true, false}, level);
  }
}

TEST(Contraction, EmptySizes) {
  CpuLevel level = machine_cpu_level();
  Guarded none(0);
  for (GemmCase c : {GemmCase{0, 3, 3, 3}, GemmCase{1, 0, 3, 3}, GemmCase{1, 3, 0, 3}})
    EXPECT_EQ(multiply<float>(c, level, none, none).size(), 0u);
  for (int layout = 0; layout < 4; ++layout) {  // the sum of nothing is 0, and is stored
    GemmCase c{2, 13, 33, 0, (layout & 1) != 0, (layout & 2) != 0};
    Guarded out = multiply<float>(c, level, none, none);
    for (int64_t i = 0; i < 2 * 13 * 33; ++i) ASSERT_EQ(out.as<float>()[i], 0.0f) << i;
  }
}

// NaN and infinity reach the sums they belong to, and no others: what pads a tile never mixes in.
TEST(Contraction, NotANumberStaysInItsRowAndColumn) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (CpuLevel level : runnable_levels())
    for (int layout = 0; layout < 4; ++layout) {
      GemmCase c{1, 26, 67, 259, (layout & 1) != 0, (layout & 2) != 0};
      SCOPED_TRACE(describe(c, level));
      Guarded lhs = random_array<float>(c.m * c.k, 1), rhs = random_array<float>(c.n * c.k, 2);
      lhs.as<float>()[c.lhs_at(0, 25, 258)] = nan;  // the last row, in its last k block
      rhs.as<float>()[c.rhs_at(0, 66, 0)] = inf;
      Guarded out = multiply<float>(c, level, lhs, rhs);
      for (int64_t i = 0; i < c.m; ++i)
        for (int64_t j = 0; j < c.n; ++j) {
          const float got = out.as<float>()[c.out_at(0, i, j)];
          if (i == 25) ASSERT_TRUE(std::isnan(got)) << j;
          else if (j == 66) ASSERT_TRUE(std::isinf(got)) << i;
          else ASSERT_TRUE(std::isfinite(got)) << i << "," << j;
        }
    }
}

// However the runtime shares out the tasks, the bits are the same.
TEST(Contraction, BitsDoNotDependOnThePartition) {
  for (CpuLevel level : runnable_levels()) {
    GemmCase c{2, 150, 130, 300, true, false};
    SCOPED_TRACE(describe(c, level));
    Guarded lhs = random_array<float>(c.batch * c.m * c.k, 1), rhs = random_array<float>(c.batch * c.n * c.k, 2);
    LoopNest nest = plain_gemm(c, level, {});
    ASSERT_GE(nest.parallel_extent, 4);
    Code code(emit::compile(nest, level));
    Scratch scratch(nest);
    auto compute = [&](auto share_out) {
      Guarded out(c.batch * c.m * c.n * 4);
      share_out([&](int64_t begin, int64_t end) {
        scratch.poison();
        run(code, nest, {lhs.as<void>(), rhs.as<void>(), out.as<void>()}, scratch, begin, end);
      });
      return out;
    };
    const int64_t tasks = nest.parallel_extent;
    Guarded whole = compute([&](auto call) { call(0, tasks); });
    Guarded backwards = compute([&](auto call) {
      for (int64_t t = tasks; t-- > 0;) call(t, t + 1);
    });
    Guarded halves = compute([&](auto call) { call(tasks / 2, tasks), call(0, 0), call(0, tasks / 2); });
    EXPECT_EQ(std::memcmp(whole.as<char>(), backwards.as<char>(), whole.size()), 0);
    EXPECT_EQ(std::memcmp(whole.as<char>(), halves.as<char>(), whole.size()), 0);
  }
}

// Sums of blocks are nearer to the truth than one running sum of the same numbers.
TEST(Contraction, LongSumsLoseLessThanARunningSum) {
  GemmCase c{1, 16, 64, 8000};
  Guarded lhs = random_array<float>(c.m * c.k, 1), rhs = random_array<float>(c.n * c.k, 2);
  double running_error = 0;
  for (int64_t i = 0; i < c.m; ++i)
    for (int64_t j = 0; j < c.n; ++j) {
      float sum = 0;
      for (int64_t k = 0; k < c.k; ++k)
        sum = std::fma(lhs.as<float>()[c.lhs_at(0, i, k)], rhs.as<float>()[c.rhs_at(0, j, k)], sum);
      running_error += std::fabs(sum - exact<float>(c, lhs.as<float>(), rhs.as<float>(), 0, i, j).first);
    }
  for (CpuLevel level : runnable_levels()) {
    Guarded out = multiply<float>(c, level, lhs, rhs);
    double error = 0;
    for (int64_t i = 0; i < c.m; ++i)
      for (int64_t j = 0; j < c.n; ++j)
        error += std::fabs(out.as<float>()[c.out_at(0, i, j)] -
                           exact<float>(c, lhs.as<float>(), rhs.as<float>(), 0, i, j).first);
    EXPECT_LT(error, running_error / 2) << name_of(level);
  }
}

// Nor on the caches, which only move the cuts between tasks and m blocks, nor on rows that are asked for beside a row.
TEST(Contraction, BitsDependOnKAlone) {
  GemmCase c{1, 90, 100, 600, true, true};
  Guarded lhs = random_array<float>(c.m * c.k, 1), rhs = random_array<float>(c.n * c.k, 2);
  for (CpuLevel level : runnable_levels()) {
    Guarded all = multiply<float>(c, level, lhs, rhs);
    Guarded cut = multiply<float>(c, level, lhs, rhs, {.l1d = 4 << 10, .l2 = 32 << 10, .l3 = 1 << 20});
    EXPECT_EQ(std::memcmp(all.as<char>(), cut.as<char>(), all.size()), 0);
    GemmCase one = c;
    one.m = 1;
    Guarded row = multiply<float>(one, level, lhs, rhs);
    EXPECT_EQ(std::memcmp(all.as<char>(), row.as<char>(), row.size()), 0);
  }
}

// tune="max" chooses between these by their speed alone.
TEST(Contraction, EveryVariantOfTheCutsGivesTheSameBits) {
  const CacheSizes small{.l1d = 4 << 10, .l2 = 64 << 10, .l3 = 1 << 20};
  for (CpuLevel level : runnable_levels()) {
    GemmCase c{1, 300, 401, 400, true, true};
    Guarded lhs = random_array<float>(c.batch * c.m * c.k, 1), rhs = random_array<float>(c.batch * c.n * c.k, 2);
    std::set<std::string> texts;
    std::vector<uint8_t> first;
    for (int variant = 0; variant < kBlockingVariants; ++variant) {
      SCOPED_TRACE(describe(c, level) + " variant " + std::to_string(variant));
      LoopNest nest;
      const ContractionSpec spec = plain_spec(nest, c);
      build_contraction(nest, spec, cpu_target(level, small), variant);
      verify(nest);
      if (!texts.insert(print(nest)).second) continue;
      Code code(emit::compile(nest, level));
      Scratch scratch(nest);
      Guarded out(size_t(c.batch * c.m * c.n * 4));
      run(code, nest, {lhs.as<void>(), rhs.as<void>(), out.as<void>()}, scratch, 0, nest.parallel_extent);
      const std::vector<uint8_t> bytes(out.as<uint8_t>(), out.as<uint8_t>() + out.size());
      if (variant == 0) first = bytes;
      EXPECT_EQ(bytes, first);
    }
    EXPECT_GE(texts.size(), 4u);  // there is something to choose from
  }
}

// relu(2 * lhs . rhs + bias) and its bf16 copy: expressions on both sides, two results.
TEST(Contraction, PrologueAndEpilogue) {
  for (CpuLevel level : runnable_levels())
    for (int layout = 0; layout < 4; ++layout) {
      GemmCase c{2, 17, 41, 270, (layout & 1) != 0, (layout & 2) != 0};
      SCOPED_TRACE(describe(c, level));
      LoopNest nest;
      ContractionSpec spec = plain_spec(nest, c);
      nest.add_buffer({"bias", DType::F32, c.n});
      int mask = nest.add_buffer({"positive", DType::Bool, c.batch * c.m * c.n, Space::Argument, true});
      auto plain_lhs = spec.lhs;
      spec.lhs = [=](Expr b, Expr row, Expr k) { return apply(Op::Mul, {real(2, DType::F32), plain_lhs(b, row, k)}); };
      spec.epilogue = [&](Expr b, Expr m, Expr n, Expr sum) {
        int value = nest.add_local("value", DType::F32);
        Expr at = (b * c.m + m) * c.n + n, zero = real(0, DType::F32);
        return block({let(value, apply(Op::Add, {sum, nest.load(kBias, n)})),
                      store(kOut, at, apply(Op::Max, {nest.local(value), zero})),
                      store(mask, at, apply(Op::Lt, {zero, nest.local(value)}))});
      };
      build_contraction(nest, spec, cpu_target(level));
      verify(nest);
      Code code(emit::compile(nest, level));
      Scratch scratch(nest);
      const int64_t numel = c.batch * c.m * c.n;
      Guarded lhs = random_array<float>(c.batch * c.m * c.k, 1), rhs = random_array<float>(c.batch * c.n * c.k, 2),
              bias = random_array<float>(c.n, 3);
      Guarded out(numel * 4), positive(numel);
      run(code, nest, {lhs.as<void>(), rhs.as<void>(), out.as<void>(), bias.as<void>(), positive.as<void>()}, scratch,
          0, nest.parallel_extent);
      for (int64_t b = 0; b < c.batch; ++b)
        for (int64_t i = 0; i < c.m; ++i)
          for (int64_t j = 0; j < c.n; ++j) {
            const double value =
                2 * exact<float>(c, lhs.as<float>(), rhs.as<float>(), b, i, j).first + bias.as<float>()[j];
            const int64_t at = c.out_at(b, i, j);
            ASSERT_NEAR(out.as<float>()[at], std::max(value, 0.0), 1e-4) << b << "," << i << "," << j;
            if (std::fabs(value) > 1e-4) { ASSERT_EQ(positive.as<bool>()[at], value > 0) << b << "," << i << "," << j; }
          }
    }
}

TEST(ContractionBlocking, EnoughTasksWhereSizesAllow) {
  GemmCase c{1, 1024, 768, 768};
  LoopNest nest;
  ContractionSpec spec = plain_spec(nest, c);
  for (CpuLevel level : {CpuLevel::Avx512, CpuLevel::Avx2}) {
    Blocking b = choose_blocking(shape_of(spec), DType::F32, cpu_target(level));
    EXPECT_GE(b.m_tasks * b.n_tasks, 8);
    EXPECT_EQ(b.m_tasks * b.n_tasks % 4, 0);
    EXPECT_LE(b.m_tasks * b.n_tasks, 64);
  }
}

TEST(ContractionBlocking, FewRowsWasteNoTile) {
  for (int64_t m : {1, 2, 4, 6, 8}) {
    LoopNest nest;
    Blocking b =
        choose_blocking(shape_of(plain_spec(nest, {1, m, 1024, 64})), DType::F32, cpu_target(CpuLevel::Avx512));
    EXPECT_EQ(m % b.tile_m, 0) << m;
  }
}

TEST(ContractionBlocking, CutsOfKDependOnKAlone) {
  auto cuts = [](int64_t m, int64_t n, int64_t k, CacheSizes cache) {
    LoopNest nest;
    return choose_blocking(shape_of(plain_spec(nest, {1, m, n, k})), DType::F32, cpu_target(CpuLevel::Avx512, cache))
        .block_k;
  };
  for (int64_t k : {1, 191, 192, 193, 768, 50257}) {
    EXPECT_EQ(cuts(1, 1, k, {}), cuts(1024, 50257, k, {})) << k;
    EXPECT_EQ(cuts(100, 100, k, {}), cuts(100, 100, k, {.l1d = 1 << 10, .l2 = 1 << 14, .l3 = 1 << 16})) << k;
  }
}

TEST(Contraction, ANestParsesBack) {
  ContractionSpec spec{.batch = 2, .m = 37, .n = 50, .k = 70};
  LoopNest n;
  n.name = "gemm";
  const int x = n.add_buffer({"x", DType::F32, 2 * 37 * 70, Space::Argument, false});
  const int y = n.add_buffer({"y", DType::F32, 2 * 50 * 70, Space::Argument, false});
  const int out = n.add_buffer({"out", DType::F32, 2 * 37 * 50, Space::Argument, true});
  spec.lhs = [&](Expr b, Expr row, Expr k) { return n.load(x, (b * 37 + row) * 70 + k); };
  spec.rhs = [&](Expr b, Expr row, Expr k) { return n.load(y, (b * 50 + row) * 70 + k); };
  spec.epilogue = [&](Expr b, Expr row, Expr column, Expr sum) {
    return store(out, (b * 37 + row) * 50 + column, sum);
  };
  build_contraction(n, spec, cpu_target(CpuLevel::Avx2));
  const std::string text = print(n);
  const LoopNest again = parse(text);
  EXPECT_EQ(print(again), text);
  EXPECT_NO_THROW(verify(again));
}

// 256 columns are four panels of 64 and six of 48, of which half of one is thrown away: the wider tile is the quicker
// one where L1d holds its panels alone.
TEST(ContractionBlocking, WideTilesWhereL1HoldsTheirPanels) {
  const auto width = [](int64_t l1d) {
    LoopNest nest;
    const ContractionSpec spec = plain_spec(nest, {1, 256, 256, 50257, true, false});
    CacheSizes caches;
    caches.l1d = l1d, caches.cores = 2;
    return choose_blocking(shape_of(spec), DType::F32, cpu_target(CpuLevel::Avx512, caches)).tile_n;
  };
  EXPECT_EQ(width(48 << 10), 64);
  EXPECT_EQ(width(32 << 10), 32);
}

}  // namespace
}  // namespace trainc
