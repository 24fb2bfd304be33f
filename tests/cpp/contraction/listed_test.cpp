// Contractions whose rows, or terms, are listed: what is not is passed over.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "../common/levels.h"
#include "gemm.h"
#include "interpret/amx.h"
#include "interpret/interpret.h"

namespace trainc {
namespace {

using namespace loop;
using namespace lower;
using namespace testing;

constexpr CacheSizes kSmall{.l1d = 4 << 10, .l2 = 64 << 10, .l3 = 1 << 20};

enum class Kind { F32, Parts, Bf16, Rounded };  // Rounded: of f32, which packing rounds to bf16
enum class List { None, Rows, Terms };

struct Problem {
  GemmCase gemm;
  List list;
  LoopNest nest;
  std::vector<float> lhs, rhs;
  std::vector<int64_t> order, count;

  Problem(CpuLevel level, GemmCase c, Kind kind, List l) : gemm(c), list(l) {
    gemm.dtype = kind == Kind::Bf16 ? DType::BF16 : DType::F32;
    ContractionSpec spec = plain_spec(nest, gemm);
    spec.f32_in_parts = kind == Kind::Parts;
    if (kind == Kind::Rounded)
      for (auto* operand : {&spec.lhs, &spec.rhs})
        *operand = [plain = *operand](Expr b, Expr row, Expr k) { return cast(plain(b, row, k), DType::BF16); };
    order.resize(size_t(l == List::Terms ? c.k : c.m)), count = {0};
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(3));
    if (l != List::None) {
      spec.listed.order = nest.add_buffer({"order", DType::I64, int64_t(order.size())});
      spec.listed.count = nest.add_buffer({"count", DType::I64, 1});
      spec.listed.terms = l == List::Terms;
      spec.listed.zeros = [c](const Expr& m, const Expr& n) { return store(kOut, m * c.n + n, real(0, DType::F32)); };
    }
    build_contraction(nest, spec, cpu_target(level, kSmall));
    verify(nest);
  }

  int64_t all() const { return int64_t(order.size()); }
  bool listed(int64_t at) const {
    return std::find(order.begin(), order.begin() + count[0], at) < order.begin() + count[0];
  }

  // Whole numbers, of which every sum is exact, or normal variates. Terms that are not listed are 0 in the lhs.
  void fill(bool whole) {
    std::mt19937 engine(5);
    std::normal_distribution<float> normal(0, whole ? 3 : 1);
    lhs.resize(size_t(gemm.m * gemm.k)), rhs.resize(size_t(gemm.n * gemm.k));
    for (auto* operand : {&lhs, &rhs})
      for (float& x : *operand) x = whole ? std::round(normal(engine)) : normal(engine);
    for (int64_t k = 0; list == List::Terms && k < gemm.k; ++k)
      for (int64_t i = 0; !listed(k) && i < gemm.m; ++i) lhs[size_t(gemm.lhs_at(0, i, k))] = 0;
  }

  interpret::Memory memory(const std::vector<float>& values) const {
    if (gemm.dtype == DType::F32) return interpret::memory_of(values);
    return interpret::memory_of(std::vector<Bf16>(values.begin(), values.end()));
  }

  std::vector<float> interpreted() const {
    std::vector<interpret::Memory> arguments = {memory(lhs), memory(rhs), interpret::output_of(gemm.m * gemm.n * 4)};
    if (list != List::None)
      arguments.push_back(interpret::memory_of(order)), arguments.push_back(interpret::memory_of(count));
    for (const std::string& message : interpret::run(nest, arguments).messages) ADD_FAILURE() << message;
    return interpret::values_of<float>(arguments[kOut]);
  }

  // In memory full of NaN.
  std::vector<float> compiled(const Code& code) const {
    Scratch scratch(nest);
    interpret::Memory a = memory(lhs), b = memory(rhs);
    std::vector<float> out(size_t(gemm.m * gemm.n), std::nanf(""));
    void* arguments[] = {a.bytes.data(), b.bytes.data(), out.data(), const_cast<int64_t*>(order.data()),
                         const_cast<int64_t*>(count.data())};
    uint32_t status = 0;
    for (int64_t task = 0; task < nest.parallel_extent; ++task) {
      scratch.poison();
      code.kernel(arguments, scratch.data(), &status, task, task + 1);
    }
    return out;
  }

  void expect_product(const std::vector<float>& out) const {
    int bad = 0;
    for (int64_t i = 0; i < gemm.m; ++i)
      for (int64_t j = 0; j < gemm.n; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < gemm.k && (list != List::Rows || listed(i)); ++k)
          sum += double(lhs[size_t(gemm.lhs_at(0, i, k))]) * double(rhs[size_t(gemm.rhs_at(0, j, k))]);
        const float got = out[size_t(gemm.out_at(0, i, j))];
        if (got != float(sum) && ++bad <= 3) ADD_FAILURE() << i << "," << j << ": " << got << " for " << sum;
      }
    EXPECT_EQ(bad, 0);
  }
};

std::string describe(CpuLevel level, const Problem& p, Kind kind) {
  return std::string(name_of(level)) + " " + std::to_string(p.gemm.m) + "x" + std::to_string(p.gemm.n) + "x" +
         std::to_string(p.gemm.k) + (p.gemm.lhs_k_contiguous ? " N" : " T") + (p.gemm.rhs_k_contiguous ? "T" : "N") +
         " kind " + std::to_string(int(kind)) + (p.list == List::Rows ? " rows" : " terms");
}

template <class Visit>
void each_problem(std::initializer_list<CpuLevel> levels, Visit visit) {
  for (const CpuLevel level : levels)
    for (const Kind kind : {Kind::F32, Kind::Parts, Kind::Bf16, Kind::Rounded}) {
      const bool bf16 = kind == Kind::Bf16 || kind == Kind::Rounded;
      if ((bf16 && !has_bf16_dot(level)) || (kind == Kind::Parts && !has_tiles(level))) continue;
      for (const List list : {List::Rows, List::Terms})
        for (int layout = 0; layout < 4; ++layout) {
          // terms: what tiles take whole, so that nothing but the list asks for zeros behind the last one
          const int64_t m = bf16 ? 67 : 259, n = bf16 ? 61 : 257,
                        k = list == List::Rows ? (bf16 ? 45 : 33)
                            : bf16             ? 64
                                               : 160;
          Problem p(level, {1, m, n, k, (layout & 1) != 0, (layout & 2) != 0}, kind, list);
          SCOPED_TRACE(describe(level, p, kind));
          visit(level, p, kind);
          if (::testing::Test::HasFailure()) return;
        }
    }
}

TEST(ContractionListed, InterpretedWithoutFindings) {
  int64_t tiles = 0;
  each_problem({CpuLevel::Amx, CpuLevel::Avx512Bf16}, [&](CpuLevel level, Problem& p, Kind kind) {
    if (kind == Kind::F32 && has_tiles(level)) return;  // the level below has them
    tiles += on_tiles(p.nest);
    p.count = {p.all() / 4 + 1};
    p.fill(true);
    p.expect_product(p.interpreted());
  });
  EXPECT_EQ(tiles, 3 * 2 * 4) << "parts, bf16 and what is rounded to it are to be on tiles";
}

TEST(ContractionListed, CompiledToTheBitOfAllRows) {
  interpret::emulate_amx();
  each_problem({CpuLevel::Amx, CpuLevel::Avx512Bf16, CpuLevel::Avx512, CpuLevel::Avx2},
               [&](CpuLevel level, Problem& p, Kind kind) {
                 if (level < machine_cpu_level()) return;
                 const Code code(emit::compile(p.nest, level));
                 for (const int64_t shown : {int64_t{1}, p.all() / 3, p.all() / 2 + 1, p.all()}) {
                   p.count = {0};
                   p.fill(true);
                   p.expect_product(p.compiled(code));
                 }
                 if (p.list != List::Rows) return;
                 Problem whole(level, p.gemm, kind, List::None);
                 whole.fill(false);
                 const std::vector<float> all = whole.compiled(Code(emit::compile(whole.nest, level)));
                 p.count = {p.all() / 3};
                 p.fill(false);
                 const std::vector<float> got = p.compiled(code);
                 for (int64_t i = 0; i < p.gemm.m; ++i)
                   for (int64_t j = 0; j < p.gemm.n; ++j) {
                     const size_t at = size_t(p.gemm.out_at(0, i, j));
                     ASSERT_EQ(got[at], p.listed(i) ? all[at] : 0) << i << "," << j;
                   }
               });
}

}  // namespace
}  // namespace trainc
