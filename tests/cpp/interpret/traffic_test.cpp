// What the interpreter counts of requests to memory: each pattern beside what a GPU makes of it.
#include <gtest/gtest.h>

#include "interpret/device.h"
#include "support/error.h"

namespace trainc::interpret {
namespace {

/// Reads x[READ] and writes out[WRITE] by `t`, 0 to 31, of 100 blocks of one warp each, through s[STORED] and
/// s[LOADED].
std::vector<Traffic> asked(const std::string& read, const std::string& stored, const std::string& loaded,
                           const std::string& write, const std::string& dtype = "f32") {
  const loop::LoopNest nest = loop::parse("kernel k\n  parallel 100\n  threads 32\n  argument x: " + dtype +
                                          "[?]\n  argument out: " + dtype + "[?] written\n  shared s: " + dtype +
                                          "[2000] written\nbody:\n  parallel b in 100:\n    thread t in 32:\n"
                                          "      store s[" +
                                          stored + "] = x[" + read +
                                          "]\n    barrier\n"
                                          "    thread u in 32:\n      store out[" +
                                          write + "] = s[" + loaded + "]\n");
  loop::verify(nest);
  return traffic_of(nest);
}

const Traffic& of(const std::vector<Traffic>& all, const std::string& buffer, bool written) {
  for (const Traffic& t : all)
    if (t.buffer == buffer && t.written == written) return t;
  throw InternalError("no request to " + buffer);
}

TEST(Traffic, NeighboursShareSectors) {
  const auto all = asked("b * 32 + t", "t", "u", "b * 32 + u");
  const Traffic &x = of(all, "x", false), &out = of(all, "out", true), &s = of(all, "s", false);
  EXPECT_EQ(x.requests, 100);  // eight blocks were followed, and stand for all
  EXPECT_EQ(x.units, 400);     // 128 bytes
  EXPECT_EQ(x.least, 400);
  EXPECT_EQ(x.bytes, 12800);
  EXPECT_EQ(out.units, 400);
  EXPECT_TRUE(s.shared);
  EXPECT_EQ(s.units, 100);
  EXPECT_EQ(s.least, 100);
}

TEST(Traffic, FarApartEachHasItsSector) {
  const auto all = asked("b * 32 + t * 3200", "t", "u", "b * 32 + u * 2");
  EXPECT_EQ(of(all, "x", false).units, 3200);
  EXPECT_EQ(of(all, "x", false).least, 400);
  EXPECT_EQ(of(all, "out", true).units, 800);
}

TEST(Traffic, RowsThatBeginAmidASectorTouchOneMore) {
  EXPECT_EQ(of(asked("t + 1", "t", "u", "u"), "x", false).units, 500);
}

TEST(Traffic, OneElementForAllIsOneSector) {
  const Traffic x = of(asked("b", "t", "u", "b * 32 + u"), "x", false);
  EXPECT_EQ(x.units, 100);
  EXPECT_EQ(x.bytes, 400);
}

TEST(Traffic, WordsOfOneBankWait) {
  EXPECT_EQ(of(asked("t", "t * 32", "u * 33", "u"), "s", true).units, 3200);
  EXPECT_EQ(of(asked("t", "t * 32", "u * 33", "u"), "s", true).least, 100);
  EXPECT_EQ(of(asked("t", "t * 32", "u * 33", "u"), "s", false).units, 100);
  EXPECT_EQ(of(asked("t", "t * 2", "u", "u"), "s", true).units, 200);
  EXPECT_EQ(of(asked("t", "t", "u // 32", "u"), "s", false).units, 100);  // the same word for all
}

TEST(Traffic, NarrowElementsShareWordsAndWideOnesTakeTurns) {
  EXPECT_EQ(of(asked("t", "t", "u * 20", "u", "bf16"), "s", false).units,
            200);  // 10 words apart: 16 banks, two words each
  EXPECT_EQ(of(asked("t", "t", "u", "u", "bf16"), "s", false).units, 100);
  EXPECT_EQ(of(asked("t", "t", "u", "u", "f64"), "s", false).units, 200);
  EXPECT_EQ(of(asked("t", "t", "u", "u", "f64"), "s", false).least, 200);
}

/// A line of Shared memory is a row of 32 bf16; the pieces of 8 of it lie where `place` says, by line and piece.
std::vector<Traffic> matrices(const std::string& place) {
  const auto at = [&](std::string line, std::string piece) {
    std::string text = place;
    for (const auto& [word, by] : {std::pair{std::string("line"), line}, {std::string("piece"), piece}})
      for (size_t i = 0; (i = text.find(word, i)) != std::string::npos; i += by.size())
        text.replace(i, word.size(), by);
    return text;
  };
  const loop::LoopNest nest = loop::parse(
      "kernel k\n  parallel 100\n  threads 32\n  argument x: bf16[?]\n  argument out: bf16[?] written\n"
      "  shared s: bf16[512] written\n  register r: bf16[8] written\nbody:\n  parallel b in 100:\n"
      "    thread t in 64:\n      copyasync(8) s[(t // 4) * 32 + (" +
      at("(t // 4)", "(t % 4)") +
      ") * 8] = x[b * 512 + t * 8]\n    commit\n    wait(0)\n    barrier\n    thread u in 32:\n"
      "      loadmatrix r[0] = s[(u % 16) * 32 + (" +
      at("(u % 16)", "(u // 16)") + ") * 8]\n      store out[b * 32 + u] = r[0]\n");
  loop::verify(nest);
  return traffic_of(nest);
}

TEST(Traffic, CopiesToSharedMemoryAndMatricesOfIt) {
  const auto plain = matrices("piece");
  EXPECT_EQ(of(plain, "x", false).units, 200 * 16);  // 64 copies of 16 bytes: two requests of 512 bytes
  EXPECT_EQ(of(plain, "x", false).least, 200 * 16);
  EXPECT_EQ(of(plain, "s", true).units, 200 * 4);
  EXPECT_EQ(of(plain, "s", false).requests, 400);
  EXPECT_EQ(of(plain, "s", false).units, 400 * 4);  // eight rows, 64 bytes apart: two by two
  const auto turned = matrices("(piece + line // 2) % 4");
  EXPECT_EQ(of(turned, "s", true).units, 200 * 4);
  EXPECT_EQ(of(turned, "s", false).units, 400);
  EXPECT_EQ(of(turned, "s", false).least, 400);
}

TEST(Traffic, LongLoopsAreFollowedInPart) {
  const loop::LoopNest nest = loop::parse(
      "kernel k\n  parallel 1\n  threads 64\n  argument x: f32[?]\n  argument out: f32[?] written\nbody:\n"
      "  parallel b in 1:\n    let s: f32 = 0.0\n    for i in 1000000:\n      thread t in 6400:\n"
      "        s = sum(s, x[i * 6400 + t])\n    thread one in 1:\n      store out[0] = s\n");
  loop::verify(nest);
  EXPECT_DOUBLE_EQ(of(traffic_of(nest), "x", false).units, 1e6 * 800);
  EXPECT_DOUBLE_EQ(of(traffic_of(nest), "out", true).units, 1);
}

}  // namespace
}  // namespace trainc::interpret
