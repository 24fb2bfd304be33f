// f32 contractions by six bf16 products on AMX tiles (emulated where the CPU has none): values, accuracy, and the
// numbers that tiles cannot take.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "gemm.h"
#include "interpret/amx.h"
#include "interpret/interpret.h"

namespace trainc {
namespace {

using namespace loop;
using namespace lower;
using namespace schedule;
using namespace testing;

constexpr CacheSizes kSmall{.l1d = 4 << 10, .l2 = 64 << 10, .l3 = 1 << 20};

LoopNest nest_of(const GemmCase& c, const CacheSizes& cache, bool in_parts = true, bool runs = false) {
  LoopNest nest;
  ContractionSpec spec = plain_spec(nest, c);
  spec.f32_in_parts = in_parts;
  if (runs) {  // of 4: plain_spec's index, with the coordinate written in two
    const auto lhs = spec.lhs, rhs = spec.rhs;
    if (c.lhs_k_contiguous && c.k % 4 == 0)
      spec.lhs_run = 4,
      spec.lhs_in_run = [=](Expr b, Expr row, Expr major, Expr minor) { return lhs(b, row, major * 4 + minor); };
    if (!c.rhs_k_contiguous && c.n % 4 == 0)
      spec.rhs_run = 4,
      spec.rhs_in_run = [=](Expr b, Expr k, Expr major, Expr minor) { return rhs(b, major * 4 + minor, k); };
  }
  build_contraction(nest, spec, cpu_target(CpuLevel::Amx, cache));
  verify(nest);
  return nest;
}
struct Operands {
  std::vector<float> lhs, rhs;
  Operands(const GemmCase& c, double spread = 0) : lhs(size_t(c.batch * c.m * c.k)), rhs(size_t(c.batch * c.n * c.k)) {
    std::mt19937 engine(7);
    std::normal_distribution<float> normal;
    for (auto* operand : {&lhs, &rhs})
      for (float& x : *operand) x = normal(engine) * float(std::exp2(spread * normal(engine)));
  }
};

std::vector<float> interpreted(const LoopNest& nest, const GemmCase& c, const Operands& o) {
  std::vector<interpret::Memory> arguments = {interpret::memory_of(o.lhs), interpret::memory_of(o.rhs),
                                              interpret::output_of(c.batch * c.m * c.n * 4)};
  for (const std::string& message : interpret::run(nest, arguments).messages) ADD_FAILURE() << message;
  return interpret::values_of<float>(arguments[kOut]);
}

// Tasks from the last to the first, in scratch memory full of NaN.
std::vector<float> compiled(const LoopNest& nest, const GemmCase& c, const Operands& o) {
  const Code code(emit::compile(nest, CpuLevel::Amx));
  Scratch scratch(nest);
  std::vector<float> out(size_t(c.batch * c.m * c.n));
  void* arguments[] = {const_cast<float*>(o.lhs.data()), const_cast<float*>(o.rhs.data()), out.data()};
  uint32_t status = 0;
  for (int64_t task = nest.parallel_extent; task-- > 0;) {
    scratch.poison();
    code.kernel(arguments, scratch.data(), &status, task, task + 1);
  }
  return out;
}

struct Exact { double sum = 0, magnitude = 0; };
Exact exact(const GemmCase& c, const Operands& o, int64_t b, int64_t i, int64_t j) {
  Exact e;
  for (int64_t k = 0; k < c.k; ++k) {
    const double product = double(o.lhs[size_t(c.lhs_at(b, i, k))]) * double(o.rhs[size_t(c.rhs_at(b, j, k))]);
    e.sum += product, e.magnitude += std::fabs(product);
  }
  return e;
}

// sqrt(sum of squared errors / sum of squares) against double.
double relative_error(const GemmCase& c, const Operands& o, const std::vector<float>& out) {
  double error = 0, norm = 0;
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t i = 0; i < c.m; ++i)
      for (int64_t j = 0; j < c.n; ++j) {
        const double sum = exact(c, o, b, i, j).sum, d = out[size_t(c.out_at(b, i, j))] - sum;
        error += d * d, norm += sum * sum;
      }
  return std::sqrt(error / norm);
}

// Each sum within `ulps` of f32 of the sum of its products' magnitudes.
void expect_near(const GemmCase& c, const Operands& o, const std::vector<float>& out, double ulps = 4) {
  int bad = 0;
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t i = 0; i < c.m; ++i)
      for (int64_t j = 0; j < c.n; ++j) {
        const Exact e = exact(c, o, b, i, j);
        const double got = out[size_t(c.out_at(b, i, j))],
                     bound = ulps * double(std::numeric_limits<float>::epsilon()) * e.magnitude +
                             double(std::numeric_limits<float>::denorm_min());
        if (!(std::fabs(got - e.sum) <= bound) && ++bad <= 3)
          ADD_FAILURE() << "at " << b << "," << i << "," << j << ": " << got << " for " << e.sum;
      }
  EXPECT_EQ(bad, 0);
}

std::string describe(const GemmCase& c) {
  return std::to_string(c.batch) + " x " + std::to_string(c.m) + "x" + std::to_string(c.n) + "x" + std::to_string(c.k) +
         (c.lhs_k_contiguous ? " N" : " T") + (c.rhs_k_contiguous ? "T" : "N");
}

GemmCase sized(int64_t batch, int64_t m, int64_t n, int64_t k, int layout) {
  return {batch, m, n, k, (layout & 1) != 0, (layout & 2) != 0};
}

// Sizes that do not divide tiles or blocks, several of all.
TEST(ContractionParts, InterpretedWithoutFindings) {
  const int64_t sizes[][4] = {{1, 259, 268, 67}, {2, 257, 257, 33}, {1, 256, 288, 224}, {1, 330, 249, 33}};
  for (const auto& [batch, m, n, k] : sizes)
    for (int layout = 0; layout < 4; ++layout)
      for (bool runs : {false, true}) {
        const GemmCase c = sized(batch, m, n, k, layout);
        SCOPED_TRACE(describe(c));
        const LoopNest nest = nest_of(c, kSmall, true, runs);
        EXPECT_TRUE(on_tiles(nest));
        const Operands o(c);
        expect_near(c, o, interpreted(nest, c, o));
      }
}

// The code, bit for bit the interpreter's, tasks in any order.
TEST(ContractionParts, CompiledAsInterpreted) {
  if (!interpret::emulate_amx()) GTEST_SKIP() << "no AVX-512 with bf16";
  for (int layout = 0; layout < 4; ++layout) {
    const GemmCase c = sized(1, 259, 268, 211, layout);
    SCOPED_TRACE(describe(c));
    const LoopNest nest = nest_of(c, kSmall);
    ASSERT_TRUE(on_tiles(nest));
    ASSERT_GT(nest.parallel_extent, 1);
    Operands o(c);
    o.lhs[size_t(c.lhs_at(0, 100, 3))] = 1e-35f;  // one tile of the lhs by FMAs
    const std::vector<float> one = interpreted(nest, c, o), other = compiled(nest, c, o);
    EXPECT_EQ(std::memcmp(one.data(), other.data(), one.size() * 4), 0);
    expect_near(c, o, other);
  }
}

/// By the code where the CPU can run it: the interpreter takes a hundred times as long.
std::vector<float> result_of(const LoopNest& nest, const GemmCase& c, const Operands& o) {
  return interpret::emulate_amx() ? compiled(nest, c, o) : interpreted(nest, c, o);
}

// As near to the truth as FMAs in f32, whatever the spread of the numbers; three products would be ten times as far
// off.
TEST(ContractionParts, AsAccurateAsFmas) {
  for (double spread : {0.0, 4.0})
    for (int64_t k : {64, 600}) {
      const GemmCase c{1, 256, 256, k, true, true};
      const Operands o(c, spread);
      const LoopNest parts = nest_of(c, {}), plain = nest_of(c, {}, false);
      ASSERT_TRUE(on_tiles(parts));
      ASSERT_FALSE(on_tiles(plain));
      const double error = relative_error(c, o, result_of(parts, c, o)),
                   fmas = relative_error(c, o, result_of(plain, c, o));
      std::printf("k %ld, spread 2^%g: %.2e by six products, %.2e by FMAs\n", k, spread, error, fmas);
      EXPECT_LT(error, 1.1 * fmas) << k;
    }
}

// Infinity, NaN, huge and tiny numbers: the result is that of FMAs wherever they meet, and the others' is no worse for
// it.
TEST(ContractionParts, NumbersThatTilesCannotTake) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN(),
              huge = 3.4e38f;
  for (int layout = 0; layout < 4; ++layout) {
    const GemmCase c = sized(1, 259, 268, 200, layout);
    SCOPED_TRACE(describe(c));
    const LoopNest nest = nest_of(c, kSmall);
    ASSERT_TRUE(on_tiles(nest));
    Operands o(c);
    o.lhs[size_t(c.lhs_at(0, c.m - 1, 199))] = nan;
    o.rhs[size_t(c.rhs_at(0, c.n - 1, 0))] = inf;
    o.lhs[size_t(c.lhs_at(0, 40, 5))] = huge;  // above bf16's greatest; nothing else overflows with it
    for (int64_t k = 0; k < c.k; ++k)
      for (int64_t j = 0; j < c.n; ++j)
        if (k == 5) o.rhs[size_t(c.rhs_at(0, j, k))] = j == c.n - 1 ? 0.5f : 0x1p-20f;
    for (int64_t k = 0; k < c.k; ++k) {
      o.lhs[size_t(c.lhs_at(0, 70, k))] *= 1e-30f;  // a row whose sums are denormals' neighbours
      o.rhs[size_t(c.rhs_at(0, 100, k))] *= 1e-12f;
      o.lhs[size_t(c.lhs_at(0, 71, k))] *= 1e-41f;  // a row of denormals
    }
    const std::vector<float> out = result_of(nest, c, o);
    int bad = 0;
    for (int64_t i = 0; i < c.m; ++i)
      for (int64_t j = 0; j < c.n; ++j) {
        const float got = out[size_t(c.out_at(0, i, j))];
        const Exact e = exact(c, o, 0, i, j);
        const bool ok = i == c.m - 1   ? std::isnan(got)
                        : j == c.n - 1 ? std::isinf(got)
                                       : std::fabs(got - e.sum) <= 4 * 1.2e-7 * e.magnitude + 200 * 1.4e-45;
        if (!ok && ++bad <= 3) ADD_FAILURE() << i << "," << j << ": " << got << " for " << e.sum;
      }
    EXPECT_EQ(bad, 0);
  }
}

TEST(ContractionParts, FmasWhereAsked) {
  const GemmCase c{1, 1024, 768, 768};
  EXPECT_TRUE(on_tiles(nest_of(c, {})));
  EXPECT_FALSE(on_tiles(nest_of(c, {}, false)));
  EXPECT_FALSE(on_tiles(nest_of({1, 4, 768, 768}, {}))) << "few rows";
  EXPECT_FALSE(on_tiles(nest_of({1, 1024, 1024, 31}, {}))) << "a short sum";
  GemmCase doubles{1, 256, 256, 256};
  doubles.dtype = DType::F64;
  EXPECT_FALSE(on_tiles(nest_of(doubles, {})));
}

TEST(ContractionParts, AssembledWithoutRelocations) {
  const LoopNest nest = nest_of({1, 256, 256, 256}, {});
  EXPECT_NE(emit::assembly(nest, CpuLevel::Amx).find("tdpbf16ps"), std::string::npos);
  EXPECT_GT(emit::compile(nest, CpuLevel::Amx).code.size(), 0u);  // throws where a relocation is left
}

}  // namespace
}  // namespace trainc
