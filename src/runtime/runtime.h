// Runs plans. Takes: a loaded plan and pointers. Gives: effects. Includes: plan and support, nothing of the compiler.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "plan/plan.h"
#include "runtime/times.h"

namespace trainc::runtime {

/// Runs body(begin, end) over parts of [0, n). Under PyTorch: the framework's own threads (at::parallel_for's exported
/// C entry, by dlsym); otherwise a pool of our own. What runs where never changes what is computed.
using RangeBody = std::function<void(int64_t begin, int64_t end)>;
void parallel_for(int64_t n, const RangeBody&);
int thread_count();

/// The framework's default generator. Its state is bytes of torch.Generator.get_state(): 5,056 of the CPU's on 2.13, 16
/// of a GPU's.
struct Generator {
  std::function<std::vector<uint8_t>()> get_state;
  /// Sets the state to `to` where it still is `from`; false, and nothing is set, where somebody has drawn since. Nobody
  /// draws in between.
  std::function<bool(const std::vector<uint8_t>& from, const std::vector<uint8_t>& to)> exchange;
};

/// What an extern step needs from the framework.
struct ExternTensor {
  void* data;
  std::shared_ptr<void> owner;
  // the same elements in memory that nobody else has; asked for where the plan will use `data` again
  std::function<ExternTensor()> copy = {};
};
using ExternCall = std::function<std::vector<ExternTensor>(const plan::Step&, const std::vector<void*>& inputs)>;

/// Pointers are of the device's memory.
struct Call {
  std::vector<void*> inputs, outputs;  // by the plan's indices; an output that is None or an input's alias: nullptr
  void* saved = nullptr;               // the handle's arena, 64-byte aligned
  // Plan::temp_bytes for this run; nullptr: the device has memory of its own for them, or says that it has none
  void* temp = nullptr;
  void* stream = nullptr;  // the framework's queue that work joins, where the device has such
  Generator generator;
  ExternCall extern_call;
  std::function<void()> check_signals;  // between steps; throws to interrupt
  // on the CPU: before each step, with its number: for a profiler, which names what runs
  std::function<void(int64_t)> on_step = {};
  // on the CPU: whether denormal numbers count as zero on every thread that computes; none: as each thread has it
  std::optional<bool> flushes_denormals = {};
};

/// A run that stops between steps and goes on later, on whatever thread. What it holds meanwhile (its memory, pointers)
/// is its own; given up before its end, it gives all of it back.
class RunInParts {
 public:
  virtual ~RunInParts() = default;
  /// Runs the steps before `end` that have not run. After an error nothing more may be asked of it.
  virtual void run_until(size_t end) = 0;
};

class Operation;  // operation.h

/// Runs of a plan one after the other, over memory that is told once for many of them: a loop's trips.
class Trips {
 public:
  virtual ~Trips() = default;
  /// From now on over the memory of this call, which nobody changes before the last of its runs. `call.temp` is there.
  virtual void place(const Call&) = 0;
  /// As Executable::run. The calling thread has been put into the arithmetic that `flushes_denormals` asks for.
  virtual void run() = 0;
};

/// A plan that a device has loaded (device.h).
class Executable {
 public:
  explicit Executable(plan::Plan);  // InternalError where it is malformed
  virtual ~Executable() = default;
  const plan::Plan& plan() const { return plan_; }
  /// Runs all steps, or queues them. Several threads may run it at once, and what an extern step calls may run it
  /// again: no lock is held while it runs. Throws IndexError where a Check failed; where the device is not waited for,
  /// that is at a later run, or at finish().
  virtual void run(const Call&) = 0;
  /// The same run, of which each part is asked for. `Call` and this outlive it. nullptr: this device runs all at once.
  virtual std::unique_ptr<RunInParts> start(const Call&) { return nullptr; }
  /// For runs that differ in nothing. This outlives it; one thread at a time may use it.
  virtual std::unique_ptr<Trips> trips();
  /// Throws the error of an earlier run that was found only after that had returned: on devices that queue runs.
  virtual void finish() {}
  /// When each step of the last run ran for which `profile` was set; empty: there was none, or the device cannot tell.
  bool profile = false;
  virtual std::vector<StepTime> step_times() const { return {}; }
  /// What a Start begins, for explain; nullptr: this device does not tell.
  virtual const Operation* operation(size_t /*step*/) const { return nullptr; }
  /// What there is to say of how it runs, a line each: for explain.
  virtual std::vector<std::string> notes() const { return {}; }

 private:
  plan::Plan plan_;
};

}  // namespace trainc::runtime
