// The interpreter: what nests compute, by hand-worked examples, and the faults that it must find.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "interpret/interpret.h"
#include "interpret/value.h"

namespace trainc::interpret {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Findings run_text(const std::string& text, std::vector<Memory>& arguments) {
  const loop::LoopNest nest = loop::parse(text);
  loop::verify(nest);
  return run(nest, arguments);
}

std::vector<float> ramp(size_t n, float start = 0) {
  std::vector<float> v(n);
  std::iota(v.begin(), v.end(), start);
  return v;
}

TEST(Interpret, LanesFoldInHalves) {
  // 10 elements, 8 lanes: lane l holds x[l] (+ x[8 + l] in the masked second vector).
  const std::vector<float> x{1e8f, 3, 5, 7, -1e8f, 11, 13, 17, 19, 23};
  float lane[8];
  for (size_t l = 0; l < 8; ++l) lane[l] = 0.0f + x[l];
  for (size_t l = 0; l < 2; ++l) lane[l] = lane[l] + x[8 + l];
  for (int half = 4; half >= 1; half /= 2)
    for (int l = 0; l < half; ++l) lane[l] = lane[l] + lane[l + half];
  const float want = 0.25f + lane[0], serial = std::accumulate(x.begin(), x.end(), 0.25f);
  ASSERT_NE(want, serial) << "the example must tell the two orders apart";

  std::vector<Memory> m{memory_of(x), output_of(4)};
  const Findings f = run_text(R"(kernel k
  argument x: f32[10]
  argument out: f32[1] written
body:
  let acc: f32 = 0.25
  vector(8) j in 10:
    acc = sum(acc, x[j])
  store out[0] = acc
)",
                              m);
  EXPECT_THAT(f.messages, IsEmpty());
  EXPECT_EQ(values_of<float>(m[1])[0], want);
}

TEST(Interpret, AReductionInsideALaneStaysInIt) {
  std::vector<Memory> m{memory_of(ramp(12)), output_of(3 * 4)};  // 4 x 3: sums of columns
  const Findings f = run_text(R"(kernel k
  argument x: f32[12]
  argument out: f32[3] written
body:
  vector(2) j in 3:
    let acc: f32 = 0.0
    for i in 4:
      acc = sum(acc, x[i * 3 + j])
    store out[j] = acc
)",
                              m);
  EXPECT_THAT(f.messages, IsEmpty());
  EXPECT_THAT(values_of<float>(m[1]), ElementsAre(18, 22, 26));
}

TEST(Interpret, AValueThatIsTheSameInAllLanesCountsOnceAnIteration) {
  std::vector<Memory> m{output_of(4)};
  const Findings f = run_text(R"(kernel k
  argument out: f32[1] written
body:
  let acc: f32 = 1.0
  vector(4) j in 10:
    acc = sum(acc, 0.5)
  store out[0] = acc
)",
                              m);
  EXPECT_THAT(f.messages, IsEmpty());
  EXPECT_EQ(values_of<float>(m[0])[0], 6.0f);
}

TEST(Interpret, MaxKeepsNanAndMinOfIntegersStartsHigh) {
  std::vector<Memory> m{memory_of(std::vector<float>{1, NAN, 3, -2}), memory_of(std::vector<int32_t>{7, -5, 3, 9}),
                        output_of(4), output_of(4)};
  const Findings f = run_text(R"(kernel k
  argument x: f32[4]
  argument n: i32[4]
  argument a: f32[1] written
  argument b: i32[1] written
body:
  let best: f32 = -inf
  let least: i32 = 100:i32
  vector(4) j in 4:
    best = max(best, x[j])
    least = min(least, n[j])
  store a[0] = best
  store b[0] = least
)",
                              m);
  EXPECT_THAT(f.messages, IsEmpty());
  EXPECT_TRUE(std::isnan(values_of<float>(m[2])[0]));
  EXPECT_EQ(values_of<int32_t>(m[3])[0], -5);
}

TEST(Interpret, ArithmeticRoundsToF32AndFmaOnce) {
  const float a = 1 + 0x1p-12f;
  std::vector<Memory> m{memory_of(std::vector<float>{a}), output_of(8)};
  run_text(R"(kernel k
  argument x: f32[1]
  argument out: f32[2] written
body:
  store out[0] = x[0] * x[0] - 1.0
  store out[1] = fma(x[0], x[0], -1.0)
)",
           m);
  EXPECT_THAT(values_of<float>(m[1]), ElementsAre(0x1p-11f, 0x1p-11f + 0x1p-24f));
}

TEST(Interpret, HalvesRoundToNearestEven) {
  // bf16 has 7 bits after the point, f16 has 10
  const std::vector<float> x{1 + 0x1p-8f, 1 + 3 * 0x1p-8f, 1 + 0x1p-11f, 65520, 0x1p-25f, 3 * 0x1p-25f, -0.0f};
  std::vector<Memory> m{memory_of(x), output_of(14), output_of(14)};
  run_text(R"(kernel k
  argument x: f32[7]
  argument b: bf16[7] written
  argument h: f16[7] written
body:
  vector(4) j in 7:
    store b[j] = cast<bf16>(x[j])
    store h[j] = cast<f16>(x[j])
)",
           m);
  EXPECT_THAT(values_of<uint16_t>(m[1]), ElementsAre(0x3f80, 0x3f82, 0x3f80, 0x4780, 0x3300, 0x33c0, 0x8000));
  EXPECT_THAT(values_of<uint16_t>(m[2]), ElementsAre(0x3c04, 0x3c0c, 0x3c00, 0x7c00, 0x0000, 0x0002, 0x8000));
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {  // every half comes back as it was
    const uint16_t in = static_cast<uint16_t>(bits);
    for (DType d : {DType::BF16, DType::F16}) {
      const Value v = load(reinterpret_cast<const uint8_t*>(&in), 0, d);
      uint16_t out = 0;
      store(reinterpret_cast<uint8_t*>(&out), 0, d, v);
      ASSERT_TRUE(std::isnan(v.f) || out == in) << bits;
    }
  }
}

TEST(Interpret, IntegersDivideAsTheTableSays) {
  auto of = [](Op op, int64_t a, int64_t b) {
    const Value args[2] = {int_value(a), int_value(b)};
    return elementwise(op, DType::I32, DType::I32, args).i;
  };
  EXPECT_EQ(of(Op::Div, -7, 2), -3);
  EXPECT_EQ(of(Op::FloorDiv, -7, 2), -4);
  EXPECT_EQ(of(Op::FloorDiv, 7, -2), -4);
  EXPECT_EQ(of(Op::Mod, -7, 2), 1);
  EXPECT_EQ(of(Op::Mod, 7, -2), -1);
  EXPECT_EQ(of(Op::Div, 7, 0), 0);
  EXPECT_EQ(of(Op::FloorDiv, 7, 0), 0);
  EXPECT_EQ(of(Op::Div, -2147483648LL, -1), -2147483648LL) << "wraps";
  EXPECT_EQ(of(Op::Add, 2147483647, 1), -2147483648LL) << "wraps";
}

TEST(Interpret, AGuardKeepsALoadFromMemory) {
  std::vector<Memory> m{memory_of(ramp(3, 1)), output_of(5 * 4)};
  const Findings f = run_text(R"(kernel k
  argument x: f32[3]
  argument out: f32[5] written
body:
  vector(4) j in 5:
    store out[j] = x[j - 1 if 0 < j & j < 4]
)",
                              m);
  EXPECT_THAT(f.messages, IsEmpty());
  EXPECT_THAT(values_of<float>(m[1]), ElementsAre(0, 1, 2, 3, 0));
}

TEST(Interpret, AFailedCheckSetsTheStatusAndGoesOn) {
  std::vector<Memory> m{memory_of(std::vector<int64_t>{0, 9, 2}), memory_of(ramp(3)), output_of(12)};
  const std::string text = R"(kernel k
  parallel 3
  argument index: i64[3]
  argument x: f32[3]
  argument out: f32[3] written
body:
  parallel i in 3:
    let at: i64 = index[i]
    check(5) 0 <= at & at < 3
    check(2) at < 9
    store out[i] = x[max(min(at, 2), 0)]
)";
  const Findings f = run_text(text, m);
  EXPECT_THAT(f.messages, IsEmpty());
  EXPECT_EQ(f.status, 5u);
  EXPECT_THAT(values_of<float>(m[2]), ElementsAre(0, 2, 2));
  m[0] = memory_of(std::vector<int64_t>{0, 1, 2});
  EXPECT_EQ(run_text(text, m).status, 0u);
}

// --- faults

// One kernel of 4 iterations over x[16] -> out[16], with scratch; the body is what differs.
Findings findings_of(const std::string& body) {
  std::vector<Memory> m{memory_of(ramp(16)), output_of(16 * 4)};
  return run_text(
      "kernel k\n  parallel 4\n  argument x: f32[16]\n  argument out: f32[16] written\n  scratch s: f32[8] written\n"
      "  register r: f32[8] written\nbody:\n" +
          body,
      m);
}

TEST(InterpretFinds, NothingInASoundNest) {
  EXPECT_THAT(findings_of(R"(  store s[7] = 1.0
  parallel i in 4:
    vector(4) j in 4:
      store s[j] = x[i * 4 + j]
    vector(4) j in 4:
      store out[i * 4 + j] = s[3 - j] * s[7]
)")
                  .messages,
              IsEmpty());
}

TEST(InterpretFinds, AccessesOutOfBounds) {
  EXPECT_THAT(
      findings_of("  parallel i in 4:\n    for j in 4:\n      store out[i * 4 + j] = x[i * 4 + j + 1]\n").messages,
      ElementsAre("load of x out of bounds: element 16 of 16 in parallel iteration 3"));
  EXPECT_THAT(findings_of("  parallel i in 4:\n    for j in 5:\n      store out[i * 4 + j] = 1.0\n").messages,
              testing::Contains(HasSubstr("store of out out of bounds: element 16 of 16")));
  EXPECT_THAT(findings_of("  parallel i in 4:\n    vector(4) j in 4:\n      store s[j + i * 2] = 1.0\n      store "
                          "out[i * 4 + j] = s[j + i * 2]\n")
                  .messages,
              testing::Contains("store of s out of bounds: element 8 of 8 in parallel iteration 3 (first of 2)"));
}

TEST(InterpretFinds, ReadsBeforeWrites) {
  EXPECT_THAT(
      findings_of("  parallel i in 4:\n    for j in 4:\n      store out[i * 4 + j] = s[j]\n").messages,
      ElementsAre(HasSubstr("read of s before it is written: element 0 in parallel iteration 0 (first of 16)")));
  EXPECT_THAT(
      findings_of("  parallel i in 4:\n    unroll j in 4:\n      store out[i * 4 + j] = r[j]\n      store r[j] = 1.0\n")
          .messages,
      ElementsAre("read of r before it is written: element 0 in parallel iteration 0 (first of 16)"))
      << "registers of the iteration before do not count";
  EXPECT_THAT(
      findings_of("  parallel i in 4:\n    for j in 4:\n      store out[i * 4 + j] = out[i * 4 + j] + 1.0\n").messages,
      ElementsAre(HasSubstr("read of out before it is written")));
}

TEST(InterpretFinds, OutputsLeftUnwritten) {
  EXPECT_THAT(findings_of("  parallel i in 4:\n    for j in 3:\n      store out[i * 4 + j] = 1.0\n").messages,
              ElementsAre("out is never written: element 3 (first of 4)"));
}

TEST(InterpretFinds, Races) {
  EXPECT_THAT(findings_of("  parallel i in 4:\n    for j in 16:\n      store out[j] = x[j]\n").messages,
              ElementsAre(HasSubstr("race on out: written twice: element 0, iteration 1 and 0")));

  auto in_place = [](const std::string& index) {  // out[i] from out's neighbour: the order of iterations matters
    std::vector<Memory> m{memory_of(ramp(5))};
    return run_text(
               "kernel k\n  parallel 4\n  argument out: f32[5] written\nbody:\n  parallel i in 4:\n    store out[i] = "
               "out[" +
                   index + "]\n",
               m)
        .messages;
  };
  EXPECT_THAT(in_place("i + 1"), ElementsAre(HasSubstr("race on out: read and written: element 1, iteration 1 and 0")));
  EXPECT_THAT(in_place("3 - i"), ElementsAre(HasSubstr("race on out: read and written")));
  EXPECT_THAT(in_place("i"), IsEmpty());
}

TEST(InterpretFinds, ArgumentsOfAnotherSize) {
  std::vector<Memory> m{memory_of(ramp(3)), output_of(4)};
  EXPECT_THAT(
      run_text("kernel k\n  argument x: f32[4]\n  argument out: f32[1] written\nbody:\n  store out[0] = x[0]\n", m)
          .messages,
      ElementsAre("argument x is given 3 elements, the nest says 4"));
  m.pop_back();
  EXPECT_THROW(run_text("kernel k\n  argument x: f32[4]\n  argument out: f32[1] written\nbody:\n  pass\n", m),
               InternalError);
}

}  // namespace
}  // namespace trainc::interpret
