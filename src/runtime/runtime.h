// Runs plans. Takes: a Plan and pointers. Gives: effects. Includes: plan and support, nothing of the compiler.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "plan/plan.h"

namespace trainc::runtime {

/// Runs body(begin, end) over parts of [0, n). Under PyTorch: the framework's own threads (at::parallel_for's exported C entry, by
/// dlsym); otherwise a pool of our own. What runs where never changes what is computed.
using RangeBody = std::function<void(int64_t begin, int64_t end)>;
void parallel_for(int64_t n, const RangeBody&);
int thread_count();

/// The framework's default generator. Its state is bytes of torch.Generator.get_state(): 5,056 of the CPU's on 2.13, 16 of a GPU's.
struct Generator {
  std::function<std::vector<uint8_t>()> get_state;
  /// Sets the state to `to` where it still is `from`; false, and nothing is set, where somebody has drawn since. Nobody draws in between.
  std::function<bool(const std::vector<uint8_t>& from, const std::vector<uint8_t>& to)> exchange;
};

/// What an extern step needs from the framework.
struct ExternTensor {
  void* data;
  std::shared_ptr<void> owner;
  std::function<ExternTensor()> copy = {};  // the same elements in memory that nobody else has; asked for where the plan will use `data` again
};
using ExternCall = std::function<std::vector<ExternTensor>(const plan::Step&, const std::vector<void*>& inputs)>;

struct Call {
  std::vector<void*> inputs, outputs;  // by the plan's indices; an output that is None or an input's alias: nullptr
  void* saved = nullptr;               // the handle's arena, 64-byte aligned
  Generator generator;
  ExternCall extern_call;
  std::function<void()> check_signals; // between steps; throws to interrupt
};

class Executable {
 public:
  explicit Executable(plan::Plan);     // verifies, maps the code read-execute, allocates the arena on first run
  ~Executable();
  const plan::Plan& plan() const;
  /// Runs all steps. Several threads may run it at once, and what an extern step calls may run it again: no lock is held while it runs.
  /// Throws IndexError where a Check failed.
  void run(const Call&);
  /// Seconds spent in each step of the last run; filled when `profile` was set.
  bool profile = false;
  std::vector<double> step_seconds() const;
 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainc::runtime
