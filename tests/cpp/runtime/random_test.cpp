// Both mask generators against recorded vectors, on every machine (tests/data/masks.txt), and the state of the
// generator after.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>
#include <sstream>

#include "runtime/cpu/jump.h"
#include "runtime/cpu/random.h"
#include "support/error.h"

namespace trainc::runtime {
namespace {

uint64_t fnv(const std::vector<uint8_t>& bytes) {
  uint64_t h = 14695981039346656037u;
  for (uint8_t c : bytes) h = (h ^ c) * 1099511628211u;
  return h;
}

/// torch.manual_seed(seed); torch.get_rng_state()
std::vector<uint8_t> seeded(uint64_t seed) {
  std::vector<uint8_t> state(MersenneTwister::kStateBytes, 0);
  const int32_t left = 1, is_seeded = 1;
  std::memcpy(&state[0], &seed, 8);
  std::memcpy(&state[8], &left, 4);
  std::memcpy(&state[12], &is_seeded, 4);
  uint32_t word = static_cast<uint32_t>(seed);
  for (uint32_t i = 0; i < 624; ++i) {
    if (i > 0) word = 1812433253u * (word ^ (word >> 30)) + i;
    const uint64_t wide = word;
    std::memcpy(&state[24 + 8 * i], &wide, 8);
  }
  return state;
}

TEST(Twister, IsTheStandardOne) {
  MersenneTwister twister(seeded(5489));
  std::mt19937 standard(5489);
  for (int i = 0; i < 2000; ++i) ASSERT_EQ(twister.next(), standard()) << i;
}

TEST(Twister, EveryLevelDrawsTheSame) {
  if (f32_lanes(machine_cpu_level()) < 16) GTEST_SKIP() << "this CPU has one level alone";
  for (int64_t skipped : {0, 1, 2, 311, 623}) {
    MersenneTwister wide(seeded(7), CpuLevel::Avx512), narrow(seeded(7), CpuLevel::Avx2);
    for (int64_t i = 0; i < skipped; ++i) ASSERT_EQ(wide.next(), narrow.next());
    for (int64_t n : {1, 7, 16, 33, 312, 313, 1000}) {
      std::vector<uint8_t> a(n + 1, 9), b(n + 1, 9);
      wide.bernoulli(0.7, a.data(), n);
      narrow.bernoulli(0.7, b.data(), n);
      ASSERT_EQ(a, b) << skipped << " " << n;
      EXPECT_EQ(a[n], 9);
    }
    EXPECT_EQ(wide.state(), narrow.state());
  }
}

TEST(Twister, SkippingIsDrawing) {
  for (const int64_t before : {0, 1, 5, 623, 624, 1000})
    for (const int64_t n : {0, 1, 2, 623, 624, 625, 1248, 100000}) {
      MersenneTwister skipping(seeded(11)), drawing(seeded(11));
      for (int64_t i = 0; i < before; ++i) skipping.next(), drawing.next();
      skipping.skip(n);
      for (int64_t i = 0; i < n; ++i) drawing.next();
      ASSERT_EQ(skipping.state(), drawing.state()) << before << " " << n;
    }
}

TEST(Twister, FarSkipsAreDrawing) {
  for (const int64_t before : {0, 1, 623, 624})
    for (const int64_t n : {6000 * 624 + 1, 6000 * 624 + 623, 5'000'000, 20'000'001}) {
      MersenneTwister skipping(seeded(11)), drawing(seeded(11));
      for (int64_t i = 0; i < before; ++i) skipping.next(), drawing.next();
      skipping.skip(n);
      std::vector<uint8_t> mask(static_cast<size_t>(n / 2));
      drawing.bernoulli(0.5, mask.data(), n / 2);
      if (n % 2) drawing.next();
      ASSERT_EQ(skipping.state(), drawing.state()) << before << " " << n;
      ASSERT_EQ(skipping.next(), drawing.next());
    }
}

TEST(Twister, JumpsOfAnyLength) {
  for (const int64_t steps : {1, 2, 3, 31, 624, 19936, 19937, 19938, 65536}) {
    std::vector<uint32_t> words(624 + steps);
    const std::vector<uint8_t> state = seeded(3);
    for (size_t i = 0; i < 624; ++i) std::memcpy(&words[i], &state[24 + 8 * i], 4);
    for (size_t i = 624; i < words.size(); ++i) {
      const uint32_t y = (words[i - 624] & 0x80000000u) | (words[i - 623] & 0x7fffffffu);
      words[i] = words[i - 227] ^ (y >> 1) ^ ((y & 1) ? 0x9908b0dfu : 0u);
    }
    std::vector<uint32_t> jumped(words.begin(), words.begin() + 624);
    jump(jumped.data(), steps);
    EXPECT_EQ(jumped, std::vector<uint32_t>(words.end() - 624, words.end())) << steps;
  }
}

TEST(Twister, StateUntouchedWhereNothingIsDrawn) {
  const auto fresh = seeded(3);
  EXPECT_EQ(MersenneTwister(fresh).state(), fresh);
  for (int draws : {1, 623, 624, 625}) {
    MersenneTwister twister(fresh);
    for (int i = 0; i < draws; ++i) twister.next();
    const auto after = twister.state();
    EXPECT_EQ(MersenneTwister(after).state(), after) << draws;
  }
}

TEST(Twister, AStateMayBeTakenAnywhere) {
  for (int cut : {0, 1, 2, 311, 312, 313, 623, 624, 625}) {
    MersenneTwister whole(seeded(11)), first(seeded(11));
    for (int i = 0; i < cut; ++i) EXPECT_EQ(first.next(), whole.next());
    MersenneTwister second(first.state());
    for (int i = 0; i < 700; ++i) ASSERT_EQ(second.next(), whole.next()) << cut << " " << i;
    EXPECT_EQ(second.state(), whole.state());
  }
}

TEST(Twister, AllOfABlockUsedIsNotTheSameAsFresh) {
  MersenneTwister twister(seeded(3));
  std::vector<uint8_t> mask(312);
  twister.bernoulli(0.5, mask.data(), 312);  // 624 draws
  uint64_t next = 0;
  std::memcpy(&next, &twister.state()[16], 8);
  EXPECT_EQ(next, 624u);
}

TEST(Twister, KeepsTheCachedNormal) {
  auto state = seeded(1);
  state[5000 + 32] = 0xab;  // normal_rho and what follows are not ours
  state[5052] = 1;
  MersenneTwister twister(state);
  twister.next();
  EXPECT_EQ(twister.state()[5032], 0xab);
  EXPECT_EQ(twister.state()[5052], 1);
}

TEST(Twister, RefusesWhatIsNoState) {
  EXPECT_THROW(MersenneTwister(std::vector<uint8_t>(100)), InternalError);
  EXPECT_THROW(MersenneTwister(std::vector<uint8_t>(MersenneTwister::kStateBytes)), InternalError);
}

TEST(Bernoulli, RecordedVectors) {
  std::ifstream file(TRAINC_TEST_DIR "/data/masks.txt");
  ASSERT_TRUE(file.is_open());
  int lines = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream in(line);
    std::string generator, p_text, mask_hash, state_hash;
    uint64_t seed;
    int64_t skip, n, ones;
    in >> generator >> seed >> skip >> p_text >> n >> ones >> mask_hash >> state_hash;
    ASSERT_TRUE(in) << line;
    const double p = std::strtod(p_text.c_str(), nullptr);
    std::vector<uint8_t> mask(n, 9);
    if (generator == "mkl") {
      mkl_bernoulli(static_cast<uint32_t>(seed), p, mask.data(), n);
    } else {
      MersenneTwister twister(seeded(seed));
      for (int64_t i = 0; i < skip; ++i) twister.next();
      bernoulli(MaskGenerator::Twister, twister, p, mask.data(), n);
      EXPECT_EQ(fnv(twister.state()), std::stoull(state_hash, nullptr, 16)) << line;
    }
    EXPECT_EQ(fnv(mask), std::stoull(mask_hash, nullptr, 16)) << line;
    EXPECT_EQ(std::count(mask.begin(), mask.end(), 1), ones) << line;
    ++lines;
  }
  EXPECT_GE(lines, 130);
}

TEST(Bernoulli, MklTakesOneDrawAsItsSeed) {
  MersenneTwister twister(seeded(3)), other(seeded(3));
  std::vector<uint8_t> a(100000), b(a.size());
  bernoulli(MaskGenerator::Mkl, twister, 0.9, a.data(), a.size());
  mkl_bernoulli(other.next(), 0.9, b.data(), b.size());
  EXPECT_EQ(a, b);
  EXPECT_EQ(twister.state(), other.state());
}

TEST(Bernoulli, BitsAreTheBytes) {
  for (const MaskGenerator g : {MaskGenerator::Twister, MaskGenerator::Mkl})
    for (const double p : {0.0, 0.3, 0.9, 1.0})
      for (const int64_t n : {0, 1, 7, 8, 9, 15, 16, 17, 312, 313, 4096, 4099, 16384, 50001}) {
        MersenneTwister of_bytes(seeded(3)), of_bits(seeded(3));
        std::vector<uint8_t> bytes(n), bits((n + 7) / 8 + 1, 0xA5), expected((n + 7) / 8 + 1, 0);
        bernoulli(g, of_bytes, p, bytes.data(), n);
        bernoulli_bits(g, of_bits, p, bits.data(), n);
        for (int64_t i = 0; i < n; ++i) expected[i / 8] = static_cast<uint8_t>(expected[i / 8] | bytes[i] << i % 8);
        expected.back() = 0xA5;
        ASSERT_EQ(bits, expected) << n << " of " << p;
        EXPECT_EQ(of_bits.state(), of_bytes.state());
      }
}

TEST(Bernoulli, PartsOfThreadsAreTheWhole) {
  for (const int64_t before : {0, 1, 311})
    for (const int64_t n : {(1 << 17) - 1, 1 << 17, 1 << 18, (1 << 18) + 4097, (1 << 20) + 3, 5'000'001}) {
      MersenneTwister whole(seeded(5)), of_bytes(seeded(5)), of_bits(seeded(5));
      for (int64_t i = 0; i < before; ++i) whole.next(), of_bytes.next(), of_bits.next();
      std::vector<uint8_t> expected(n), bytes(n), bits((n + 7) / 8), expected_bits((n + 7) / 8);
      whole.bernoulli(0.9, expected.data(), n);
      pack_bits(expected.data(), n, expected_bits.data());
      bernoulli(MaskGenerator::Twister, of_bytes, 0.9, bytes.data(), n);
      bernoulli_bits(MaskGenerator::Twister, of_bits, 0.9, bits.data(), n);
      ASSERT_EQ(bytes, expected) << n << " after " << before;
      ASSERT_EQ(bits, expected_bits) << n << " after " << before;
      ASSERT_EQ(of_bytes.state(), whole.state()) << n << " after " << before;
      ASSERT_EQ(of_bits.state(), whole.state()) << n << " after " << before;
    }
}

TEST(Bernoulli, CertainAndEmptyMasksDrawNothing) {
  for (const MaskGenerator g : {MaskGenerator::Twister, MaskGenerator::Mkl}) {
    MersenneTwister twister(seeded(3));
    std::vector<uint8_t> mask(10, 7);
    bernoulli(g, twister, 0, mask.data(), 10);
    EXPECT_EQ(mask, std::vector<uint8_t>(10, 0));
    bernoulli(g, twister, 1, mask.data(), 10);
    EXPECT_EQ(mask, std::vector<uint8_t>(10, 1));
    bernoulli(g, twister, 0.5, mask.data(), 0);
    EXPECT_EQ(twister.state(), seeded(3));
  }
}

}  // namespace
}  // namespace trainc::runtime
