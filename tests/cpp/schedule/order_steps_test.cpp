// The order of steps around what is in flight. Plans here have no code: what a step computes is a word made of its name
// and of what it reads.
#include "schedule/order_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>
#include <set>

#include "../common/plans.h"
#include "compiler/lower_plan.h"
#include "plan/live.h"

namespace trainc::schedule {
namespace {

using plan::buffer;
using plan::kernel_step;
using plan::MemorySpace;
using plan::Plan;
using plan::start_step;
using plan::Step;
using plan::StepKind;
using plan::wait_step;
using ::testing::ElementsAre;

// a kernel lasts `flops` seconds
constexpr StepCosts kSeconds{.flops_per_second = 1, .bytes_per_second = 1, .seconds_a_step = 0};

Step kernel(const std::string& name, std::vector<int> reads, std::vector<int> writes, int64_t seconds) {
  Step s = kernel_step(name, std::move(reads), std::move(writes));
  s.flops = seconds;
  return s;
}
std::vector<std::string> names(const Plan& p) {
  std::vector<std::string> all;
  for (const Step& s : p.steps) all.push_back(s.name);
  return all;
}
Estimate estimate_as_is(const Plan& p) {
  std::vector<int> order(p.steps.size());
  std::iota(order.begin(), order.end(), 0);
  return estimate(p, order, kSeconds);
}
Plan with_memory(Plan p) {
  plan::plan_memory(p);
  return p;
}
/// Buffers x (input 0, of so many numbers), y (output 0) and so many temporaries, 2 and on.
Plan empty(int temporaries, int64_t numbers = 1000) {
  Plan p{.name = "p"};
  p.kernels = {{.name = "k", .code = {0xc3}}};
  p.buffers = {buffer("x", MemorySpace::Input, numbers, 0), buffer("y", MemorySpace::Output, 16, 0)};
  for (int i = 0; i < temporaries; ++i) p.buffers.push_back(buffer("t" + std::to_string(i), MemorySpace::Temp, 16));
  p.input_count = p.output_count = 1, p.outputs = {1};
  return p;
}

/// What the plan computes: for each output and updated input, the word that is in it at the end; and the order of draws
/// and calls.
std::vector<std::string> computed(const Plan& p) {
  std::map<int, std::string> value;
  std::map<int, std::string> in_flight;  // by token
  std::vector<std::string> seen;
  const auto read = [&](int b) { return value.contains(b) ? value[b] : p.buffers[b].name; };
  for (const Step& s : p.steps) {
    std::string word = s.name + "(";
    for (int b : s.reads) word += read(b) + ",";
    word += ")";
    if (word.size() > 40) word = s.name + "#" + std::to_string(std::hash<std::string>()(word));
    if (s.kind == StepKind::Start) {
      in_flight[s.token] = word;
      for (int b : s.writes) value[b] = "rubbish";
      continue;
    }
    if (s.kind == StepKind::Wait) word = in_flight[s.token];
    for (int b : s.writes) value[b] = word;
    if (s.kind == StepKind::Extern || s.kind == StepKind::Random) seen.push_back(word);
  }
  for (size_t b = 0; b < p.buffers.size(); ++b)
    if (p.buffers[b].space != MemorySpace::Temp && p.buffers[b].space != MemorySpace::Extern)
      seen.push_back(read(static_cast<int>(b)));
  return seen;
}

/// x -> a -> (in flight, 10 s) -> b -> y, and behind it, two kernels that have no part in it, whose result b reads
/// last.
Plan chain_and_others() {
  Plan p = empty(6);
  const Step start = start_step("send", 0, {2}, {3}, "sleep", 10);
  p.steps = {
      kernel("other1", {0}, {4}, 4), kernel("other2", {4}, {5}, 4), kernel("a", {0}, {2}, 1), start, wait_step(start),
      kernel("b", {3}, {6}, 1),      kernel("end", {6, 5}, {1}, 1)};
  return p;
}
TEST(OrderSteps, OtherWorkIsPutBetweenStartAndWait) {
  const Plan p = chain_and_others(), ordered = order_steps(p, kSeconds);
  EXPECT_NO_THROW(plan::verify(with_memory(ordered)));
  EXPECT_EQ(estimate_as_is(p).seconds, 21);
  EXPECT_EQ(estimate_as_is(ordered).seconds, 13);  // the way through a, what is in flight, b and the end
  EXPECT_THAT(names(ordered), ElementsAre("a", "send", "other1", "other2", "wait_send", "b", "end"));
  EXPECT_EQ(computed(ordered), computed(p));
}

TEST(OrderSteps, AWaitComesRightBeforeItsFirstReader) {
  Plan p = empty(3);
  const Step start = start_step("send", 0, {2}, {2}, "sleep", 1);
  p.steps = {kernel("a", {0}, {2}, 1), kernel("other", {0}, {3}, 9), start,
             wait_step(start),         kernel("more", {3}, {4}, 9),  kernel("b", {2, 4}, {1}, 1)};
  EXPECT_THAT(names(order_steps(p, kSeconds)), ElementsAre("a", "send", "other", "more", "wait_send", "b"));
}

// A backward: each layer makes the gradient of its input, then its weight's, which is summed over the ranks; each
// weight is updated at the end.
Plan backward(int layers, double link) {
  Plan p = empty(0);
  std::vector<Step> ends;
  int upstream = 0;
  for (int l = 0; l < layers; ++l) {
    const int gradient = static_cast<int>(p.buffers.size()), of_weight = gradient + 1, weight = gradient + 2;
    p.buffers.push_back(buffer("dx" + std::to_string(l), MemorySpace::Temp, 64));
    p.buffers.push_back(buffer("dw" + std::to_string(l), MemorySpace::Temp, 16));
    p.buffers.push_back(buffer("w" + std::to_string(l), MemorySpace::Input, 16, p.input_count++));
    p.buffers.back().updated = true;
    p.steps.push_back(kernel("dw" + std::to_string(l), {upstream}, {of_weight}, 2));
    p.steps.push_back(kernel("dx" + std::to_string(l), {upstream, weight}, {gradient}, 2));
    const Step sum = start_step("sum" + std::to_string(l), l, {of_weight}, {of_weight}, "sleep", link);
    ends.push_back(sum);
    ends.push_back(wait_step(sum));
    ends.push_back(kernel("update" + std::to_string(l), {of_weight, weight}, {weight}, 1));
    upstream = gradient;
  }
  p.steps.push_back(kernel("last", {upstream}, {1}, 1));
  for (Step& s : ends) p.steps.push_back(std::move(s));
  return p;
}
TEST(OrderSteps, GradientsAreSummedBehindTheBackward) {
  const Plan p = backward(8, 3), ordered = order_steps(p, kSeconds);
  EXPECT_NO_THROW(plan::verify(with_memory(ordered)));
  EXPECT_EQ(computed(ordered), computed(p));
  const double kernels = 8 * 5 + 1;
  EXPECT_EQ(estimate_as_is(p).seconds, kernels + 8 * 3);
  // Nothing is left to hide the last layer's sum behind but the other layers' updates.
  EXPECT_EQ(estimate_as_is(ordered).seconds, kernels);
  EXPECT_LE(estimate_as_is(ordered).bytes, estimate_as_is(p).bytes);
  const std::vector<std::string> order = names(ordered);
  for (int l = 0; l < 8; ++l) {
    const auto place = [&](const std::string& name) {
      return std::find(order.begin(), order.end(), name + std::to_string(l)) - order.begin();
    };
    EXPECT_EQ(place("sum"), place("dw") + 1) << l;
    EXPECT_EQ(place("wait_sum") + 1, place("update")) << l;
  }
}
TEST(OrderSteps, WhereTheLinkIsTheBottleneckItIsNeverIdle) {
  const Plan ordered = order_steps(backward(8, 20), kSeconds);
  EXPECT_EQ(estimate_as_is(ordered).seconds, 2 + 8 * 20 + 1);  // the first gradient; all sums; the last update
}

/// Layers whose weights are gathered from all ranks, each into memory of its own: all could be started at once.
Plan gathers(int layers, double link, int64_t numbers) {
  Plan p = empty(0, 4 * numbers);
  int x = 0;
  for (int l = 0; l < layers; ++l) {
    const int shard = static_cast<int>(p.buffers.size()), whole = shard + 1, y = shard + 2;
    p.buffers.push_back(buffer("shard" + std::to_string(l), MemorySpace::Input, 16, p.input_count++));
    p.buffers.push_back(buffer("whole" + std::to_string(l), MemorySpace::Temp, numbers));
    p.buffers.push_back(buffer("y" + std::to_string(l), MemorySpace::Temp, 16));
    const Step gather = start_step("gather" + std::to_string(l), l, {shard}, {whole}, "sleep", link);
    p.steps.push_back(gather);
    p.steps.push_back(wait_step(gather));
    p.steps.push_back(kernel("layer" + std::to_string(l), {x, whole}, {y}, 4));
    x = y;
  }
  p.steps.push_back(kernel("last", {x}, {1}, 1));
  return p;
}
TEST(OrderSteps, GathersRunAheadByWhatPays) {
  const Plan p = gathers(16, 3, 1 << 20), ordered = order_steps(p, kSeconds);
  EXPECT_NO_THROW(plan::verify(with_memory(ordered)));
  EXPECT_EQ(computed(ordered), computed(p));
  EXPECT_EQ(estimate_as_is(p).seconds, 16 * 7 + 1);
  const int64_t whole = int64_t{4} << 20, one = estimate_as_is(p).bytes;
  EXPECT_LE(one, whole + 1024);
  // A second layer's weights are worth what they hide; a third's would hide nothing more.
  EXPECT_EQ(estimate_as_is(ordered).seconds, 3 + 16 * 4 + 1);
  EXPECT_LE(estimate_as_is(ordered).bytes, 2 * whole + 1024);
  // Where there is little to hide, memory is not worth it.
  const Plan quick = gathers(16, 0.1, 1 << 20);
  EXPECT_EQ(estimate_as_is(order_steps(quick, kSeconds)).bytes, estimate_as_is(quick).bytes);
}

TEST(OrderSteps, StartsOfOneKindKeepTheirOrder) {
  Plan p = empty(2);
  const Step slow = start_step("slow", 0, {2}, {2}, "sleep", 5), quick = start_step("quick", 1, {3}, {3}, "sleep", 5);
  p.steps = {kernel("b", {0}, {3}, 1), kernel("a", {0}, {2}, 9),     slow, wait_step(slow), quick,
             wait_step(quick),         kernel("end", {2, 3}, {1}, 1)};
  const auto order = [](const Plan& plan) { return names(order_steps(plan, kSeconds)); };
  const auto place = [&](const Plan& plan, const char* name) {
    const std::vector<std::string> all = order(plan);
    return std::find(all.begin(), all.end(), name) - all.begin();
  };
  EXPECT_LT(place(p, "slow"), place(p, "quick"));  // other processes may have it so alone
  Plan other = p;
  other.steps[4].target = "snooze";
  EXPECT_GT(place(other, "slow"), place(other, "quick"));  // of another kind, it comes when it can
}

TEST(OrderSteps, DrawsAndCallsKeepTheirOrder) {
  Plan p = empty(4);
  p.buffers.push_back(
      {.name = "mask", .space = MemorySpace::Temp, .dtype = DType::Bool, .shape = {16}, .strides = {1}, .bytes = 16});
  p.buffers.push_back(buffer("e", MemorySpace::Extern, 16));
  const Step start = start_step("send", 0, {2}, {3}, "sleep", 100);
  p.steps = {{.kind = StepKind::Random, .name = "draw", .writes = {6}, .p = 0.5},
             kernel("a", {0}, {2}, 1),
             start,
             wait_step(start),
             {.kind = StepKind::Extern,
              .name = "call",
              .arguments = {3},
              .reads = {3},
              .writes = {7},
              .target = "t",
              .arguments_json = "{}"},
             {.kind = StepKind::Random, .name = "draw2", .increment = 5},
             kernel("b", {7, 6}, {1}, 1)};
  EXPECT_THAT(computed(order_steps(p, kSeconds)), computed(p));
  EXPECT_NO_THROW(plan::verify(with_memory(order_steps(p, kSeconds))));
}

TEST(OrderSteps, AViewHoldsBackWhoWritesWhatItLiesIn) {
  // a; v, a view of it, is sent; then a's memory is taken over, by a kernel that could run at once but for that
  Plan p = empty(4);
  p.buffers.push_back(buffer("v", MemorySpace::Extern, 16));
  const Step start = start_step("send", 0, {6}, {3}, "sleep", 100);
  p.steps = {kernel("a", {0}, {2}, 1),
             {.kind = StepKind::Extern,
              .name = "call",
              .arguments = {2},
              .reads = {2},
              .writes = {6},
              .target = "t",
              .arguments_json = "{}",
              .aliases = {2}},
             start,
             wait_step(start),
             kernel("take", {2}, {4}, 1),
             kernel("b", {3, 4}, {1}, 1)};
  p.buffers[4].over = 2;
  EXPECT_NO_THROW(plan::verify(with_memory(p)));
  EXPECT_NO_THROW(plan::verify(with_memory(order_steps(p, kSeconds))));
}

TEST(OrderSteps, WithoutAStartNothingMoves) {
  Plan p = chain_and_others();
  p.steps.erase(p.steps.begin() + 3, p.steps.begin() + 5);
  p.steps[3] = kernel("b", {2}, {6}, 1);
  EXPECT_EQ(names(order_steps(p, kSeconds)), names(p));
  const Plan small = plan::small_plan();
  EXPECT_EQ(print(order_steps(small)), print(small));
}

TEST(OrderSteps, TheCompilerOrdersWhatItLaysOut) {
  EXPECT_EQ(names(compiler::with_memory(chain_and_others())), names(order_steps(chain_and_others())));
  EXPECT_NE(names(compiler::with_memory(chain_and_others())), names(chain_and_others()));
}

/// Kernels and operations over random earlier results; some take over the memory of what they are the last to read,
/// some update an input, some results are views.
Plan random_plan(uint32_t seed, int steps) {
  std::mt19937 random(seed);
  const auto below = [&](size_t n) { return static_cast<int>(random() % n); };
  Plan p = empty(0, 100'000);
  // updated in the end, where anybody reads it
  p.buffers.push_back(buffer("w", MemorySpace::Input, 16, 1)), p.input_count = 2;
  std::vector<int> made{0};  // and not taken over
  std::vector<Step> in_flight;
  int tokens = 0;
  const auto fresh = [&](MemorySpace space) {
    p.buffers.push_back(buffer("b" + std::to_string(p.buffers.size()), space, 1 + below(300)));
    return static_cast<int>(p.buffers.size()) - 1;
  };
  const auto some = [&] {
    std::set<int> reads;
    for (int n = 1 + below(2); n > 0; --n)
      reads.insert(made[made.size() - 1 - static_cast<size_t>(below(std::min<size_t>(made.size(), 8)))]);
    return std::vector<int>(reads.begin(), reads.end());
  };
  const auto wait = [&] {
    const size_t which = static_cast<size_t>(below(in_flight.size()));
    p.steps.push_back(wait_step(in_flight[which]));
    for (int b : in_flight[which].writes) made.push_back(b);
    in_flight.erase(in_flight.begin() + static_cast<int>(which));
  };
  for (int s = 0; s < steps; ++s) {
    const std::string name = "s" + std::to_string(s);
    const int what = below(10);
    if (what == 0 && !in_flight.empty()) {
      wait();
    } else if (what <= 2) {
      in_flight.push_back(start_step(name, tokens++, some(),
                                     below(4) ? std::vector<int>{fresh(MemorySpace::Temp)} : std::vector<int>{},
                                     s % 2 ? "sleep" : "snooze", 1 + below(25)));
      p.steps.push_back(in_flight.back());
    } else if (what == 3) {
      const std::vector<int> reads = some();
      const int view = fresh(MemorySpace::Extern);
      p.steps.push_back({.kind = StepKind::Extern,
                         .name = name,
                         .arguments = reads,
                         .reads = reads,
                         .writes = {view},
                         .target = "t",
                         .arguments_json = "{}"});
      if (below(2)) p.steps.back().aliases = {reads[0]};
      made.push_back(view);
    } else {
      std::vector<int> reads = some();
      if (below(4) == 0) reads.push_back(2);
      const int b = fresh(MemorySpace::Temp);
      p.steps.push_back(kernel(name, reads, {b}, 1 + below(6)));
      made.push_back(b);
    }
  }
  while (!in_flight.empty()) wait();
  p.steps.push_back(kernel("update", {made.back(), 2}, {2}, 1));
  p.buffers[2].updated = true;
  std::vector<int> reads(made.end() - std::min<int64_t>(5, static_cast<int64_t>(made.size())), made.end());
  p.steps.push_back(kernel("end", reads, {1}, 1));
  // In place where it may be: a kernel's result over a temporary of which it is the last reader.
  const std::vector<plan::LiveRange> live = plan::live_ranges(p);
  std::set<int> taken;
  for (size_t s = 0; s < p.steps.size(); ++s) {
    const Step& step = p.steps[s];
    if (step.kind != StepKind::Kernel || p.buffers[step.writes[0]].space != MemorySpace::Temp) continue;
    for (int b : step.reads) {
      if (p.buffers[b].space != MemorySpace::Temp || live[b].last != static_cast<int>(s) || taken.contains(b)) continue;
      plan::Buffer& over = p.buffers[step.writes[0]];
      const plan::Buffer before = over;
      over.shape = p.buffers[b].shape, over.bytes = p.buffers[b].bytes, over.over = b;
      try {
        plan::verify(with_memory(p));
        taken.insert(b);
        break;
      } catch (const std::exception&) {  // a view is in use
        over = before;
      }
    }
  }
  return p;
}

/// No order is faster: the longest way through the plan; all kernels; or all that goes over the link, with the least
/// that comes before and behind it.
double lower_bound(const Plan& p) {
  double kernels = 0, link = 0, longest = 0;
  double first = 1e9, last = 1e9;
  std::map<int, double> at, token;  // by buffer: when it is made at the earliest
  std::map<int, double> to_end;     // by buffer: from then to the end
  for (const Step& s : p.steps) {
    double begin = 0;
    for (int b : s.reads) begin = std::max(begin, at[b]);
    if (s.kind == StepKind::Start)
      token[s.token] = begin + s.seconds, link += s.seconds, first = std::min(first, begin);
    const double end = s.kind == StepKind::Wait    ? token[s.token]
                       : s.kind == StepKind::Start ? begin
                                                   : begin + kSeconds.seconds(s);
    if (s.kind != StepKind::Start && s.kind != StepKind::Wait) kernels += kSeconds.seconds(s);
    if (s.kind != StepKind::Start)
      for (int b : s.writes) at[b] = end;
    longest = std::max(longest, end);
  }
  for (auto s = p.steps.rbegin(); s != p.steps.rend(); ++s) {
    double rest = 0;
    for (int b : s->writes) rest = std::max(rest, to_end[b]);
    if (s->kind == StepKind::Wait) last = std::min(last, rest);
    if (s->kind == StepKind::Wait) continue;  // what it begins with is the Start's
    rest += s->kind == StepKind::Start ? s->seconds : kSeconds.seconds(*s);
    for (int b : s->reads) to_end[b] = std::max(to_end[b], rest);
  }
  return std::max({kernels, longest, link > 0 ? first + link + last : 0});
}

TEST(OrderSteps, RandomPlansComputeTheSameAndComeNearTheCriticalPath) {
  double before = 0, after = 0;
  int count = 0, over = 0;
  for (uint32_t seed = 0; seed < 150; ++seed) {
    const Plan p = random_plan(seed, 8 + static_cast<int>(seed) / 2);
    SCOPED_TRACE(seed);
    ASSERT_NO_THROW(plan::verify(with_memory(p)));
    const Plan ordered = order_steps(p, kSeconds);
    EXPECT_NO_THROW(plan::verify(with_memory(ordered)));
    EXPECT_EQ(computed(ordered), computed(p));
    const Estimate was = estimate_as_is(p), is = estimate_as_is(ordered);
    const double bound = lower_bound(p);
    ASSERT_GE(is.seconds, bound - 1e-9);
    EXPECT_LE(is.seconds, was.seconds);
    before += was.seconds / bound, after += is.seconds / bound, ++count;
    for (const plan::Buffer& b : p.buffers) over += b.over >= 0;
    // The same plan again: the same order.
    EXPECT_EQ(names(order_steps(p, kSeconds)), names(ordered));
  }
  EXPECT_GT(over, count) << "too few results are in place to show anything";
  EXPECT_GT(before / count, 1.15) << "there was nothing to gain";
  EXPECT_LE(after / count, 1.05);
  std::cout << "  of the bound: " << before / count << " before, " << after / count << " after\n";
}

}  // namespace
}  // namespace trainc::schedule
