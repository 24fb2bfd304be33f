// Plans that start an operation which only sleeps. That it runs beside the kernels is seen by what waits for what,
// never by the clock: a sleeper that only a later kernel wakes, or a count of who sleeps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <thread>

#include "../common/jump_kernel.h"
#include "../common/plans.h"
#include "../common/sleep_operation.h"
#include "runtime/cpu_device.h"

namespace trainc::runtime {
namespace {

using namespace plan;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using trainc::testing::gate;
using trainc::testing::jump_kernel;
using trainc::testing::sleeping;
using trainc::testing::slept;

constexpr int64_t kN = 500;
float* floats(void* p) { return static_cast<float*>(p); }
/// The last argument's elements are one more than the first's.
void add_one(void* const* a, void*, uint32_t*, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) floats(a[1])[i] = floats(a[0])[i] + 1;
}
void add_one_and_wake(void* const* a, void* scratch, uint32_t* status, int64_t begin, int64_t end) {
  add_one(a, scratch, status, begin, end);
  gate(0).open();
}
void add(void* const* a, void*, uint32_t*, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) floats(a[2])[i] = floats(a[0])[i] + floats(a[1])[i];
}
void fail(void* const*, void*, uint32_t* status, int64_t, int64_t) { *status = 1; }

Step call(const std::string& name, int kernel, std::vector<int> reads, std::vector<int> writes) {
  Step s = kernel_step(name, std::move(reads), std::move(writes));
  s.kernel = kernel, s.parallel_extent = kN, s.bytes = 1;  // by its caller
  return s;
}
Step sleeper(const std::string& name, int token, std::vector<int> reads, std::vector<int> writes,
             const std::string& attributes) {
  Step s = start_step(name, token, std::move(reads), std::move(writes));
  s.arguments_json = attributes, s.origins = {"model.py:41"};
  return s;
}

/// a = x + 1; start b <- a; c = x + 1 (wakes gate 0); d = c + 1; wait; y = b + d
Plan overlapping(const std::string& attributes, bool in_place = false) {
  Plan p{.name = "overlapping"};
  p.buffers = {buffer("x", MemorySpace::Input, kN, 0), buffer("a", MemorySpace::Temp, kN),
               buffer("b", MemorySpace::Temp, kN),     buffer("c", MemorySpace::Temp, kN),
               buffer("d", MemorySpace::Temp, kN),     buffer("y", MemorySpace::Output, kN, 0)};
  p.kernels = {jump_kernel("add_one", add_one), jump_kernel("add_one_and_wake", add_one_and_wake),
               jump_kernel("add", add), jump_kernel("fail", fail)};
  const Step start = sleeper("send", 0, {1}, {in_place ? 1 : 2}, attributes);
  p.steps = {call("one", 0, {0}, {1}), start,
             call("two", 1, {0}, {3}), call("three", 0, {3}, {4}),
             wait_step(start),         call("four", 2, {in_place ? 1 : 2, 4}, {5})};
  p.input_count = 1, p.output_count = 1, p.outputs = {5};
  plan_memory(p);
  return p;
}

class Async : public ::testing::Test {
 protected:
  Async() : x(kN), y(kN, -1) {
    trainc::testing::register_sleep();
    for (int i : {0, 1, 2, 3}) gate(i).shut();
    std::iota(x.begin(), x.end(), 0.f);
    slept = 0;
  }
  ~Async() override { EXPECT_EQ(sleeping, 0) << "something is still in flight"; }
  void run(Executable& e, const std::function<void()>& check_signals = {}) {
    e.run({.inputs = {x.data()}, .outputs = {y.data()}, .check_signals = check_signals});
  }
  void expect_right() const {
    for (int i = 0; i < kN; ++i) ASSERT_EQ(y[i], 2 * x[i] + 3);
  }
  std::vector<float> x, y;
};

// Were it run to its end at its Start, it would never be woken: the kernel that wakes it comes later.
TEST_F(Async, AnOperationRunsWhileKernelsDo) {
  CpuExecutable e(overlapping(R"({"gate": 0})"));
  for (int i = 0; i < 20; ++i) {
    gate(0).shut();
    std::fill(y.begin(), y.end(), -1);
    run(e);
    expect_right();
  }
  EXPECT_EQ(slept, 20);
}

TEST_F(Async, ItBeginsBeforeItsWait) {
  Plan p = overlapping(R"({"gate": 1})");
  CpuExecutable e(p);
  int looks = 0;
  // Before the wait, the plan itself gives it time until it sleeps; only then is it woken.
  run(e, [&] {
    if (++looks != 5) return;
    while (sleeping == 0) std::this_thread::yield();
    gate(1).open();
  });
  expect_right();
}

// It is woken by a kernel that the plan runs meanwhile: so it was over after that kernel began.
TEST_F(Async, ATimedRunTellsWhenItWasOver) {
  CpuExecutable e(overlapping(R"({"gate": 0})"));
  e.profile = true;
  run(e);
  const std::vector<StepTime> times = e.step_times();
  ASSERT_EQ(times.size(), 6u);
  EXPECT_GE(times[1].over, times[2].start);  // of the Start
  EXPECT_LE(times[1].over, times[4].start + times[4].seconds);
  EXPECT_EQ(times[2].over, 0);
}

TEST_F(Async, InPlaceAndStored) {
  CpuExecutable e(load(save(overlapping(R"({"gate": 0})", true))));
  run(e);
  expect_right();
}

TEST_F(Async, AMomentIsEnough) {
  CpuExecutable e(overlapping(R"({"seconds": 0.001})"));
  e.profile = true;
  run(e);
  expect_right();
  EXPECT_EQ(e.step_times().size(), 6u);
}

TEST_F(Async, SeveralAreInFlightAtOnce) {
  Plan p{.name = "several"};  // three sleepers, which are waited for in another order
  p.buffers = {buffer("x", MemorySpace::Input, kN, 0), buffer("a", MemorySpace::Temp, kN),
               buffer("b", MemorySpace::Temp, kN), buffer("y", MemorySpace::Output, kN, 0),
               buffer("c", MemorySpace::Temp, kN)};
  p.kernels = {jump_kernel("add_one", add_one), jump_kernel("add_one_and_wake", add_one_and_wake),
               jump_kernel("add", add)};
  const Step first = sleeper("first", 0, {0}, {1}, R"({"gate": 1})"),
             second = sleeper("second", 2, {0}, {2}, R"({"gate": 0})"),
             third = sleeper("third", 1, {}, {}, R"({"gate": 2})");
  p.steps = {first,
             second,
             third,
             call("wake", 1, {0}, {4}),
             wait_step(second),
             wait_step(third),
             wait_step(first),
             call("sum", 2, {1, 2}, {3})};
  p.input_count = 1, p.output_count = 1, p.outputs = {3};
  plan_memory(p);
  CpuExecutable e(p);
  int looks = 0;
  run(e, [&] {
    if (++looks != 4) return;  // all three are started
    while (sleeping < 3) std::this_thread::yield();
    gate(2).open(), gate(1).open();
  });
  for (int i = 0; i < kN; ++i) ASSERT_EQ(y[i], 2 * x[i]);
  EXPECT_EQ(slept, 3);
}

TEST_F(Async, ErrorsComeOutAtTheWait) {
  struct {
    const char* attributes;
    std::function<void(const std::function<void()>&)> expect;
  } cases[] = {{R"({"fails": "user:the other rank is gone"})",
                [](const auto& f) {
                  EXPECT_THAT(f, ThrowsMessage<UserError>(AllOf(HasSubstr("send (sleep) from model.py:41"),
                                                                HasSubstr("the other rank is gone"))));
                }},
               {R"({"fails": "other:connection closed"})", [](const auto& f) {
                  EXPECT_THAT(f, ThrowsMessage<std::runtime_error>(AllOf(HasSubstr("send (sleep) from model.py:41"),
                                                                         HasSubstr("connection closed"))));
                }}};
  for (const auto& c : cases) {
    CpuExecutable e(overlapping(c.attributes));
    int looks = 0;
    c.expect([&] {
      looks = 0;
      // it has failed before step three
      run(e, [&] {
        if (++looks == 4)
          while (slept == 0) std::this_thread::yield();
      });
    });
    EXPECT_GE(looks, 5) << "the steps before the wait ran";
    EXPECT_EQ(y[0], -1) << "the step behind it did not";
  }
}

TEST_F(Async, WhatFailsMeanwhileWaitsForItFirst) {
  Plan p = overlapping(R"({"gate": 1})");
  p.steps[3].kernel = 3;
  CpuExecutable e(p);
  EXPECT_THAT([&] { run(e); }, ThrowsMessage<IndexError>(HasSubstr("check 1 of three")));
  EXPECT_EQ(sleeping, 0);
  EXPECT_EQ(slept, 1) << "it was cancelled, and was over before the error came out";
  p.steps[3].kernel = 0, p.steps[1].arguments_json = R"({"gate": 0})";
  CpuExecutable again(p);  // and nothing of it is left
  run(again);
  expect_right();
}

TEST_F(Async, AFailureOfTheOperationIsNotTakenForTheFirstOne) {
  Plan p = overlapping(R"({"fails": "user:later"})");
  p.steps[3].kernel = 3;
  CpuExecutable e(p);
  EXPECT_THAT([&] { run(e); }, ThrowsMessage<IndexError>(HasSubstr("check 1 of three")));
  EXPECT_EQ(slept, 1);
}

TEST_F(Async, SignalsInterruptBetweenStepsAndDuringTheWait) {
  for (const int at : {3, 6, 8}) {  // before step two; and while the wait waits, whose own look before it is the fifth
    CpuExecutable e(overlapping(R"({"gate": 1})"));
    slept = 0;
    int looks = 0;
    EXPECT_THAT(
        [&] {
          run(e, [&] {
            if (++looks == at) throw std::runtime_error("interrupted");
          });
        },
        ThrowsMessage<std::runtime_error>("interrupted"));
    EXPECT_EQ(slept, 1);
    EXPECT_EQ(sleeping, 0);
    EXPECT_EQ(y[0], -1);
    gate(1).open();
    run(e);  // the plan may run again
    expect_right();
    gate(1).shut();
    std::fill(y.begin(), y.end(), -1);
  }
}

TEST_F(Async, OwnersAreKeptUntilTheWait) {
  Plan p{.name = "owned"};  // the framework's tensor is sent
  p.buffers = {buffer("x", MemorySpace::Input, kN, 0), buffer("e", MemorySpace::Extern, kN),
               buffer("b", MemorySpace::Temp, kN), buffer("c", MemorySpace::Temp, kN),
               buffer("y", MemorySpace::Output, kN, 0)};
  p.kernels = {jump_kernel("add_one", add_one)};
  const Step start = sleeper("send", 0, {1}, {2}, R"({"gate": 1})");
  p.steps = {{.kind = StepKind::Extern,
              .name = "call",
              .arguments = {0},
              .reads = {0},
              .writes = {1},
              .target = "t",
              .arguments_json = "{}"},
             start,
             call("two", 0, {0}, {3}),
             wait_step(start),
             call("four", 0, {2}, {4})};
  p.input_count = 1, p.output_count = 1, p.outputs = {4};
  plan_memory(p);
  for (const bool fails : {false, true}) {
    if (fails) p.steps[2].kernel = 1, p.kernels.push_back(jump_kernel("fail", fail)), gate(1).shut();
    CpuExecutable e(p);
    std::weak_ptr<std::vector<float>> alive;
    int looks = 0;
    Call c{.inputs = {x.data()}, .outputs = {y.data()}};
    c.extern_call = [&](const Step&, const std::vector<void*>&) {
      auto made = std::make_shared<std::vector<float>>(kN, 7);
      alive = made;
      return std::vector<ExternTensor>{{made->data(), made}};
    };
    c.check_signals = [&] {
      if (++looks != 4) return;
      EXPECT_FALSE(alive.expired());
      gate(1).open();
    };
    if (fails) {
      EXPECT_THROW(e.run(c), IndexError);
    } else {
      e.run(c);
      EXPECT_EQ(y[3], 8);
    }
    EXPECT_TRUE(alive.expired());
  }
}

TEST_F(Async, PoisonLeavesWhatIsInFlight) {
  setenv("TRAINC_DEBUG", "poison", 1);
  CpuExecutable e(overlapping(R"({"gate": 0})")), in_place(overlapping(R"({"gate": 0})", true));
  unsetenv("TRAINC_DEBUG");
  run(e);
  expect_right();
  gate(0).shut();
  std::fill(y.begin(), y.end(), -1);
  run(in_place);
  expect_right();
}

TEST_F(Async, ThreadsMayRunThePlanAtOnce) {
  CpuExecutable e(overlapping(R"({"seconds": 0.002})"));
  std::vector<std::vector<float>> ys(4, std::vector<float>(kN));
  std::vector<std::thread> threads;
  for (auto& y : ys)
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) e.run({.inputs = {x.data()}, .outputs = {y.data()}});
    });
  for (std::thread& t : threads) t.join();
  for (const auto& y : ys) EXPECT_EQ(y[kN - 1], 2 * (kN - 1) + 3);
}

TEST_F(Async, WhatNobodyKnowsIsRefusedWhenThePlanIsLoaded) {
  Plan p = overlapping("{}");
  p.steps[1].target = "all_reduce";
  EXPECT_THAT([&] { CpuExecutable{p}; },
              ThrowsMessage<UserError>(HasSubstr("starts an operation 'all_reduce', which nobody here knows")));
  p = overlapping("{}");
  p.steps[1] = sleeper("send", 0, {1, 0}, {2}, "{}"), p.steps[4] = wait_step(p.steps[1]);
  EXPECT_THAT([&] { CpuExecutable{p}; },
              ThrowsMessage<InternalError>(AllOf(HasSubstr("send (sleep)"), HasSubstr("two arguments at most"))));
}

// A child has no thread but the one that forked: what was in flight is over for it, with an error, and it does not wait
// for ever.
TEST_F(Async, AForkedChildDoesNotHang) {
  CpuExecutable e(overlapping(R"({"gate": 1})"));
  int looks = 0, status = -1;
  pid_t child = -1;
  try {
    run(e, [&] {
      if (++looks != 4) return;
      child = fork();
      if (child == 0) alarm(30);
      else gate(1).open(), waitpid(child, &status, 0);
    });
  } catch (const InternalError& error) {
    if (child == 0) _exit(std::string(error.what()).find("forked while it was in flight") != std::string::npos ? 0 : 2);
    throw;
  }
  if (child == 0) _exit(3);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  expect_right();
}

}  // namespace
}  // namespace trainc::runtime
