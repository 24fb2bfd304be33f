// A libcuda.so.1 (and a libcublasLt) without a GPU that watches its caller: which context is current, whether what is
// named is there, what is released while it is in use, what is read before it has been written. Work that is queued is
// done when somebody waits for it, and not before. What it finds is a line of checking_findings().
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace {

using Status = int;
constexpr Status kInvalid = 1, kNoContext = 201, kBadHandle = 400, kNotReady = 600;

struct Object {
  std::string kind;
  void* context;
  void* owner = nullptr;  // of a function: its module
};
struct Work {
  std::string what;
  std::vector<const void*> uses;    // objects and memory
  std::vector<const void*> writes;  // of these, memory that it writes
  std::function<void(const Work&)> action;
  bool done = false;
  std::shared_ptr<Work> after;  // work of another stream
  int64_t number = 0;           // in the order in which it was queued
};
using Queue = std::list<std::shared_ptr<Work>>;

struct State {
  std::recursive_mutex mutex;
  std::map<const void*, Object> live;
  std::map<const void*, size_t> memory;  // first byte, size: of the device, and pinned
  std::map<void*, Queue> streams;
  std::map<void*, std::shared_ptr<Work>> events;                 // the last work before it was recorded
  std::map<void*, std::vector<std::shared_ptr<Work>>> captures;  // streams that are captured
  std::map<void*, std::vector<std::shared_ptr<Work>>> graphs;    // graphs, and those that are instantiated
  uint32_t refused_epilogues = 0;                                // what products may not do beside
  uint64_t algorithms = 3;                                       // that the library has: 1, 2, ...
  uint64_t algorithm = 0;                                        // of the last product
  std::map<const void*, uint32_t> epilogues;                     // of a product's description
  std::map<const void*, void*> vectors;
  std::vector<std::string> findings;
  int64_t calls = 0, fail_at = -1, queued = 0;
  Status failure = 0;
  bool lost = false;
  int contexts[2] = {};  // the primary context of device i is &contexts[i]: how often it is retained
};
State& state() {
  static State& s = *new State;
  return s;
}
// Of the static kind: LeakSanitizer reads past what a library that is loaded later has of the other.
__attribute__((tls_model("initial-exec"))) thread_local std::vector<void*> current;

void find(const std::string& what) { state().findings.push_back(what); }

template <class... T> std::string text(const T&... parts) { return (std::string() + ... + parts); }

/// What every call that may fail begins with.
struct Call {
  std::lock_guard<std::recursive_mutex> lock{state().mutex};
  Status status = 0;
  explicit Call(const char* name, bool in_context = true) {
    State& s = state();
    if (in_context && current.empty()) find(text(name, " outside of a context")), status = kNoContext;
    if (s.calls++ == s.fail_at) {
      status = s.failure;
      s.lost = s.failure >= 700;
    } else if (s.lost) {
      status = s.failure;
    }
  }
};

void* make(const char* kind, void* owner = nullptr) {
  static auto& made = *new std::vector<std::unique_ptr<char>>;  // kept, so that no two have one address
  void* p = made.emplace_back(std::make_unique<char>()).get();
  state().live[p] = {kind, current.empty() ? nullptr : current.back(), owner};
  return p;
}

Status use(const char* name, const void* p, const char* kind) {
  const auto at = state().live.find(p);
  if (at == state().live.end() || at->second.kind != kind) {
    find(text(name, ": no such ", kind));
    return kBadHandle;
  }
  if (at->second.context != current.back()) find(text(name, ": a ", kind, " of another context"));
  return 0;
}
Status use_stream(const char* name, void* stream) {
  return stream == nullptr || reinterpret_cast<uintptr_t>(stream) < 4096 ? 0 : use(name, stream, "stream");
}

const void* block_of(const void* p) {
  auto at = state().memory.upper_bound(p);
  if (at == state().memory.begin()) return nullptr;
  --at;
  return static_cast<const char*>(p) < static_cast<const char*>(at->first) + at->second ? at->first : nullptr;
}
const void* within(const char* name, const void* p, size_t bytes) {
  const void* block = block_of(p);
  if (!block || block_of(static_cast<const char*>(p) + (bytes ? bytes - 1 : 0)) != block)
    find(text(name, ": memory that is not there"));
  return block;
}

bool pending(const std::function<bool(const Work&)>& which, std::string* what = nullptr) {
  for (auto& [stream, queue] : state().streams)
    for (const auto& w : queue)
      if (!w->done && which(*w)) {
        if (what) *what = w->what;
        return true;
      }
  return false;
}

/// Memory is written while other work, which was queued before, has not read it yet.
void check_overwritten(const void* block, const Work& by) {
  if (pending([&](const Work& w) { return w.number < by.number && std::count(w.uses.begin(), w.uses.end(), block); }))
    find("a copy: overwrites memory that earlier work is still to use");
}

void run_until(void* stream, const Work* last) {
  Queue& q = state().streams[stream];
  while (!q.empty()) {
    const std::shared_ptr<Work> w = q.front();
    if (w->after && !w->after->done)
      for (auto& [other, queue] : state().streams)
        if (std::find(queue.begin(), queue.end(), w->after) != queue.end()) run_until(other, w->after.get());
    if (!w->done) {
      for (const void* block : w->writes) check_overwritten(block, *w);
      w->action(*w);
    }
    w->done = true;
    q.pop_front();
    if (w.get() == last) return;
  }
}
void run_all() {
  // the default stream at last: what does not wait for it has read by then what it was to write
  for (auto at = state().streams.rbegin(); at != state().streams.rend(); ++at) run_until(at->first, nullptr);
}

std::shared_ptr<Work> queue(void* stream, Work work) {
  auto made = std::make_shared<Work>(std::move(work));
  made->number = ++state().queued;
  if (const auto at = state().captures.find(stream); at != state().captures.end()) at->second.push_back(made);
  else state().streams[stream].push_back(made);
  return made;
}

void release(const char* name, const void* p, const char* kind) {
  if (current.empty()) find(text(name, " outside of a context"));
  const auto at = state().live.find(p);
  if (at == state().live.end() || at->second.kind != kind) return find(text(name, ": no such ", kind));
  std::string by;
  if (pending([&](const Work& w) { return std::find(w.uses.begin(), w.uses.end(), p) != w.uses.end(); }, &by))
    find(text(name, ": a ", kind, " that ", by, " still uses"));
  state().live.erase(at);
}

Status free_memory(const char* name, void* p, const char* kind) {
  release(name, p, kind);
  if (state().memory.erase(p)) std::free(p);
  return 0;
}
Status allocate(const char* kind, void** p, size_t bytes) {
  *p = std::malloc(std::max<size_t>(bytes, 1));
  std::memset(*p, 0xCD, std::max<size_t>(bytes, 1));
  state().memory[*p] = std::max<size_t>(bytes, 1);
  state().live[*p] = {kind, current.back()};
  return 0;
}

/// Memory is read by work that is done while other work, which was queued before and not waited for, is to write it.
void check_written(const std::string& name, const void* block, const Work& by) {
  if (pending(
          [&](const Work& w) { return w.number < by.number && std::count(w.writes.begin(), w.writes.end(), block); }))
    find(name + ": reads memory that a copy is still on its way to");
}

}  // namespace

extern "C" {

// --- what a test asks

void checking_reset(int64_t fail_at, Status failure) {
  State& s = state();
  s.live.clear(), s.streams.clear(), s.events.clear(), s.captures.clear(), s.graphs.clear(), s.findings.clear();
  for (auto& [p, bytes] : s.memory) std::free(const_cast<void*>(p));
  s.memory.clear();
  s.calls = 0, s.fail_at = fail_at, s.failure = failure, s.lost = false, s.refused_epilogues = 0;
  s.algorithms = 3, s.algorithm = 0;
  std::fill(std::begin(s.contexts), std::end(s.contexts), 0);
  current.clear();
}
/// Of cublasLtEpilogue_t's bits: those that no algorithm has.
void checking_refuse_epilogues(uint32_t bits) { state().refused_epilogues = bits; }
/// The library has the algorithms 1 ... count; the third adds up in place, in whatever order.
void checking_algorithms(uint64_t count) { state().algorithms = count; }
/// That the last product was made by.
uint64_t checking_algorithm() { return state().algorithm; }
/// Joined by "; ".
const char* checking_findings() {
  static std::string all;
  all.clear();
  for (const std::string& f : state().findings) all += (all.empty() ? "" : "; ") + f;
  return all.c_str();
}
/// What is not released: "2 event, 1 module".
const char* checking_live() {
  static std::string all;
  std::map<std::string, int> count;
  for (const auto& [p, o] : state().live) ++count[o.kind];
  if (!state().captures.empty()) count["capture"] = static_cast<int>(state().captures.size());
  for (int retained : state().contexts)
    if (retained) count["context"] += retained;
  all.clear();
  for (const auto& [kind, n] : count) all += (all.empty() ? "" : ", ") + std::to_string(n) + " " + kind;
  return all.c_str();
}
int64_t checking_calls() { return state().calls; }

// --- the driver

Status cuInit(unsigned) { return Call("cuInit", false).status; }
Status cuDeviceGetCount(int* n) { return *n = 2, Call("cuDeviceGetCount", false).status; }
Status cuDeviceGet(int* device, int number) { return *device = number, Call("cuDeviceGet", false).status; }
Status cuDeviceGetName(char* name, int size, int) {
  return std::strncpy(name, "checking", static_cast<size_t>(size)), 0;
}
Status cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? 9 : 0;
  return Call("cuDeviceGetAttribute", false).status;
}
Status cuDevicePrimaryCtxRetain(void** context, int device) {
  const Call call("cuDevicePrimaryCtxRetain", false);
  if (call.status == 0) *context = &state().contexts[device], ++state().contexts[device];
  return call.status;
}
Status cuDevicePrimaryCtxRelease_v2(int device) {
  if (--state().contexts[device] < 0) find("cuDevicePrimaryCtxRelease: not retained");
  return 0;
}
Status cuCtxPushCurrent_v2(void* context) { return current.push_back(context), 0; }
Status cuCtxPopCurrent_v2(void** context) {
  if (current.empty()) return find("cuCtxPopCurrent: none is current"), kNoContext;
  *context = current.back();
  current.pop_back();
  return 0;
}
Status cuCtxGetCurrent(void** context) { return *context = current.empty() ? nullptr : current.back(), 0; }
Status cuCtxSynchronize() {
  const Call call("cuCtxSynchronize");
  run_all();
  return call.status;
}
Status cuGetErrorString(Status status, const char** words) {
  *words = status == kNotReady ? "not ready" : "refused by a test";
  return 0;
}

Status cuModuleLoadData(void** module, const void* image) {
  const Call call("cuModuleLoadData");
  if (call.status) return call.status;
  if (std::memcmp(image, "\177ELF", 4) != 0) return find("cuModuleLoadData: no cubin"), kInvalid;
  *module = make("module");
  return 0;
}
Status cuModuleUnload(void* module) {
  const std::lock_guard lock(state().mutex);
  for (auto at = state().live.begin(); at != state().live.end();) {
    const bool of_it = at->second.kind == "function" && at->second.owner == module;
    std::string by;
    if (of_it && pending([&](const Work& w) { return std::count(w.uses.begin(), w.uses.end(), at->first) > 0; }, &by))
      find("cuModuleUnload: a module that " + by + " still uses");
    at = of_it ? state().live.erase(at) : std::next(at);
  }
  release("cuModuleUnload", module, "module");
  return 0;
}
Status cuModuleGetFunction(void** function, void* module, const char*) {
  const Call call("cuModuleGetFunction");
  if (call.status) return call.status;
  if (const Status s = use("cuModuleGetFunction", module, "module")) return s;
  *function = make("function", module);
  return 0;
}

Status cuMemAlloc_v2(unsigned long long* p, size_t bytes) {
  const Call call("cuMemAlloc");
  void* made = nullptr;
  if (call.status || bytes == 0) return call.status ? call.status : kInvalid;
  allocate("memory", &made, bytes);
  *p = reinterpret_cast<unsigned long long>(made);
  return 0;
}
Status cuMemFree_v2(unsigned long long p) {
  const std::lock_guard lock(state().mutex);
  return free_memory("cuMemFree", reinterpret_cast<void*>(p), "memory");
}
Status cuMemHostAlloc(void** p, size_t bytes, unsigned flags) {
  const Call call("cuMemHostAlloc");
  if (call.status) return call.status;
  if (!(flags & 1)) find("cuMemHostAlloc: pinned for one context alone");
  return allocate("pinned memory", p, bytes);
}
Status cuMemFreeHost(void* p) {
  const std::lock_guard lock(state().mutex);
  return free_memory("cuMemFreeHost", p, "pinned memory");
}

Status cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, size_t bytes, void* stream) {
  const Call call("cuMemcpyHtoDAsync");
  if (call.status) return call.status;
  if (const Status s = use_stream("cuMemcpyHtoDAsync", stream)) return s;
  void* target = reinterpret_cast<void*>(to);
  const void *source_block = block_of(from), *block = within("cuMemcpyHtoDAsync", target, bytes);
  if (!source_block) find("cuMemcpyHtoDAsync: from memory that is not pinned");
  const std::string then(static_cast<const char*>(from), bytes);
  queue(stream, {"a copy",
                 {source_block, block},
                 {block},
                 [=](const Work&) {
                   if (std::memcmp(from, then.data(), bytes) != 0) find("a copy: its source has changed meanwhile");
                   std::memcpy(target, from, bytes);
                 },
                 false,
                 nullptr});
  return 0;
}
Status cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes, void* stream) {
  const Call call("cuMemcpyDtoDAsync");
  if (call.status) return call.status;
  if (const Status s = use_stream("cuMemcpyDtoDAsync", stream)) return s;
  queue(stream, {"a copy",
                 {block_of(reinterpret_cast<void*>(to)), block_of(reinterpret_cast<void*>(from))},
                 {},
                 [=](const Work&) { std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes); },
                 false,
                 nullptr});
  return 0;
}
// From memory that is not pinned: read at once, written when the default stream comes to it.
Status cuMemcpyHtoD_v2(unsigned long long to, const void* from, size_t bytes) {
  const Call call("cuMemcpyHtoD");
  if (call.status) return call.status;
  void* target = reinterpret_cast<void*>(to);
  const void* block = within("cuMemcpyHtoD", target, bytes);
  queue(nullptr, {"a copy",
                  {block},
                  {block},
                  [=, then = std::string(static_cast<const char*>(from), bytes)](const Work&) {
                    std::memcpy(target, then.data(), bytes);
                  },
                  false,
                  nullptr});
  return 0;
}
Status cuMemcpyDtoH_v2(void* to, unsigned long long from, size_t bytes) {
  const Call call("cuMemcpyDtoH");
  if (call.status) return call.status;
  run_until(nullptr, nullptr);
  const void* block = within("cuMemcpyDtoH", reinterpret_cast<void*>(from), bytes);
  if (pending([&](const Work& w) { return std::count(w.uses.begin(), w.uses.end(), block) > 0; }))
    find("cuMemcpyDtoH: reads memory that a stream still works on");
  std::memcpy(to, reinterpret_cast<void*>(from), bytes);
  return 0;
}

Status cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                      unsigned shared, void* stream, void** arguments, void**) {
  const Call call("cuLaunchKernel");
  if (call.status) return call.status;
  if (const Status s = use("cuLaunchKernel", function, "function")) return s;
  if (const Status s = use_stream("cuLaunchKernel", stream)) return s;
  if (!gx || !gy || !gz || !bx || bx * by * bz > 1024 || shared > 48 << 10 || gx > 0x7fffffff)
    return find("cuLaunchKernel: sizes that no device takes"), kInvalid;
  const void* table = within("cuLaunchKernel", *static_cast<void**>(arguments[0]), 8);
  queue(stream, {"a kernel",
                 {function, table},
                 {},
                 [=](const Work& self) {
                   if (!block_of(table)) return find("a kernel: its table is not there any more");
                   check_written("a kernel", table, self);
                   const size_t words = state().memory[table] / 8;  // what the table leads to
                   for (size_t i = 0; i < words; ++i)
                     if (const void* block = block_of(static_cast<void* const*>(table)[i]))
                       check_written("a kernel", block, self);
                 },
                 false,
                 nullptr});
  return 0;
}

Status cuStreamCreate(void** stream, unsigned) {
  const Call call("cuStreamCreate");
  if (!call.status) *stream = make("stream");
  return call.status;
}
Status cuStreamDestroy_v2(void* stream) {
  const std::lock_guard lock(state().mutex);
  if (state().captures.erase(stream)) find("cuStreamDestroy: it is being captured");
  release("cuStreamDestroy", stream, "stream");
  return 0;
}
Status cuStreamSynchronize(void* stream) {
  const Call call("cuStreamSynchronize");
  run_until(stream, nullptr);
  return call.status;
}
Status cuStreamQuery(void* stream) {
  const Call call("cuStreamQuery");
  return call.status ? call.status : state().streams[stream].empty() ? 0 : kNotReady;
}
Status cuStreamBeginCapture_v2(void* stream, int) {
  const Call call("cuStreamBeginCapture");
  if (call.status) return call.status;
  if (!stream) return find("cuStreamBeginCapture: of the default stream"), 900;
  state().captures[stream];
  return use("cuStreamBeginCapture", stream, "stream");
}
Status cuStreamEndCapture(void* stream, void** graph) {
  const Call call("cuStreamEndCapture");
  const auto at = state().captures.find(stream);
  *graph = nullptr;
  if (at == state().captures.end()) return find("cuStreamEndCapture: it is not captured"), kInvalid;
  if (!call.status) *graph = make("graph"), state().graphs[*graph] = at->second;
  state().captures.erase(at);
  return call.status;
}
Status cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
  const Call call("cuGraphInstantiate");
  if (call.status) return call.status;
  if (const Status s = use("cuGraphInstantiate", graph, "graph")) return s;
  *executable = make("executable graph");
  state().graphs[*executable] = state().graphs[graph];
  return 0;
}
Status cuGraphLaunch(void* executable, void* stream) {
  const Call call("cuGraphLaunch");
  if (call.status) return call.status;
  if (const Status s = use("cuGraphLaunch", executable, "executable graph")) return s;
  for (const auto& w : state().graphs[executable]) {
    Work copy = *w;
    copy.uses.push_back(executable);
    queue(stream, std::move(copy));
  }
  return use_stream("cuGraphLaunch", stream);
}
Status cuGraphExecDestroy(void* executable) {
  const std::lock_guard lock(state().mutex);
  release("cuGraphExecDestroy", executable, "executable graph");
  return 0;
}
Status cuGraphDestroy(void* graph) {
  const std::lock_guard lock(state().mutex);
  release("cuGraphDestroy", graph, "graph");
  return 0;
}

Status cuEventCreate(void** event, unsigned) {
  const Call call("cuEventCreate");
  if (!call.status) *event = make("event");
  return call.status;
}
Status cuEventRecord(void* event, void* stream) {
  const Call call("cuEventRecord");
  if (call.status) return call.status;
  if (const Status s = use("cuEventRecord", event, "event")) return s;
  Queue& q = state().streams[stream];
  state().events[event] = q.empty() ? nullptr : q.back();
  return use_stream("cuEventRecord", stream);
}
Status cuEventQuery(void* event) {
  const Call call("cuEventQuery");
  if (call.status) return call.status;
  if (const Status s = use("cuEventQuery", event, "event")) return s;
  const auto& w = state().events[event];
  return !w || w->done ? 0 : kNotReady;
}
Status cuEventDestroy_v2(void* event) {
  const std::lock_guard lock(state().mutex);
  release("cuEventDestroy", event, "event");
  state().events.erase(event);
  return 0;
}
Status cuEventElapsedTime(float* milliseconds, void* start, void* end) {
  const Call call("cuEventElapsedTime");
  if (call.status) return call.status;
  for (void* event : {start, end}) {
    if (const Status s = use("cuEventElapsedTime", event, "event")) return s;
    const auto& w = state().events[event];
    if (w && !w->done) return kNotReady;
  }
  // of what was queued between them: the second algorithm is the quickest
  *milliseconds = state().algorithm == 2 ? 1.0f : 3.0f;
  return 0;
}
Status cuStreamWaitEvent(void* stream, void* event, unsigned) {
  const Call call("cuStreamWaitEvent");
  if (call.status) return call.status;
  if (const Status s = use("cuStreamWaitEvent", event, "event")) return s;
  queue(stream, {"a wait", {}, {}, [](const Work&) {}, false, state().events[event]});
  return use_stream("cuStreamWaitEvent", stream);
}

// --- the library of matrix products

Status cublasLtCreate(void** handle) {
  const Call call("cublasLtCreate");
  if (!call.status) *handle = make("cublasLt handle");
  return call.status ? 1 : 0;
}
Status cublasLtDestroy(void* handle) { return release("cublasLtDestroy", handle, "cublasLt handle"), 0; }

#define DESCRIBED(What, ...)                                              \
  Status cublasLt##What##Create(void** made __VA_OPT__(, ) __VA_ARGS__) { \
    const Call call("cublasLt" #What "Create");                           \
    if (!call.status) *made = make("cublasLt " #What);                    \
    return call.status ? 1 : 0;                                           \
  }                                                                       \
  Status cublasLt##What##Destroy(void* p) { return release("cublasLt" #What "Destroy", p, "cublasLt " #What), 0; }
DESCRIBED(MatmulDesc, int, int)
DESCRIBED(MatrixLayout, int, uint64_t, uint64_t, int64_t)
DESCRIBED(MatmulPreference)
#undef DESCRIBED

Status cublasLtMatmulDescSetAttribute(void* desc, int attribute, const void* value, size_t bytes) {
  const std::lock_guard lock(state().mutex);
  // how a matrix is transposed, an epilogue, its vector: by cublasLt.h
  const std::map<int, size_t> known{{3, 4}, {4, 4}, {7, 4}, {8, 8}};
  if (const auto it = known.find(attribute); it == known.end() || it->second != bytes)
    find(text("cublasLtMatmulDescSetAttribute: ", std::to_string(bytes), " bytes for attribute ",
              std::to_string(attribute)));
  if (attribute == 3) state().epilogues.erase(desc), state().vectors.erase(desc);  // the first of a new description
  if (attribute == 7) state().epilogues[desc] = *static_cast<const uint32_t*>(value);
  if (attribute == 8) state().vectors[desc] = *static_cast<void* const*>(value);
  return 0;
}
Status cublasLtMatrixLayoutSetAttribute(void*, int, const void*, size_t) { return 0; }
Status cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, size_t) { return 0; }

struct Heuristic {
  uint64_t algorithm[8];
  size_t bytes;
  int state;
  float waves;
  int reserved[4];
};
Status cublasLtMatmulAlgoGetHeuristic(void*, void* desc, void*, void*, void*, void*, void*, int wanted, Heuristic* best,
                                      int* found) {
  const Call call("cublasLtMatmulAlgoGetHeuristic");
  *best = {}, *found = 0;
  if (call.status) return 14;
  const auto epilogue = state().epilogues.find(desc);
  if (epilogue != state().epilogues.end() && (epilogue->second & state().refused_epilogues)) return 15;
  for (*found = 0; *found < std::min(wanted, static_cast<int>(state().algorithms)); ++*found)
    best[*found] = {}, best[*found].algorithm[0] = static_cast<uint64_t>(*found) + 1;
  return 0;
}
size_t cublasLtGetVersion() { return 130002; }
Status cublasLtMatmulAlgoCheck(void*, void*, void*, void*, void*, void*, const uint64_t* algorithm, Heuristic* result) {
  const Call call("cublasLtMatmulAlgoCheck");
  *result = {};
  return call.status ? 14 : algorithm[0] >= 1 && algorithm[0] <= state().algorithms ? 0 : 15;
}
Status cublasLtMatmulAlgoConfigGetAttribute(const uint64_t* algorithm, int attribute, void* value, size_t bytes,
                                            size_t* written) {
  if (attribute != 3 || bytes != 4)
    find(text("cublasLtMatmulAlgoConfigGetAttribute: ", std::to_string(bytes), " bytes for attribute ",
              std::to_string(attribute)));
  const uint32_t scheme = algorithm[0] == 3 ? 1 : algorithm[0] == 2 ? 2 : 0;
  std::memcpy(value, &scheme, sizeof scheme), *written = sizeof scheme;
  return 0;
}
Status cublasLtMatmul(void*, void* desc, const void*, const void*, void*, const void*, void*, const void*, const void*,
                      void*, void*, void*, const uint64_t* algorithm, void* memory, size_t, void* stream) {
  const Call call("cublasLtMatmul");
  if (call.status) return 14;
  const auto epilogue = state().epilogues.find(desc);
  const bool wants = epilogue != state().epilogues.end() && std::set<uint32_t>{4, 256, 512}.contains(epilogue->second);
  if (wants != (state().vectors[desc] != nullptr))
    find("cublasLtMatmul: an epilogue and its vector do not go together");
  if (reinterpret_cast<uintptr_t>(memory) % 256) find("cublasLtMatmul: workspace at no multiple of 256 bytes");
  state().algorithm = algorithm[0];
  queue(stream, {"a product", {}, {}, [](const Work&) {}, false, nullptr});
  return use_stream("cublasLtMatmul", stream);
}

}  // extern "C"
