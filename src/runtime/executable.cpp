// Runs a plan: pointers for its buffers, then its steps in order. Within a step nothing is allocated but what the framework returns.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>

#include "plan/live.h"
#include "runtime/arena.h"
#include "runtime/code.h"
#include "runtime/places.h"
#include "runtime/poison.h"
#include "runtime/runtime.h"
#include "support/dump.h"
#include "support/error.h"

namespace trainc::runtime {
namespace {

// Waking the threads costs some microseconds; a step with less to do than this (bytes moved + operations) stays on its caller.
constexpr int64_t kWorthThreads = 64 << 10;

}  // namespace

struct Executable::Impl {
  plan::Plan plan;
  MappedCode code;
  std::mutex mutex;
  std::vector<void*> pointers;                 // by buffer
  std::vector<std::vector<void*>> arguments;   // by step
  std::vector<std::vector<int>> dies_after;    // by step: Extern buffers whose last use it is
  std::vector<std::shared_ptr<void>> owners;   // by buffer: of Extern ones
  std::vector<double> seconds;                 // by step
  std::optional<Poison> poison;

  explicit Impl(plan::Plan p) : plan(std::move(p)), code(plan.kernels) {
    if (environment_lists("TRAINC_DEBUG", "poison")) poison.emplace(plan);
    pointers.resize(plan.buffers.size());
    owners.resize(plan.buffers.size());
    for (const plan::Step& s : plan.steps) arguments.emplace_back(s.arguments.size());
    dies_after.resize(plan.steps.size());
    const std::vector<plan::LiveRange> live = plan::live_ranges(plan);
    for (size_t b = 0; b < plan.buffers.size(); ++b)
      if (plan.buffers[b].home == plan::Home::Extern && live[b].last >= 0) dies_after[live[b].last].push_back(static_cast<int>(b));
  }

  /// The pointers of `buffers`; a missing one is an error only where it would be used.
  void gather(const plan::Step& step, const std::vector<int>& buffers, std::vector<void*>& into) const {
    for (size_t i = 0; i < buffers.size(); ++i) {
      into[i] = pointers[buffers[i]];
      const plan::Buffer& b = plan.buffers[buffers[i]];
      if (!into[i] && b.bytes > 0) throw InternalError(fmt::format("plan {}, step {}: no memory for {}", plan.name, step.name, b.name));
    }
  }

  void run_kernel_step(const plan::Step& step, std::vector<void*>& args) {
    gather(step, step.arguments, args);
    const plan::Kernel& kernel = plan.kernels[step.kernel];
    const bool small = step.flops + step.bytes > 0 && step.flops + step.bytes < kWorthThreads;
    const uint32_t failed = run_kernel(code.entry(step.kernel), args.data(), kernel.scratch_bytes, step.parallel_extent, small, poison.has_value());
    if (failed) throw IndexError(fmt::format("index out of range in {} (check {} of {})", fmt::join(step.origins, ", "), failed, step.name));
  }

  void run_steps(const Call& call, Draws& draws, bool profile) {
    using Clock = std::chrono::steady_clock;
    for (size_t i = 0; i < plan.steps.size(); ++i) {
      const plan::Step& step = plan.steps[i];
      if (call.check_signals) call.check_signals();
      if (poison) poison->before(i, pointers);
      const auto start = profile ? Clock::now() : Clock::time_point();
      switch (step.kind) {
        case plan::StepKind::Kernel: run_kernel_step(step, arguments[i]); break;
        case plan::StepKind::Extern:
          gather(step, step.arguments, arguments[i]);
          run_extern(plan, step, call, arguments[i], draws, pointers, owners, [](void* to, const void* from, int64_t bytes) { std::memcpy(to, from, bytes); });
          break;
        case plan::StepKind::Product: throw InternalError(step.name + ": a product of a device's library in a plan for the CPU");
        case plan::StepKind::Random: draws.fill(step, plan.buffers[step.writes[0]], pointers[step.writes[0]]); break;
      }
      for (int b : dies_after[i]) owners[b].reset(), pointers[b] = nullptr;
      if (poison) poison->after(i, pointers);
      if (profile) seconds[i] = std::chrono::duration<double>(Clock::now() - start).count();
    }
  }
};

Executable::Executable(plan::Plan plan) {
  plan::verify(plan);
  // Levels are listed best first: a later one asks for less.
  require_level(plan.name, plan.cpu);
  impl_ = std::make_unique<Impl>(std::move(plan));
}
Executable::~Executable() = default;

const plan::Plan& Executable::plan() const { return impl_->plan; }
std::vector<double> Executable::step_seconds() const { return impl_->seconds; }

void Executable::run(const Call& call) {
  std::lock_guard one_at_a_time(impl_->mutex);
  const Arena arena(impl_->plan.temp_bytes);
  impl_->pointers = place_buffers(impl_->plan, call, arena.data());
  if (impl_->poison) impl_->poison->begin(impl_->pointers, arena.data());
  if (profile) impl_->seconds.assign(impl_->plan.steps.size(), 0);
  Draws draws(call.generator);
  try {
    impl_->run_steps(call, draws, profile);
  } catch (...) {
    for (auto& owner : impl_->owners) owner.reset();
    draws.write_back();  // as in eager: what was drawn before the error stays drawn
    throw;
  }
  draws.write_back();
}

}  // namespace trainc::runtime
