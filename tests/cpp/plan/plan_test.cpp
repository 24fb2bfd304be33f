// Memory planning, verifying, files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "../common/plans.h"
#include "plan/live.h"
#include "support/error.h"

namespace trainc::plan {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Verify, SmallPlanIsSound) { EXPECT_NO_THROW(verify(small_plan())); }

TEST(Verify, AnInputMayBeUpdatedLast) {
  Plan p = small_plan();
  p.buffers[0].updated = true;
  p.steps[4] = kernel_step("three", {7, 0}, {3, 0});
  EXPECT_NO_THROW(verify(p));
  EXPECT_EQ(print(load(save(p))), print(p));
}

Plan plan_of_bits() {
  Plan p = small_plan();
  p.buffers[6].bits = true;
  p.buffers[6].bytes = bytes_of_bits(8);
  return p;
}
TEST(Verify, AMaskMayBeBits) {
  const Plan p = plan_of_bits();
  EXPECT_NO_THROW(verify(p));
  EXPECT_THAT(print(p), HasSubstr("bool[2,4] bits strides [4,1], 17 bytes"));
  EXPECT_EQ(print(load(save(p))), print(p));
}
TEST(Verify, BitsAreForKernelsAndDraws) {
  const auto refused = [](const char* words, const std::function<void(Plan&)>& change) {
    Plan p = plan_of_bits();
    change(p);
    EXPECT_THAT([&] { verify(p); }, ThrowsMessage<InternalError>(HasSubstr(words)));
  };
  refused("its elements need 17", [](Plan& p) { p.buffers[6].bytes = 8; });
  refused("no dense bools of the plan's own", [](Plan& p) { p.buffers[6].dtype = DType::U8; });
  refused("no dense bools of the plan's own", [](Plan& p) { p.buffers[6].strides = {8, 1}, p.buffers[6].bytes = 64; });
  refused("no dense bools of the plan's own",
          [](Plan& p) { p.buffers[0].bits = true, p.buffers[0].dtype = DType::Bool; });
  refused("writes mask, which is bits", [](Plan& p) { p.steps[0] = kernel_step("one", {0, 4}, {1, 6}); });
  refused("reads mask, which is bits", [](Plan& p) { p.steps[3].arguments = p.steps[3].reads = {2, 6}; });
}

/// a = one(x); b = two(a), in a's memory, where g; z = three(x) where not g; y = four(b, z)
Plan guarded_plan() {
  Plan p{.name = "guarded"};
  p.buffers = {buffer("x", MemorySpace::Input, 8, 0),  buffer("a", MemorySpace::Temp, 8),
               buffer("b", MemorySpace::Temp, 8),      buffer("z", MemorySpace::Temp, 8),
               buffer("y", MemorySpace::Output, 8, 0), {.name = "g", .dtype = DType::Bool, .bytes = 1}};
  p.buffers[2].over = 1;
  p.kernels = {{.name = "k", .code = {0xc3}}};
  p.steps = {kernel_step("one", {0}, {1, 5}), kernel_step("two", {1}, {2}), kernel_step("three", {0}, {3}),
             kernel_step("four", {2, 3}, {4})};
  for (int s : {1, 2}) p.steps[s].guard = 5, p.steps[s].guard_value = s == 1, p.steps[s].reads.push_back(5);
  p.input_count = 1, p.output_count = 1, p.outputs = {4};
  plan_memory(p);
  return p;
}
TEST(Verify, AStepMayHaveAGuard) {
  const Plan p = guarded_plan();
  EXPECT_NO_THROW(verify(p));
  EXPECT_THAT(print(p), HasSubstr("kernel k over 1 where g; arguments [a b], reads [a g], writes [b]"));
  EXPECT_THAT(print(p), HasSubstr("kernel k over 1 where not g;"));
  const Plan loaded = load(save(p));
  EXPECT_EQ(print(loaded), print(p));
  EXPECT_EQ(loaded.steps[2].guard, 5);
  EXPECT_FALSE(loaded.steps[2].guard_value);
  EXPECT_EQ(live_ranges(p)[5].last, 2) << "the guard is there as long as it is asked";
}
TEST(Verify, AGuardIsABoolThatTheStepReads) {
  const auto refused = [](const char* words, const std::function<void(Plan&)>& change) {
    Plan p = guarded_plan();
    change(p);
    EXPECT_THAT([&] { verify(p); }, ThrowsMessage<InternalError>(HasSubstr(words)));
  };
  refused("guard -2", [](Plan& p) { p.steps[0].guard = -2; });
  refused("buffer 9 of 6", [](Plan& p) { p.steps[0].guard = 9, p.steps[0].reads.push_back(9); });
  refused("its declared effects are not its arguments", [](Plan& p) { p.steps[1].reads = {1}; });
  refused("guard a is no bool that it reads", [](Plan& p) { p.steps[1].guard = 1, p.steps[1].reads = {1}; });
  refused("guard g is no bool that it reads", [](Plan& p) { p.buffers[5].dtype = DType::U8; });
  refused("guard g is no bool that it reads",
          [](Plan& p) { p.buffers[5].shape = {2}, p.buffers[5].strides = {1}, p.buffers[5].bytes = 2; });
  refused("reads g before anything was written there", [](Plan& p) { p.steps[0] = kernel_step("one", {0}, {1}); });
  refused("guarded, but no kernel", [](Plan& p) {
    p.steps[2].kind = StepKind::Extern, p.steps[2].target = "t", p.steps[2].arguments = p.steps[2].reads = {0, 5};
  });
  // Where it is passed over, the caller would get what nobody wrote.
  refused("nobody else writes y", [](Plan& p) { p.steps[3].guard = 5, p.steps[3].reads.push_back(5); });
  refused("nobody else writes b", [](Plan& p) {
    p.saved_bytes = 64, p.buffers[2].space = MemorySpace::Saved, p.buffers[2].over = -1, p.buffers[2].offset = 0;
  });
}

/// x -> a; a call that may give a view of a; what reads that view; and in between b, which has no part in it.
Plan plan_with_a_view() {
  Plan p{.name = "view"};
  p.buffers = {buffer("x", MemorySpace::Input, 100, 0), buffer("a", MemorySpace::Temp, 100),
               buffer("v", MemorySpace::Extern, 100), buffer("b", MemorySpace::Temp, 100),
               buffer("y", MemorySpace::Output, 100, 0)};
  p.kernels = {{.name = "k", .code = {0xc3}}};
  p.steps = {kernel_step("one", {0}, {1}),
             {.kind = StepKind::Extern,
              .name = "call",
              .arguments = {1},
              .reads = {1},
              .writes = {2},
              .target = "t",
              .arguments_json = "{}",
              .aliases = {1}},
             kernel_step("two", {0}, {3}),
             kernel_step("three", {2, 3}, {4})};
  p.input_count = 1, p.output_count = 1, p.outputs = {4};
  plan_memory(p);
  return p;
}
TEST(Memory, WhatAViewLiesInLivesAsLongAsTheView) {
  const Plan p = plan_with_a_view();
  EXPECT_NO_THROW(verify(p));
  EXPECT_EQ(live_ranges(p)[1].last, 3);
  EXPECT_NE(p.buffers[1].offset, p.buffers[3].offset);
  EXPECT_EQ(print(load(save(p))), print(p));
  EXPECT_THAT(print(p), HasSubstr("(a view of a)"));
  Plan wrong = p;
  wrong.buffers[3].offset = wrong.buffers[1].offset;
  EXPECT_THAT([&] { verify(wrong); }, ThrowsMessage<InternalError>(HasSubstr("a and b share bytes")));
  Plan copied = p;  // a result that lies in the plan's memory is copied there
  copied.buffers[2].space = MemorySpace::Temp;
  plan_memory(copied);
  EXPECT_EQ(live_ranges(copied)[1].last, 1);
  EXPECT_NO_THROW(verify(copied));
}
TEST(Memory, AViewOfAViewKeepsTheMemoryToo) {
  Plan p = plan_with_a_view();
  p.buffers.push_back(buffer("w", MemorySpace::Extern, 100));
  p.steps.insert(p.steps.begin() + 2, p.steps[1]);
  p.steps[2].arguments = p.steps[2].reads = p.steps[2].aliases = {2}, p.steps[2].writes = {5};
  p.steps[4] = kernel_step("three", {5, 3}, {4});
  EXPECT_EQ(live_ranges(p)[1].last, 4);
  EXPECT_EQ(live_ranges(p)[2].last, 4);  // the framework's tensor, too
  plan_memory(p);
  EXPECT_NO_THROW(verify(p));
  EXPECT_NE(p.buffers[1].offset, p.buffers[3].offset);
}
TEST(Verify, NobodyWritesMemoryThatAViewLiesIn) {
  const auto refused = [](const char* words, const std::function<void(Plan&)>& change) {
    Plan p = plan_with_a_view();
    change(p);
    EXPECT_THAT([&] { verify(p); }, ThrowsMessage<InternalError>(HasSubstr(words)));
  };
  refused("which is no argument of a call", [](Plan& p) { p.steps[1].aliases = {3}; });
  refused("which is no argument of a call", [](Plan& p) { p.steps[2].aliases = {0}; });
  refused("two: writes a while v, a view of a, is in use",
          [](Plan& p) { p.steps[2] = kernel_step("two", {1}, {1}), p.steps[3] = kernel_step("three", {2}, {4}); });
  refused("two: writes b while v, a view of a, is in use",
          [](Plan& p) { p.steps[2] = kernel_step("two", {1}, {3}), p.buffers[3].over = 1, plan_memory(p); });
  // Not even the last reader of the view, which also reads what it lies in.
  refused("two: writes b while v, a view of a, is in use", [](Plan& p) {
    p.steps[2] = kernel_step("two", {1, 2}, {3}), p.steps[3] = kernel_step("three", {3}, {4}), p.buffers[3].over = 1;
    plan_memory(p);
  });
  refused("two: writes x while v, a view of x, is in use", [](Plan& p) {  // an argument that is updated
    p.steps[1].arguments = p.steps[1].reads = p.steps[1].aliases = {0}, p.buffers[0].updated = true;
    p.steps[2] = kernel_step("two", {1}, {3, 0});
  });
}

struct Broken {
  const char* words;
  std::function<void(Plan&)> change;
};
class VerifyBroken : public testing::TestWithParam<Broken> {};
TEST_P(VerifyBroken, IsRefused) {
  Plan p = small_plan();
  GetParam().change(p);
  EXPECT_THAT([&] { verify(p); }, ThrowsMessage<InternalError>(HasSubstr(GetParam().words)));
}
INSTANTIATE_TEST_SUITE_P(
    All, VerifyBroken,
    testing::Values(
        Broken{"axes but", [](Plan& p) { p.buffers[1].strides = {}; }},
        Broken{"negative extent", [](Plan& p) { p.buffers[1].shape = {-1}; }},
        Broken{"its elements need", [](Plan& p) { p.buffers[1].strides = {5}; }},
        Broken{"input 3 of 1", [](Plan& p) { p.buffers[0].index = 3; }},
        Broken{"output 3 of 3", [](Plan& p) { p.buffers[3].index = 3; }},
        Broken{"not a multiple of 64", [](Plan& p) { p.buffers[1].offset = 4; }},
        Broken{"of saved memory", [](Plan& p) { p.buffers[5].offset = 64; }},
        Broken{"of the arena", [](Plan& p) { p.temp_bytes = 64; }},
        Broken{"of constants", [](Plan& p) { p.constants.resize(7); }},
        Broken{"outside its", [](Plan& p) { p.kernels[0].entry = 3; }},
        Broken{"3 lines", [](Plan& p) { p.remarks[0].origins.push_back("m.py:3"); }},
        Broken{" 0 times", [](Plan& p) { p.remarks[0].count = 0; }},
        Broken{" -1 bytes", [](Plan& p) { p.remarks[1].bytes = -1; }},
        Broken{"remark ': a circle'", [](Plan& p) { p.remarks[0].what = ""; }},
        Broken{"remark 'fuse: '", [](Plan& p) { p.remarks[0].reason = ""; }},
        Broken{"10000 remarks", [](Plan& p) { p.remarks.resize(10'000, p.remarks[0]); }},
        Broken{"buffer 99 of", [](Plan& p) { p.steps[0].arguments[0] = 99; }},
        Broken{"buffer -2 of", [](Plan& p) { p.steps[4].writes[0] = -2; }},
        Broken{"kernel 1 of 1", [](Plan& p) { p.steps[0].kernel = 1; }},
        Broken{"declared effects are not its arguments", [](Plan& p) { p.steps[0].arguments.pop_back(); }},
        Broken{"declared reads are not its arguments", [](Plan& p) { p.steps[3].reads = {1}; }},
        Broken{"twice among its writes", [](Plan& p) { p.steps[2].writes = {2, 5, 2}; }},
        Broken{"an input or a constant", [](Plan& p) { p.steps[4] = kernel_step("three", {7}, {3, 0}); }},
        Broken{"reads x after its update",
               [](Plan& p) {
                 p.buffers[0].updated = true, p.steps[0] = kernel_step("one", {0, 4}, {1, 0}),
                 p.steps[4] = kernel_step("three", {7, 0}, {3});
               }},
        Broken{"updates x a second time",
               [](Plan& p) {
                 p.buffers[0].updated = true, p.steps[0] = kernel_step("one", {0, 4}, {1, 0}),
                 p.steps[4] = kernel_step("three", {7}, {3, 0});
               }},
        Broken{
            "a second buffer for updated input 0",
            [](Plan& p) { p.buffers[0].updated = true, p.buffers.push_back(buffer("x2", MemorySpace::Input, 4, 0)); }},
        Broken{"the framework's memory", [](Plan& p) { p.steps[4] = kernel_step("three", {1}, {3, 7}); }},
        Broken{"before anything was written", [](Plan& p) { std::swap(p.steps[0], p.steps[2]); }},
        // saved, written later
        Broken{"before anything was written", [](Plan& p) { p.steps[0] = kernel_step("one", {0, 4, 5}, {1}); }},
        Broken{"probability 1.5", [](Plan& p) { p.steps[1].p = 1.5; }},
        Broken{"dense bool",
               [](Plan& p) {
                 p.buffers[6].strides = {4, 1};
                 p.buffers[6].bytes += 2;
               }},
        Broken{"a draw writes one buffer", [](Plan& p) { p.steps[1].writes.push_back(p.steps[1].writes[0] - 1); }},
        Broken{"mask that nobody reads",
               [](Plan& p) {
                 p.steps[1].writes = {};
                 p.steps[1].increment = -1;
               }},
        Broken{"one shift an argument", [](Plan& p) { p.steps[0].shifts = {0}; }},
        Broken{"no target", [](Plan& p) { p.steps[3].target = ""; }},
        Broken{"outputs listed", [](Plan& p) { p.outputs.pop_back(); }},
        Broken{"is not its buffer", [](Plan& p) { p.outputs = {-1, 3, 0}; }},
        Broken{"is not its buffer", [](Plan& p) { p.outputs = {3, 1, 0}; }},
        Broken{"is never written", [](Plan& p) { p.steps.pop_back(); }},
        Broken{"not among the outputs", [](Plan& p) { p.outputs = {-1, -1, 0}; }},
        Broken{"share bytes", [](Plan& p) { p.buffers[2].offset = p.buffers[1].offset; }},
        Broken{"share bytes", [](Plan& p) { p.buffers.push_back(buffer("s2", MemorySpace::Saved, 1)); }}));

// --- memory

int64_t most_live(const Plan& p) {
  const auto live = live_ranges(p);
  int64_t most = 0;
  for (int s = 0; s < static_cast<int>(p.steps.size()); ++s) {
    int64_t now = 0;
    for (size_t b = 0; b < p.buffers.size(); ++b)
      if (p.buffers[b].space == MemorySpace::Temp && live[b].first <= s && s <= live[b].last)
        now += aligned(p.buffers[b].bytes);
    most = std::max(most, now);
  }
  return most;
}

/// Buffers of random sizes, each written at one step and read at a later one.
Plan random_plan(uint32_t seed, int steps, int buffers, int longest) {
  std::mt19937 random(seed);
  Plan p{.name = "random"};
  p.kernels = {{.name = "k", .code = {0xc3}}};
  for (int s = 0; s < steps; ++s) p.steps.push_back(kernel_step("s" + std::to_string(s), {}, {}));
  for (int i = 0; i < buffers; ++i) {
    p.buffers.push_back(
        buffer("b" + std::to_string(i), MemorySpace::Temp, 1 + random() % (random() % 4 ? 100 : 10000)));
    const int first = random() % (steps - 1), last = first + 1 + random() % std::min(longest, steps - first - 1);
    p.steps[first].writes.push_back(i), p.steps[first].arguments.push_back(i);
    p.steps[last].reads.push_back(i), p.steps[last].arguments.push_back(i);
  }
  return p;
}

TEST(Memory, RandomLiveRangesNeverOverlapAndStayNearTheBound) {
  double sum = 0;
  int count = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    Plan p = random_plan(seed, 4 + seed, 10 + 5 * seed, 1 + seed % 9);
    plan_memory(p);
    EXPECT_NO_THROW(verify(p)) << "seed " << seed;
    const double ratio = static_cast<double>(p.temp_bytes) / most_live(p);
    EXPECT_GE(ratio, 1) << "seed " << seed;
    EXPECT_LE(ratio, 1.3) << "seed " << seed;
    sum += ratio, ++count;
  }
  EXPECT_LE(sum / count, 1.05);
}

TEST(Memory, AChainTakesTheTwoLargestNeighbours) {
  Plan p = random_plan(0, 5, 0, 1);
  for (int i = 0; i < 4; ++i) {
    p.buffers.push_back(buffer("b" + std::to_string(i), MemorySpace::Temp, 16 * (i + 1)));
    p.steps[i].writes = {i}, p.steps[i].arguments.push_back(i);
    p.steps[i + 1].reads = {i}, p.steps[i + 1].arguments.push_back(i);
  }
  plan_memory(p);
  EXPECT_EQ(p.temp_bytes, 4 * 16 * (3 + 4));
  EXPECT_NO_THROW(verify(p));
}

TEST(Memory, EmptyAndUnusedBuffersTakeNothing) {
  Plan p = random_plan(0, 2, 0, 1);
  p.buffers = {buffer("empty", MemorySpace::Temp, 0), buffer("unused", MemorySpace::Temp, 100)};
  p.buffers[1].bytes = 0, p.buffers[1].shape = {0};
  p.steps[0] = kernel_step("w", {}, {0});
  plan_memory(p);
  EXPECT_EQ(p.temp_bytes, 0);
  EXPECT_NO_THROW(verify(p));
}

/// a (written by the first step) <- b (over it, in the second) <- out.
Plan chain() {
  Plan p{.name = "chain", .cpu = "avx2"};
  p.buffers = {buffer("x", MemorySpace::Input, 100, 0), buffer("a", MemorySpace::Temp, 100),
               buffer("b", MemorySpace::Temp, 100), buffer("y", MemorySpace::Output, 100, 0)};
  p.buffers[2].over = 1;
  p.kernels = {{.name = "k", .code = {0xc3}}};
  p.steps = {kernel_step("one", {0}, {1}), kernel_step("two", {1}, {2}), kernel_step("three", {2}, {3})};
  p.input_count = p.output_count = 1, p.outputs = {3};
  plan_memory(p);
  return p;
}
TEST(Memory, WhatIsWrittenInPlaceTakesNoMemoryOfItsOwn) {
  const Plan p = chain();
  EXPECT_EQ(p.temp_bytes, aligned(400));
  EXPECT_EQ(p.buffers[2].offset, p.buffers[1].offset);
  EXPECT_NO_THROW(verify(p));
  EXPECT_EQ(print(load(save(p))), print(p));
}
TEST(Memory, InPlaceIsRefusedWhereTheOldValueIsReadLater) {
  Plan p = chain();
  p.steps[2] = kernel_step("three", {1, 2}, {3});
  EXPECT_THAT([&] { verify(p); }, ThrowsMessage<InternalError>(HasSubstr("is not the kernel between them")));
  p = chain();
  p.steps[1].kind = StepKind::Extern, p.steps[1].target = "t", p.steps[1].arguments = {1};
  EXPECT_THAT([&] { verify(p); }, ThrowsMessage<InternalError>(HasSubstr("is not the kernel between them")));
  p = chain();
  p.buffers[2].offset = 448, p.temp_bytes = 900;
  EXPECT_THAT([&] { verify(p); }, ThrowsMessage<InternalError>(HasSubstr("not in its memory")));
  p = chain();
  p.buffers[1].over = 2;
  EXPECT_THAT([&] { verify(p); }, ThrowsMessage<InternalError>(HasSubstr("over what is not there")));
}

/// x -> a -> y, which is over x.
Plan gives_away() {
  Plan p{.name = "gives_away", .cpu = "avx2"};
  p.buffers = {buffer("x", MemorySpace::Input, 100, 0), buffer("a", MemorySpace::Temp, 100),
               buffer("y", MemorySpace::Output, 100, 0), buffer("z", MemorySpace::Output, 100, 1)};
  p.buffers[2].over = 0;
  p.kernels = {{.name = "k", .code = {0xc3}}};
  p.steps = {kernel_step("one", {0}, {1}), kernel_step("two", {1}, {2}), kernel_step("three", {1}, {3})};
  p.input_count = 1, p.output_count = 2, p.outputs = {2, 3};
  plan_memory(p);
  return p;
}
TEST(Memory, AResultMayTakeTheMemoryOfAnInput) {
  Plan p = gives_away();
  EXPECT_NO_THROW(verify(p));
  EXPECT_EQ(p.buffers[2].space, MemorySpace::Output);
  EXPECT_EQ(print(load(save(p))), print(p));
  p.steps[1] = kernel_step("two", {1, 0}, {2});  // a kernel that was proved to write in place
  EXPECT_NO_THROW(verify(p));
}
TEST(Memory, AResultIsNotWrittenOverWhatIsWantedLater) {
  const auto refused = [](const char* words, const std::function<void(Plan&)>& change) {
    Plan p = gives_away();
    change(p);
    EXPECT_THAT([&] { verify(p); }, ThrowsMessage<InternalError>(HasSubstr(words)));
  };
  refused("three: reads x after y was written over it", [](Plan& p) { p.steps[2] = kernel_step("three", {0}, {3}); });
  refused("three: reads x after y was written over it", [](Plan& p) {  // the same input by another name
    p.buffers.push_back(buffer("in", MemorySpace::Input, 100, 0)), p.steps[2] = kernel_step("three", {4}, {3});
  });
  refused("two: reads x after y was written over it", [](Plan& p) {
    p.steps[1] = kernel_step("two", {0}, {2}), p.steps[1].kind = StepKind::Extern, p.steps[1].target = "t";
    p.steps[1].arguments = {0};
  });
  refused("a second result is over x", [](Plan& p) { p.buffers[3].over = 0; });
  refused("over x, which is a result itself", [](Plan& p) { p.outputs.push_back(0), ++p.output_count; });
  refused("over x, but not in its memory", [](Plan& p) { p.buffers[0].shape = {101}, p.buffers[0].bytes = 404; });
  refused("over what is no input", [](Plan& p) { p.buffers[2].over = 1; });
  refused("over what is no input", [](Plan& p) { p.buffers[2].over = 3; });
  refused("over what is no input", [](Plan& p) { p.buffers[2].over = 77; });
}

/// A backward: two slots, the first read by step one, the second by step two; a temporary from step one to step three.
Plan reads_slots(bool overwrites) {
  Plan p{.name = "backward", .cpu = "avx2"};
  p.buffers = {buffer("s0", MemorySpace::Saved, 100, 0), buffer("s1", MemorySpace::Saved, 100, 1),
               buffer("t", MemorySpace::Temp, 100), buffer("u", MemorySpace::Temp, 100),
               buffer("y", MemorySpace::Output, 100, 0)};
  p.buffers[1].offset = aligned(400);
  p.kernels = {{.name = "k", .code = {0xc3}}};
  p.steps = {kernel_step("one", {0}, {2}), kernel_step("two", {1, 2}, {3}), kernel_step("three", {2, 3}, {4})};
  p.output_count = 1, p.outputs = {4}, p.saved_bytes = 2 * aligned(400), p.overwrites_saved = overwrites;
  plan_memory(p);
  return p;
}
TEST(Memory, AnOverwrittenArenaHoldsTemporariesWhereItsSlotsAreDead) {
  const Plan keeps = reads_slots(false), overwrites = reads_slots(true);
  EXPECT_NO_THROW(verify(keeps));
  EXPECT_NO_THROW(verify(overwrites));
  EXPECT_EQ(keeps.temp_bytes, 2 * aligned(400));
  EXPECT_EQ(overwrites.temp_bytes, aligned(400));  // t is written while both slots are wanted; u takes the first
  EXPECT_EQ(overwrites.buffers[3].space, MemorySpace::Saved);
  EXPECT_EQ(overwrites.buffers[3].offset, 0);
  Plan wrong = overwrites;
  wrong.overwrites_saved = false;
  EXPECT_THAT([&] { verify(wrong); }, ThrowsMessage<InternalError>(HasSubstr("share bytes")));
  wrong = overwrites;
  wrong.buffers[3].offset = aligned(400);  // the second slot is being read
  EXPECT_THAT([&] { verify(wrong); }, ThrowsMessage<InternalError>(HasSubstr("share bytes")));
}
TEST(Memory, ASlotMayBeOverwrittenByItsLastReaderWhereTheArenaIsConsumed) {
  Plan p = reads_slots(true);
  p.buffers[2].over = 0;
  plan_memory(p);
  EXPECT_NO_THROW(verify(p));
  EXPECT_EQ(p.buffers[2].space, MemorySpace::Saved);
  EXPECT_EQ(p.temp_bytes, aligned(400));
  p.overwrites_saved = false;
  EXPECT_THAT([&] { verify(p); }, ThrowsMessage<InternalError>(HasSubstr("which is kept")));
}
// A sum that is added to step by step, the last time into the slot.
TEST(Memory, ASlotLiesOverTheTemporaryThatBecomesIt) {
  const auto make = [] {
    Plan p{.name = "forward", .cpu = "avx2"};
    p.buffers = {buffer("x", MemorySpace::Input, 100, 0), buffer("t", MemorySpace::Temp, 100),
                 buffer("u", MemorySpace::Temp, 100), buffer("s0", MemorySpace::Saved, 100, 0),
                 buffer("s1", MemorySpace::Saved, 100, 1)};
    p.buffers[3].offset = aligned(400);
    p.buffers[2].over = 1, p.buffers[3].over = 2;
    p.kernels = {{.name = "k", .code = {0xc3}}};
    p.steps = {kernel_step("one", {0}, {1}), kernel_step("two", {0, 1}, {2}), kernel_step("three", {2}, {3}),
               kernel_step("four", {0}, {4})};
    p.input_count = 1, p.saved_bytes = 2 * aligned(400);
    return p;
  };
  Plan p = make();
  plan_memory(p);
  EXPECT_NO_THROW(verify(p));
  EXPECT_EQ(p.temp_bytes, 0);
  for (int b : {1, 2, 3}) {
    EXPECT_EQ(p.buffers[b].space, MemorySpace::Saved);
    EXPECT_EQ(p.buffers[b].offset, aligned(400));
  }
  EXPECT_EQ(p.buffers[1].index, -1);
  EXPECT_EQ(p.buffers[3].index, 0);
  const std::string once = print(p);
  plan_memory(p);
  EXPECT_EQ(print(p), once);
  EXPECT_EQ(print(load(save(p))), once);
  Plan wrong = p;
  wrong.buffers[1].offset = wrong.buffers[2].offset = 0;  // not where the slot is
  EXPECT_THAT([&] { verify(wrong); }, ThrowsMessage<InternalError>(HasSubstr("not in its memory")));
  wrong = make();  // what is over a slot that this plan fills would destroy it
  wrong.buffers[3].over = -1, wrong.buffers[4].over = 3, wrong.buffers[4].offset = aligned(400);
  wrong.steps[3] = kernel_step("four", {3}, {4});
  plan_memory(wrong);
  EXPECT_THAT([&] { verify(wrong); }, ThrowsMessage<InternalError>(HasSubstr("which is kept")));
}
TEST(Memory, AForwardUsesSlotsThatItHasNotWrittenYet) {
  Plan p{.name = "forward", .cpu = "avx2"};
  p.buffers = {buffer("x", MemorySpace::Input, 100, 0), buffer("t", MemorySpace::Temp, 100),
               buffer("s0", MemorySpace::Saved, 100, 0), buffer("s1", MemorySpace::Saved, 100, 1)};
  p.buffers[3].offset = aligned(400);
  p.kernels = {{.name = "k", .code = {0xc3}}};
  p.steps = {kernel_step("one", {0}, {1}), kernel_step("two", {1}, {2}), kernel_step("three", {0, 2}, {3})};
  p.input_count = 1, p.saved_bytes = 2 * aligned(400);
  plan_memory(p);
  EXPECT_NO_THROW(verify(p));
  EXPECT_EQ(p.temp_bytes, 0);
  EXPECT_EQ(p.buffers[1].offset, aligned(400));
  p.buffers[1].offset = 0;  // the slot that is written while t is read
  EXPECT_THAT([&] { verify(p); }, ThrowsMessage<InternalError>(HasSubstr("share bytes")));
}

// --- files

TEST(File, LoadGivesBackWhatWasSaved) {
  const Plan p = small_plan(), q = load(save(p));
  EXPECT_EQ(print(q), print(p));
  EXPECT_EQ(save(q), save(p));
  EXPECT_EQ(q.kernels[0].code, p.kernels[0].code);
  EXPECT_EQ(q.kernels[0].scratch_bytes, 64);
  EXPECT_EQ(q.constants, p.constants);
  EXPECT_EQ(q.steps[3].origins, p.steps[3].origins);
  EXPECT_EQ(q.remarks, p.remarks);
}

TEST(File, EveryChangedByteIsFound) {
  const std::string good = save(small_plan());
  for (size_t i = 0; i < good.size(); ++i)
    for (const int flip : {1, 0x80, 0xff}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ flip);
      EXPECT_THROW(load(bad), UserError) << "byte " << i;
    }
}

TEST(File, EveryTruncationIsFound) {
  const std::string good = save(small_plan());
  for (size_t n = 0; n < good.size(); ++n) EXPECT_THROW(load(good.substr(0, n)), UserError) << n << " bytes";
  EXPECT_THROW(load(good + "x"), UserError);
}

TEST(File, ForeignAndOldFilesAreNamed) {
  EXPECT_THAT([] { load("PK\3\4 this is something else altogether"); },
              ThrowsMessage<UserError>(HasSubstr("not a trainc plan")));
  std::string old = save(small_plan());
  ++old[8];  // the version, behind the magic
  EXPECT_THAT([&] { load(old); }, ThrowsMessage<UserError>(HasSubstr("another version")));
}

TEST(File, AnUnsoundPlanIsRefusedThoughItsChecksumIsRight) {
  Plan p = small_plan();
  p.outputs = {3, 1, 0};
  EXPECT_THAT([&] { load(save(p)); }, ThrowsMessage<UserError>(HasSubstr("not sound")));
  p = small_plan();
  p.buffers[1].space = static_cast<MemorySpace>(77);
  EXPECT_THAT([&] { load(save(p)); }, ThrowsMessage<UserError>(HasSubstr("unknown kind of buffer")));
}

TEST(ForeachFile, LoadGivesBackWhatWasSaved) {
  const Foreach f = small_foreach(), g = load_foreach(save(f));
  EXPECT_EQ(save(g), save(f));
  EXPECT_EQ(g.kernel.code, f.kernel.code);
  EXPECT_TRUE(!g.inputs[0].scalar && g.inputs[1].scalar && g.inputs[1].dtype == DType::F64);
}

TEST(ForeachFile, WhatIsNoneIsRefused) {
  const std::string good = save(small_foreach());
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] ^= 0x10;
    EXPECT_THROW(load_foreach(bad), UserError) << "byte " << i;
    EXPECT_THROW(load_foreach(good.substr(0, i)), UserError) << i << " bytes";
  }
  EXPECT_THROW(load(good), UserError) << "a kernel is no plan";
  EXPECT_THROW(load_foreach(save(small_plan())), UserError);
  for (auto broken : {+[](Foreach& f) { f.kernel.entry = 2; }, +[](Foreach& f) { f.chunk = 0; },
                      +[](Foreach& f) { f.inputs[0].dtype = DType(99); }}) {
    Foreach f = small_foreach();
    broken(f);
    EXPECT_THAT([&] { load_foreach(save(f)); }, ThrowsMessage<UserError>(HasSubstr("not sound")));
  }
}

TEST(Print, SaysWhatIsInMemoryWhen) {
  const std::string text = print(small_plan());
  EXPECT_THAT(text, HasSubstr("x: input 0 f32[8]"));
  EXPECT_THAT(text, HasSubstr("1: draw = random p=0.9"));
  EXPECT_THAT(text, HasSubstr("3: call = extern aten.relu.default {}; arguments [b]"));
  EXPECT_THAT(text, HasSubstr("// m.py:3"));
  EXPECT_THAT(text, HasSubstr("outputs: y none x"));
  EXPECT_THAT(text, HasSubstr("remarks:\n  schedule: not fuse: a circle (exp); 3 x, 96 bytes   // m.py:1, m.py:2\n  "
                              "compiler: not in place: it is read later; 1 x, 0 bytes\n"));
  EXPECT_EQ(text.substr(0, text.find("remarks:")), print(small_plan(), false));
}

}  // namespace
}  // namespace trainc::plan
