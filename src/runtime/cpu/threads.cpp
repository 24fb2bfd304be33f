// Where parallel work runs. Under PyTorch: on its OpenMP threads, through libtorch's exported C entry
// torch_parallel_for, so that there is one pool in the process and torch.set_num_threads rules it. Elsewhere: a pool of
// our own. A forked child has neither pool's threads (libgomp would wait for them for ever): it gets a new pool of our
// own.
#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "runtime/runtime.h"
#include "support/error.h"

namespace trainc::runtime {
namespace {

// torch/csrc/stable/c/shim.h
using TorchBody = void (*)(int64_t begin, int64_t end, void* context);
using TorchParallelFor = int32_t (*)(int64_t begin, int64_t end, int64_t grain, TorchBody, void* context);
using TorchNumThreads = int32_t (*)(uint32_t*);

struct Torch {
  TorchParallelFor parallel_for = nullptr;
  TorchNumThreads num_threads = nullptr;
};

std::atomic<bool> forked{false};

/// The loaded libtorch_cpu; null members where there is none (yet: it may be imported later).
const Torch& torch() {
  static Torch found;
  static std::atomic<bool> done{false};
  static std::mutex mutex;
  static const Torch none;
  if (done.load(std::memory_order_acquire)) return found;
  void* handle = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (!handle) return none;
  std::lock_guard lock(mutex);
  if (!done.load()) {
    found.parallel_for = reinterpret_cast<TorchParallelFor>(dlsym(handle, "torch_parallel_for"));
    found.num_threads = reinterpret_cast<TorchNumThreads>(dlsym(handle, "torch_get_num_threads"));
    if (!found.parallel_for || !found.num_threads) found = {};
    done.store(true, std::memory_order_release);
  }
  return found;
}

int torch_threads() {
  uint32_t n = 0;
  return torch().num_threads && torch().num_threads(&n) == 0 ? static_cast<int>(n) : 0;
}

// The body, and what it threw: an exception must not cross the C entry.
struct Work {
  const RangeBody& body;
  std::mutex mutex;
  std::exception_ptr error;
  void run(int64_t begin, int64_t end) {
    try {
      body(begin, end);
    } catch (...) {
      std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  }
  void rethrow() const {
    if (error) std::rethrow_exception(error);
  }
};

thread_local bool inside = false;  // a parallel region within one runs inline

/// n ranges, one a thread: range `part` of [0, n).
std::pair<int64_t, int64_t> part_of(int64_t n, int64_t parts, int64_t part) {
  return {n * part / parts, n * (part + 1) / parts};
}

class Pool {
 public:
  explicit Pool(int threads) : size_(std::max(1, threads)) {
    for (int i = 1; i < size_; ++i) std::thread([this, i] { serve(i); }).detach();  // they live as long as the process
  }
  int size() const { return size_; }
  void run(int64_t n, Work& work) {
    std::unique_lock one_at_a_time(caller_, std::try_to_lock);
    if (!one_at_a_time || size_ == 1) return work.run(0, n);
    {
      std::lock_guard lock(mutex_);
      work_ = &work, n_ = n, left_ = size_ - 1, ++round_;
    }
    start_.notify_all();
    serve_part(0, n, work);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return left_ == 0; });
  }

 private:
  void serve_part(int i, int64_t n, Work& work) const {
    const auto [begin, end] = part_of(n, size_, i);
    inside = true;
    if (begin < end) work.run(begin, end);
    inside = false;
  }
  void serve(int i) {
    uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
      start_.wait(lock, [&] { return round_ != seen; });
      seen = round_;
      Work& work = *work_;
      const int64_t n = n_;
      lock.unlock();
      serve_part(i, n, work);
      lock.lock();
      if (--left_ == 0) done_.notify_one();
    }
  }

  const int size_;
  std::mutex caller_, mutex_;
  std::condition_variable start_, done_;
  Work* work_ = nullptr;
  int64_t n_ = 0;
  int left_ = 0;
  uint64_t round_ = 0;
};

int hardware_threads() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

// Never destroyed: its threads may outlive static destruction. After a fork the old one is left behind, with whatever
// state its locks had.
std::atomic<Pool*> the_pool{nullptr};

Pool& pool() {
  Pool* p = the_pool.load();
  if (p) return *p;
  Pool* fresh = new Pool(forked.load() && torch_threads() > 0 ? torch_threads() : hardware_threads());
  if (the_pool.compare_exchange_strong(p, fresh)) return *fresh;
  return *p;  // another thread was first; ours stays idle
}

// Set up when the library is loaded, so that it holds where only the framework's threads are used, too.
[[maybe_unused]] const int at_fork = pthread_atfork(nullptr, nullptr, [] {
  forked.store(true);
  the_pool.store(nullptr);
  inside = false;
});

}  // namespace

int thread_count() {
  if (const int n = torch_threads(); n > 0) return n;
  return pool().size();
}

namespace {

void run_parts(int64_t n, const RangeBody& body) {
  if (n == 1 || inside) return body(0, n);
  Work work{body, {}, {}};
  const Torch& framework = torch();
  if (framework.parallel_for && !forked.load(std::memory_order_relaxed)) {
    const auto call = [](int64_t begin, int64_t end, void* context) { static_cast<Work*>(context)->run(begin, end); };
    const int32_t status = framework.parallel_for(0, n, 1, call, &work);
    require(status == 0 || work.error, "torch_parallel_for failed");
  } else if (framework.num_threads && torch_threads() == 1) {
    work.run(0, n);
  } else {
    pool().run(n, work);
  }
  work.rethrow();
}

}  // namespace

void parallel_for(int64_t n, const RangeBody& body) {
  if (n <= 0) return;
  StepTimer* const timer = StepTimer::current();
  if (!timer) return run_parts(n, body);
  run_parts(n, [&](int64_t begin, int64_t end) {
    const double start = monotonic_seconds();
    body(begin, end);
    timer->add_part(start);
  });
}

}  // namespace trainc::runtime
