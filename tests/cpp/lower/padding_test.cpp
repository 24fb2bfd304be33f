// Kernels that pass over rows of padding, under the interpreter: no race, nothing read that nobody wrote, and the
// numbers of kernels that do not.
#include <gtest/gtest.h>

#include <cmath>

#include "../common/padded_encoder.h"
#include "run_schedule.h"
#include "schedule/padding.h"
#include "schedule/prepare.h"

namespace trainc::lower {
namespace {

using schedule::Passes;
using testing::PaddedEncoder;

// How the tokens of a sample are hidden.
enum class Hides { Right, Left, Scattered, None, All };

std::vector<int64_t> shown_tokens(const PaddedEncoder& encoder, std::mt19937_64& rng) {
  std::vector<int64_t> shown;
  for (int64_t s = 0; s < encoder.samples; ++s) {
    const Hides how = static_cast<Hides>(rng() % 5);
    const int64_t length = 1 + static_cast<int64_t>(rng() % static_cast<uint64_t>(encoder.tokens));
    for (int64_t t = 0; t < encoder.tokens; ++t)
      shown.push_back(how == Hides::Right       ? t < length
                      : how == Hides::Left      ? t >= encoder.tokens - length
                      : how == Hides::Scattered ? static_cast<int64_t>(rng() % 2)
                                                : how == Hides::None);
  }
  return shown;
}

TEST(LowerPadding, GivesTheNumbersOfAllRows) {
  const LoweringOptions lowerings[] = {{cpu_target(CpuLevel::Avx512)},
                                       {cpu_target(CpuLevel::Avx512Bf16)},
                                       {cpu_target(CpuLevel::Amx)},
                                       {cpu_target(CpuLevel::Avx2, {.l1d = 1 << 10, .l2 = 16 << 10, .l3 = 1 << 18})}};
  int64_t rows = 0, terms = 0;
  for (uint64_t seed = 1; seed <= 16 && !HasFailure(); ++seed) {
    std::mt19937_64 rng(seed);
    PaddedEncoder encoder;
    encoder.samples = 1 + static_cast<int64_t>(rng() % 9), encoder.tokens = 2 + static_cast<int64_t>(rng() % 40);
    encoder.heads = 1 + static_cast<int64_t>(rng() % 3), encoder.width = 8 + static_cast<int64_t>(rng() % 12);
    encoder.causal = seed % 3 == 0, encoder.read = seed % 4 == 0 ? -1 : 0;
    encoder.mask = static_cast<PaddedEncoder::Mask>(rng() % 3);
    const LoweringOptions& lowering = lowerings[seed % std::size(lowerings)];
    Graph graph = schedule::prepare(encoder.make().graph);
    auto inputs = testing::halves(graph, seed);
    inputs[1].i = shown_tokens(encoder, rng);
    SCOPED_TRACE("seed " + std::to_string(seed) + " " + lowering.target.cpu);
    const auto run = [&](const schedule::Schedule& schedule) {
      testing::Interpreted got = testing::interpret_schedule(graph, schedule, inputs, lowering);
      for (const std::string& finding : got.findings) ADD_FAILURE() << finding;
      return got.outputs;
    };
    const auto expected = run(schedule::make_schedule(graph, true));
    const auto found = schedule::PaddingProof::find(graph);
    ASSERT_TRUE(found);
    const schedule::PaddedRows padded = found->make(graph);
    schedule::Schedule schedule = schedule::make_schedule(graph, true);
    pass_over_padding(schedule, *found, padded);
    for (const schedule::Group& g : schedule.groups)
      rows += g.passes == Passes::Rows, terms += g.passes == Passes::Terms;
    const auto got = run(schedule);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t o = 0; o < got.size(); ++o) {
      double scale = 0;
      for (const double v : expected[o].f) scale = std::isnan(v) ? scale : std::max(scale, std::abs(v));
      for (size_t i = 0; i < got[o].f.size(); ++i) {
        if (std::isnan(expected[o].f[i]) && std::isnan(got[o].f[i])) continue;
        // gradients of weights are summed in another order
        if (o == 0 || o == 3) ASSERT_EQ(got[o].f[i], expected[o].f[i]) << "output " << o << " element " << i;
        else ASSERT_NEAR(got[o].f[i], expected[o].f[i], 2e-6 * scale) << "output " << o << " element " << i;
      }
    }
  }
  EXPECT_GE(rows, 16 * 4);
  EXPECT_GE(terms, 16 + 8);
}

}  // namespace
}  // namespace trainc::lower
