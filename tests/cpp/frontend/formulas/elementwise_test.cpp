// Elementwise functions that are more than one primitive.
#include "frontend/formulas/elementwise.h"

#include "harness.h"

namespace trainc::formulas {
namespace {

const double kInf = INFINITY;

TEST(Elementwise, Logaddexp) {
  const Formula f = [](const Values& v) { return Values{logaddexp(v[0], v[1])}; };
  const Tensor x = random_tensor({3, 1, 5}, 1, -20, 20), y = random_tensor({4, 1}, 2, -20, 20);
  std::vector<double> expected;
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 4; ++j)
      for (int k = 0; k < 5; ++k) expected.push_back(std::log(std::exp(x.f[i * 5 + k]) + std::exp(y.f[j])));
  expect_near(numbers(f, {x, y}), expected);
  expect_near(numbers(f, {tensor({6}, {1e300, kInf, -kInf, kInf, -kInf, NAN}),
                          tensor({6}, {1e300, kInf, -kInf, -kInf, 3, kInf})}),
              {1e300, kInf, -kInf, kInf, 3, NAN}, 0);
  expect_near(numbers(f, {tensor({0, 3}, {}), tensor({1}, {1})}), {});
}

TEST(Elementwise, LerpIsExactAtBothEnds) {
  const Tensor x = tensor({2}, {1e16, 1}), end = tensor({2}, {1, 3});
  const auto of = [](double w) -> Formula {
    return [w](const Values& v) { return Values{lerp(v[0], v[1], w), lerp(v[0], v[1], number(v[0], w))}; };
  };
  for (const auto& [w, expected] : std::vector<std::pair<double, std::vector<double>>>{{0, x.f}, {1, end.f}}) {
    const auto got = values_of(of(w), {x, end});
    expect_near(got[0].f, expected, 0);
    expect_near(got[1].f, expected, 0);
  }
}

TEST(Elementwise, NanToNum) {
  expect_near(
      numbers([](const Values& v) { return Values{nan_to_num(v[0], 1, 2, 3)}; }, {tensor({4}, {NAN, kInf, -kInf, 5})}),
      {1, 2, 3, 5}, 0);
  for (DType d : {DType::F64, DType::F32, DType::BF16, DType::F16}) {
    const auto limits = values_of([&](const Values& v) { return Values{with(v[0], v[0].b->constant(d, largest(d)))}; },
                                  {tensor({}, {0})}, reference::Precision::Rounded);
    EXPECT_EQ(limits[0].f[0], largest(d));
  }
}

}  // namespace
}  // namespace trainc::formulas
