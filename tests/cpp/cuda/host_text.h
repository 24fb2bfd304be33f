// The text that NVRTC is given, compiled for the host instead, with a fiber a thread.
#pragma once
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <stdexcept>

#include "emit/cuda/emit.h"
#include "emit/cuda/prelude.h"
#include "runtime/cuda/cublaslt.h"
#include "runtime/cuda/executable.h"

namespace trainc::testing {

// CUDA's words on the host. A block's threads are fibers, run in turn from one meeting point to the next: a barrier, or
// an exchange in a warp.
inline const char* const kHost = R"(#include <ucontext.h>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>
#define __device__
#define __forceinline__ inline
#define __global__
#define __shared__ static
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
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
// Copies that are under way, by thread: they are made when they are waited for. The last group is not committed.
struct Copy { void* to; const void* from; };  // from nowhere: zeros
static std::vector<std::vector<Copy>> copies[1024];
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
    copies[t].assign(1, {});
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

// What kPtx of emit/cuda/prelude.h says in PTX, by the PTX ISA's tables of fragments: each thread shows the others
// where its own are, and computes its four sums.
inline const char* const kHostPtx = R"(
static float f16_to_f32(f16 x) { _Float16 h; memcpy(&h, &x, 2); return (float)h; }
static f16 f32_to_f16(float x) { const _Float16 h = (_Float16)x; f16 r; memcpy(&r, &h, 2); return r; }
static float tf32(float x) {
  unsigned bits = __float_as_uint(x);
  if ((bits & 0x7f800000) != 0x7f800000) bits = (bits + 0x1000) & ~0x1fffu;
  return __uint_as_float(bits);
}
template <class T, class Value> static void mma_by_definition(float* c, const T* a, const T* b, int k_extent, Value value) {
  static const T *all_a[1024], *all_b[1024];
  const unsigned self = fibers::current, warp = self / 32 * 32, lane = self % 32;
  all_a[self] = a, all_b[self] = b;
  fibers::meet();
  const int half = k_extent / 2, wide = k_extent == 16 ? 2 : 1;  // neighbours in k that one thread holds
  float sums[4];
  for (int i = 0; i < 4; ++i) {
    const int row = (int)lane / 4 + i / 2 * 8, column = (int)lane % 4 * 2 + i % 2;
    sums[i] = c[i];
    for (int k = 0; k < k_extent; ++k) {
      const int inner = k % half / wide;
      const T* fragment_a = all_a[warp + row % 8 * 4 + inner];
      const T* fragment_b = all_b[warp + column * 4 + inner];
      sums[i] += value(fragment_a[k % wide + row / 8 * wide + k / half * 2 * wide]) * value(fragment_b[k % wide + k / half * wide]);
    }
  }
  fibers::meet();
  for (int i = 0; i < 4; ++i) c[i] = sums[i];
}
template <class T> static void copy_async(T* to, const T* from, bool exists, bool wide) {
  if (wide) fibers::copies[fibers::current].back().push_back({to, exists ? from : nullptr});
  else for (int i = 0; i < 16 / (int)sizeof(T); ++i) to[i] = exists ? from[i] : (T)0;
}
static void commit_copies() { fibers::copies[fibers::current].emplace_back(); }
template <int groups> static void wait_copies() {
  auto& all = fibers::copies[fibers::current];
  for (; all.size() > groups + 1; all.erase(all.begin()))
    for (const fibers::Copy& c : all.front()) c.from ? (void)memcpy(c.to, c.from, 16) : (void)memset(c.to, 0, 16);
}
template <class T> static void matrix_by_definition(T* to, const T* row, bool transposed) {
  static const T* rows[1024];
  const unsigned self = fibers::current, warp = self / 32 * 32, lane = self % 32;
  rows[self] = row;
  fibers::meet();
  const int held = 4 / sizeof(T);
  T got[8];
  for (int i = 0; i < 4 * held; ++i) {
    const int along = lane % 4 * held + i % held, across = lane / 4;
    got[i] = rows[warp + i / held * 8 + (transposed ? along : across)][transposed ? across : along];
  }
  fibers::meet();
  for (int i = 0; i < 4 * held; ++i) to[i] = got[i];
}
static void load_matrix(bf16* to, const bf16* row) { matrix_by_definition(to, row, false); }
static void load_matrix_transposed(bf16* to, const bf16* row) { matrix_by_definition(to, row, true); }
static void load_matrix(float* to, const float* row) { matrix_by_definition(to, row, false); }
static void mma(float* c, const bf16* a, const bf16* b) { mma_by_definition(c, a, b, 16, bf16_to_f32); }
static void mma(float* c, const float* a, const float* b) { mma_by_definition(c, a, b, 8, tf32); }
)";

/// Changes the text that is compiled: a test's own mistake of the printer.
using Mistake = std::function<void(std::string& text)>;

/// Kernels come as nests, and run as the text that the printer makes of them. Throws std::runtime_error where that text
/// is not what a host can be given. Products of the vendor's library are computed as it is asked for them.
class HostDriver : public runtime::cuda::NullDriver {
 public:
  explicit HostDriver(std::string compiler) : compiler_(std::move(compiler)) {}
  std::string architecture() const override { return "interpret"; }

  void add(const plan::Kernel& kernel, emit::cuda::Entry entry) {
    const std::string code(kernel.code.begin(), kernel.code.end());
    if (names_.contains(code)) return;
    loop::LoopNest nest = loop::parse(code);
    nest.name = "k";  // kernels of equal layers differ in name and lines alone
    nest.origins.clear();
    nest.bytes = nest.flops = 0;
    const auto [at, fresh] = distinct_.try_emplace(loop::print(nest), "k" + std::to_string(distinct_.size()));
    names_[code] = nest.name = at->second;
    if (!fresh) return;
    std::string text = emit::cuda::source(nest, entry);
    const std::string ptx = emit::cuda::kPtx;
    const size_t begin = text.find(ptx);
    if (begin == std::string::npos) throw std::runtime_error("the text of " + kernel.name + " has no PTX to replace");
    text.replace(begin, ptx.size(), kHostPtx);
    if (mistake) mistake(text);
    size_t arguments = 0;
    for (const loop::Buffer& b : nest.buffers) arguments += b.space == loop::Space::Argument;
    const bool plan = entry == emit::cuda::Entry::Plan;
    source_ += fmt::format(
        "namespace n_{0} {{\n{1}extern \"C\" void run_{0}(void* const* table, const int* slots, const int* "
        "first_chunk, "
        "int tensors, unsigned* status, int blocks, int threads) {{\n  {2}for (int b = 0; b < blocks; ++b) {{ "
        "blockIdx.x "
        "= b; fibers::block(threads); }}\n}}\n}}\n",
        nest.name, text,
        plan ? fmt::format("Slots s;\n  memcpy(s.at, slots, {} * sizeof(int));\n  fibers::body = [=] {{ {}(table, s, "
                           "status); }};\n  ",
                           arguments, nest.name)
             : fmt::format("fibers::body = [=] {{ {}(table, first_chunk, tensors, status); }};\n  ", nest.name));
  }
  void add(const plan::Plan& plan) {
    for (const plan::Kernel& k : plan.kernels) add(k, emit::cuda::Entry::Plan);
  }
  /// How many kernels were added that differ in more than their names.
  size_t distinct() const { return distinct_.size(); }

  /// All that was added, in one shared object.
  void compile() {
    static int made = 0;  // a library of a name that is loaded already would not be loaded
    const std::filesystem::path stem =
        std::filesystem::temp_directory_path() / fmt::format("trainc_text_{}_{}", getpid(), ++made);
    std::ofstream(stem.string() + ".cpp") << kHost << source_;
    const std::string command = compiler_ + " -std=c++17 -O0 -w -ffp-contract=off -shared -fPIC -o " + stem.string() +
                                ".so " + stem.string() + ".cpp";
    const bool compiled = std::system(command.c_str()) == 0;
    if (compiled) handle_ = dlopen((stem.string() + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
    std::filesystem::remove(stem.string() + ".cpp");
    std::filesystem::remove(stem.string() + ".so");
    if (!compiled) throw std::runtime_error("it does not compile: " + command);
    if (!handle_) throw std::runtime_error(dlerror());
  }

  runtime::cuda::Function load(const plan::Kernel& k) override {
    const std::string run = "run_" + names_.at(std::string(k.code.begin(), k.code.end()));
    void* found = dlsym(handle_, run.c_str());
    if (!found) throw std::runtime_error("no function " + run);
    return found;
  }
  void unload(runtime::cuda::Function) override {}
  void copy(void* to, const void* from, int64_t bytes, runtime::cuda::Stream) override {
    memcpy(to, from, static_cast<size_t>(bytes));
  }
  void launch(const runtime::cuda::Launch& l, runtime::cuda::Stream) override {
    using Run = void (*)(void* const* table, const int* slots, const int* first_chunk, int tensors, unsigned* status,
                         int blocks, int threads);
    reinterpret_cast<Run>(l.function)(static_cast<void* const*>(l.table), l.slots.data(), l.first_chunk, l.tensors,
                                      l.status, static_cast<int>(l.blocks), l.threads);
    ++launches;
  }
  void multiply(const plan::Product& p, const runtime::cuda::Factors& f, runtime::cuda::Stream) override {
    runtime::cuda::run_on_host(runtime::cuda::cublaslt_call(p), f);
    ++products;
  }

  Mistake mistake;
  int64_t launches = 0, products = 0;

 private:
  const std::string compiler_;
  std::string source_;
  std::map<std::string, std::string> distinct_, names_;  // by the nest's text, by a kernel's code: the function
  void* handle_ = nullptr;
};

}  // namespace trainc::testing
