// Hand-made plans; their kernels are functions of this file.
#include "runtime/cpu_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <fstream>
#include <numeric>
#include <set>
#include <sstream>
#include <thread>

#include "../common/jump_kernel.h"
#include "runtime/code.h"
#include "runtime/cpu/random.h"
#include "support/error.h"

namespace trainc::runtime {
namespace {

using namespace plan;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using trainc::testing::jump_kernel;

float* floats(void* p) { return static_cast<float*>(p); }
/// arguments[1][i] = arguments[0][i] + 1
void add_one(void* const* a, void*, uint32_t*, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) floats(a[1])[i] = floats(a[0])[i] + 1;
}
/// arguments[1][i] = 2 * arguments[0][i], by way of the scratch memory
void twice(void* const* a, void* scratch, uint32_t*, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    static_cast<volatile float*>(scratch)[63] = floats(a[0])[i];
    floats(a[1])[i] = 2 * static_cast<volatile float*>(scratch)[63];
  }
}
/// Fails check 1 on negative and check 2 on large elements.
void check_elements(void* const* a, void*, uint32_t* status, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    floats(a[1])[i] = 0;
    if (floats(a[0])[i] < 0) *status = 1;
    if (floats(a[0])[i] > 1e6f) *status = 2;
  }
}

Buffer vec(const std::string& name, MemorySpace space, int64_t n, int64_t index = 0) {
  return {
      .name = name, .space = space, .index = index, .dtype = DType::F32, .shape = {n}, .strides = {1}, .bytes = 4 * n};
}
Step call_kernel(const std::string& name, int k, int in, int out, int64_t n) {
  return {.kind = StepKind::Kernel,
          .name = name,
          .arguments = {in, out},
          .reads = {in},
          .writes = {out},
          .kernel = k,
          .parallel_extent = n,
          .origins = {"model.py:41"}};
}

constexpr int64_t kN = 1000;
/// y = 2 * (x + 1), with x + 1 in the arena
Plan chain() {
  Plan p{.name = "chain"};
  p.buffers = {vec("x", MemorySpace::Input, kN), vec("t", MemorySpace::Temp, kN), vec("y", MemorySpace::Output, kN)};
  p.kernels = {jump_kernel("add_one", add_one), jump_kernel("twice", twice, 256), jump_kernel("check", check_elements)};
  p.steps = {call_kernel("a", 0, 0, 1, kN), call_kernel("b", 1, 1, 2, kN)};
  p.input_count = 1, p.output_count = 1, p.outputs = {2};
  plan_memory(p);
  return p;
}
std::vector<float> ramp() {
  std::vector<float> x(kN);
  std::iota(x.begin(), x.end(), 0.f);
  return x;
}

TEST(Executable, RunsKernelsInOrder) {
  CpuExecutable e(chain());
  std::vector<float> x = ramp(), y(kN, -1);
  e.run({.inputs = {x.data()}, .outputs = {y.data()}});
  for (int i = 0; i < kN; ++i) ASSERT_EQ(y[i], 2 * (x[i] + 1));
  EXPECT_TRUE(e.step_times().empty());
}

/// g = x[0] > 0
void positive(void* const* a, void*, uint32_t*, int64_t, int64_t) {
  *static_cast<uint8_t*>(a[1]) = floats(a[0])[0] > 0;
}
/// g = x[0] > 0; t = x + 1; u = 2 t, in t's memory, where g; v = 2 x where not g; y = g ? u : v, by `value` true or
/// false
void choose(void* const* a, void*, uint32_t*, int64_t begin, int64_t end) {
  const bool chosen = *static_cast<uint8_t*>(a[2]);
  for (int64_t i = begin; i < end; ++i) floats(a[3])[i] = chosen ? floats(a[0])[i] : floats(a[1])[i];
}
Plan guarded() {
  Plan p{.name = "guarded"};
  p.buffers = {vec("x", MemorySpace::Input, kN),
               vec("t", MemorySpace::Temp, kN),
               vec("u", MemorySpace::Temp, kN),
               vec("v", MemorySpace::Temp, kN),
               vec("y", MemorySpace::Output, kN),
               {.name = "g", .dtype = DType::Bool, .bytes = 1},
               vec("in_place", MemorySpace::Output, kN, 1)};
  p.buffers[2].over = 1;
  p.kernels = {jump_kernel("add_one", add_one), jump_kernel("twice", twice, 256), jump_kernel("positive", positive),
               jump_kernel("choose", choose)};
  const Step last{.kind = StepKind::Kernel,
                  .name = "e",
                  .arguments = {2, 3, 5, 4},
                  .reads = {2, 3, 5},
                  .writes = {4},
                  .kernel = 3,
                  .parallel_extent = kN};
  p.steps = {call_kernel("g", 2, 0, 5, 1),
             call_kernel("a", 0, 0, 1, kN),
             call_kernel("b", 1, 1, 2, kN),
             call_kernel("c", 1, 0, 3, kN),
             last,
             call_kernel("d", 0, 2, 6, kN)};
  for (int s : {2, 3}) p.steps[s].guard = 5, p.steps[s].guard_value = s == 2, p.steps[s].reads.push_back(5);
  p.input_count = 1, p.output_count = 2, p.outputs = {4, 6};
  plan_memory(p);
  return p;
}
TEST(Executable, PassesOverStepsByTheirGuards) {
  for (const bool poisoned : {false, true}) {
    if (poisoned) setenv("TRAINC_DEBUG", "poison", 1);
    CpuExecutable e(load(save(guarded())));
    unsetenv("TRAINC_DEBUG");
    e.profile = true;
    for (const float first : {1.f, -1.f, 2.f}) {  // one plan, whatever the run's guard
      std::vector<float> x = ramp(), y(kN, -1), in_place(kN, -1);
      x[0] = first;
      e.run({.inputs = {x.data()}, .outputs = {y.data(), in_place.data()}});
      for (int i = 0; i < kN; ++i) {
        ASSERT_EQ(y[i], first > 0 ? 2 * (x[i] + 1) : 2 * x[i]) << i;
        // in the memory of t, which a step that is passed over leaves as it is
        ASSERT_EQ(in_place[i], (first > 0 ? 2 * (x[i] + 1) : x[i] + 1) + 1) << i;
      }
      EXPECT_EQ(e.step_times().size(), 6u);
    }
  }
}

TEST(Executable, TimesStepsAndTheirPartsByThread) {
  Plan p = chain();
  for (plan::Step& s : p.steps) s.flops = 1 << 20;  // worth waking threads for
  CpuExecutable e(p);
  e.profile = true;
  std::vector<float> x = ramp(), y(kN, -1);
  for (int run = 0; run < 2; ++run) {  // the second in memory of the first
    const double before = monotonic_seconds();
    e.run({.inputs = {x.data()}, .outputs = {y.data()}});
    const double after = monotonic_seconds();
    const std::vector<StepTime> times = e.step_times();
    ASSERT_EQ(times.size(), 2u);
    double at = before;
    for (const StepTime& t : times) {
      EXPECT_GE(t.start, at);
      EXPECT_EQ(t.thread, thread_number());
      at = t.start + t.seconds;
      ASSERT_FALSE(t.parts.empty());
      EXPECT_LE(t.parts.size(), static_cast<size_t>(thread_count()));
      std::set<int64_t> threads;
      for (const Part& part : t.parts) {
        threads.insert(part.thread);
        EXPECT_GE(part.start, t.start);
        EXPECT_LE(part.start + part.seconds, at);
      }
      EXPECT_LE(threads.size(), static_cast<size_t>(thread_count()));  // who is done takes what another has not begun
    }
    EXPECT_LE(at, after);
  }
}

TEST(Executable, SaysWhichStepComesBeforeIt) {
  CpuExecutable e(chain());
  std::vector<float> x = ramp(), y(kN, -1);
  std::vector<std::pair<int64_t, float>> seen;
  e.run({.inputs = {x.data()}, .outputs = {y.data()}, .on_step = [&](int64_t i) { seen.emplace_back(i, y[7]); }});
  EXPECT_EQ(seen, (std::vector<std::pair<int64_t, float>>{{0, -1}, {1, -1}}));
}

TEST(Executable, RunsInParts) {
  CpuExecutable e(chain());
  std::vector<float> x(kN, 1.f), y(kN, -1.f), other(kN, -1.f);
  std::vector<int64_t> steps;
  const Call call{.inputs = {x.data()}, .outputs = {y.data()}, .on_step = [&](int64_t i) { steps.push_back(i); }};
  const std::unique_ptr<RunInParts> run = e.start(call);
  run->run_until(0);
  EXPECT_TRUE(steps.empty());
  run->run_until(1);
  EXPECT_EQ(steps, std::vector<int64_t>{0});
  EXPECT_EQ(y, std::vector<float>(kN, -1.f));
  e.run({.inputs = {x.data()}, .outputs = {other.data()}});  // a run of its own, with memory of its own
  run->run_until(0);                                         // what has run does not run again
  run->run_until(99);
  EXPECT_EQ(steps, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(y, std::vector<float>(kN, 4.f));
  EXPECT_EQ(other, y);
  EXPECT_THROW(run->run_until(99), InternalError);
}

TEST(Executable, ARunInPartsMayBeGivenUp) {
  Plan p = chain();
  p.steps.push_back(call_kernel("fails", 2, 0, 2, kN));
  plan_memory(p);
  CpuExecutable e(p);
  std::vector<float> x(kN, -1.f), y(kN, -1.f);
  const Call call{.inputs = {x.data()}, .outputs = {y.data()}};
  for (int i = 0; i < 3; ++i) e.start(call)->run_until(1);
  const std::unique_ptr<RunInParts> failed = e.start(call);
  EXPECT_ANY_THROW(failed->run_until(3));
  EXPECT_THROW(failed->run_until(3), InternalError);
  x.assign(kN, 1.f);
  e.run(call);
  EXPECT_EQ(y, std::vector<float>(kN, 0.f));
}

TEST(Executable, CodeIsNotWritable) {
  CpuExecutable e(chain());
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) EXPECT_EQ(line.find(" rwx"), std::string::npos) << line;
}

TEST(Executable, AStoredPlanRuns) {
  CpuExecutable e(load(save(chain())));
  std::vector<float> x = ramp(), y(kN);
  e.run({.inputs = {x.data()}, .outputs = {y.data()}});
  EXPECT_EQ(y[7], 16);
}

TEST(Executable, SavedAndConstantMemory) {
  Plan p = chain();
  p.buffers.push_back(vec("c", MemorySpace::Constant, kN));
  p.buffers.push_back(vec("s", MemorySpace::Saved, kN));
  p.constants.resize(4 * kN);
  const float nine = 9;
  for (int i = 0; i < kN; ++i) std::memcpy(&p.constants[4 * i], &nine, 4);
  p.buffers[4].offset = 128, p.saved_bytes = 128 + 4 * kN;
  p.steps.push_back(call_kernel("c", 0, 3, 4, kN));
  CpuExecutable e(p);
  std::vector<float> x = ramp(), y(kN), saved(32 + kN, -1);
  e.run({.inputs = {x.data()}, .outputs = {y.data()}, .saved = saved.data()});
  EXPECT_EQ(saved[31], -1);
  EXPECT_EQ(saved[32], 10);
  EXPECT_THAT([&] { e.run({.inputs = {x.data()}, .outputs = {y.data()}}); },
              ThrowsMessage<InternalError>(HasSubstr("no memory for s")));
}

TEST(Executable, WrongCallsAreNamed) {
  CpuExecutable e(chain());
  std::vector<float> x = ramp();
  EXPECT_THAT([&] { e.run({.inputs = {}, .outputs = {x.data()}}); },
              ThrowsMessage<InternalError>(HasSubstr("0 inputs given, it takes 1")));
  EXPECT_THAT([&] { e.run({.inputs = {nullptr}, .outputs = {x.data()}}); },
              ThrowsMessage<InternalError>(HasSubstr("no memory for x")));
  Plan broken = chain();
  broken.steps[0].kernel = 7;
  EXPECT_THROW(CpuExecutable{broken}, InternalError);
  Plan foreign = chain();
  foreign.cpu = "z80";
  EXPECT_THROW(device("cpu")->load(foreign), UserError);
}

TEST(Executable, AFailedCheckNamesStepAndLine) {
  Plan p = chain();
  p.steps[1].kernel = 2;
  p.steps[1].name = "gather_3";
  CpuExecutable e(p);
  std::vector<float> x = ramp(), y(kN);
  EXPECT_NO_THROW(e.run({.inputs = {x.data()}, .outputs = {y.data()}}));
  x[kN - 1] = -5;
  EXPECT_THAT([&] { e.run({.inputs = {x.data()}, .outputs = {y.data()}}); },
              ThrowsMessage<IndexError>(::testing::AllOf(HasSubstr("model.py:41"), HasSubstr("check 1 of gather_3"))));
  x[0] = 1e7;
  EXPECT_THAT([&] { e.run({.inputs = {x.data()}, .outputs = {y.data()}}); },
              ThrowsMessage<std::runtime_error>(::testing::AllOf(HasSubstr("out of bounds"), HasSubstr("check 2"))));
  x = ramp();
  EXPECT_NO_THROW(e.run({.inputs = {x.data()}, .outputs = {y.data()}}));  // the status is fresh for each run
}

TEST(Executable, SignalsInterruptBetweenSteps) {
  CpuExecutable e(chain());
  std::vector<float> x = ramp(), y(kN, -1);
  int looks = 0;
  const auto check = [&] {
    if (++looks == 2) throw std::runtime_error("interrupted");
  };
  EXPECT_THAT([&] { e.run({.inputs = {x.data()}, .outputs = {y.data()}, .check_signals = check}); },
              ThrowsMessage<std::runtime_error>("interrupted"));
  EXPECT_EQ(y[0], -1);
  EXPECT_NO_THROW(e.run({.inputs = {x.data()}, .outputs = {y.data()}}));
}

// --- extern and random steps

/// mask 0; an extern call that draws; mask 1
Plan drawing(double p0 = 0.5) {
  Plan p{.name = "drawing"};
  const auto mask = [](const char* name, int index) {
    return Buffer{.name = name,
                  .space = MemorySpace::Output,
                  .index = index,
                  .dtype = DType::Bool,
                  .shape = {kN},
                  .strides = {1},
                  .bytes = kN};
  };
  p.buffers = {mask("m0", 0), mask("m1", 1), vec("e", MemorySpace::Extern, kN), vec("y", MemorySpace::Output, kN, 2)};
  p.kernels = {jump_kernel("add_one", add_one)};
  p.steps = {{.kind = StepKind::Random, .name = "d0", .writes = {0}, .p = p0},
             {.kind = StepKind::Extern,
              .name = "call",
              .writes = {2},
              .target = "aten.rand.default",
              .arguments_json = "{}",
              .random = true},
             call_kernel("use", 0, 2, 3, kN),
             {.kind = StepKind::Random, .name = "d1", .writes = {1}, .p = 0.9}};
  p.output_count = 3, p.outputs = {0, 1, 3};
  return p;
}

struct Framework {
  std::vector<uint8_t> state;
  int reads = 0, writes = 0;
  std::function<void()> meanwhile;  // what another thread does before the next exchange
  Framework() : state(MersenneTwister::kStateBytes, 0) {
    const int32_t one = 1;
    std::memcpy(&state[8], &one, 4);
    std::memcpy(&state[12], &one, 4);
    for (int i = 0; i < 624; ++i) state[24 + 8 * i] = static_cast<uint8_t>(i * 7 + 1);
  }
  Generator generator() {
    return {[this] {
              ++reads;
              return state;
            },
            [this](const std::vector<uint8_t>& from, const std::vector<uint8_t>& to) {
              ++writes;
              if (meanwhile) std::exchange(meanwhile, nullptr)();
              if (state != from) return false;
              state = to;
              return true;
            }};
  }
};

TEST(Executable, DrawsInOrderAndHandsTheGeneratorOver) {
  CpuExecutable e(drawing());
  Framework framework;
  MersenneTwister eager(framework.state);
  std::vector<uint8_t> m0(kN), m1(kN), w0(kN), w1(kN);
  std::vector<float> y(kN), made(kN, 4);
  auto owner = std::make_shared<int>(0);
  std::weak_ptr<int> alive = owner;
  Call call{.inputs = {}, .outputs = {m0.data(), m1.data(), y.data()}, .generator = framework.generator()};
  call.extern_call = [&](const Step& step, const std::vector<void*>&) {
    EXPECT_EQ(step.target, "aten.rand.default");
    MersenneTwister twister(framework.state);  // the framework sees what was drawn before
    twister.next();
    framework.state = twister.state();
    return std::vector<ExternTensor>{{made.data(), std::exchange(owner, nullptr)}};
  };
  set_mask_generator(MaskGenerator::Twister);
  e.run(call);
  bernoulli(MaskGenerator::Twister, eager, 0.5, w0.data(), kN);
  eager.next();
  bernoulli(MaskGenerator::Twister, eager, 0.9, w1.data(), kN);
  EXPECT_EQ(m0, w0);
  EXPECT_EQ(m1, w1);
  EXPECT_EQ(framework.state, eager.state());
  EXPECT_EQ(framework.reads, 2);  // once before the framework's own draw, once after
  EXPECT_EQ(framework.writes, 2);
  EXPECT_EQ(y[3], 5);
  EXPECT_TRUE(alive.expired()) << "the framework's tensor outlived its last use";
}

TEST(Executable, WhatWasDrawnBeforeAnErrorStaysDrawn) {
  set_mask_generator(MaskGenerator::Twister);
  CpuExecutable e(drawing());
  Framework framework;
  MersenneTwister eager(framework.state);
  std::vector<uint8_t> m(kN);
  std::vector<float> y(kN);
  Call call{.inputs = {}, .outputs = {m.data(), m.data(), y.data()}, .generator = framework.generator()};
  call.extern_call = [](const Step&, const std::vector<void*>&) -> std::vector<ExternTensor> {
    throw UserError("no such thing");
  };
  EXPECT_THROW(e.run(call), UserError);
  bernoulli(MaskGenerator::Twister, eager, 0.5, m.data(), kN);
  EXPECT_EQ(framework.state, eager.state());
  call.extern_call = [](const Step&, const std::vector<void*>&) { return std::vector<ExternTensor>{}; };
  EXPECT_THAT([&] { e.run(call); }, ThrowsMessage<InternalError>(HasSubstr("0 results, the plan expects 1")));
}

/// Two masks with a kernel between them that fails its check.
Plan failing_between_masks() {
  Plan p = drawing();
  p.kernels = {jump_kernel("check", check_elements)};
  p.buffers[2] = vec("x", MemorySpace::Input, kN);
  p.input_count = 1;
  p.steps.erase(p.steps.begin() + 1);
  p.steps[1] = call_kernel("check", 0, 2, 3, kN);
  return p;
}

TEST(Executable, WhatWasTakenAndNotDrawnIsGivenBackAfterAnError) {
  CpuExecutable e(failing_between_masks());
  std::vector<uint8_t> m0(kN), m1(kN);
  std::vector<float> x(kN, -1), y(kN);
  set_mask_generator(MaskGenerator::Twister);
  for (const bool others_draw : {false, true}) {
    Framework framework;
    MersenneTwister eager(framework.state);
    Call call{.inputs = {x.data()}, .outputs = {m0.data(), m1.data(), y.data()}, .generator = framework.generator()};
    int checks = 0;
    call.check_signals = [&] {  // before the second step: somebody draws
      if (++checks != 2 || !others_draw) return;
      MersenneTwister other(framework.state);
      other.next();
      framework.state = other.state();
    };
    EXPECT_THROW(e.run(call), IndexError);
    bernoulli(MaskGenerator::Twister, eager, 0.5, m0.data(), kN);
    // they drew after both masks: these are gone
    if (others_draw) bernoulli(MaskGenerator::Twister, eager, 0.9, m1.data(), kN), eager.next();
    EXPECT_EQ(framework.state, eager.state()) << others_draw;
  }
}

TEST(Executable, NobodyElseGetsThePlansNumbers) {
  Plan p = drawing();
  p.steps.erase(p.steps.begin() + 1, p.steps.begin() + 3);
  p.buffers.resize(2), p.output_count = 2, p.outputs = {0, 1};
  CpuExecutable e(p);
  set_mask_generator(MaskGenerator::Twister);
  Framework framework;
  MersenneTwister eager(framework.state);
  // One draws while the plan looks how far to move the generator, the other while it runs.
  const auto draw = [&] {
    MersenneTwister other(framework.state);
    const uint32_t drawn = other.next();
    framework.state = other.state();
    return drawn;
  };
  uint32_t first = 0, last = 0;
  framework.meanwhile = [&] { first = draw(); };
  std::vector<uint8_t> m0(kN), m1(kN), w0(kN), w1(kN);
  Call call{.inputs = {}, .outputs = {m0.data(), m1.data()}, .generator = framework.generator()};
  int checks = 0;
  call.check_signals = [&] {
    if (++checks == 2) last = draw();
  };
  e.run(call);
  EXPECT_EQ(first, eager.next());
  bernoulli(MaskGenerator::Twister, eager, 0.5, w0.data(), kN);
  bernoulli(MaskGenerator::Twister, eager, 0.9, w1.data(), kN);
  EXPECT_EQ(m0, w0);
  EXPECT_EQ(m1, w1);
  EXPECT_EQ(last, eager.next());
  EXPECT_EQ(framework.state, eager.state());
}

TEST(Executable, AnOperationOfTheUsersMayDrawWithoutSayingSo) {
  for (const bool users : {false, true}) {
    Plan p = drawing();
    p.steps[1].random = false;
    p.steps[1].target = users ? "mine.noise.default" : "aten.cos.default";
    p.steps[1].may_draw = users;
    CpuExecutable e(p);
    set_mask_generator(MaskGenerator::Twister);
    Framework framework;
    MersenneTwister eager(framework.state);
    std::vector<uint8_t> m(kN), seen;
    std::vector<float> y(kN), made(kN, 4);
    Call call{.inputs = {}, .outputs = {m.data(), m.data(), y.data()}, .generator = framework.generator()};
    call.extern_call = [&](const Step&, const std::vector<void*>&) {
      seen = framework.state;
      return std::vector<ExternTensor>{{made.data(), nullptr}};
    };
    e.run(call);
    bernoulli(MaskGenerator::Twister, eager, 0.5, m.data(), kN);
    if (users) EXPECT_EQ(seen, eager.state());
    bernoulli(MaskGenerator::Twister, eager, 0.9, m.data(), kN);
    if (!users) EXPECT_EQ(seen, eager.state());
    EXPECT_EQ(framework.state, eager.state());
  }
}

TEST(Executable, WhatAnExternStepCallsMayRunThePlan) {
  CpuExecutable e(drawing());
  set_mask_generator(MaskGenerator::Twister);
  Framework framework;
  std::vector<float> made[3] = {std::vector<float>(kN, 4), std::vector<float>(kN, 5), std::vector<float>(kN, 6)}, y[3];
  std::vector<uint8_t> m(kN);
  std::function<void(int)> run = [&](int depth) {
    y[depth].resize(kN);
    Call call{.inputs = {}, .outputs = {m.data(), m.data(), y[depth].data()}, .generator = framework.generator()};
    call.extern_call = [&, depth](const Step&, const std::vector<void*>&) {
      if (depth < 2) run(depth + 1);
      return std::vector<ExternTensor>{{made[depth].data(), nullptr}};
    };
    e.run(call);
  };
  run(0);
  for (int depth = 0; depth < 3; ++depth) EXPECT_EQ(y[depth], std::vector<float>(kN, 5.0f + depth));
}

TEST(Executable, AnExternResultMayBeWantedElsewhere) {
  Plan p = drawing();
  p.buffers[2].space = MemorySpace::Temp;
  plan_memory(p);
  CpuExecutable e(p);
  Framework framework;
  std::vector<uint8_t> m(kN);
  std::vector<float> y(kN), made(kN, 4);
  Call call{.inputs = {}, .outputs = {m.data(), m.data(), y.data()}, .generator = framework.generator()};
  call.extern_call = [&](const Step&, const std::vector<void*>&) {
    return std::vector<ExternTensor>{{made.data(), nullptr}};
  };
  e.run(call);
  EXPECT_EQ(y[kN - 1], 5);
}

/// t = x + 1; a call of t; u = x + 1, which may have t's memory; y = 2 * (what the call gave)
Plan calling(std::vector<int> aliases) {
  Plan p{.name = "calling"};
  p.buffers = {vec("x", MemorySpace::Input, kN),  vec("t", MemorySpace::Temp, kN),
               vec("v", MemorySpace::Extern, kN), vec("u", MemorySpace::Temp, kN),
               vec("y", MemorySpace::Output, kN), vec("z", MemorySpace::Output, kN, 1)};
  p.kernels = {jump_kernel("add_one", add_one), jump_kernel("twice", twice, 256)};
  p.steps = {call_kernel("a", 0, 0, 1, kN),
             {.kind = StepKind::Extern,
              .name = "call",
              .arguments = {1},
              .reads = {1},
              .writes = {2},
              .target = "t",
              .arguments_json = "{}",
              .aliases = std::move(aliases)},
             call_kernel("b", 1, 0, 3, kN),
             call_kernel("c", 0, 3, 5, kN),
             call_kernel("d", 1, 2, 4, kN)};
  p.input_count = 1, p.output_count = 2, p.outputs = {4, 5};
  plan_memory(p);
  return p;
}

TEST(Executable, AViewThatTheStepDeclaresIsNotCopied) {
  CpuExecutable e(calling({1}));
  std::vector<float> x = ramp(), y(kN), z(kN);
  Call call{.inputs = {x.data()}, .outputs = {y.data(), z.data()}};
  call.extern_call = [&](const Step&, const std::vector<void*>& in) {
    return std::vector<ExternTensor>{{in[0], nullptr}};
  };
  e.run(call);
  for (int i = 0; i < kN; ++i) ASSERT_EQ(y[i], 2 * (x[i] + 1));
}

TEST(Executable, AViewThatNobodyDeclaredIsCopied) {
  const Plan p = calling({});
  ASSERT_EQ(p.buffers[1].offset, p.buffers[3].offset) << "the plan must use that memory again, or this shows nothing";
  CpuExecutable e(p);
  std::vector<float> x = ramp(), y(kN), z(kN), kept(kN);
  int copies = 0;
  Call call{.inputs = {x.data()}, .outputs = {y.data(), z.data()}};
  call.extern_call = [&](const Step&, const std::vector<void*>& in) {
    const auto copy = [&, from = in[0]]() -> ExternTensor {
      ++copies;
      std::memcpy(kept.data(), from, 4 * kN);
      return {kept.data(), nullptr};
    };
    return std::vector<ExternTensor>{{in[0], nullptr, copy}};
  };
  e.run(call);
  for (int i = 0; i < kN; ++i) ASSERT_EQ(y[i], 2 * (x[i] + 1));
  EXPECT_EQ(copies, 1);
  call.extern_call = [&](const Step&, const std::vector<void*>& in) {
    return std::vector<ExternTensor>{{in[0], nullptr}};
  };
  EXPECT_THAT([&] { e.run(call); },
              ThrowsMessage<InternalError>(HasSubstr("t: result 0 is a view that cannot be copied")));
  std::vector<float> fresh(kN, 3);
  call.extern_call = [&](const Step&, const std::vector<void*>&) {
    return std::vector<ExternTensor>{{fresh.data(), nullptr}};
  };
  e.run(call);
  EXPECT_EQ(y[0], 6);
}

// --- poisoned memory

/// Puts a word into TRAINC_DEBUG while it lives.
struct Debugging {
  explicit Debugging(const char* word) { setenv("TRAINC_DEBUG", word, 1); }
  ~Debugging() { unsetenv("TRAINC_DEBUG"); }
};

/// Kernels whose arguments[1] is only half written, and which read the scratch memory without writing it.
void half(void* const* a, void*, uint32_t*, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end && i < kN / 2; ++i) floats(a[1])[i] = floats(a[0])[i];
}
void from_scratch(void* const* a, void* scratch, uint32_t*, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) floats(a[1])[i] = static_cast<float*>(scratch)[5];
}

TEST(Poison, WhatWasNotWrittenIsNan) {
  Plan p = chain();
  p.kernels.push_back(jump_kernel("half", half)), p.kernels.push_back(jump_kernel("from_scratch", from_scratch, 64));
  std::vector<float> x = ramp(), y(kN, -1);
  const auto run = [&](const Plan& plan) { CpuExecutable(plan).run({.inputs = {x.data()}, .outputs = {y.data()}}); };
  const Debugging poison("other,poison");
  run(p);
  for (int i = 0; i < kN; ++i) ASSERT_EQ(y[i], 2 * (x[i] + 1));
  p.steps[0].kernel = 3;  // a temporary
  run(p);
  EXPECT_EQ(y[1], 2);
  EXPECT_TRUE(std::isnan(y[kN - 1]));
  p.steps[0].kernel = 0, p.steps[1].kernel = 3;  // a result
  run(p);
  EXPECT_EQ(y[1], 2);
  EXPECT_TRUE(std::isnan(y[kN - 1]));
  p.steps[1].kernel = 4;
  run(p);
  EXPECT_TRUE(std::isnan(y[0]));
}

TEST(Poison, MemoryIsNanAfterItsLastUse) {
  const Debugging poison("poison");
  Plan p = calling({});
  // nobody takes t's memory
  p.buffers[3].space = MemorySpace::Output, p.buffers[3].index = 2, p.output_count = 3, p.outputs = {4, 5, 3};
  plan_memory(p);
  CpuExecutable e(p);
  std::vector<float> x = ramp(), y(kN), z(kN), u(kN), fresh(kN);
  const float* t = nullptr;
  Call call{.inputs = {x.data()}, .outputs = {y.data(), z.data(), u.data()}};
  bool freed = false, in_use = false;
  call.extern_call = [&](const Step&, const std::vector<void*>& in) {
    t = floats(in[0]), in_use = t[7] == 8;
    return std::vector<ExternTensor>{{fresh.data(), nullptr}};
  };
  int looks = 0;
  call.check_signals = [&] {
    if (++looks == 3) freed = std::isnan(t[7]);  // before the step after the call
  };
  e.run(call);
  EXPECT_TRUE(in_use);
  EXPECT_TRUE(freed);
}

TEST(Poison, IntegersAreNoIndices) {
  Plan p = chain();
  p.buffers[2].dtype = DType::I32;
  p.steps.pop_back(), p.steps[0] = call_kernel("a", 0, 0, 2, 0);  // writes nothing
  std::vector<float> x = ramp();
  std::vector<int32_t> y(kN, 1);
  const Debugging poison("poison");
  CpuExecutable(p).run({.inputs = {x.data()}, .outputs = {y.data()}});
  EXPECT_EQ(static_cast<uint32_t>(y[0]), 0xa5a5a5a5u);
}

TEST(Executable, CertainMasksDoNotTouchTheGenerator) {
  Plan p = drawing(1.0);
  p.steps.erase(p.steps.begin() + 1, p.steps.end());
  p.buffers.resize(1), p.output_count = 1, p.outputs = {0};
  CpuExecutable e(p);
  std::vector<uint8_t> m(kN, 7);
  e.run({.inputs = {}, .outputs = {m.data()}});  // there is no generator to ask
  EXPECT_EQ(m, std::vector<uint8_t>(kN, 1));
}

// --- threads

TEST(ParallelFor, EachIndexOnce) {
  for (const int64_t n : {0, 1, 2, 3, 1000}) {
    std::vector<std::atomic<int>> seen(n);
    parallel_for(n, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++seen[i];
    });
    for (auto& s : seen) EXPECT_EQ(s, 1);
  }
}

TEST(ParallelFor, ExceptionsArriveAtTheCaller) {
  EXPECT_THROW(parallel_for(100,
                            [](int64_t begin, int64_t end) {
                              if (begin <= 99 && 99 < end) throw IndexError("99");
                            }),
               IndexError);
  std::atomic<int64_t> sum{0};
  parallel_for(100, [&](int64_t begin, int64_t end) { sum += end - begin; });
  EXPECT_EQ(sum, 100);
}

TEST(ParallelFor, NestedAndConcurrentCallsEnd) {
  std::atomic<int64_t> sum{0};
  const auto work = [&] {
    for (int r = 0; r < 50; ++r)
      parallel_for(8, [&](int64_t begin, int64_t end) {
        parallel_for(end - begin, [&](int64_t b, int64_t e) { sum += e - b; });
      });
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(sum, 2 * 50 * 8);
}

TEST(ParallelFor, SurvivesAFork) {
  std::atomic<int64_t> sum{0};
  parallel_for(100, [&](int64_t b, int64_t e) { sum += e - b; });
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a child that hangs is a failure, not a hanging test
    sum = 0;
    parallel_for(100, [&](int64_t b, int64_t e) { sum += e - b; });
    _exit(sum == 100 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// --- foreach

/// p[i] -= lr * g[i]; arguments p, lr (f32), g, count; chunks of 16
void sgd(void* const* a, void*, uint32_t*, int64_t begin, int64_t end) {
  const int64_t n = *static_cast<int64_t*>(a[3]);
  for (int64_t i = begin * 16; i < std::min(end * 16, n); ++i) floats(a[0])[i] -= *floats(a[1]) * floats(a[2])[i];
}

TEST(Foreach, EachElementOfEachTensorOnce) {
  runtime::CpuForeach step(
      {.name = "sgd", .kernel = jump_kernel("sgd", sgd), .inputs = {{}, {.scalar = true}, {}}, .chunk = 16});
  EXPECT_EQ(step.tensor_inputs(), 2);
  const std::vector<int64_t> sizes = {0, 1, 16, 17, 0, 1000, 15, 333, 0};
  std::vector<std::vector<float>> p, g;
  std::vector<void*> pointers;
  for (int64_t n : sizes) p.emplace_back(n + 1, 10.f), g.emplace_back(n + 1, 2.f);
  for (size_t t = 0; t < sizes.size(); ++t) pointers.insert(pointers.end(), {p[t].data(), g[t].data()});
  const double lr = 0.5;
  step.run(pointers, sizes, {&lr, 1});
  for (size_t t = 0; t < sizes.size(); ++t) {
    for (int64_t i = 0; i < sizes[t]; ++i) ASSERT_EQ(p[t][i], 9) << t << " " << i;
    EXPECT_EQ(p[t][sizes[t]], 10) << "wrote behind the end";
  }
  EXPECT_THROW(step.run(std::span(pointers).first(1), sizes, {&lr, 1}), InternalError);
  EXPECT_THROW(step.run(pointers, sizes, {}), InternalError);
}

}  // namespace
}  // namespace trainc::runtime
