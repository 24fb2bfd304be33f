// Rounding to bf16: every upper half of a float with the lower halves that decide, and chains of operations between two
// roundings, whose NaNs are known to fit. The interpreter rounds by rounding.h.
#include <bit>
#include <functional>

#include "harness.h"

namespace trainc::emit::test {
namespace {

using namespace loop;
using interpret::memory_of;
using interpret::output_of;
using interpret::values_of;

bool is_nan(uint16_t x) { return (x & 0x7fff) > 0x7f80; }

/// At every level and with several lanes, `x` becomes what the interpreter makes of it; any NaN is as good as another.
template <class T>
void expect_rounded(DType dtype, const std::vector<T>& x, const std::function<Expr(Expr, Expr)>& make) {
  const auto n = static_cast<int64_t>(x.size());
  for (int lanes : {1, 8, 16, 64}) {
    LoopNest nest;
    nest.name = "round";
    const int a = nest.add_buffer({"a", dtype, n}),
              out = nest.add_buffer({"out", DType::BF16, n, Space::Argument, true});
    const int i = nest.add_var("i", n);
    // its other operand: an element far from it, so that most pairs of kinds meet
    const Expr other = nest.load(a, mod(nest.var(i) * 40503 + integer(17), n));
    nest.body = for_loop(LoopKind::Vector, i, integer(n),
                         store(out, nest.var(i), make(nest.load(a, nest.var(i)), other)), lanes);
    SCOPED_TRACE(loop::print(nest));
    std::vector<Memory> expected = {memory_of(x), output_of(2 * n)};
    interpret::run(nest, expected);
    const std::vector<uint16_t> right = values_of<uint16_t>(expected[1]);
    for (CpuLevel level : runnable_levels()) {
      std::vector<Memory> got = {memory_of(x), output_of(2 * n)};
      run(nest, level, got);
      const std::vector<uint16_t> found = values_of<uint16_t>(got[1]);
      for (size_t k = 0; k < found.size(); ++k)
        ASSERT_TRUE(is_nan(right[k]) ? is_nan(found[k]) : found[k] == right[k])
            << name_of(level) << ", element " << k << ": " << found[k] << ", not " << right[k];
    }
  }
}

std::vector<uint16_t> every_bf16() {
  std::vector<uint16_t> all(1 << 16);
  for (size_t k = 0; k < all.size(); ++k) all[k] = static_cast<uint16_t>(k);
  return all;
}

Expr to_bf16(Expr x) { return cast(std::move(x), DType::BF16); }
Expr rounded(Expr x) { return cast(to_bf16(std::move(x)), DType::F32); }

TEST(Bf16, EveryFloatThatDecides) {
  std::vector<float> x;
  for (uint32_t upper = 0; upper < 1 << 16; ++upper)
    for (uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      x.push_back(std::bit_cast<float>(upper << 16 | lower));
  expect_rounded(DType::F32, x, [](Expr a, Expr) { return to_bf16(a); });
  expect_rounded(DType::F32, x, [](Expr a, Expr b) { return to_bf16(apply(Op::Mul, {rounded(a), b})); });
}

TEST(Bf16, ChainsBetweenRoundings) {
  const std::function<Expr(Expr, Expr)> chains[] = {
      [](Expr a, Expr b) { return apply(Op::Mul, {a, b}); },
      [](Expr a, Expr b) { return apply(Op::Sub, {a, b}); },
      [](Expr a, Expr b) { return apply(Op::Div, {a, b}); },
      [](Expr a, Expr b) { return fma(a, b, rounded(apply(Op::Mul, {a, b}))); },
      [](Expr a, Expr b) { return apply(Op::Max, {apply(Op::Neg, {a}), apply(Op::Abs, {b})}); },
      [](Expr a, Expr b) { return apply(Op::Select, {apply(Op::Lt, {a, b}), a, real(NAN, DType::F32)}); },
      [](Expr a, Expr) { return apply(Op::Sqrt, {a}); },
      [](Expr a, Expr b) { return apply(Op::Add, {rounded(apply(Op::Tanh, {a})), apply(Op::Exp, {b})}); },
      [](Expr a, Expr) { return a; },
  };
  for (const auto& chain : chains)
    expect_rounded(DType::BF16, every_bf16(), [&](const Expr& a, const Expr& b) {
      return to_bf16(chain(cast(a, DType::F32), cast(b, DType::F32)));
    });
}

// out[n] += a . b over 32 elements of k: a is rounded into scratch first. `twice`: something else reads it, too.
// `again`: it was rounded and widened before. `chosen`: an element beyond the last is zero.
LoopNest rounded_operand(bool twice, bool again = false, bool chosen = false) {
  LoopNest nest;
  nest.name = "rounded_operand";
  const int a = nest.add_buffer({"a", DType::F32, 32}), b = nest.add_buffer({"b", DType::I32, 16 * 16});
  const int out = nest.add_buffer({"out", DType::F32, 16, Space::Argument, true});
  const int also = nest.add_buffer({"also", DType::F32, 32, Space::Argument, true});
  const int packed = nest.add_buffer({"packed", DType::BF16, 32, Space::Scratch, true});
  const int i = nest.add_var("i", 32), k = nest.add_var("k", 16), lane = nest.add_var("lane", 16),
            j = nest.add_var("j", 32), element = nest.add_local("element", DType::I32);
  const auto half = [&](int64_t at) {
    const Expr here = nest.var(k) * 2 + integer(at), value = nest.load(packed, here);
    return chosen ? apply(Op::Select, {apply(Op::Lt, {here, integer(31)}), value, real(0, DType::BF16)}) : value;
  };
  const Expr read = nest.load(a, nest.var(i));
  const int l = nest.add_var("l", 16);
  std::vector<Stmt> body{
      for_loop(LoopKind::Vector, l, integer(16), store(out, nest.var(l), real(0, DType::F32)), 16),
      for_loop(LoopKind::Vector, i, integer(32), store(packed, nest.var(i), to_bf16(again ? rounded(read) : read)), 32),
      for_loop(LoopKind::Serial, k, integer(16),
               block({let(element, pair(half(0), half(1))),
                      for_loop(LoopKind::Vector, lane, integer(16),
                               store(out, nest.var(lane),
                                     dot(nest.local(element), nest.load(b, nest.var(k) * 16 + nest.var(lane)),
                                         nest.load(out, nest.var(lane)))),
                               16)}))};
  const Expr other = twice ? cast(nest.load(packed, nest.var(j)), DType::F32) : nest.load(a, nest.var(j));
  body.push_back(for_loop(LoopKind::Vector, j, integer(32), store(also, nest.var(j), other), 32));
  nest.body = block(std::move(body));
  return nest;
}

TEST(Bf16, WhatIsOnlyMultipliedIsRoundedByTheInstruction) {
  const auto text = [](bool twice, CpuLevel level) { return assembly(rounded_operand(twice), level); };
  EXPECT_NE(text(false, CpuLevel::Avx512Bf16).find("vcvtne2ps2bf16"), std::string::npos);
  EXPECT_EQ(text(true, CpuLevel::Avx512Bf16).find("vcvtne"), std::string::npos) << "a denormal would be lost";
  EXPECT_EQ(text(false, CpuLevel::Avx512).find("vcvtne"), std::string::npos);
  std::vector<uint32_t> y;  // pairs of numbers from 1 to 4
  for (uint32_t at = 0; at < 256; ++at) y.push_back(0x3f803f80 + at * 0x10001);
  const std::vector<float> x = random_floats(32);
  for (bool twice : {false, true})
    for (bool again : {false, true})
      for (bool chosen : {false, true})
        expect_as_interpreted(rounded_operand(twice, again, chosen),
                              {memory_of(x), memory_of(y), output_of(16 * 4), output_of(32 * 4)});
}

TEST(Bf16, WhatIsOnlyMultipliedIsRoundedOnce) {
  const std::string text = assembly(rounded_operand(false, true, true), CpuLevel::Avx512Bf16);
  EXPECT_NE(text.find("vcvtne2ps2bf16"), std::string::npos);
  EXPECT_EQ(text.find("vpsrld"), std::string::npos) << "by hand, then by the instruction";
}

}  // namespace
}  // namespace trainc::emit::test
