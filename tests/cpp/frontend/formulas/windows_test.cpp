// What looks at windows of an image, matrices and indices: convolution, pooling, attention, lookups, views that step.
#include "frontend/formulas/attention.h"
#include "frontend/formulas/contractions.h"
#include "frontend/formulas/convolution.h"
#include "frontend/formulas/indexing.h"
#include "frontend/formulas/pooling.h"
#include "frontend/formulas/random.h"
#include "frontend/formulas/shapes.h"
#include "frontend/formulas/strided.h"
#include "harness.h"

namespace trainc::formulas {
namespace {

// --- convolution
struct Form {
  Dims x, w, stride, padding, dilation;
  int64_t more = 0;  // padding behind
};
const std::vector<Form> kForms{
    {{2, 3, 7}, {4, 3, 3}, {1}, {1}, {1}},  // one axis
    {{1, 1, 1}, {1, 1, 1}, {1}, {0}, {1}},
    {{2, 2, 6, 5}, {3, 2, 3, 2}, {2, 1}, {1, 0}, {1, 2}},  // a step, a dilation
    {{1, 2, 5, 5}, {2, 2, 2, 2}, {3, 3}, {0, 0}, {1, 1}},  // places between the windows
    {{2, 3, 4, 6}, {5, 3, 2, 3}, {2, 3}, {0, 0}, {1, 1}},  // windows side by side
    {{2, 3, 4, 4}, {5, 3, 1, 1}, {1, 1}, {0, 0}, {1, 1}},
    {{1, 2, 3, 3, 3}, {2, 2, 2, 2, 2}, {1, 2, 1}, {1, 0, 0}, {1, 1, 1}},
    {{2, 3, 7}, {3, 1, 4}, {1}, {3}, {1}},  // depthwise, here and below
    {{2, 3, 6, 5}, {3, 1, 3, 2}, {2, 1}, {1, 0}, {1, 2}},
    {{1, 2, 5, 5}, {2, 1, 2, 2}, {3, 3}, {0, 0}, {1, 1}},  // places between the windows
    {{2, 3, 4, 6}, {3, 1, 2, 3}, {2, 3}, {0, 0}, {1, 1}},  // side by side
    {{1, 2, 3, 3, 3}, {2, 1, 2, 2, 2}, {1, 2, 1}, {1, 0, 0}, {1, 1, 1}},
    {{2, 6, 7}, {4, 3, 4}, {2}, {1}, {1}},  // groups, here and below
    {{2, 4, 6, 5}, {6, 2, 3, 2}, {2, 1}, {1, 0}, {1, 2}, 1},
    {{1, 3, 5, 5}, {6, 1, 2, 2}, {3, 3}, {0, 0}, {1, 1}},  // of one channel, which several look at
    {{2, 4, 4, 6}, {2, 2, 2, 3}, {2, 3}, {0, 0}, {1, 1}},
    {{2, 7, 4, 6}, {5, 7, 2, 3}, {2, 3}, {0, 0}, {1, 1}},      // side by side, more channels than places
    {{2, 7, 2, 3}, {5, 7, 2, 3}, {1, 1}, {0, 0}, {1, 1}},      // the whole image
    {{1, 2, 7, 5}, {2, 2, 2, 3}, {2, 3}, {1, 0}, {1, 1}, -1},  // less padding behind, and places cut off
};
Convolution of(const Form& f) {
  Dims high = f.padding;
  for (int64_t& places : high) places += f.more;
  return convolution_of(f.x, f.w, f.stride, f.padding, high, f.dilation);
}

/// y[n, o, p] = b[o] + sum over c and taps of x[n, c, p * stride + tap * dilation - padding] * w[o, c, tap], all places
/// by their flat numbers.
std::vector<double> convolved(const Tensor& x, const Tensor& w, const Tensor& bias, const Convolution& f) {
  const auto numel = [](const Dims& d) { return product(d); };
  const auto place = [](int64_t flat, const Dims& shape, size_t axis) {
    for (size_t k = shape.size(); k-- > axis + 1;) flat /= shape[k];
    return flat % shape[axis];
  };
  std::vector<double> y;
  for (int64_t n = 0; n < f.images; ++n)
    for (int64_t o = 0; o < f.out; ++o)
      for (int64_t p = 0; p < numel(f.grid); ++p) {
        double sum = bias.f[o];
        const int64_t each = f.channels / f.groups, first = o / (f.out / f.groups) * each;
        for (int64_t c = first; c < first + each; ++c)
          for (int64_t tap = 0; tap < numel(f.kernel); ++tap) {
            int64_t at = 0;
            bool inside = true;
            for (size_t k = 0; k < f.axes(); ++k) {
              const int64_t i = place(p, f.grid, k) * f.stride[k] + place(tap, f.kernel, k) * f.dilation[k] - f.low[k];
              inside &= i >= 0 && i < f.size[k];
              at = at * f.size[k] + i;
            }
            if (inside)
              sum +=
                  x.f[(n * f.channels + c) * numel(f.size) + at] * w.f[(o * each + c - first) * numel(f.kernel) + tap];
          }
        y.push_back(sum);
      }
  return y;
}
TEST(Convolutions, AgainstLoopsAndDifferences) {
  for (const Form& form : kForms) {
    SCOPED_TRACE(to_string(Type{DType::F64, form.x}) + " by " + to_string(Type{DType::F64, form.w}));
    const Convolution f = of(form);
    const Tensor x = random_tensor(form.x, 1), w = random_tensor(form.w, 2), bias = random_tensor({form.w[0]}, 3);
    const Formula forward = [&](const Values& v) { return Values{convolution(v[0], v[1], v[2], f, DType::F64)}; };
    const Tensor y = values_of(forward, {x, w, bias}).at(0);
    EXPECT_EQ(y.type.shape, join({{form.x[0], form.w[0]}, f.grid}));
    expect_near(y.f, convolved(x, w, bias, f));
    expect_derivative(forward,
                      [&](const Values& v) {
                        return Values{convolution_input_gradient(v[0], v[2], f, DType::F64),
                                      convolution_weight_gradient(v[0], v[1], f, DType::F64),
                                      convolution_bias_gradient(v[0], DType::F64)};
                      },
                      {x, w, bias});
  }
}
TEST(Convolutions, OfHalvesAreSummedInF32) {
  const Form form = kForms[2];
  const Tensor x = as_type(random_tensor(form.x, 1), DType::BF16), w = as_type(random_tensor(form.w, 2), DType::BF16);
  const auto y = values_of(
      [&](const Values& v) { return Values{convolution(v[0], v[1], std::nullopt, of(form), DType::F32)}; }, {x, w});
  EXPECT_EQ(y[0].type.dtype, DType::F32);
}

// --- pooling
TEST(Pools, MaximaAndTheirPlaces) {
  const MaxPool p{{2, 2}, {1, 1}, {1, 1}, {1, 1}};
  const Formula f = [&](const Values& v) {
    const Pooled y = max_pool(v[0], p);
    return Values{y.value, y.index};
  };
  const auto y = values_of(f, {tensor({1, 1, 2, 2}, {1, 5, 5, 2})});
  EXPECT_EQ(y[0].f, (std::vector<double>{1, 5, 5, 5, 5, 5, 5, 5, 2}));
  EXPECT_EQ(y[1].i, (std::vector<int64_t>{0, 1, 1, 2, 1, 1, 2, 2, 3})) << "the first of equals";
  EXPECT_EQ(values_of(f, {tensor({1, 1, 1, 1}, {-INFINITY})})[1].i, (std::vector<int64_t>{0, 0, 0, 0}))
      << "padding is no candidate";
  EXPECT_TRUE(std::isnan(
      values_of([](const Values& v) { return Values{max_pool(v[0], {{2, 2}, {2, 2}, {0, 0}, {1, 1}}).value}; },
                {tensor({1, 1, 2, 2}, {NAN, 9, INFINITY, 1})})[0]
          .f[0]));
}
TEST(Pools, Derivatives) {
  const MaxPool p{{3, 2}, {2, 1}, {1, 0}, {1, 2}};
  const Tensor x = random_tensor({2, 3, 5, 6}, 4);
  expect_derivative([&](const Values& v) { return Values{max_pool(v[0], p).value}; },
                    [&](const Values& v) { return Values{max_pool_backward(v[0], max_pool(v[1], p).index, 5, 6)}; },
                    {x});
  const Dims tiles = *tiled({2, 4, 6}, 2, 3);
  expect_derivative([&](const Values& v) { return Values{mean_of_tiles(v[0], tiles)}; },
                    [&](const Values& v) { return Values{mean_of_tiles_backward(v[0], tiles)}; },
                    {random_tensor({2, 4, 6}, 5)});
  EXPECT_FALSE(tiled({2, 4, 6}, 3, 3));
}

// --- attention
TEST(Attentions, AgainstLoopsAndDifferences) {
  const int64_t B = 2, H = 4, G = 2, L = 3, S = 5, E = 2;
  const Tensor q = random_tensor({B, H, L, E}, 6, -1, 1), k = random_tensor({B, G, S, E}, 7, -1, 1),
               v = random_tensor({B, G, S, E}, 8, -1, 1);
  for (bool causal : {false, true})
    for (int masked : {0, 1, 2}) {  // no mask, one of bool, one that is added
      SCOPED_TRACE((causal ? "causal, mask " : "mask ") + std::to_string(masked));
      Tensor mask = random_tensor({L, S}, 9);
      // the first row sees nothing
      if (masked == 1) mask = {{DType::Bool, {L, S}}, {}, {0, 0, 0, 0, 0, 1, 0, 1, 1, 0, 1, 1, 1, 1, 1}};
      const auto form = [&](const Values& in, size_t at) {
        return Attention{0.75, causal, masked ? std::optional(in[at]) : std::nullopt};
      };
      const Formula forward = [&](const Values& in) {
        return Values{reshape(attention(in[0], in[1], in[2], form(in, 3)).value, in[0].shape())};
      };
      std::vector<double> expected;
      for (int64_t b = 0; b < B; ++b)
        for (int64_t h = 0; h < H; ++h)
          for (int64_t l = 0; l < L; ++l) {
            const int64_t kv = (b * G + h / (H / G)) * S;
            double total = 0;
            std::vector<double> y(E, 0);
            for (int64_t s = 0; s < S; ++s) {
              if ((causal && s > l) || (masked == 1 && !mask.i[l * S + s])) continue;
              double score = masked == 2 ? mask.f[l * S + s] : 0;
              for (int64_t e = 0; e < E; ++e)
                score += 0.75 * q.f[((b * H + h) * L + l) * E + e] * k.f[(kv + s) * E + e];
              total += std::exp(score);
              for (int64_t e = 0; e < E; ++e) y[e] += std::exp(score) * v.f[(kv + s) * E + e];
            }
            for (double sum : y) expected.push_back(total == 0 ? 0 : sum / total);
          }
      expect_near(numbers(forward, {q, k, v, mask}), expected);
      expect_derivative(forward,
                        [&](const Values& in) {
                          const Attention a = form(in, 4);
                          const AttentionResult y = attention(in[1], in[2], in[3], a);
                          const AttentionGradients g = attention_backward(
                              in[0], in[1], in[2], in[3], reshape(y.value, in[1].shape()), y.logsumexp(), a);
                          return Values{g.q, g.k, g.v};
                        },
                        {q, k, v, mask});
    }
}

// --- products
TEST(Products, LinearOverLeadingAxes) {
  const Tensor x = random_tensor({2, 3, 4}, 10), w = random_tensor({4, 5}, 11);
  const auto y = values_of(
      [](const Values& v) { return Values{linear(v[0], v[1]), linear(reshape(v[0], {6, 4}), v[1])}; }, {x, w});
  EXPECT_EQ(y[0].type.shape, (Dims{2, 3, 5}));
  expect_near(y[0].f, y[1].f, 0);
  EXPECT_EQ(
      values_of([](const Values& v) { return Values{linear(v[0], v[1])}; }, {tensor({0, 4}, {}), w})[0].type.shape,
      (Dims{0, 5}));
  expect_near(
      numbers([](const Values& v) { return Values{linear(v[0], v[1])}; }, {tensor({2, 0}, {}), tensor({0, 1}, {})}),
      {0, 0});
}
TEST(Products, ABiasTimesNothingIsNotRead) {
  expect_near(numbers([](const Values& v) { return Values{with_bias(v[0], v[1], 0, 2)}; },
                      {tensor({1}, {3}), tensor({1}, {NAN})}),
              {6}, 0);
}

// --- lookups: reading and adding are each other's derivative
TEST(Lookups, RowsOfATable) {
  const Tensor table = random_tensor({5, 3}, 12), index = integers({2, 2}, {4, 0, 4, 2});
  expect_derivative([](const Values& v) { return Values{take_rows(v[0], v[1])}; },
                    [](const Values& v) { return Values{take_rows_backward(v[0], v[2], 5)}; }, {table, index});
  const auto padded = numbers([](const Values& v) { return Values{take_rows_backward(v[0], v[1], 3, 0)}; },
                              {tensor({2, 1}, {5, 7}), integers({2}, {0, 2})});
  expect_near(padded, {0, 0, 7}, 0);
  EXPECT_ANY_THROW(numbers([](const Values& v) { return Values{take_rows(v[0], v[1])}; }, {table, integers({1}, {5})}));
}
TEST(Lookups, OfSeveralAxes) {
  const Tensor x = random_tensor({3, 4, 2, 5}, 13), i = integers({2, 1}, {-1, 0}), j = integers({3}, {1, 0, -2});
  for (bool neighbours : {true, false}) {
    const auto of = [&](Value x, Value i, Value j) {
      return *indexed(
          x, neighbours ? std::vector<std::optional<Value>>{{}, i, j} : std::vector<std::optional<Value>>{i, {}, j});
    };
    expect_derivative([&](const Values& v) { return Values{indexed_read(v[0], of(v[0], v[1], v[2]))}; },
                      [&](const Values& v) {
                        const Indexed r = of(v[1], v[2], v[3]);
                        return Values{indexed_write(ScatterKind::Sum, v[1] * 0.0, r,
                                                    reshape(v[0], join({r.before, r.many, r.after})))};
                      },
                      {x, i, j});
    EXPECT_ANY_THROW(numbers([&](const Values& v) { return Values{indexed_read(v[0], of(v[0], v[1], v[2]))}; },
                             {x, i, integers({3}, {0, 2, 0})}));
  }
}

// --- views that step
TEST(Steps, WindowsAndWhatIsAddedThroughThem) {
  for (const auto& [n, size, step] :
       std::vector<std::array<int64_t, 3>>{{9, 3, 2}, {9, 2, 3}, {9, 9, 1}, {40, 20, 3}, {5, 1, 1}}) {
    const int64_t windows = (n - size) / step + 1;
    expect_derivative([&](const Values& v) { return Values{sliding_windows(v[0], windows, size, step)}; },
                      [&](const Values& v) { return Values{overlap_add(v[0], n, step, 1)}; },
                      {random_tensor({2, n}, 14)});
  }
}
TEST(Steps, Diagonals) {
  for (int64_t offset : {-5, -2, 0, 1, 4}) {
    const Diagonal d = diagonal_of({3, 2, 4}, offset, 0, 2);
    expect_derivative([&](const Values& v) { return Values{diagonal(v[0], d)}; },
                      [&](const Values& v) { return Values{on_diagonal(v[0], d)}; }, {random_tensor({3, 2, 4}, 15)});
  }
  expect_near(
      numbers([](const Values& v) { return Values{diagonal_scattered(v[0], v[1], diagonal_of({2, 2}, 0, 0, 1))}; },
              {tensor({2, 2}, {1, 2, 3, 4}), tensor({2}, {8, 9})}),
      {8, 2, 3, 9}, 0);
}

TEST(Masks, DropoutIsItsOwnDerivative) {
  const Tensor x = tensor({4}, {1, 2, 3, 4});
  Graph graph;
  Builder b{graph, "drop"};
  Value in{&b, b.input(graph.input_count++, x.type)};
  graph.outputs = {{dropout(in, random_mask(b, {4}, {.draw = 0, .p = 0.5}), 2).node, {}}};
  const auto y =
      reference::evaluate(graph, {x}, {.random = [](const Node* n) { return Tensor{n->type, {}, {1, 0, 0, 1}}; }});
  expect_near(y[0].f, {2, 0, 0, 8}, 0);
}

}  // namespace
}  // namespace trainc::formulas
