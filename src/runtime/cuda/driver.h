// What the runtime asks of a device, and who answers: the CUDA driver, or a driver without a GPU. Takes: kernels,
// pointers. Includes: plan.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "plan/plan.h"
#include "support/error.h"

namespace trainc::runtime::cuda {

/// A device that cannot be used any more in this process, by the framework neither: no fallback would help.
struct DeviceLost : UserError { using UserError::UserError; };

using Stream = void*;    // the framework's, a CUstream; nullptr is the default one
using Function = void*;  // a loaded kernel
using Graph = void*;     // recorded launches

/// One launch, as emit/cuda/emit.h has kernels entered. What stands under "watch" is for drivers without a GPU, which
/// check what a kernel does.
struct Launch {
  Function function = nullptr;
  int64_t blocks = 0;
  int threads = 0;
  void* table = nullptr;             // on the device: pointers
  std::vector<int> slots;            // Plan: argument i is table[slots[i]]
  const int* first_chunk = nullptr;  // Foreach: on the device
  int tensors = 0;                   // Foreach: how many; 0 for Plan
  uint32_t* status = nullptr;
  // watch
  const std::string* name = nullptr;
  std::vector<int64_t> bytes;  // of each argument; -1: as many as the kernel asks for
  std::vector<char> fresh;     // arguments of which nothing has been written yet
};

/// What a product reads, writes and may use.
struct Factors {
  const void *lhs, *rhs;
  void* result;
  const void *bias, *addend;  // nullptr where none is added
  void* sums;                 // nullptr where none are wanted
  void* memory;               // `bytes` that the library may use until it is done
  int64_t bytes;
};

/// A product, as a graph holds it: with its pointers, which a replay does not ask for again.
struct Multiplication {
  const plan::Product* product;
  Factors factors;
};
/// What a graph replays, one after another.
using GraphNode = std::variant<Launch, Multiplication>;

/// Every function throws InternalError, with the driver's words, where the driver refuses; who calls adds what was to
/// be done. DeviceLost where no later call can succeed. Called in any thread, and whatever its current context is,
/// which stays.
class Driver {
 public:
  virtual ~Driver() = default;
  virtual std::string description() const = 0;    // "NVIDIA H100 80GB HBM3, sm_90a"
  virtual bool on_host() const { return false; }  // memory is the host's, and calls are done when they return
  virtual std::string architecture() const = 0;   // what plan::Plan::device must be
  virtual Function load(const plan::Kernel&) = 0;
  virtual void unload(Function) = 0;
  /// Memory of the runtime's own, a few kilobytes: tables. All other memory is the framework's, where there is one.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void release(void*) = 0;
  /// Words that the device writes and the host reads without waiting, zero at first.
  virtual uint32_t* allocate_status(int64_t words) = 0;
  virtual void release_status(uint32_t*) = 0;
  /// What is loaded once, before anything is queued that reads it: waits until it is there.
  virtual void load_data(void* device, const void* host, int64_t bytes) = 0;
  /// To the host, when all that was queued is done.
  virtual void read_data(void* host, const void* device, int64_t bytes) = 0;
  virtual void synchronize() {}
  /// Before kernels, graphs and memory are released that what is queued may still use: waits for the device, whatever
  /// became of it. (What a plan uses is then released without a word of the driver's: release(), unload() and their
  /// like never throw.)
  virtual void drain() noexcept {}
  /// `next` begins what is queued on it from now on when all that was queued on `before` is done. The host does not
  /// wait.
  virtual void order(Stream before, Stream next) = 0;
  /// In the order of the stream; `host` may change as soon as this returns, which is at once: the device is not waited
  /// for.
  virtual void copy_in(void* device, const void* host, int64_t bytes, Stream) = 0;
  virtual void copy(void* to, const void* from, int64_t bytes, Stream) = 0;  // on the device
  virtual void launch(const Launch&, Stream) = 0;
  /// Whether the vendor's library of matrix products is there.
  virtual bool multiplies() const = 0;
  /// Whether it has an algorithm for this one, epilogue included, in memory that begins at multiples of 16 bytes;
  /// `bytes`: what it may use beside.
  virtual bool has_algorithm(const plan::Product&, int64_t /*bytes*/) const { return multiplies(); }
  virtual void multiply(const plan::Product&, const Factors&, Stream) = 0;
  /// Its algorithms for this one, under the same conditions: at most so many, its own choice first, by the names that
  /// plan::Product::algorithm takes. `product.algorithm` is not looked at.
  virtual std::vector<std::string> algorithms(const plan::Product&, int64_t /*bytes*/, int /*most*/) const {
    return {};
  }
  /// Seconds that the device takes, by its own clock, for what `queue` queues on the stream that it is given: when all
  /// that was queued before is done. Waits.
  virtual double seconds(const std::function<void(Stream)>& queue) = 0;
  /// Whether each launch is waited for (CUDA_LAUNCH_BLOCKING=1): no graph is recorded then, so that what fails has a
  /// name.
  virtual bool waits() const { return false; }
  /// Who multiplies has done so once before: what the library loads is loaded by then.
  virtual Graph record(const std::vector<GraphNode>&) = 0;
  virtual void run(Graph, Stream) = 0;
  virtual void release_graph(Graph) = 0;
};

/// The CUDA driver (libcuda.so.1) and its device of this number, in the framework's context. UserError where there is
/// none: the message says what is missing. One a device, as long as the process.
std::shared_ptr<Driver> cuda_driver(int device = 0);
/// The same, for a caller who releases it: tests.
std::shared_ptr<Driver> load_cuda_driver(int device = 0);

/// A driver that does nothing but hold kernels and graphs, and notes each call: the whole host side runs without a GPU.
class NullDriver : public Driver {
 public:
  explicit NullDriver(std::string architecture = "sm_90a") : architecture_(std::move(architecture)) {}
  std::string description() const override { return "no device"; }
  bool on_host() const override { return true; }
  std::string architecture() const override { return architecture_; }
  Function load(const plan::Kernel&) override;
  void unload(Function) override;
  void* allocate(int64_t bytes) override;
  void release(void*) override;
  uint32_t* allocate_status(int64_t words) override;
  void release_status(uint32_t*) override;
  void load_data(void* device, const void* host, int64_t bytes) override;
  void read_data(void* host, const void* device, int64_t bytes) override;
  void synchronize() override;
  void drain() noexcept override;
  void order(Stream before, Stream next) override;
  void copy_in(void* device, const void* host, int64_t bytes, Stream) override;
  void copy(void* to, const void* from, int64_t bytes, Stream) override;
  void launch(const Launch&, Stream) override;
  bool multiplies() const override { return true; }
  bool has_algorithm(const plan::Product&, int64_t bytes) const override;
  void multiply(const plan::Product&, const Factors&, Stream) override;
  std::vector<std::string> algorithms(const plan::Product&, int64_t bytes, int most) const override;
  /// By the script below.
  double seconds(const std::function<void(Stream)>& queue) override;
  Graph record(const std::vector<GraphNode>&) override;
  void run(Graph, Stream) override;
  void release_graph(Graph) override;

  std::vector<std::string> calls;  // "launch rows_reduce 12 x 64", "graph of 3", ...
  std::vector<Launch> launched;    // in order, those of graphs too
  int64_t held = 0;                // allocations, kernels and graphs that are not released
  int64_t fail_at = -1;            // the launch of this number is refused, as a driver would
  // the library's algorithms, and what its clock says of a product by each, and of a launch
  std::vector<std::pair<std::string, double>> scripted = {{"first", 3e-3}, {"second", 1e-3}, {"third", 2e-3}};
  double seconds_of_a_launch = 4e-3;

 protected:
  /// The scripted clock goes on by what a product, or a launch, takes.
  void pass(const plan::Product&);
  void pass() { clock_ += seconds_of_a_launch; }

 private:
  double clock_ = 0;
  std::string architecture_;
};

}  // namespace trainc::runtime::cuda
