// The CUDA driver as a Driver. Each call is made in the device's own context, and puts back the one that was current.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "runtime/cuda/cublaslt.h"
#include "runtime/cuda/cuda_api.h"
#include "runtime/cuda/driver.h"
#include "support/error.h"

namespace trainc::runtime::cuda {
namespace {

struct Kernel {
  void *module, *function;
  std::string name;
};

class CudaDriver : public Driver {
 public:
  explicit CudaDriver(int number) : api_(load_api()) {
    int count = 0;
    Status status = api_.init(0);
    if (status == 0) status = api_.device_count(&count);
    if (status != 0 || count <= number)
      throw UserError(fmt::format("the NVIDIA driver finds no GPU {} on this machine ({}): a plan for a GPU needs one",
                                  number, status == 0 ? fmt::format("it has {}", count) : words_of(status)));
    check(api_.device_get(&device_, number), "the device");
    constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
    int major = 0, minor = 0;
    char name[256] = "";
    check(api_.device_attribute(&major, kMajor, device_), "compute capability");
    check(api_.device_attribute(&minor, kMinor, device_), "compute capability");
    api_.device_name(name, sizeof name, device_);
    // A cubin runs on its own major version, from its minor version on; sm_90a on 9.0 alone.
    architecture_ = major == 8 ? "sm_80" : major == 9 && minor == 0 ? "sm_90a" : major == 10 ? "sm_100" : "";
    description_ = fmt::format("{}, compute capability {}.{}", name, major, minor);
    const char* blocking = std::getenv("CUDA_LAUNCH_BLOCKING");
    waits_ = blocking && *blocking && *blocking != '0';
    if (architecture_.empty()) throw UserError(description_ + ": kernels are compiled for 8.x, 9.0 and 10.x");
    check(api_.primary_retain(&context_, device_), "the context of the device");  // the framework's own
  }
  ~CudaDriver() override {
    {
      const InContext in(api_, context_);
      api_.context_wait();
      for (const Staging& s : staging_) api_.host_free(s.memory), api_.event_destroy(s.copied);
      cublaslt_.reset();
    }
    api_.primary_release(device_);
  }

  std::string description() const override { return description_; }
  std::string architecture() const override { return architecture_; }
  bool waits() const override { return waits_; }

  Function load(const plan::Kernel& k) override {
    const Entered in(*this);
    auto kernel = std::make_unique<Kernel>(Kernel{nullptr, nullptr, k.name});
    check(api_.module_load(&kernel->module, k.code.data()), "loading " + k.name);
    const Status status = api_.module_function(&kernel->function, kernel->module, k.name.c_str());
    if (status != 0) api_.module_unload(kernel->module);
    check(status, "finding " + k.name);
    return kernel.release();
  }
  void unload(Function f) override {
    const std::unique_ptr<Kernel> kernel(static_cast<Kernel*>(f));
    const InContext in(api_, context_);
    api_.module_unload(kernel->module);
  }

  void* allocate(int64_t bytes) override {
    const Entered in(*this);
    DevicePointer p = 0;
    check(api_.memory_allocate(&p, static_cast<size_t>(std::max<int64_t>(bytes, 1))), "allocating a table");
    return reinterpret_cast<void*>(p);
  }
  void release(void* p) override {
    const InContext in(api_, context_);
    api_.memory_free(reinterpret_cast<DevicePointer>(p));
  }

  uint32_t* allocate_status(int64_t words) override {
    const Entered in(*this);
    constexpr unsigned kPortable = 1, kMapped = 2;  // one address on the host and on the device
    void* p = nullptr;
    check(api_.host_allocate(&p, static_cast<size_t>(std::max<int64_t>(words, 1)) * 4, kPortable | kMapped),
          "allocating status words");
    std::fill_n(static_cast<uint32_t*>(p), words, 0u);
    return static_cast<uint32_t*>(p);
  }
  void release_status(uint32_t* p) override {
    const InContext in(api_, context_);
    api_.host_free(p);
  }

  void copy_in(void* device, const void* host, int64_t bytes, Stream stream) override {
    // From pinned memory of our own: a copy from the caller's could wait for the device.
    const Entered in(*this);
    std::lock_guard lock(staging_mutex_);
    Staging& s = staging(bytes);
    std::memcpy(s.memory, host, static_cast<size_t>(bytes));
    check(api_.copy_in(reinterpret_cast<DevicePointer>(device), s.memory, static_cast<size_t>(bytes), stream),
          "copying a table");
    const Status status = api_.event_record(s.copied, stream);
    if (status != 0) api_.stream_wait(stream);  // the piece looks free from now on
    check(status, "marking a copy");
  }
  void load_data(void* device, const void* host, int64_t bytes) override {
    const Entered in(*this);
    check(api_.copy_in_and_wait(reinterpret_cast<DevicePointer>(device), host, static_cast<size_t>(bytes)),
          "loading constants");
    // From memory that is not pinned, the copy returns once it has read it: it may still be on its way, and the
    // framework's streams do not wait for the default one.
    check(api_.stream_wait(nullptr), "loading constants");
  }
  void read_data(void* host, const void* device, int64_t bytes) override {
    const Entered in(*this);
    // a stream that does not wait for the default one is not waited for by the copy
    check(api_.context_wait(), "waiting for the device");
    check(api_.copy_out_and_wait(host, reinterpret_cast<DevicePointer>(device), static_cast<size_t>(bytes)),
          "reading a result");
  }
  void synchronize() override {
    const Entered in(*this);
    check(api_.context_wait(), "waiting for the device");
  }
  void drain() noexcept override {
    const InContext in(api_, context_);
    api_.context_wait();
  }
  void order(Stream before, Stream next) override {
    const Entered in(*this);
    void* event = new_event();
    // the driver keeps it until it has happened
    const std::unique_ptr<void, Status (*)(void*)> held(event, api_.event_destroy);
    check(api_.event_record(event, before), "marking a stream");
    check(api_.stream_wait_event(next, event, 0), "ordering two streams");
  }
  void copy(void* to, const void* from, int64_t bytes, Stream stream) override {
    const Entered in(*this);
    check(api_.copy(reinterpret_cast<DevicePointer>(to), reinterpret_cast<DevicePointer>(from),
                    static_cast<size_t>(bytes), stream),
          "copying a result");
  }

  void launch(const Launch& l, Stream stream) override {
    const Entered in(*this);
    start(l, stream);
    if (waits_) check(api_.stream_wait(stream), "running it");
  }

  bool multiplies() const override { return cublaslt() != nullptr; }
  bool has_algorithm(const plan::Product& p, int64_t bytes) const override {
    if (cublaslt() == nullptr) return false;
    const Entered in(*this);
    return asking_library(nullptr, [&] { return cublaslt()->has_algorithm(cublaslt_call(p), bytes); });
  }
  void multiply(const plan::Product& p, const Factors& f, Stream stream) override {
    require(cublaslt() != nullptr, "cuBLASLt cannot be loaded, and a plan was compiled for it");
    const Entered in(*this);
    asking_library(stream, [&] { cublaslt()->multiply(cublaslt_call(p), f, stream); });
    if (waits_) check(api_.stream_wait(stream), "running it");
  }

  std::vector<std::string> algorithms(const plan::Product& p, int64_t bytes, int most) const override {
    if (cublaslt() == nullptr) return {};
    const Entered in(*this);
    return asking_library(nullptr, [&] { return cublaslt()->algorithms(cublaslt_call(p), bytes, most); });
  }
  double seconds(const std::function<void(Stream)>& queue) override {
    const Entered in(*this);
    check(api_.context_wait(), "waiting for the device");
    Stream stream = nullptr;  // of our own: nothing else is queued on it
    check(api_.stream_create(&stream, kNonBlocking), "a stream to measure on");
    const std::unique_ptr<void, Status (*)(Stream)> held(stream, api_.stream_destroy);
    using Event = std::unique_ptr<void, Status (*)(void*)>;
    constexpr unsigned kTiming = 0;
    const Event start(new_event(kTiming), api_.event_destroy), end(new_event(kTiming), api_.event_destroy);
    float milliseconds = 0;
    try {
      check(api_.event_record(start.get(), stream), "starting its clock");
      queue(stream);
      check(api_.event_record(end.get(), stream), "stopping its clock");
      check(api_.stream_wait(stream), "waiting for what is measured");
      check(api_.event_elapsed(&milliseconds, start.get(), end.get()), "reading its clock");
    } catch (...) {
      api_.stream_wait(stream);  // what was queued uses memory that is the caller's
      throw;
    }
    return static_cast<double>(milliseconds) * 1e-3;
  }

  Graph record(const std::vector<GraphNode>& nodes) override {
    const Entered in(*this);
    const auto multiplies = [](const GraphNode& n) { return std::holds_alternative<Multiplication>(n); };
    if (std::ranges::any_of(nodes, multiplies)) require(cublaslt() != nullptr, "a product without cuBLASLt");
    Stream stream = nullptr;  // of our own: the framework's may be the default one, which cannot be captured
    constexpr int kRelaxed = 2;
    check(api_.stream_create(&stream, kNonBlocking), "a stream to record on");
    const std::unique_ptr<void, Status (*)(Stream)> held(stream, api_.stream_destroy);
    check(api_.capture_begin(stream, kRelaxed), "recording a graph");
    std::unique_ptr<void, Status (*)(void*)> graph(nullptr, api_.graph_destroy);
    const auto end = [&] {
      void* captured = nullptr;
      const Status status = api_.capture_end(stream, &captured);
      graph.reset(captured);
      return status;
    };
    try {
      for (const GraphNode& node : nodes) {
        if (const auto* l = std::get_if<Launch>(&node)) {
          start(*l, stream);
        } else {
          const auto& [product, factors] = std::get<Multiplication>(node);
          cublaslt()->multiply(cublaslt_call(*product), factors, stream);
        }
      }
    } catch (...) {
      end();
      throw;
    }
    check(end(), "recording a graph");
    void* executable = nullptr;
    check(api_.graph_instantiate(&executable, graph.get(), 0), "instantiating a graph");
    return executable;  // which needs the other no more
  }
  void run(Graph graph, Stream stream) override {
    const Entered in(*this);
    check(api_.graph_launch(graph, stream), "launching a graph");
  }
  void release_graph(Graph graph) override {
    const InContext in(api_, context_);
    api_.graph_exec_destroy(graph);
  }

 private:
  static constexpr Status kNotReady = 600;
  static constexpr unsigned kNonBlocking = 1, kNoTiming = 2;

  std::string words_of(Status status) const {
    const char* text = nullptr;
    api_.error_string(status, &text);
    return fmt::format("{} ({})", text ? text : "unknown error", status);
  }
  void check(Status status, const std::string& what, Status fine = 0) const {
    if (status == 0 || status == fine) return;
    const std::string said = fmt::format("CUDA, {}: {}", what, words_of(status));
    if (!is_sticky(status)) throw InternalError(said);
    std::lock_guard lock(lost_mutex_);
    if (!lost_.empty()) throw DeviceLost(fmt::format("the GPU was lost before ({}): restart the process", lost_));
    lost_ = said;
    throw DeviceLost(said +
                     ". A kernel that was queued before this call did it, and the GPU's context is lost: whatever this "
                     "process asks of the GPU fails from now on, in PyTorch, too. Restart the process; "
                     "CUDA_LAUNCH_BLOCKING=1 names the kernel");
  }

  /// cuBLASLt has one status for all that the driver says: an error of an earlier kernel is the driver's to tell.
  template <class Do> auto asking_library(Stream stream, const Do& action) const -> decltype(action()) {
    try {
      return action();
    } catch (const InternalError&) {
      check(api_.stream_query(stream), "what was queued before it", kNotReady);
      throw;
    }
  }

  /// For calls that may fail.
  struct Entered : InContext {
    explicit Entered(const CudaDriver& d) : InContext(d.api_, d.context_) {
      d.check(status, "entering the context of the device");
    }
  };

  void start(const Launch& l, Stream stream) const {
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
  }

  /// Pinned memory that a copy has been taken from: free again when `copied` has happened.
  struct Staging {
    void* memory;
    int64_t bytes;
    void* copied;
  };

  void* new_event(unsigned flags = kNoTiming) {
    void* event = nullptr;
    check(api_.event_create(&event, flags), "an event");
    return event;
  }

  /// As many pieces as copies are on their way at a time: in a while, none is allocated any more.
  Staging& staging(int64_t bytes) {
    for (Staging& s : staging_)
      if (s.bytes >= bytes && api_.event_query(s.copied) == 0) return s;
    std::unique_ptr<void, Status (*)(void*)> event(new_event(), api_.event_destroy);
    Staging fresh{nullptr, std::max<int64_t>(bytes, 4096), event.get()};
    check(api_.host_allocate(&fresh.memory, static_cast<size_t>(fresh.bytes), 1 /* portable */),
          "allocating pinned memory");
    event.release();
    return staging_.emplace_back(fresh);
  }

  /// Loaded when first asked for, in the device's context.
  CublasLt* cublaslt() const {
    std::call_once(cublaslt_loaded_, [&] {
      const Entered in(*this);
      cublaslt_ = CublasLt::load();
      if (!cublaslt_) check(api_.stream_query(nullptr), "loading cuBLASLt", kNotReady);
    });
    return cublaslt_.get();
  }

  const DriverApi api_;
  int device_ = 0;
  void* context_ = nullptr;
  bool waits_ = false;
  std::mutex staging_mutex_;
  std::deque<Staging> staging_;  // as long as the driver
  std::string description_, architecture_;
  mutable std::once_flag cublaslt_loaded_;
  mutable std::unique_ptr<CublasLt> cublaslt_;
  mutable std::mutex lost_mutex_;
  mutable std::string lost_;  // what the driver said when the context was lost
};

}  // namespace

std::shared_ptr<Driver> load_cuda_driver(int device) { return std::make_shared<CudaDriver>(device); }

std::shared_ptr<Driver> cuda_driver(int device) {
  // Kept as long as the process: plans may be released after static objects are gone, and so may CUDA itself.
  static auto& mutex = *new std::mutex;
  static auto& drivers = *new std::map<int, std::shared_ptr<Driver>>;
  std::lock_guard lock(mutex);
  std::shared_ptr<Driver>& driver = drivers[device];
  if (!driver) driver = load_cuda_driver(device);
  return driver;
}

}  // namespace trainc::runtime::cuda
