// Tile statements: the interpreter against the definition, the code against the interpreter (emulated where the CPU has
// no AMX), refusals.
#include <gmock/gmock.h>

#include <cmath>

#include "emit/llvm/emit.h"
#include "harness.h"
#include "interpret/amx.h"
#include "interpret/value.h"
#include "support/error.h"

namespace trainc::emit::test {
namespace {

using namespace loop;
using interpret::memory_of;
using interpret::output_of;

uint16_t bf16(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
float widened(uint16_t bits) {
  const uint32_t u = uint32_t{bits} << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

constexpr int64_t kRows = 5;  // of tiles, two deep: a[80][64] . b[32 pairs][20 columns' pitch]

// out = start + a . b by tiles; the rows of each buffer lie further apart than a tile is wide.
LoopNest products() {
  return parse(R"(kernel products
  parallel 5
  argument a: bf16[5360]
  argument b: i32[640]
  argument start: f32[1440]
  argument out: f32[1440] written
  tile sums: f32[256] written
  tile rows: i32[256] written
  tile columns: i32[256] written
  tile zeros: f32[256] written
  scratch square: f32[272] written
body:
  parallel i in 5:
    tileload sums = start[i * 288 by 18]
    for step in 2:
      tileload rows = a[i * 1072 + step * 32 by 67]
      tileload columns = b[step * 320 by 20]
      tiledot sums += rows * columns
    tilestore square[0 by 17] = sums
    for row in 16:
      vector(16) column in 16:
        store out[i * 288 + row * 18 + column] = square[row * 17 + column]
      store out[i * 288 + row * 18 + 16] = 0.0
      store out[i * 288 + row * 18 + 17] = 0.0
    tilezero zeros
    tilestore square[0 by 17] = zeros
    store out[i * 288 + 17] = square[255]
)");
}

std::vector<uint16_t> random_bf16(size_t n, unsigned seed) {
  std::vector<uint16_t> v;
  for (float f : random_floats(n, seed)) v.push_back(bf16(f));
  return v;
}

std::vector<Memory> operands(std::vector<uint16_t> a, const std::vector<uint16_t>& b) {
  std::vector<int32_t> pairs(b.size() / 2);
  std::memcpy(pairs.data(), b.data(), b.size() * 2);
  return {memory_of(a), memory_of(pairs), memory_of(random_floats(1440, 3)), output_of(1440 * 4)};
}

TEST(Tiles, ProductsAreTheSums) {
  const LoopNest nest = products();
  verify(nest);
  const std::vector<uint16_t> a = random_bf16(5360, 1), b = random_bf16(1280, 2);
  std::vector<Memory> arguments = operands(a, b);
  EXPECT_THAT(interpret::run(nest, arguments).messages, ::testing::IsEmpty());
  const std::vector<float> start = random_floats(1440, 3), out = interpret::values_of<float>(arguments[3]);
  for (int64_t i = 0; i < kRows * 16; ++i)
    for (int64_t j = 0; j < 16; ++j) {
      const int64_t at = i * 18 + j;
      double sum = start[size_t(at)];
      for (int64_t k = 0; k < 64; ++k)
        sum += double(widened(a[size_t(i * 67 + k)])) * double(widened(b[size_t((k / 2 * 20 + j) * 2 + k % 2)]));
      ASSERT_NEAR(out[size_t(at)], sum, 2e-5) << i << "," << j;
    }
}

// What tells the instruction from other orders and roundings: halves apart, each from zero, denormals as zero.
TEST(Tiles, TheOrderAndTheRoundingAreTheInstructions) {
  const auto one = [](std::vector<std::pair<float, float>> products, float start) {
    std::vector<uint16_t> a(512), b(512);
    std::vector<float> sums(256, start);
    for (size_t k = 0; k < products.size(); ++k)
      a[k] = bf16(products[k].first), b[(k / 2 * 16) * 2 + k % 2] = bf16(products[k].second);
    interpret::tile_dot(reinterpret_cast<uint8_t*>(sums.data()), reinterpret_cast<uint8_t*>(a.data()),
                        reinterpret_cast<uint8_t*>(b.data()));
    return sums[0];
  };
  const float big = 16777216, tiny = std::ldexp(1.0f, -130), small = std::ldexp(1.0f, -70);
  EXPECT_EQ(one({{big, 1}, {1, 1}, {-big, 1}, {1, 1}}, 0), 2);  // one running sum would lose a 1
  EXPECT_EQ(one({{1, 1}, {0, 0}, {1, 1}}, big), big + 2);       // added to the sum at the end: 1 + 1 first
  EXPECT_EQ(one({{tiny, big}}, 0), 0);                          // a denormal operand
  EXPECT_EQ(one({{small, small}}, 0), 0);                       // a denormal product
  EXPECT_EQ(one({}, tiny), 0);                                  // a denormal sum
  EXPECT_EQ(one({{std::ldexp(1.0f, -60), small}}, 0), 0);
  EXPECT_EQ(one({{std::ldexp(1.0f, -50), small}}, 0), std::ldexp(1.0f, -120));
  EXPECT_TRUE(std::isnan(one({{INFINITY, 0}}, 0)));
  EXPECT_TRUE(std::isinf(one({{INFINITY, 1}}, 0)));
}

TEST(Tiles, TheCodeDoesAsTheInterpreter) {
  if (!interpret::emulate_amx()) GTEST_SKIP() << "no AVX-512 with bf16";
  const LoopNest nest = products();
  std::vector<uint16_t> a = random_bf16(5360, 1), b = random_bf16(1280, 2);
  a[3] = bf16(NAN), a[700] = bf16(INFINITY), a[1500] = 1, b[9] = bf16(INFINITY), b[100] = 0x8000;
  std::vector<Memory> expected = operands(a, b), got = expected;
  EXPECT_THAT(interpret::run(nest, expected).messages, ::testing::IsEmpty());
  run(nest, CpuLevel::Amx, got);
  EXPECT_EQ(got[3].bytes, expected[3].bytes);
}

TEST(Tiles, AssembledWithoutRelocations) {
  const std::string text = assembly(products(), CpuLevel::Amx);
  for (const char* instruction : {"ldtilecfg", "tileloadd", "tdpbf16ps", "tilestored", "tilezero", "tilerelease"})
    EXPECT_THAT(text, ::testing::HasSubstr(instruction));
  EXPECT_GT(compile(products(), CpuLevel::Amx).code.size(), 0u);  // throws where a relocation is left
}

TEST(Tiles, RefusedWhereTheLevelHasNone) {
  EXPECT_THAT([] { compile(products(), CpuLevel::Avx512Bf16); },
              ::testing::ThrowsMessage<InternalError>(
                  ::testing::HasSubstr("products uses tile registers, which level avx512_bf16 has not")));
}

}  // namespace
}  // namespace trainc::emit::test
