// build_contraction under the interpreter: no access out of bounds, nothing read before it is written, no two tasks on one element;
// also for levels that this machine does not have.
#include <gtest/gtest.h>

#include <cmath>

#include "gemm.h"
#include "interpret/interpret.h"

namespace trainc {
namespace {

using namespace loop;
using namespace testing;

void expect_clean(const GemmCase& c, CpuLevel level, const CacheSizes& cache) {
  SCOPED_TRACE(std::to_string(c.batch) + "x" + std::to_string(c.m) + "x" + std::to_string(c.n) + "x" + std::to_string(c.k) + (c.lhs_k_contiguous ? "N" : "T") +
               (c.rhs_k_contiguous ? "T " : "N ") + std::string(name_of(level)));
  LoopNest nest = plain_gemm(c, level, cache);
  verify(nest);
  std::mt19937 engine(3);
  std::uniform_int_distribution<int> small(-4, 4);  // every sum is exact: the result must be equal
  std::vector<float> lhs(c.batch * c.m * c.k), rhs(c.batch * c.n * c.k);
  for (float& x : lhs) x = float(small(engine));
  for (float& x : rhs) x = float(small(engine));
  std::vector<interpret::Memory> arguments = {interpret::memory_of(lhs), interpret::memory_of(rhs), interpret::output_of(c.batch * c.m * c.n * 4)};
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
  const int64_t sizes[][4] = {{1, 1, 1, 1}, {2, 13, 33, 7}, {1, 12, 32, 16}, {1, 25, 49, 70}, {1, 8, 48, 270}, {1, 61, 10, 260}, {3, 2, 17, 5}};
  for (CpuLevel level : {CpuLevel::Avx512, CpuLevel::Avx2})
    for (auto [batch, m, n, k] : sizes)
      for (int layout = 0; layout < 4; ++layout) expect_clean({batch, m, n, k, (layout & 1) != 0, (layout & 2) != 0}, level, tiny);
}

TEST(ContractionInterpreted, EmptySumsAreStored) {
  for (int layout = 0; layout < 4; ++layout) expect_clean({2, 13, 33, 0, (layout & 1) != 0, (layout & 2) != 0}, CpuLevel::Avx2, {});
}

}  // namespace
}  // namespace trainc
