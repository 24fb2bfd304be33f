// The text that NVRTC is given, compiled for the host instead, with a fiber a thread: what the printer writes computes
// what the nest means. The interpreter checks nests, NVRTC checks that the text compiles; this checks that both are the
// same program. PTX (f16, tensor cores) has no meaning on the host and is left to them.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "../common/random_graph.h"
#include "../common/run_plan.h"
#include "compiler/compiler.h"
#include "device_run.h"
#include "emit/cuda/emit.h"
#include "graph/text.h"
#include "graphs.h"
#include "runtime/cuda/executable.h"

namespace trainc {
namespace {

// CUDA's words on the host. A block's threads are fibers, run in turn from one meeting point to the next: a barrier, or
// an exchange in a warp.
const char* kHost = R"(#include <ucontext.h>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>
#define __device__
#define __forceinline__ inline
#define __global__
#define __shared__ static
#define __launch_bounds__(...)
#define asm(...) (void)0
struct Index { unsigned x; };
static Index threadIdx, blockIdx;
static float __uint_as_float(unsigned x) { float r; memcpy(&r, &x, 4); return r; }
static unsigned __float_as_uint(float x) { unsigned r; memcpy(&r, &x, 4); return r; }
static double __longlong_as_double(long long x) { double r; memcpy(&r, &x, 8); return r; }
static void atomicMax(unsigned* a, unsigned b) { if (*a < b) *a = b; }
namespace fibers {
static ucontext_t scheduler, contexts[1024];
static char stacks[1024][1 << 16];
static bool done[1024];
static unsigned current;
static std::function<void()> body;
static double exchanged[1024];
static void meet() { swapcontext(&contexts[current], &scheduler); threadIdx.x = current; }
static void start() { body(); done[current] = true; swapcontext(&contexts[current], &scheduler); }
static void block(int threads) {
  for (int t = 0; t < threads; ++t) {
    getcontext(&contexts[t]);
    contexts[t].uc_stack.ss_sp = stacks[t];
    contexts[t].uc_stack.ss_size = sizeof stacks[t];
    contexts[t].uc_link = nullptr;
    makecontext(&contexts[t], start, 0);
    done[t] = false;
  }
  for (bool left = true; left;) {
    left = false;
    for (current = 0; current < (unsigned)threads; ++current)
      if (!done[current]) { threadIdx.x = current; swapcontext(&scheduler, &contexts[current]); left |= !done[current]; }
  }
}
}
static void __syncthreads() { fibers::meet(); }
template <class T> static T __shfl_xor_sync(unsigned, T x, int apart) {
  const unsigned self = fibers::current;
  memcpy(&fibers::exchanged[self], &x, sizeof x);
  fibers::meet();
  memcpy(&x, &fibers::exchanged[self ^ (unsigned)apart], sizeof x);
  fibers::meet();
  return x;
}
)";

using Run = void (*)(void* const* table, const int* slots, unsigned* status, int blocks, int threads);

class HostDriver : public runtime::cuda::NullDriver {
 public:
  std::string architecture() const override { return "interpret"; }  // kernels come as nests

  /// All kernels of the plans in one shared object.
  void compile(const std::vector<plan::Plan>& plans) {
    std::string source = kHost;
    for (const plan::Plan& p : plans)
      for (const plan::Kernel& k : p.kernels) {
        const auto [at, fresh] =
            names_.try_emplace(std::string(k.code.begin(), k.code.end()), "k" + std::to_string(names_.size()));
        if (!fresh) continue;
        loop::LoopNest nest = loop::parse(at->first);
        nest.name = at->second;
        size_t arguments = 0;
        for (const loop::Buffer& b : nest.buffers) arguments += b.space == loop::Space::Argument;
        source += "namespace n_" + nest.name + " {\n" + emit::cuda::source(nest) + "extern \"C\" void run_" +
                  nest.name +
                  "(void* const* table, const int* slots, unsigned* status, int blocks, int threads) {\n  Slots s;\n  "
                  "memcpy(s.at, slots, " +
                  std::to_string(arguments) + " * sizeof(int));\n  fibers::body = [=] { " + nest.name +
                  "(table, s, status); };\n  for (int b = 0; b < blocks; ++b) { blockIdx.x = b; "
                  "fibers::block(threads); }\n}\n}\n";
      }
    const std::filesystem::path stem =
        std::filesystem::temp_directory_path() / ("trainc_text_" + std::to_string(getpid()));
    std::ofstream(stem.string() + ".cpp") << source;
    const std::string command = std::string(TRAINC_CXX) + " -std=c++17 -O0 -w -ffp-contract=off -shared -fPIC -o " +
                                stem.string() + ".so " + stem.string() + ".cpp";
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
    handle_ = dlopen((stem.string() + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(handle_, nullptr) << dlerror();
    std::filesystem::remove(stem.string() + ".cpp");
    std::filesystem::remove(stem.string() + ".so");
  }

  runtime::cuda::Function load(const plan::Kernel& k) override {
    void* run = dlsym(handle_, ("run_" + names_.at(std::string(k.code.begin(), k.code.end()))).c_str());
    EXPECT_NE(run, nullptr);
    return run;
  }
  void unload(runtime::cuda::Function) override {}
  void launch(const runtime::cuda::Launch& l, runtime::cuda::Stream) override {
    reinterpret_cast<Run>(l.function)(static_cast<void* const*>(l.table), l.slots.data(), l.status,
                                      static_cast<int>(l.blocks), l.threads);
    ++launches;
  }
  void copy_in(void* device, const void* host, int64_t bytes, runtime::cuda::Stream) override {
    std::memcpy(device, host, static_cast<size_t>(bytes));
  }

  int64_t launches = 0;

 private:
  std::map<std::string, std::string> names_;
  void* handle_ = nullptr;
};

TEST(Text, ComputesWhatTheNestMeans) {
  std::vector<Graph> graphs;
  testing::RandomGraphOptions o;
  o.transcendental = false;
  for (uint64_t seed = 500; seed < 530; ++seed) graphs.push_back(testing::random_graph(seed, o));
  for (int64_t columns : {33, 1000}) graphs.push_back(testing::softmax(3, columns));
  graphs.push_back(testing::column_sums(70, 65));
  graphs.push_back(testing::scatter(40, 7, 50));
  for (int transposed = 0; transposed < 4; ++transposed)
    graphs.push_back(testing::contraction(2, 33, 65, 17, DType::F32, transposed & 1, transposed & 2));

  std::vector<plan::Plan> plans;
  std::vector<size_t> kept;
  for (size_t i = 0; i < graphs.size(); ++i) {
    if (print(graphs[i]).find(" f16[") != std::string::npos) continue;  // PTX
    plans.push_back(compiler::compile(testing::copy_of(graphs[i]), "text", testing::device_options(true)));
    kept.push_back(i);
  }
  ASSERT_GT(plans.size(), 25u);
  const auto driver = std::make_shared<HostDriver>();
  driver->compile(plans);
  if (HasFatalFailure()) return;
  for (size_t p = 0; p < plans.size(); ++p) {
    const Graph& graph = graphs[kept[p]];
    SCOPED_TRACE(print(graph));
    const auto inputs = testing::halves(graph, p + 1);
    testing::expect_close(testing::run_on_device(plans[p], driver, inputs), testing::oracle(graph, inputs));
    if (HasFailure()) return;
  }
  EXPECT_GT(driver->launches, 80);
}

}  // namespace
}  // namespace trainc
