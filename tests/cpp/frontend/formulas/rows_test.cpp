// What looks at whole rows: softmax, norms, reductions, losses.
#include <numeric>

#include "frontend/formulas/losses.h"
#include "frontend/formulas/normalization.h"
#include "frontend/formulas/reductions.h"
#include "frontend/formulas/shapes.h"
#include "frontend/formulas/softmax.h"
#include "harness.h"

namespace trainc::formulas {
namespace {

const double kInf = INFINITY;
/// The rows of [rows, n], each by a function.
std::vector<double> by_rows(const Tensor& x, size_t n,
                            const std::function<std::vector<double>(std::vector<double>)>& f) {
  std::vector<double> all;
  for (size_t i = 0; i < x.f.size(); i += n)
    for (double v : f({x.f.begin() + i, x.f.begin() + i + n})) all.push_back(v);
  return all;
}
std::vector<double> softmax_of(const std::vector<double>& row) {
  std::vector<double> e;
  for (double v : row) e.push_back(std::exp(v));
  const double sum = std::accumulate(e.begin(), e.end(), 0.0);
  for (double& v : e) v /= sum;
  return e;
}

// --- softmax
const Formula kSoftmax = [](const Values& v) { return Values{softmax(v[0], {v[0].rank() - 1})}; };
const Formula kLogSoftmax = [](const Values& v) { return Values{log_softmax(v[0], {v[0].rank() - 1})}; };

TEST(Softmax, OfRows) {
  for (const Dims& shape : {Dims{1}, Dims{5, 1}, Dims{3, 7}, Dims{0, 4}, Dims{2, 3, 5}}) {
    const Tensor x = random_tensor(shape, 3);
    const auto expected = by_rows(x, shape.back(), softmax_of);
    expect_near(numbers(kSoftmax, {x}), expected);
    std::vector<double> logs;
    for (double v : expected) logs.push_back(std::log(v));
    expect_near(numbers(kLogSoftmax, {x}), logs);
  }
}
TEST(Softmax, OverSeveralAxesAndInnerOnes) {
  const Tensor x = random_tensor({2, 3, 4}, 4);
  expect_near(numbers([](const Values& v) { return Values{softmax(v[0], {1, 2})}; }, {x}), by_rows(x, 12, softmax_of));
  expect_near(
      numbers([](const Values& v) { return Values{permute(softmax(v[0], {0}), {1, 0})}; }, {random_tensor({3, 7}, 5)}),
      numbers([](const Values& v) { return Values{softmax(permute(v[0], {1, 0}), {1})}; }, {random_tensor({3, 7}, 5)}));
}
TEST(Softmax, Derivatives) {
  expect_derivative(kSoftmax, [](const Values& v) { return Values{softmax_backward(v[0], softmax(v[1], {1}), {1})}; },
                    {random_tensor({3, 7}, 6)});
  expect_derivative(kLogSoftmax,
                    [](const Values& v) { return Values{log_softmax_backward(v[0], log_softmax(v[1], {1}), {1})}; },
                    {random_tensor({3, 7}, 6)});
}
TEST(Softmax, OfWhatIsNotFiniteAndOfLargeNumbers) {
  expect_near(numbers(kSoftmax, {tensor({2, 2}, {1e300, 1e300, -kInf, 5})}), {0.5, 0.5, 0, 1}, 0);
  expect_near(numbers(kSoftmax, {tensor({3, 2}, {-kInf, -kInf, kInf, 1, NAN, 1})}), std::vector<double>(6, NAN), 0);
  const auto safe = numbers([](const Values& v) { return Values{safe_softmax(v[0], {1})}; },
                            {tensor({2, 2}, {-kInf, -kInf, -kInf, 3})});
  expect_near(safe, {0, 0, 0, 1}, 0);
  expect_near(numbers(kLogSoftmax, {tensor({2}, {1e4, 1e4 - 1})}),
              {-std::log1p(std::exp(-1)), -1 - std::log1p(std::exp(-1))}, 1e-12);
}

// --- norms
Formula layer_norm_of(int64_t last) {
  return [last](const Values& v) {
    return Values{affine(normalize(v[0], last_axes(v[0].rank(), last), 1e-3).value, v[1], v[2])};
  };
}
Formula layer_norm_backward_of(int64_t last) {
  return [last](const Values& v) {
    const Dims inner = last_axes(v[1].rank(), last);
    Dims outer = all_axes(v[1].rank());
    outer.resize(outer.size() - inner.size());
    const Normalized n = normalize(v[1], inner, 1e-3);
    const NormGradients g = norm_backward(v[0], v[1], n.mean, n.rstd, v[2], inner, outer);
    return Values{g.x, g.scale, g.shift};
  };
}
TEST(Norms, LayerNorm) {
  const Tensor x = random_tensor({3, 5}, 7), scale = random_tensor({5}, 8), shift = random_tensor({5}, 9);
  const auto expected = by_rows(x, 5, [&](std::vector<double> row) {
    const double mean = std::accumulate(row.begin(), row.end(), 0.0) / 5;
    double var = 0;
    for (double v : row) var += (v - mean) * (v - mean) / 5;
    for (size_t i = 0; i < 5; ++i) row[i] = (row[i] - mean) / std::sqrt(var + 1e-3) * scale.f[i] + shift.f[i];
    return row;
  });
  expect_near(numbers(layer_norm_of(1), {x, scale, shift}), expected);
  expect_derivative(layer_norm_of(1), layer_norm_backward_of(1), {x, scale, shift});
  expect_derivative(layer_norm_of(2), layer_norm_backward_of(2),
                    {random_tensor({2, 3, 4}, 7), random_tensor({3, 4}, 8), random_tensor({3, 4}, 9)});
  expect_derivative(layer_norm_of(1), layer_norm_backward_of(1),
                    {random_tensor({4, 1}, 7), random_tensor({1}, 8), random_tensor({1}, 9)});
}
/// [N, C, rest...] in two groups and as a batch norm.
TEST(Norms, GroupNorm) {
  const ChannelGroups g{2, 4, 3, 2};
  const Formula forward = [g](const Values& v) {
    return Values{
        reshape(affine(normalize(g.grouped(v[0]), {2, 3}, 1e-3).value, g.per_channel(v[1]), g.per_channel(v[2])),
                v[0].shape())};
  };
  const Formula backward = [g](const Values& v) {
    const Normalized n = normalize(g.grouped(v[1]), {2, 3}, 1e-3);
    const NormGradients d =
        norm_backward(g.grouped(v[0]), g.grouped(v[1]), n.mean, n.rstd, g.per_channel(v[2]), {2, 3}, {0, 3});
    return Values{reshape(d.x, v[1].shape()), reshape(d.scale, {4}), reshape(d.shift, {4})};
  };
  expect_derivative(forward, backward, {random_tensor({2, 4, 3}, 10), random_tensor({4}, 11), random_tensor({4}, 12)});
}
TEST(Norms, BatchNormInTrainingAndInEvaluation) {
  for (bool training : {true, false}) {
    const auto normalized = [training](Value x) {
      if (training) return normalize(x, all_but_channels(x.rank()), 1e-3);
      Value mean = with(x, x.b->full(x.dtype(), {1, 3, 1}, 0.25));
      return normalize_by(x, mean, mean + 2, 1e-3);
    };
    const Formula forward = [=](const Values& v) {
      return Values{affine(normalized(v[0]).value, along_channels(v[1], 3), along_channels(v[2], 3))};
    };
    const Formula backward = [=](const Values& v) {
      const Normalized n = normalized(v[1]);
      const NormGradients d = batch_norm_backward(v[0], v[1], n.mean, n.rstd, v[2], training);
      return Values{d.x, d.scale, d.shift};
    };
    expect_derivative(forward, backward,
                      {random_tensor({4, 3, 2}, 13), random_tensor({3}, 14), random_tensor({3}, 15)});
  }
}
TEST(Norms, ALargeMeanLosesNoDigits) {
  Tensor x = random_tensor({1, 64}, 16);
  const auto plain = numbers(layer_norm_of(1),
                             {x, tensor({64}, std::vector<double>(64, 1)), tensor({64}, std::vector<double>(64, 0))});
  for (double& v : x.f) v += 1e8;
  expect_near(numbers(layer_norm_of(1),
                      {x, tensor({64}, std::vector<double>(64, 1)), tensor({64}, std::vector<double>(64, 0))}),
              plain, 1e-6);
}

// --- reductions
TEST(Reductions, AgainstLoops) {
  const Tensor x = tensor({2, 3}, {1, 2, 6, -1, -1, -4});
  const auto over_rows = [](auto f) -> Formula { return [f](const Values& v) { return Values{f(v[0])}; }; };
  expect_near(numbers(over_rows([](Value v) { return mean(v, {1}); }), {x}), {3, -2});
  expect_near(numbers(over_rows([](Value v) { return variance(v, {1}, 1).var; }), {x}), {7, 3});
  expect_near(numbers(over_rows([](Value v) { return variance(v, {1}, 3).var; }), {x}), {kInf, kInf});
  expect_near(numbers(over_rows([](Value v) { return *vector_norm(v, 2, {1}); }), {x}), {std::sqrt(41), std::sqrt(18)});
  expect_near(numbers(over_rows([](Value v) { return *vector_norm(v, 1, {0}); }), {x}), {2, 3, 10});
  expect_near(numbers(over_rows([](Value v) { return *vector_norm(v, INFINITY, {0, 1}); }), {x}), {6});
  expect_near(numbers(over_rows([](Value v) { return logsumexp(v, {1}); }),
                      {tensor({4, 2}, {1e300, 1e300, -kInf, -kInf, kInf, 1, NAN, 1})}),
              {1e300, -kInf, kInf, NAN}, 0);
  expect_near(numbers(over_rows([](Value v) { return mean(v, {1}); }), {tensor({2, 0}, {})}), {NAN, NAN});
}

// --- losses
TEST(Losses, NegativeLogLikelihoodOfClasses) {
  const Tensor target = integers({4}, {2, 0, -100, 1}), weight = tensor({3}, {0.5, 2, 3}),
               x = random_tensor({4, 3}, 17);
  const auto classes = [](const Values& v) { return classes_of(v[0].shape(), v[2], -100, v[1]); };
  const Formula loss = [&](const Values& v) { return Values{nll_loss(v[0], classes(v))}; };
  expect_near(numbers(loss, {x, weight, target}), {-3 * x.f[2], -0.5 * x.f[3], 0, -2 * x.f[10]});
  expect_near(numbers([&](const Values& v) { return Values{nll_total_weight(v[0], classes(v))}; }, {x, weight, target}),
              {5.5});
  expect_derivative(
      loss, [&](const Values& v) { return Values{nll_loss_backward(v[0], v[1].shape(), classes({v[1], v[2], v[3]}))}; },
      {x, weight, target});
  EXPECT_ANY_THROW(numbers(loss, {x, weight, integers({4}, {0, 3, 0, 0})})) << "no class";
  // without weights, too, no gradient comes from a target that does not count
  const auto plain = [](const Values& v) { return classes_of(v[0].shape(), v[1], -100, std::nullopt); };
  expect_near(numbers([&](const Values& v) { return Values{nll_total_weight(v[0], plain(v))}; }, {x, target}), {3});
  expect_derivative([&](const Values& v) { return Values{nll_loss(v[0], plain(v))}; },
                    [&](const Values& v) { return Values{nll_loss_backward(v[0], v[1].shape(), plain({v[1], v[2]}))}; },
                    {x, target});
}
TEST(Losses, CrossEntropyOfPlacesAndOfOneSample) {
  const Tensor x = random_tensor({2, 3, 2}, 18);
  const auto rows = numbers(
      [](const Values& v) { return Values{cross_entropy(v[0], classes_of(v[0].shape(), v[1], -1, std::nullopt))}; },
      {x, integers({2, 2}, {0, 1, 2, -1})});
  const auto expected = [&](int64_t n, int64_t place, int64_t target) {
    const double* p = x.f.data() + n * 6 + place;
    return std::log(std::exp(p[0]) + std::exp(p[2]) + std::exp(p[4])) - p[2 * target];
  };
  expect_near(rows, {expected(0, 0, 0), expected(0, 1, 1), expected(1, 0, 2), 0});
  expect_near(
      numbers([](const Values& v) { return Values{nll_loss(v[0], classes_of(v[0].shape(), v[1], -1, std::nullopt))}; },
              {tensor({3}, {-1, -2, -3}), integers({}, {1})}),
      {2});
}

struct Loss {
  const char* name;
  std::function<Value(Value x, Value t)> forward;
  std::function<Value(Value dy, Value x, Value t)> backward;
  std::function<double(double x, double t)> closed;
};
TEST(Losses, OfElements) {
  const std::vector<Loss> losses{
      {"mse", mse_loss, [](Value dy, Value x, Value t) { return mse_loss_backward(dy, x, t, 1); },
       [](double x, double t) { return (x - t) * (x - t); }},
      {"smooth l1", [](Value x, Value t) { return smooth_l1_loss(x, t, 0.25); },
       [](Value dy, Value x, Value t) { return smooth_l1_loss_backward(dy, x, t, 0.25, 1); },
       [](double x, double t) {
         const double z = std::abs(x - t);
         return z < 0.25 ? 2 * z * z : z - 0.125;
       }},
      {"l1", [](Value x, Value t) { return smooth_l1_loss(x, t, 0); },
       [](Value dy, Value x, Value t) { return smooth_l1_loss_backward(dy, x, t, 0, 1); },
       [](double x, double t) { return std::abs(x - t); }},
      {"huber", [](Value x, Value t) { return huber_loss(x, t, 0.25); },
       [](Value dy, Value x, Value t) { return huber_loss_backward(dy, x, t, 0.25, 1); },
       [](double x, double t) {
         const double z = std::abs(x - t);
         return z < 0.25 ? z * z / 2 : z / 4 - 0.03125;
       }},
      {"binary", binary_cross_entropy,
       [](Value dy, Value x, Value t) { return binary_cross_entropy_backward(dy, x, t, 1e-12); },
       [](double x, double t) { return -t * std::log(x) - (1 - t) * std::log1p(-x); }},
  };
  for (const Loss& l : losses)
    for (const Dims& shape : {Dims{}, Dims{1}, Dims{0}, Dims{3, 7}}) {
      SCOPED_TRACE(l.name);
      const Tensor x = random_tensor(shape, 19, 0.01, 0.99), t = random_tensor(shape, 20, 0, 1);
      std::vector<double> expected;
      for (size_t i = 0; i < x.f.size(); ++i) expected.push_back(l.closed(x.f[i], t.f[i]));
      const Formula forward = [&](const Values& v) { return Values{l.forward(v[0], v[1])}; };
      expect_near(numbers(forward, {x, t}), expected);
      expect_derivative(forward, [&](const Values& v) { return Values{l.backward(v[0], v[1], v[2])}; }, {x, t}, 1e-5);
    }
}
TEST(Losses, TheMeanSharesItsGradient) {
  const Tensor x = random_tensor({3, 4}, 21), t = random_tensor({3, 4}, 22);
  for (Reduction r : {Reduction::Mean, Reduction::Sum})
    expect_derivative(
        [r](const Values& v) { return Values{reduced(mse_loss(v[0], v[1]), r)}; },
        [r](const Values& v) { return Values{mse_loss_backward(v[0], v[1], v[2], share_of(v[1].numel(), r))}; },
        {x, t});
}
TEST(Losses, ProbabilitiesAtAndBeyondTheirEnds) {
  const Formula f = [](const Values& v) { return Values{binary_cross_entropy(v[0], v[1])}; };
  expect_near(numbers(f, {tensor({4}, {0, 1, 0, 1}), tensor({4}, {0, 1, 1, 0})}), {0, 0, 100, 100}, 0);
  for (double bad : {-0.1, 1.1, static_cast<double>(NAN)})
    EXPECT_ANY_THROW(numbers(f, {tensor({1}, {bad}), tensor({1}, {1})}));
  const Formula of_logits = [](const Values& v) { return Values{binary_cross_entropy_of_logits(v[0], v[1], v[2])}; };
  expect_near(numbers(of_logits, {tensor({3}, {1e300, -1e300, 0}), tensor({3}, {1, 1, 1}), tensor({}, {2})}),
              {0, 2e300, 2 * std::log(2)}, 1e-12);
}

}  // namespace
}  // namespace trainc::formulas
