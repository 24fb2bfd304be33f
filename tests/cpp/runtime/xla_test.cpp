// Calls as XLA makes them, of hand-made plans whose kernels are functions of this file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>

#include "../common/jump_kernel.h"
#include "runtime/cpu_device.h"
#include "runtime/xla/handler.h"
#include "support/error.h"
#include "support/float_environment.h"

namespace trainc::runtime::xla {
namespace {

using namespace plan;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using trainc::testing::jump_kernel;

constexpr int kF32 = 11;
constexpr int64_t kN = 100000;  // on all threads

float* floats(void* p) { return static_cast<float*>(p); }
void halve(void* const* a, void*, uint32_t*, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) floats(a[1])[i] = floats(a[0])[i] * 0.5f;
}

Buffer vec(const std::string& name, MemorySpace space, int64_t index = 0) {
  return {.name = name,
          .space = space,
          .index = index,
          .dtype = DType::F32,
          .shape = {kN},
          .strides = {1},
          .bytes = 4 * kN};
}
/// y = x / 2; the second result is x.
Plan halves() {
  Plan p{.name = "halves"};
  p.buffers = {vec("x", MemorySpace::Input), vec("y", MemorySpace::Output)};
  p.kernels = {jump_kernel("halve", halve)};
  p.steps = {{.kind = StepKind::Kernel,
              .name = "halve",
              .arguments = {0, 1},
              .reads = {0},
              .writes = {1},
              .kernel = 0,
              .parallel_extent = kN}};
  p.input_count = 1, p.output_count = 2, p.outputs = {1, 0};
  return p;
}

std::string said;  // by the last error
FfiError* create_error(FfiErrorCreate* e) {
  said = e->message;
  return reinterpret_cast<FfiError*>(&said);
}

/// A call with buffers of floats.
struct Xla {
  FfiApi api{sizeof api, nullptr, {sizeof(FfiVersion), nullptr, 0, 3}, nullptr, create_error};
  std::string plan = "halves", attribute = "plan";
  std::vector<std::vector<float>> arguments, results;
  int stage = kFfiExecute, dtype = kF32;
  int64_t elements = kN;

  bool run() {
    std::vector<FfiBuffer> buffers;
    std::vector<FfiBuffer*> given;
    buffers.reserve(arguments.size() + results.size());
    for (auto* list : {&arguments, &results})
      for (auto& values : *list) {
        buffers.push_back({sizeof(FfiBuffer), nullptr, dtype, values.data(), 1, &elements});
        given.push_back(&buffers.back());
      }
    std::vector<int> types(given.size(), kFfiBuffer);
    FfiBytes name{attribute.data(), attribute.size()}, value{plan.data(), plan.size()};
    FfiBytes* names[] = {&name};
    void* values[] = {&value};
    int kind = kFfiString;
    const auto count = static_cast<int64_t>(arguments.size());
    FfiCall call{
        sizeof call,
        nullptr,
        &api,
        nullptr,
        stage,
        {sizeof(FfiBuffers), nullptr, count, types.data(), given.data()},
        {sizeof(FfiBuffers), nullptr, static_cast<int64_t>(results.size()), types.data(), given.data() + count},
        {sizeof(FfiAttributes), nullptr, 1, &kind, names, values}};
    return handle(&call) == nullptr;
  }
};
Xla call_of(float x) {
  return {.arguments = {std::vector<float>(kN, x)},
          .results = {std::vector<float>(kN, -1), std::vector<float>(kN, -1)}};
}

void publish_halves(const std::string& name, bool flushes) {
  publish(name, std::make_shared<CpuExecutable>(halves()), flushes);
}

TEST(Xla, RunsThePlanOfTheName) {
  publish_halves("halves", false);
  Xla call = call_of(3);
  EXPECT_TRUE(call.run()) << said;
  EXPECT_EQ(call.results[0], std::vector<float>(kN, 1.5));
  EXPECT_EQ(call.results[1], call.arguments[0]);
}

TEST(Xla, ComputesAsThePlanWasCompiledWhateverTheThreadsAre) {
  publish_halves("keeps", false);
  publish_halves("flushes", true);
  for (const bool thread : {false, true})
    for (const bool flushes : {false, true}) {
      Xla call = call_of(1e-38f);
      call.plan = flushes ? "flushes" : "keeps";
      std::thread([&] {
        const FloatEnvironment environment(thread);
        EXPECT_TRUE(call.run()) << said;
        EXPECT_EQ(flushes_denormals(), thread);  // put back
      }).join();
      volatile float half = 1e-38f;
      half = half * 0.5f;
      EXPECT_EQ(call.results[0], std::vector<float>(kN, flushes ? 0.f : half));
    }
}

TEST(Xla, SaysWhatIsWrong) {
  publish_halves("halves", false);
  const auto refused = [](const char* words, void (*change)(Xla&)) {
    Xla call = call_of(1);
    change(call);
    EXPECT_FALSE(call.run());
    EXPECT_THAT(said, HasSubstr(words));
    for (const auto& r : call.results) EXPECT_EQ(r, std::vector<float>(kN, -1));
  };
  refused("this process has not compiled", [](Xla& c) { c.plan = "another"; });
  refused("without its name", [](Xla& c) { c.attribute = "plans"; });
  refused("XLA gives 0 arguments, the plan has 1", [](Xla& c) { c.arguments.clear(); });
  refused("XLA gives 1 results, the plan has 2", [](Xla& c) { c.results.pop_back(); });
  refused("XLA gives 396 bytes for", [](Xla& c) { c.elements = 99; });
  refused("dtype 17 is not known", [](Xla& c) { c.dtype = 17; });
}

TEST(Xla, IsAskedForItsVersion) {
  for (const auto& [minor, answered] : {std::pair{1, 1}, {2, 2}, {3, 3}, {0, 3}, {4, 3}}) {
    Xla xla;
    xla.api.version.minor = minor;
    FfiMetadata metadata{sizeof metadata, {sizeof(FfiVersion), nullptr, -1, -1}, 77};
    FfiMetadataExtension extension{{sizeof extension, kFfiMetadata, nullptr}, &metadata};
    FfiCall call{sizeof call, &extension.base, &xla.api};
    EXPECT_EQ(handle(&call), nullptr);
    EXPECT_EQ(metadata.version.major, 0);
    EXPECT_EQ(metadata.version.minor, answered);
    EXPECT_EQ(metadata.traits, 0u);
  }
}

TEST(Xla, DoesNothingBeforeTheCall) {
  for (int stage : {0, 1, 2}) {
    Xla call = call_of(1);
    call.stage = stage;
    EXPECT_TRUE(call.run());
    EXPECT_EQ(call.results[0], std::vector<float>(kN, -1));
  }
}

TEST(Xla, PublishesWhatNeedsNoFrameworkAlone) {
  const auto refused = [](const char* words, void (*change)(Plan&)) {
    Plan p = halves();
    change(p);
    EXPECT_THAT([&] { publish("refused", std::make_shared<CpuExecutable>(p), false); },
                ThrowsMessage<InternalError>(HasSubstr(words)));
  };
  refused("is not dense", [](Plan& p) { p.buffers[0].shape = {kN / 2}, p.buffers[0].strides = {2}; });
  refused("a result is none", [](Plan& p) { p.outputs.push_back(-1), ++p.output_count; });
  refused("needs a framework", [](Plan& p) {
    p.buffers.push_back(
        {.name = "m", .space = MemorySpace::Temp, .dtype = DType::Bool, .shape = {4}, .strides = {1}, .bytes = 4});
    p.steps.push_back({.kind = StepKind::Random, .name = "draw", .writes = {2}, .p = 0.5});
    plan_memory(p);
  });
}

}  // namespace
}  // namespace trainc::runtime::xla
