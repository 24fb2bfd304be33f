// Runs a plan: pointers for its buffers, then its steps in order. Within a step nothing is allocated but what the
// framework returns.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "plan/live.h"
#include "runtime/arena.h"
#include "runtime/call_buffers.h"
#include "runtime/code.h"
#include "runtime/cpu_device.h"
#include "runtime/operation.h"
#include "runtime/poison.h"
#include "runtime/short_lock.h"
#include "support/bytes.h"
#include "support/dump.h"
#include "support/error.h"
#include "support/failure.h"
#include "support/while_operation.h"

namespace trainc::runtime {
namespace {

// Waking the threads costs some microseconds; a step with less to do than this (bytes moved + operations) stays on its
// caller.
constexpr int64_t kWorthThreads = 64 << 10;

bool stays_on_caller(const plan::Step& step) {
  return step.parallel_extent == 1 || (step.flops + step.bytes > 0 && step.flops + step.bytes < kWorthThreads);
}

/// A copy whose caller gave one memory for both.
bool copies_onto_itself(const plan::Step& step, const std::vector<void*>& args) {
  return !step.target.empty() && args[0] == args[1];
}

[[noreturn]] void check_failed(const plan::Step& step, uint32_t failed) {
  throw_failure(static_cast<Failure>(failed),
                fmt::format(" in {} (check {} of {})", fmt::join(step.origins, ", "), failed, step.name));
}

/// What one run knows, kept for the next: a run allocates nothing. There are as many as ran at once.
struct Run {
  explicit Run(size_t tokens) : flights(tokens) {}
  std::vector<void*> pointers;                // by buffer
  std::vector<std::vector<void*>> arguments;  // by step
  std::vector<std::shared_ptr<void>> owners;  // by buffer: of Extern ones
  std::vector<StepTime> times;                // by step, where it is profiled
  OperationsInFlight flights;                 // the last: what is in flight is over before anything of the run goes
};

}  // namespace

struct CpuExecutable::Impl {
  const plan::Plan& plan;
  MappedCode code;
  std::vector<std::vector<int>> dies_after;  // by step: Extern buffers whose last use it is
  std::vector<std::unique_ptr<Run>> free;    // under the short lock
  std::vector<StepTime> times;               // by step, of the last profiled run; under the short lock
  std::optional<Poison> poison;
  std::vector<std::unique_ptr<Operation>> operations;  // by step: of Starts
  std::vector<size_t> started_by;                      // by token: the Start

  explicit Impl(const plan::Plan& p) : plan(p), code(plan.kernels) {
    if (environment_lists("TRAINC_DEBUG", "poison")) poison.emplace(plan);
    for (const plan::Step& s : plan.steps) {
      const bool start = s.kind == plan::StepKind::Start;
      if (start) {  // tokens are 0, 1, ..., in any order
        started_by.resize(std::max<size_t>(started_by.size(), s.token + 1));
        started_by[s.token] = operations.size();
      }
      operations.push_back(start ? make_operation(plan, s) : nullptr);
    }
    dies_after.resize(plan.steps.size());
    const std::vector<plan::LiveRange> live = plan::live_ranges(plan);
    for (size_t b = 0; b < plan.buffers.size(); ++b)
      if (plan.buffers[b].space == plan::MemorySpace::Extern && live[b].last >= 0)
        dies_after[live[b].last].push_back(static_cast<int>(b));
  }

  std::unique_ptr<Run> take_run() {
    {
      const ShortLock lock;
      if (!free.empty()) {
        std::unique_ptr<Run> run = std::move(free.back());
        free.pop_back();
        return run;
      }
    }
    auto run = std::make_unique<Run>(started_by.size());
    run->owners.resize(plan.buffers.size());
    for (const plan::Step& s : plan.steps) run->arguments.emplace_back(s.arguments.size());
    return run;
  }
  void give_back(std::unique_ptr<Run> run, bool profiled) {
    const ShortLock lock;
    if (profiled) times.swap(run->times);  // a copy would allocate under the lock
    free.push_back(std::move(run));
  }

  /// The pointers of a step's arguments; a missing one is an error only where it would be used.
  void gather(const std::vector<void*>& pointers, const plan::Step& step, std::vector<void*>& into) const {
    const std::vector<int>& buffers = step.arguments;
    for (size_t i = 0; i < buffers.size(); ++i) {
      into[i] = pointers[buffers[i]];
      const plan::Buffer& b = plan.buffers[buffers[i]];
      if (!into[i] && b.bytes > 0)
        throw InternalError(fmt::format("plan {}, step {}: no memory for {}", plan.name, step.name, b.name));
    }
  }

  void run_kernel_step(const Run& run, const plan::Step& step, std::vector<void*>& args, const Call& call) const {
    gather(run.pointers, step, args);
    for (size_t i = 0; i < step.shifts.size(); ++i) args[i] = static_cast<char*>(args[i]) + step.shifts[i];
    if (copies_onto_itself(step, args)) return;
    const plan::Kernel& kernel = plan.kernels[step.kernel];
    const uint32_t failed = run_kernel(code.entry(step.kernel), args.data(), kernel.scratch_bytes, step.parallel_extent,
                                       stays_on_caller(step), poison.has_value(), call.flushes_denormals);
    if (failed) check_failed(step, failed);
  }

  /// Whether a step is to be passed over in this run: the values it computes are not wanted.
  bool passed_over(const Run& run, const plan::Step& step) const {
    if (step.guard < 0) return false;
    const void* guard = run.pointers[step.guard];
    if (!guard) throw InternalError(fmt::format("plan {}, step {}: no memory for its guard", plan.name, step.name));
    return (*static_cast<const uint8_t*>(guard) != 0) != step.guard_value;
  }

  void run_steps(size_t begin, size_t end, Run& run, const Call& call, Draws& draws, bool profile) const {
    for (size_t i = begin; i < end; ++i) {
      const plan::Step& step = plan.steps[i];
      if (call.check_signals) call.check_signals();
      if (poison) poison->before(i, run.pointers);
      if (call.on_step) call.on_step(static_cast<int64_t>(i));
      const StepTimer timer(profile ? &run.times[i] : nullptr);
      switch (step.kind) {
        case plan::StepKind::Kernel:
          if (!passed_over(run, step)) run_kernel_step(run, step, run.arguments[i], call);
          break;
        case plan::StepKind::Extern:
          gather(run.pointers, step, run.arguments[i]);
          run_extern(plan, step, call, run.arguments[i], run.pointers, run.owners, copy_bytes);
          break;
        case plan::StepKind::Product:
          throw InternalError(step.name + ": a product of the vendor's library in a plan for the CPU");
        case plan::StepKind::Random: draws.run(i, run.pointers); break;
        case plan::StepKind::Start:
          gather(run.pointers, step, run.arguments[i]);
          run.flights.add(step, operations[i]->start(run.arguments[i]));
          break;
        case plan::StepKind::Wait:
          run.flights.wait(step.token, call.check_signals, profile ? &run.times[started_by[step.token]].over : nullptr);
          break;
      }
      for (int b : dies_after[i]) run.owners[b].reset(), run.pointers[b] = nullptr;
      if (poison) poison->after(i, run.pointers);
    }
  }
};

CpuExecutable::CpuExecutable(plan::Plan given) : Executable(std::move(given)) {
  require_level(plan().name, plan().cpu);
  impl_ = std::make_unique<Impl>(plan());
}
CpuExecutable::~CpuExecutable() = default;

std::vector<StepTime> CpuExecutable::step_times() const {
  const ShortLock lock;
  return impl_->times;
}

const Operation* CpuExecutable::operation(size_t step) const { return impl_->operations.at(step).get(); }

/// One run of a plan, the whole of it or in parts.
class CpuExecutable::InParts : public RunInParts {
 public:
  InParts(Impl& impl, const Call& call, bool profiled)
      : impl_(impl),
        call_(call),
        profiled_(profiled),
        run_(impl.take_run()),
        arena_(impl.plan.temp_bytes),
        draws_(impl.plan, call.generator) {
    run_->pointers = place_buffers(impl_.plan, call_, arena_.data());
    if (impl_.poison) impl_.poison->begin(run_->pointers, arena_.data());
    if (profiled_) run_->times.resize(impl_.plan.steps.size());
  }
  ~InParts() override {
    try {
      give_up();
    } catch (...) {  // the framework's generator stays where it is: nobody is left to be told
    }
  }

  void run_until(size_t end) override {
    if (!run_) throw InternalError(impl_.plan.name + ": a run goes on after its end, or after an error");
    const size_t steps = impl_.plan.steps.size(), begin = std::exchange(done_, std::clamp(end, done_, steps));
    try {
      impl_.run_steps(begin, done_, *run_, call_, draws_, profiled_);
    } catch (...) {
      give_up();
      throw;
    }
    if (done_ == steps) impl_.give_back(std::move(run_), profiled_);
  }

 private:
  void give_up() {
    if (!run_) return;
    run_->flights.cancel_all();  // first of all: it has memory of the run's, and of the caller's
    for (auto& owner : run_->owners) owner.reset();
    impl_.give_back(std::move(run_), false);
    draws_.give_back();  // as in eager: what was drawn before the error stays drawn, and no more
  }

  Impl& impl_;
  const Call& call_;
  const bool profiled_;
  std::unique_ptr<Run> run_;  // none once it is over
  const Arena arena_;
  Draws draws_;
  size_t done_ = 0;  // steps before it have run
};

/// Runs of kernels and loops alone: what each step is called with is written down when the memory is told, so that a
/// trip is calls and nothing else. Beside a kernel of a few nanoseconds all else would count.
class CpuExecutable::PlacedTrips : public Trips {
 public:
  static bool suits(const Impl& impl) {
    return !impl.poison && std::ranges::all_of(impl.plan.steps, [](const plan::Step& s) {
      return s.kind == plan::StepKind::Kernel || s.kind == plan::StepKind::Wait ||
             (s.kind == plan::StepKind::Start && s.target == kWhile);  // which is over when it has begun
    });
  }
  explicit PlacedTrips(const Impl& impl) : impl_(impl) {
    for (const plan::Step& s : impl.plan.steps) arguments_.emplace_back(s.arguments.size());
  }

  void place(const Call& call) override {
    flushes_denormals_ = call.flushes_denormals;
    pointers_ = place_buffers(impl_.plan, call, static_cast<uint8_t*>(call.temp));
    work_.clear();
    for (size_t i = 0; i < impl_.plan.steps.size(); ++i) {
      const plan::Step& step = impl_.plan.steps[i];
      if (step.kind == plan::StepKind::Wait) continue;
      std::vector<void*>& args = arguments_[i];
      impl_.gather(pointers_, step, args);
      Work w{.args = args.data(), .step = i};
      if (step.guard >= 0) {
        w.guard = static_cast<const uint8_t*>(pointers_[step.guard]);
        require(w.guard != nullptr,
                fmt::format("plan {}, step {}: no memory for its guard", impl_.plan.name, step.name));
        w.guard_value = step.guard_value;
      }
      if (step.kind == plan::StepKind::Kernel) {
        for (size_t k = 0; k < step.shifts.size(); ++k) args[k] = static_cast<char*>(args[k]) + step.shifts[k];
        if (step.parallel_extent <= 0 || copies_onto_itself(step, args)) continue;
        w.entry = impl_.code.entry(step.kernel);
        w.scratch_bytes = impl_.plan.kernels[step.kernel].scratch_bytes;
        w.extent = step.parallel_extent;
        w.stays_on_caller = stays_on_caller(step);
        w.is_small = w.stays_on_caller && !w.guard && w.scratch_bytes == 0;
      }
      work_.push_back(w);
    }
  }

  void run() override {
    for (const Work& w : work_) {
      uint32_t failed = 0;
      if (w.is_small) w.entry(w.args, nullptr, &failed, 0, w.extent);
      else failed = run_other(w);
      if (failed) check_failed(impl_.plan.steps[w.step], failed);
    }
  }

 private:
  struct Work {
    KernelEntry entry = nullptr;  // none: it starts a loop
    void* const* args = nullptr;
    int64_t extent = 0;
    bool is_small = false;  // on the caller, always, without scratch memory
    bool stays_on_caller = false, guard_value = true;
    const uint8_t* guard = nullptr;
    int64_t scratch_bytes = 0;
    size_t step = 0;
  };

  uint32_t run_other(const Work& w) const {
    if (w.guard && (*w.guard != 0) != w.guard_value) return 0;
    if (w.entry)
      return run_kernel(w.entry, w.args, w.scratch_bytes, w.extent, w.stays_on_caller, false, flushes_denormals_);
    impl_.operations[w.step]->start(arguments_[w.step]);
    return 0;
  }

  const Impl& impl_;
  std::optional<bool> flushes_denormals_;
  std::vector<void*> pointers_;                // by buffer
  std::vector<std::vector<void*>> arguments_;  // by step
  std::vector<Work> work_;
};

std::unique_ptr<Trips> CpuExecutable::trips() {
  if (PlacedTrips::suits(*impl_)) return std::make_unique<PlacedTrips>(*impl_);
  return Executable::trips();
}

void CpuExecutable::run(const Call& call) { InParts(*impl_, call, profile).run_until(impl_->plan.steps.size()); }

std::unique_ptr<RunInParts> CpuExecutable::start(const Call& call) {
  return std::make_unique<InParts>(*impl_, call, profile);
}

}  // namespace trainc::runtime
