// Where parallel work runs. Under PyTorch: on its OpenMP threads, through libtorch's exported C entry
// torch_parallel_for, so that there is one pool in the process and torch.set_num_threads rules it. Elsewhere: a pool of
// our own. A forked child has neither pool's threads (libgomp would wait for them for ever): it gets a new pool of our
// own.
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>

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

/// How many libraries the process has loaded so far.
uint64_t loaded_libraries() {
  uint64_t count = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* first, size_t, void* count) {
        *static_cast<uint64_t*>(count) = first->dlpi_adds;
        return 1;
      },
      &count);
  return count;
}

/// The loaded libtorch_cpu; null members where there is none (yet: it may be imported later). It is looked for only
/// where something has been loaded since: dlopen looks through directories, which takes longer than most kernels.
const Torch& torch() {
  static Torch found;
  static std::atomic<bool> done{false};
  static std::mutex mutex;
  static const Torch none;
  static std::atomic<uint64_t> looked_among{0};
  if (done.load(std::memory_order_acquire)) return found;
  const uint64_t loaded = loaded_libraries();
  if (loaded == looked_among.load(std::memory_order_relaxed)) return none;
  void* handle = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (!handle) {
    looked_among.store(loaded, std::memory_order_relaxed);
    return none;
  }
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

/// As much as a thread waits awake, some 20 us: a kernel is seldom far behind the last, and a thread that sleeps is
/// woken in 10 us or more.
constexpr int kLooks = 1000;
/// Whether `so` became true within that time.
template <class So> bool soon(const So& so) {
  for (int i = 0; i < kLooks; ++i) {
    if (so()) return true;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  return so();
}

/// Work is cut into a part for each thread, and whoever comes first takes the next: a thread that has not woken when
/// the caller is done with its own part is not waited for.
class Pool {
 public:
  explicit Pool(int threads) : size_(std::clamp(threads, 1, kMostThreads)) {
    for (int i = 1; i < size_; ++i) std::thread([this] { serve(); }).detach();  // they live as long as the process
  }
  int size() const { return size_; }
  void run(int64_t n, Work& work) {
    std::unique_lock one_at_a_time(caller_, std::try_to_lock);
    if (!one_at_a_time || size_ == 1) return work.run(0, n);
    work_ = &work, n_ = n;
    left_.store(size_);
    const uint64_t first = (ticket_.load() / kRound + 1) * kRound;  // part 0 of the next round
    ticket_.store(first);
    if (sleeping_.load() > 0) {
      const std::lock_guard lock(mutex_);
      start_.notify_all();
    }
    take_parts(first);
    if (soon([&] { return left_.load() == 0; })) return;
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return left_.load() == 0; });
  }

 private:
  // ticket_: the round, times this, and the next part that nobody has taken
  static constexpr uint64_t kRound = 1 << 16;
  static constexpr int kMostThreads = 1 << 12;

  /// Takes parts of the round of `ticket` until there are none. While one is taken, and not done, the round is not
  /// over: so what is read of it after that is its own.
  void take_parts(uint64_t ticket) {
    const uint64_t round = ticket / kRound;
    while (ticket / kRound == round && ticket % kRound < static_cast<uint64_t>(size_)) {
      if (!ticket_.compare_exchange_weak(ticket, ticket + 1)) continue;
      const auto [begin, end] = part_of(n_, size_, static_cast<int64_t>(ticket % kRound));
      inside = true;
      if (begin < end) work_->run(begin, end);
      inside = false;
      if (left_.fetch_sub(1) == 1) {  // the caller may sleep by now
        const std::lock_guard lock(mutex_);
        done_.notify_one();
      }
      ticket = ticket_.load();
    }
  }
  void serve() {
    uint64_t seen = 0;  // the round that it has looked at last
    for (;;) {
      const auto another = [&] { return ticket_.load() / kRound != seen; };
      if (!soon(another)) {
        std::unique_lock lock(mutex_);
        ++sleeping_;
        start_.wait(lock, another);
        --sleeping_;
      }
      const uint64_t ticket = ticket_.load();
      seen = ticket / kRound;
      take_parts(ticket);
    }
  }

  const int size_;
  std::mutex caller_, mutex_;
  std::condition_variable start_, done_;
  Work* work_ = nullptr;  // with n_: of the round; written before its ticket
  int64_t n_ = 0;
  std::atomic<uint64_t> ticket_{0};
  std::atomic<int> left_{0};  // parts that are not done
  std::atomic<int> sleeping_{0};
};

/// Those that this process may run on at a time.
int hardware_threads() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return std::max(1, CPU_COUNT(&cores));
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

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
