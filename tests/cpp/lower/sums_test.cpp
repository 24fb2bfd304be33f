// The error of sums does not grow with their length: kernels under the interpreter, whatever the order in which axes
// lie in memory.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "graph/text.h"
#include "run_schedule.h"
#include "schedule/prepare.h"

namespace trainc::lower {
namespace {

using namespace schedule;

using reference::Tensor;

struct Sum { Dims shape, axes; };

/// The sums and the sums of magnitudes, in long double with Neumaier's correction: exact, as far as this test can tell.
struct Truth { std::vector<long double> sum, size; };
Truth truth_of(const Tensor& x, const Sum& s) {
  Dims kept_strides(s.shape.size(), 0);
  int64_t results = 1;
  for (size_t k = s.shape.size(); k-- > 0;)
    if (std::find(s.axes.begin(), s.axes.end(), static_cast<int64_t>(k)) == s.axes.end())
      kept_strides[k] = results, results *= s.shape[k];
  const Dims strides = contiguous_strides(s.shape);
  Truth t{std::vector<long double>(results), std::vector<long double>(results)};
  std::vector<long double> lost(results);
  for (size_t i = 0; i < x.f.size(); ++i) {
    int64_t to = 0;
    for (size_t k = 0; k < s.shape.size(); ++k)
      to += static_cast<int64_t>(i) / strides[k] % s.shape[k] * kept_strides[k];
    const long double v = x.f[i], sum = t.sum[to] + v;
    lost[to] += std::abs(t.sum[to]) >= std::abs(v) ? (t.sum[to] - sum) + v : (v - sum) + t.sum[to];
    t.sum[to] = sum;
    t.size[to] += std::abs(v);
  }
  for (int64_t r = 0; r < results; ++r) t.sum[r] += lost[r];
  return t;
}

/// Terms that show long chains: equal ones are rounded the same way again and again, ones vanish beside what is large.
Tensor terms(const Dims& shape, DType dtype, int which, uint64_t seed) {
  Tensor t{{dtype, shape}, {}, {}};
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  const int64_t count = t.type.numel();
  for (int64_t i = 0; i < count; ++i) {
    double v = which == 0           ? 0.1
               : which == 1         ? normal(random)
               : i < count / 50 + 1 ? (dtype == DType::F64 ? 0x1p53 : 0x1p24)
                                    : 1;
    t.f.push_back(dtype == DType::F64 ? v : static_cast<double>(static_cast<float>(v)));
  }
  return t;
}

/// Sums over rows, columns, middle axes, several axes, everything; of random lengths, the given one along the longest
/// axis.
std::vector<Sum> layouts(int64_t n, std::mt19937_64& random) {
  const auto some = [&](int64_t most) { return 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(most)); };
  std::vector<Sum> all = {{{n}, {0}},
                          {{some(3), n}, {1}},
                          {{n, some(4)}, {0}},
                          {{some(2), n, some(3)}, {1}},
                          {{n, some(2), some(3)}, {0, 2}},
                          {{some(9), n}, {0, 1}}};
  if (n < 12000) all.push_back({{n, 16 + some(60)}, {0}});
  const int64_t side = std::max<int64_t>(1, n / 64);
  all.push_back({{some(64), 2, side}, {0, 2}});
  all.push_back({{some(12), side, 2, some(12)}, {0, 1, 3}});
  return all;
}

class Sums : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, Sums, ::testing::Values(DType::F32, DType::F64),
                         [](const auto& p) { return std::string(name_of(p.param)); });

TEST_P(Sums, KeepTheirErrorAsTheyGrow) {
  const DType dtype = GetParam();
  const double unit = dtype == DType::F64 ? 0x1p-53 : 0x1p-24;
  std::mt19937_64 random(11);
  double worst = 0;
  std::string where;
  for (int64_t n : {2, 3, 7, 9, 16, 17, 31, 65, 127, 128, 255, 513, 1021, 1024, 3137, 4099, 10007, 31397, 99991}) {
    const CpuLevel level = random() % 2 ? CpuLevel::Avx512 : CpuLevel::Avx2;
    for (const Sum& s : layouts(n, random)) {
      const int which = static_cast<int>(random() % 3);
      std::string text = fmt::format("%0 = input index=0 : {0}[{1}]\n%1 = reduce %0 kind=sum axes=[{2}] : {0}[",
                                     name_of(dtype), fmt::join(s.shape, ","), fmt::join(s.axes, ","));
      Dims kept;
      int64_t length = 1;
      for (size_t k = 0; k < s.shape.size(); ++k) {
        const bool folded = std::find(s.axes.begin(), s.axes.end(), static_cast<int64_t>(k)) != s.axes.end();
        if (folded) length *= s.shape[k];
        else kept.push_back(s.shape[k]);
      }
      text += fmt::format("{}]\nreturn %1\n", fmt::join(kept, ","));
      SCOPED_TRACE(text + fmt::format("terms {} for {}", which, name_of(level)));
      const Graph graph = prepare(parse(text));
      const Tensor x = terms(s.shape, dtype, which, random());
      const testing::Interpreted got =
          testing::interpret_schedule(graph, make_schedule(graph, true), {x}, {cpu_target(level)});
      for (const std::string& finding : got.findings) ADD_FAILURE() << finding;
      ASSERT_EQ(got.outputs.size(), 1u);
      const Truth truth = truth_of(x, s);
      // The last rounding, and what as many additions as a balanced tree is deep may lose, twice over.
      const double additions = std::min<double>(static_cast<double>(length - 1),
                                                8 + 2 * std::ceil(std::log2(static_cast<double>(length) + 1)));
      for (size_t r = 0; r < truth.sum.size(); ++r) {
        const double error = static_cast<double>(std::abs(got.outputs[0].f[r] - truth.sum[r]));
        const double bound =
            unit * (static_cast<double>(std::abs(truth.sum[r])) + additions * static_cast<double>(truth.size[r])) *
            1.001;
        ASSERT_LE(error, bound) << "result " << r << " is off by " << error / bound << " times what is allowed";
        if (error > worst * bound) worst = error / bound, where = text;
      }
    }
  }
  RecordProperty("worst", std::to_string(worst));
  SUCCEED() << worst << " of what is allowed: " << where;
}

// A running sum of f32 is kept in f64 and each element rounded once, as eager's is.
TEST(Sums, ScansAreKeptInF64) {
  for (const char* text : {"%0 = input index=0 : f32[4000]\n%1 = scan %0 axis=0 : f32[4000]\nreturn %1\n",
                           "%0 = input index=0 : f32[1300,3]\n%1 = scan %0 axis=0 : f32[1300,3]\nreturn %1\n",
                           "%0 = input index=0 : f32[2,700,1]\n%1 = scan %0 axis=1 : f32[2,700,1]\nreturn %1\n"}) {
    const Graph graph = prepare(parse(text));
    const Tensor x = terms(graph.outputs[0].value->shape(), DType::F32, 1, 5);
    const testing::Interpreted got =
        testing::interpret_schedule(graph, make_schedule(graph, true), {x}, {cpu_target(CpuLevel::Avx512)});
    EXPECT_TRUE(got.findings.empty());
    EXPECT_EQ(
        got.outputs.at(0).f,
        reference::evaluate(graph, {x}, {.precision = reference::Precision::Rounded, .random = {}, .call = {}}).at(0).f)
        << text;
  }
}

// Sums of halves are rounded once: what lies between is f32 or wider, however many kernels share the work.
TEST(Sums, OfHalvesAreRoundedOnce) {
  for (const char* text :
       {"%0 = input index=0 : bf16[65536]\n%1 = reduce %0 kind=sum axes=[0] : bf16[]\nreturn %1\n",
        "%0 = input index=0 : bf16[4097,9]\n%1 = reduce %0 kind=sum axes=[0] : bf16[9]\nreturn %1\n",
        "%0 = input index=0 : f16[3,20000]\n%1 = reduce %0 kind=sum axes=[1] : f16[3]\nreturn %1\n"}) {
    const Graph from = parse(text), graph = prepare(from);
    Tensor x{from.outputs[0].value->in(0)->type, {}, {}};
    std::mt19937_64 random(3);
    for (int64_t i = 0; i < x.type.numel(); ++i) x.f.push_back(static_cast<double>(1 + random() % 7) / 8);
    const testing::Interpreted got =
        testing::interpret_schedule(graph, make_schedule(graph, true), {x}, {cpu_target(CpuLevel::Avx512)});
    EXPECT_TRUE(got.findings.empty());
    EXPECT_EQ(
        got.outputs.at(0).f,
        reference::evaluate(from, {x}, {.precision = reference::Precision::Rounded, .random = {}, .call = {}}).at(0).f)
        << text;
  }
}

}  // namespace
}  // namespace trainc::lower
