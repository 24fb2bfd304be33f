// The CUDA driver by dlopen: cuda.h's C functions, declared here as its documentation has them.
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "runtime/cuda/cublaslt.h"
#include "runtime/cuda/driver.h"
#include "support/error.h"

namespace trainc::runtime::cuda {
namespace {

using Status = int;
using DevicePointer = unsigned long long;

struct Api {
  Status (*init)(unsigned);
  Status (*device_count)(int*);
  Status (*context_current)(void**);
  Status (*context_set)(void*);
  Status (*primary_retain)(void**, int device);
  Status (*device_name)(char*, int, int device);
  Status (*device_attribute)(int*, int attribute, int device);
  Status (*module_load)(void**, const void*);
  Status (*module_unload)(void*);
  Status (*module_function)(void**, void*, const char*);
  Status (*memory_allocate)(DevicePointer*, size_t);
  Status (*memory_free)(DevicePointer);
  Status (*host_allocate)(void**, size_t, unsigned flags);
  Status (*host_free)(void*);
  Status (*copy_in)(DevicePointer, const void*, size_t, Stream);
  Status (*copy)(DevicePointer, DevicePointer, size_t, Stream);
  Status (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared, Stream,
                   void** arguments, void** extra);
  Status (*stream_create)(Stream*, unsigned flags);
  Status (*stream_destroy)(Stream);
  Status (*capture_begin)(Stream, int mode);
  Status (*capture_end)(Stream, void**);
  Status (*graph_instantiate)(void**, void*, unsigned long long flags);
  Status (*graph_launch)(void*, Stream);
  Status (*graph_exec_destroy)(void*);
  Status (*graph_destroy)(void*);
  Status (*error_string)(Status, const char**);
  Status (*stream_wait)(Stream);
  Status (*copy_in_and_wait)(DevicePointer, const void*, size_t);
  Status (*copy_out_and_wait)(void*, DevicePointer, size_t);
  Status (*context_wait)();
  Status (*event_create)(void**, unsigned flags);
  Status (*event_record)(void*, Stream);
  Status (*event_query)(void*);
  Status (*event_destroy)(void*);
  Status (*stream_wait_event)(Stream, void*, unsigned flags);
};

Api load_api() {
  Api a{};
  void* handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    throw UserError(
        "there is no NVIDIA driver on this machine (libcuda.so.1 cannot be loaded): a plan for a GPU needs one");
  auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (!function) throw UserError(fmt::format("the NVIDIA driver on this machine has no {}: it is too old", name));
  };
  find(a.init, "cuInit");
  find(a.device_count, "cuDeviceGetCount");
  find(a.context_current, "cuCtxGetCurrent");
  find(a.context_set, "cuCtxSetCurrent");
  find(a.primary_retain, "cuDevicePrimaryCtxRetain");
  find(a.device_name, "cuDeviceGetName");
  find(a.device_attribute, "cuDeviceGetAttribute");
  find(a.module_load, "cuModuleLoadData");
  find(a.module_unload, "cuModuleUnload");
  find(a.module_function, "cuModuleGetFunction");
  find(a.memory_allocate, "cuMemAlloc_v2");
  find(a.memory_free, "cuMemFree_v2");
  find(a.host_allocate, "cuMemHostAlloc");
  find(a.host_free, "cuMemFreeHost");
  find(a.copy_in, "cuMemcpyHtoDAsync_v2");
  find(a.copy, "cuMemcpyDtoDAsync_v2");
  find(a.launch, "cuLaunchKernel");
  find(a.stream_create, "cuStreamCreate");
  find(a.stream_destroy, "cuStreamDestroy_v2");
  find(a.capture_begin, "cuStreamBeginCapture_v2");
  find(a.capture_end, "cuStreamEndCapture");
  find(a.graph_instantiate, "cuGraphInstantiateWithFlags");
  find(a.graph_launch, "cuGraphLaunch");
  find(a.graph_exec_destroy, "cuGraphExecDestroy");
  find(a.graph_destroy, "cuGraphDestroy");
  find(a.error_string, "cuGetErrorString");
  find(a.stream_wait, "cuStreamSynchronize");
  find(a.copy_in_and_wait, "cuMemcpyHtoD_v2");
  find(a.copy_out_and_wait, "cuMemcpyDtoH_v2");
  find(a.context_wait, "cuCtxSynchronize");
  find(a.event_create, "cuEventCreate");
  find(a.event_record, "cuEventRecord");
  find(a.event_query, "cuEventQuery");
  find(a.event_destroy, "cuEventDestroy_v2");
  find(a.stream_wait_event, "cuStreamWaitEvent");
  return a;
}

struct Kernel {
  void *module, *function;
  std::string name;
};
struct RecordedGraph { void *graph = nullptr, *executable = nullptr; };

class CudaDriver : public Driver {
 public:
  explicit CudaDriver(int device) : api_(load_api()) {
    int count = 0;
    if (api_.init(0) != 0 || api_.device_count(&count) != 0 || count <= device)
      throw UserError(
          fmt::format("the NVIDIA driver finds no GPU {} on this machine: a plan for a GPU needs one", device));
    check(api_.primary_retain(&context_, device), "the context of the device");  // the framework's own
    enter();
    constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
    int major = 0, minor = 0;
    char name[256] = "";
    check(api_.device_attribute(&major, kMajor, device), "compute capability");
    check(api_.device_attribute(&minor, kMinor, device), "compute capability");
    api_.device_name(name, sizeof name, device);
    // A cubin runs on its own major version, from its minor version on; sm_90a on 9.0 alone.
    architecture_ = major == 8 ? "sm_80" : major == 9 && minor == 0 ? "sm_90a" : major == 10 ? "sm_100" : "";
    description_ = fmt::format("{}, compute capability {}.{}", name, major, minor);
    const char* blocking = std::getenv("CUDA_LAUNCH_BLOCKING");
    waits_ = blocking && *blocking && *blocking != '0';
    if (architecture_.empty()) throw UserError(description_ + ": kernels are compiled for 8.x, 9.0 and 10.x");
  }

  std::string description() const override { return description_; }
  std::string architecture() const override { return architecture_; }
  bool waits() const override { return waits_; }

  Function load(const plan::Kernel& k) override {
    enter();
    auto kernel = std::make_unique<Kernel>(Kernel{nullptr, nullptr, k.name});
    check(api_.module_load(&kernel->module, k.code.data()), "loading " + k.name);
    check(api_.module_function(&kernel->function, kernel->module, k.name.c_str()), "finding " + k.name);
    return kernel.release();
  }
  void unload(Function f) override {
    const std::unique_ptr<Kernel> kernel(static_cast<Kernel*>(f));
    enter();
    api_.module_unload(kernel->module);
  }

  void* allocate(int64_t bytes) override {
    enter();
    DevicePointer p = 0;
    check(api_.memory_allocate(&p, static_cast<size_t>(std::max<int64_t>(bytes, 1))), "allocating a table");
    return reinterpret_cast<void*>(p);
  }
  void release(void* p) override { api_.memory_free(reinterpret_cast<DevicePointer>(p)); }

  uint32_t* allocate_status(int64_t words) override {
    enter();
    constexpr unsigned kPortable = 1, kMapped = 2;  // one address on the host and on the device
    void* p = nullptr;
    check(api_.host_allocate(&p, static_cast<size_t>(std::max<int64_t>(words, 1)) * 4, kPortable | kMapped),
          "allocating status words");
    std::fill_n(static_cast<uint32_t*>(p), words, 0u);
    return static_cast<uint32_t*>(p);
  }
  void release_status(uint32_t* p) override { api_.host_free(p); }

  void copy_in(void* device, const void* host, int64_t bytes, Stream stream) override {
    // From pinned memory of our own: a copy from the caller's could wait for the device.
    enter();
    std::lock_guard lock(staging_mutex_);
    Staging& s = staging(bytes);
    std::memcpy(s.memory, host, static_cast<size_t>(bytes));
    check(api_.copy_in(reinterpret_cast<DevicePointer>(device), s.memory, static_cast<size_t>(bytes), stream),
          "copying a table");
    check(api_.event_record(s.copied, stream), "marking a copy");
  }
  void load_data(void* device, const void* host, int64_t bytes) override {
    enter();
    check(api_.copy_in_and_wait(reinterpret_cast<DevicePointer>(device), host, static_cast<size_t>(bytes)),
          "loading constants");
  }
  void read_data(void* host, const void* device, int64_t bytes) override {
    synchronize();  // a stream that does not wait for the default one is not waited for by the copy
    check(api_.copy_out_and_wait(host, reinterpret_cast<DevicePointer>(device), static_cast<size_t>(bytes)),
          "reading a result");
  }
  void synchronize() override {
    enter();
    check(api_.context_wait(), "waiting for the device");
  }
  void order(Stream before, Stream next) override {
    enter();
    void* event = new_event();
    // the driver keeps it until it has happened
    const std::unique_ptr<void, Status (*)(void*)> held(event, api_.event_destroy);
    check(api_.event_record(event, before), "marking a stream");
    check(api_.stream_wait_event(next, event, 0), "ordering two streams");
  }
  void copy(void* to, const void* from, int64_t bytes, Stream stream) override {
    check(api_.copy(reinterpret_cast<DevicePointer>(to), reinterpret_cast<DevicePointer>(from),
                    static_cast<size_t>(bytes), stream),
          "copying a result");
  }

  void launch(const Launch& l, Stream stream) override {
    const auto* kernel = static_cast<const Kernel*>(l.function);
    if (l.blocks > INT32_MAX) throw InternalError(fmt::format("{}: {} blocks", kernel->name, l.blocks));
    void* table = l.table;
    void* status = l.status;
    std::vector<int> slots = l.slots;
    slots.resize(std::max<size_t>(slots.size(), 1));
    const int* first_chunk = l.first_chunk;
    int tensors = l.tensors;
    void* plan_arguments[] = {&table, slots.data(), &status};
    void* foreach_arguments[] = {&table, &first_chunk, &tensors, &status};
    check(api_.launch(kernel->function, static_cast<unsigned>(l.blocks), 1, 1, static_cast<unsigned>(l.threads), 1, 1,
                      0, stream, l.tensors > 0 ? foreach_arguments : plan_arguments, nullptr),
          "launching it");
    if (waits_) check(api_.stream_wait(stream), "running it");
  }

  bool multiplies() const override { return cublaslt() != nullptr; }
  void multiply(const plan::Product& p, const void* lhs, const void* rhs, void* result, void* memory, int64_t bytes,
                Stream stream) override {
    require(cublaslt() != nullptr, "cuBLASLt cannot be loaded, and a plan was compiled for it");
    cublaslt()->multiply(cublaslt_call(p), rhs, lhs, result, memory, bytes, stream);
    if (waits_) check(api_.stream_wait(stream), "running it");
  }

  Graph record(const std::vector<Launch>& launches) override {
    auto recorded = std::make_unique<RecordedGraph>();
    enter();
    Stream stream = nullptr;  // of our own: the framework's may be the default one, which cannot be captured
    constexpr unsigned kNonBlocking = 1;
    constexpr int kRelaxed = 2;
    check(api_.stream_create(&stream, kNonBlocking), "a stream to record on");
    const std::unique_ptr<void, Status (*)(Stream)> held(stream, api_.stream_destroy);
    check(api_.capture_begin(stream, kRelaxed), "recording a graph");
    for (const Launch& l : launches) launch(l, stream);
    check(api_.capture_end(stream, &recorded->graph), "recording a graph");
    check(api_.graph_instantiate(&recorded->executable, recorded->graph, 0), "instantiating a graph");
    return recorded.release();
  }
  void run(Graph graph, Stream stream) override {
    check(api_.graph_launch(static_cast<RecordedGraph*>(graph)->executable, stream), "launching a graph");
  }
  void release_graph(Graph graph) override {
    const std::unique_ptr<RecordedGraph> recorded(static_cast<RecordedGraph*>(graph));
    api_.graph_exec_destroy(recorded->executable);
    api_.graph_destroy(recorded->graph);
  }

 private:
  void check(Status status, const std::string& what) const {
    if (status == 0) return;
    const char* text = nullptr;
    api_.error_string(status, &text);
    throw InternalError(fmt::format("CUDA, {}: {} ({})", what, text ? text : "unknown error", status));
  }

  /// Pinned memory that a copy has been taken from: free again when `copied` has happened.
  struct Staging {
    void* memory;
    int64_t bytes;
    void* copied;
  };

  void* new_event() {
    constexpr unsigned kNoTiming = 2;
    void* event = nullptr;
    check(api_.event_create(&event, kNoTiming), "an event");
    return event;
  }

  /// As many pieces as copies are on their way at a time: in a while, none is allocated any more.
  Staging& staging(int64_t bytes) {
    for (Staging& s : staging_)
      if (s.bytes >= bytes && api_.event_query(s.copied) == 0) return s;
    Staging fresh{nullptr, std::max<int64_t>(bytes, 4096), new_event()};
    check(api_.host_allocate(&fresh.memory, static_cast<size_t>(fresh.bytes), 1 /* portable */),
          "allocating pinned memory");
    return staging_.emplace_back(fresh);
  }

  /// Threads of autograd's have no context yet.
  void enter() const {
    void* current = nullptr;
    check(api_.context_current(&current), "the current context");
    if (current != context_) check(api_.context_set(context_), "the context of the device");
  }
  /// Loaded when first asked for, in the device's context.
  CublasLt* cublaslt() const {
    std::call_once(cublaslt_loaded_, [&] {
      enter();
      cublaslt_ = CublasLt::load();
    });
    return cublaslt_.get();
  }

  const Api api_;
  void* context_ = nullptr;
  bool waits_ = false;
  std::mutex staging_mutex_;
  std::deque<Staging> staging_;  // until the process ends, as the driver itself
  std::string description_, architecture_;
  mutable std::once_flag cublaslt_loaded_;
  mutable std::unique_ptr<CublasLt> cublaslt_;
};

}  // namespace

std::shared_ptr<Driver> cuda_driver(int device) {
  static std::mutex mutex;
  static std::map<int, std::shared_ptr<Driver>> drivers;
  std::lock_guard lock(mutex);
  std::shared_ptr<Driver>& driver = drivers[device];
  if (!driver) driver = std::make_shared<CudaDriver>(device);
  return driver;
}

}  // namespace trainc::runtime::cuda
