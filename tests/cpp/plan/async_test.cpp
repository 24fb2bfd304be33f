// Steps that start something and steps that wait for it: what the verifier refuses, and that memory is held from the
// one to the other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "../common/plans.h"
#include "plan/live.h"
#include "support/error.h"

namespace trainc::plan {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

/// a = x; start b <- a; c = x; d = c; wait for it; y = b + d
Plan overlapping() {
  Plan p{.name = "overlapping"};
  p.buffers = {buffer("x", MemorySpace::Input, 100, 0), buffer("a", MemorySpace::Temp, 100),
               buffer("b", MemorySpace::Temp, 100),     buffer("c", MemorySpace::Temp, 100),
               buffer("d", MemorySpace::Temp, 100),     buffer("y", MemorySpace::Output, 100, 0)};
  p.kernels = {{.name = "k", .code = {0xc3}}};
  const Step start = start_step("send", 0, {1}, {2}, "sleep", 0.25);
  p.steps = {kernel_step("one", {0}, {1}),
             start,
             kernel_step("two", {0}, {3}),
             kernel_step("three", {3}, {4}),
             wait_step(start),
             kernel_step("four", {2, 4}, {5})};
  p.input_count = 1, p.output_count = 1, p.outputs = {5};
  plan_memory(p);
  return p;
}

TEST(Async, WhatIsInFlightLivesUntilItsWait) {
  const Plan p = overlapping();
  EXPECT_NO_THROW(verify(p));
  const std::vector<LiveRange> live = live_ranges(p);
  EXPECT_EQ(live[1].last, 4);
  EXPECT_EQ(live[2].first, 1);
  EXPECT_EQ(live[2].last, 5);
  for (int in_flight : {1, 2})
    for (int other : {3, 4}) {
      Plan wrong = p;
      wrong.buffers[other].offset = wrong.buffers[in_flight].offset;
      EXPECT_THAT([&] { verify(wrong); }, ThrowsMessage<InternalError>(HasSubstr("share bytes")));
    }
  Plan framework = p;  // the framework's tensor is kept as long
  framework.buffers[1].space = MemorySpace::Extern;
  framework.steps[0] = {.kind = StepKind::Extern,
                        .name = "one",
                        .arguments = {0},
                        .reads = {0},
                        .writes = {1},
                        .target = "t",
                        .arguments_json = "{}"};
  EXPECT_EQ(live_ranges(framework)[1].last, 4);
}

TEST(Async, InPlaceAndOfAnUpdatedInput) {
  Plan p = overlapping();
  p.buffers[0].updated = true;  // x is added up over the ranks, after all that read the old value
  const Step start = start_step("sum", 0, {0}, {0});
  p.steps = {kernel_step("one", {0}, {1}), kernel_step("two", {1}, {5}), start, wait_step(start)};
  plan_memory(p);
  EXPECT_NO_THROW(verify(p));
  p.steps.insert(p.steps.begin() + 3, kernel_step("again", {0}, {2}));
  EXPECT_THAT([&] { verify(p); }, ThrowsMessage<InternalError>(HasSubstr("again: reads x, which sum has in flight")));
  std::swap(p.steps[3], p.steps[4]);
  EXPECT_THAT([&] { verify(p); }, ThrowsMessage<InternalError>(HasSubstr("reads x after its update")));
}

struct Broken {
  const char* words;
  std::function<void(Plan&)> change;
};
class AsyncBroken : public testing::TestWithParam<Broken> {};
TEST_P(AsyncBroken, IsRefused) {
  Plan p = overlapping();
  GetParam().change(p);
  EXPECT_THAT([&] { verify(p); }, ThrowsMessage<InternalError>(HasSubstr(GetParam().words)));
}
void erase(Plan& p, int step) { p.steps.erase(p.steps.begin() + step); }
void insert(Plan& p, int place, Step step) { p.steps.insert(p.steps.begin() + place, std::move(step)), plan_memory(p); }
INSTANTIATE_TEST_SUITE_P(
    All, AsyncBroken,
    testing::Values(
        Broken{"waits for token 0, which is not in flight", [](Plan& p) { erase(p, 1); }},
        Broken{"waits for token 0, which is not in flight", [](Plan& p) { std::swap(p.steps[1], p.steps[4]); }},
        Broken{"waits for token 0, which is not in flight", [](Plan& p) { insert(p, 5, p.steps[4]); }},  // twice
        Broken{"waits for token 7, which is not in flight", [](Plan& p) { p.steps[4].token = 7; }},
        Broken{"waits for token -1, which is not in flight", [](Plan& p) { p.steps[4].token = -1; }},
        Broken{"send: is waited for by nobody",
               [](Plan& p) { erase(p, 4), p.steps[4] = kernel_step("four", {4}, {5}); }},
        Broken{"token 1 of 1", [](Plan& p) { p.steps[1].token = p.steps[4].token = 1; }},
        Broken{"token -1 of 1", [](Plan& p) { p.steps[1].token = -1; }},
        Broken{"token 0 a second time", [](Plan& p) { insert(p, 2, start_step("too", 0, {0}, {})); }},
        Broken{"token 0 a second time", [](Plan& p) { insert(p, 5, start_step("too", 0, {0}, {})); }},
        Broken{"has a token, but starts nothing", [](Plan& p) { p.steps[2].token = 0; }},
        Broken{"no target", [](Plan& p) { p.steps[1].target = ""; }},
        Broken{"lasts -1 s", [](Plan& p) { p.steps[1].seconds = -1; }},
        Broken{"lasts nan s", [](Plan& p) { p.steps[1].seconds = std::numeric_limits<double>::quiet_NaN(); }},
        Broken{"lasts inf s", [](Plan& p) { p.steps[1].seconds = std::numeric_limits<double>::infinity(); }},
        Broken{"effects are not its arguments", [](Plan& p) { p.steps[1].arguments = {1}; }},
        Broken{"effects are not those of send", [](Plan& p) { p.steps[4].reads = {}; }},
        Broken{"effects are not those of send", [](Plan& p) { p.steps[4].writes = {}; }},
        Broken{"effects are not those of send", [](Plan& p) { p.steps[4].arguments = {1}; }},
        Broken{"two: writes a, which send has in flight",
               [](Plan& p) { p.steps[2] = kernel_step("two", {0}, {3, 1}), plan_memory(p); }},
        Broken{"two: writes b, which send has in flight",
               [](Plan& p) { p.steps[2] = kernel_step("two", {0}, {3, 2}), plan_memory(p); }},
        Broken{"two: reads b, which send has in flight",
               [](Plan& p) { p.steps[2] = kernel_step("two", {2}, {3}), plan_memory(p); }},
        Broken{"too: reads b, which send has in flight",
               [](Plan& p) { insert(p, 2, start_step("too", 1, {2}, {})), insert(p, 6, wait_step(p.steps[2])); }},
        Broken{"too: writes a, which send has in flight",
               [](Plan& p) { insert(p, 2, start_step("too", 1, {0}, {1})), insert(p, 6, wait_step(p.steps[2])); }},
        Broken{"before anything was written",
               [](Plan& p) { p.steps[1] = start_step("send", 0, {3}, {2}), p.steps[4] = wait_step(p.steps[1]); }},
        Broken{"an input or a constant",
               [](Plan& p) { p.steps[1] = start_step("send", 0, {0}, {0}), p.steps[4] = wait_step(p.steps[1]); }},
        Broken{"the framework's memory", [](Plan& p) { p.buffers[2].space = MemorySpace::Extern; }},
        Broken{"is not the kernel between them", [](Plan& p) { p.buffers[2].over = 1, plan_memory(p); }},
        // c is made in a's memory while a is being sent
        Broken{"is not the kernel between them",
               [](Plan& p) { p.buffers[3].over = 1, p.steps[2] = kernel_step("two", {1}, {3}), plan_memory(p); }}));

TEST(Async, ReadersMayShareWhatIsBeingRead) {
  Plan p = overlapping();
  p.steps[2] = kernel_step("two", {1}, {3});
  insert(p, 3, start_step("too", 1, {1}, {}));
  insert(p, 6, wait_step(p.steps[3]));
  EXPECT_NO_THROW(verify(p));
}

TEST(Async, AViewThatIsInFlightKeepsWhatItLiesIn) {
  Plan p = overlapping();  // a, then v, a view of it, which is sent
  p.buffers.push_back(buffer("v", MemorySpace::Extern, 100));
  p.steps[1] = start_step("send", 0, {6}, {2}), p.steps[4] = wait_step(p.steps[1]);
  insert(p, 1,
         {.kind = StepKind::Extern,
          .name = "call",
          .arguments = {1},
          .reads = {1},
          .writes = {6},
          .target = "t",
          .arguments_json = "{}",
          .aliases = {1}});
  EXPECT_NO_THROW(verify(p));
  EXPECT_EQ(live_ranges(p)[1].last, 5);
  p.steps[3] = kernel_step("two", {0}, {3, 1});
  EXPECT_THAT([&] { verify(p); },
              ThrowsMessage<InternalError>(HasSubstr("two: writes a while v, a view of a, is in use")));
}

TEST(Async, ASlotThatIsInFlightIsNotGivenOut) {
  Plan p{.name = "backward"};  // s0 is sent; t and u are made meanwhile; it is dead after the wait
  p.buffers = {buffer("s0", MemorySpace::Saved, 100, 0), buffer("t", MemorySpace::Temp, 100),
               buffer("u", MemorySpace::Temp, 100), buffer("y", MemorySpace::Output, 100, 0)};
  p.kernels = {{.name = "k", .code = {0xc3}}};
  const Step start = start_step("send", 0, {0}, {});
  p.steps = {start, kernel_step("one", {}, {1}), wait_step(start), kernel_step("two", {1}, {2}),
             kernel_step("three", {2}, {3})};
  p.output_count = 1, p.outputs = {3}, p.saved_bytes = aligned(400), p.overwrites_saved = true;
  plan_memory(p);
  EXPECT_NO_THROW(verify(p));
  EXPECT_EQ(p.buffers[1].space, MemorySpace::Temp);
  EXPECT_EQ(p.buffers[2].space, MemorySpace::Saved);
  p.buffers[1].space = MemorySpace::Saved, p.buffers[1].index = -1, p.buffers[1].offset = 0;
  EXPECT_THAT([&] { verify(p); }, ThrowsMessage<InternalError>(HasSubstr("share bytes")));
}

/// Kernels that make and read buffers, and operations that are in flight over some of them.
Plan random_plan(uint32_t seed, int steps) {
  std::mt19937 random(seed);
  Plan p{.name = "random"};
  p.kernels = {{.name = "k", .code = {0xc3}}};
  std::vector<int> made;
  std::vector<Step> in_flight;
  const auto fresh = [&] {
    p.buffers.push_back(buffer("b" + std::to_string(p.buffers.size()), MemorySpace::Temp, 1 + random() % 1000));
    return static_cast<int>(p.buffers.size()) - 1;
  };
  const auto some = [&] { return made.empty() ? std::vector<int>{} : std::vector<int>{made[random() % made.size()]}; };
  int tokens = 0;
  const auto wait = [&] {
    const size_t which = random() % in_flight.size();
    p.steps.push_back(wait_step(in_flight[which]));
    for (int b : in_flight[which].writes) made.push_back(b);
    in_flight.erase(in_flight.begin() + which);
  };
  for (int s = 0; s < steps; ++s) {
    const int what = random() % 4;
    if (what == 0 && !in_flight.empty()) {
      wait();
    } else if (what == 1) {
      in_flight.push_back(start_step("s" + std::to_string(s), tokens++, some(),
                                     random() % 4 ? std::vector<int>{fresh()} : std::vector<int>{}));
      p.steps.push_back(in_flight.back());
    } else {
      const int b = fresh();
      p.steps.push_back(kernel_step("k" + std::to_string(s), some(), {b}));
      made.push_back(b);
    }
  }
  while (!in_flight.empty()) wait();
  return p;
}

// Said of each step by itself: the memory of what is in flight over it, and of what it touches, is nobody else's.
TEST(Async, RandomPlansShareNothingThatIsInFlight) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    Plan p = random_plan(seed, 10 + seed / 2);
    plan_memory(p);
    ASSERT_NO_THROW(verify(p)) << "seed " << seed;
    EXPECT_EQ(print(load(save(p))), print(p));
    std::map<int, const Step*> flying;
    for (const Step& s : p.steps) {
      if (s.kind == StepKind::Start) flying[s.token] = &s;
      std::set<int> busy;
      for (const auto& [token, start] : flying) busy.insert(start->arguments.begin(), start->arguments.end());
      for (int b : busy)
        for (const std::vector<int>* touched : {&s.reads, &s.writes})
          for (int other : *touched) {
            const Buffer &x = p.buffers[b], &y = p.buffers[other];
            EXPECT_TRUE(b == other || x.offset + x.bytes <= y.offset || y.offset + y.bytes <= x.offset)
                << "seed " << seed << ": " << s.name << " touches " << x.name << "'s memory";
          }
      if (s.kind == StepKind::Wait) flying.erase(s.token);
    }
  }
}

TEST(Async, PrintsAndIsStored) {
  const Plan p = overlapping();
  EXPECT_THAT(print(p),
              HasSubstr("1: send = start sleep {} as token 0, 0.25 s; arguments [a b], reads [a], writes [b]"));
  EXPECT_THAT(print(p), HasSubstr("4: wait_send = wait for token 0; arguments [], reads [a], writes [b]"));
  const std::string good = save(p);
  EXPECT_EQ(print(load(good)), print(p));
  EXPECT_EQ(save(load(good)), good);
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x20);
    EXPECT_THROW(load(bad), UserError) << "byte " << i;
    EXPECT_THROW(load(good.substr(0, i)), UserError) << i << " bytes";
  }
  Plan wrong = p;
  wrong.steps.erase(wrong.steps.begin() + 4);
  EXPECT_THAT([&] { load(save(wrong)); }, ThrowsMessage<UserError>(HasSubstr("not sound")));
  wrong = p;
  wrong.steps[4].kind = static_cast<StepKind>(6);
  EXPECT_THAT([&] { load(save(wrong)); }, ThrowsMessage<UserError>(HasSubstr("unknown kind of step")));
}

}  // namespace
}  // namespace trainc::plan
