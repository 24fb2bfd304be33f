#include "runtime/interpret/device.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <list>
#include <set>

#include "plan/live.h"
#include "runtime/arena.h"
#include "runtime/call_buffers.h"
#include "runtime/cuda/cublaslt.h"
#include "runtime/interpret/driver.h"
#include "runtime/interpret/run_nest.h"
#include "support/bytes.h"
#include "support/error.h"
#include "support/failure.h"

namespace trainc::runtime::interpreted {
namespace {

class InterpretedExecutable : public Executable {
 public:
  InterpretedExecutable(plan::Plan given, std::shared_ptr<Count> count)
      : Executable(std::move(given)), count_(std::move(count)) {
    for (const plan::Kernel& k : plan().kernels) nests_.push_back(nest_of(k));
    std::set<int> written;
    for (const plan::Step& s : plan().steps) {
      if (s.kind == plan::StepKind::Start)
        throw InternalError(
            fmt::format("plan {}, step {}: nothing is started beside interpreted kernels", plan().name, s.name));
      std::vector<bool>& fresh = fresh_.emplace_back();
      for (int b : s.arguments)
        fresh.push_back(std::find(s.reads.begin(), s.reads.end(), b) == s.reads.end() && !written.count(b));
      written.insert(s.writes.begin(), s.writes.end());
    }
    dies_after_.resize(plan().steps.size());
    const std::vector<plan::LiveRange> live = plan::live_ranges(plan());
    for (size_t b = 0; b < plan().buffers.size(); ++b)
      if (plan().buffers[b].space == plan::MemorySpace::Extern && live[b].last >= 0)
        dies_after_[live[b].last].push_back(static_cast<int>(b));
  }

  void run(const Call& call) override {
    const Arena own(call.temp ? 0 : plan().temp_bytes);
    Run run{place_buffers(plan(), call, call.temp ? static_cast<uint8_t*>(call.temp) : own.data()),
            std::vector<std::shared_ptr<void>>(plan().buffers.size()),
            {}};
    Draws draws(plan(), call.generator);
    try {
      for (size_t i = 0; i < plan().steps.size(); ++i) {
        if (call.check_signals) call.check_signals();
        run_step(i, call, run, draws);
        for (int b : dies_after_[i]) run.owners[b].reset(), run.pointers[b] = nullptr;
      }
    } catch (...) {
      draws.give_back();  // as in eager: what was drawn before the error stays drawn
      throw;
    }
  }

 private:
  struct Run {
    std::vector<void*> pointers;                // by buffer
    std::vector<std::shared_ptr<void>> owners;  // by buffer: of Extern ones
    std::list<std::array<uint64_t, 2>> states;  // of each draw of a kernel's
  };

  void run_step(size_t i, const Call& call, Run& run, Draws& draws) const {
    const plan::Step& step = plan().steps[i];
    switch (step.kind) {
      case plan::StepKind::Kernel: run_kernel(i, run); break;
      case plan::StepKind::Product: {
        cuda::run_on_host(cuda::cublaslt_call(step.product), cuda::factors(plan(), step, run.pointers));
        ++count_->launches;
        break;
      }
      case plan::StepKind::Extern: {
        std::vector<void*> inputs;
        for (int b : step.arguments) inputs.push_back(run.pointers[b]);
        run_extern(plan(), step, call, inputs, run.pointers, run.owners, copy_bytes);
        break;
      }
      case plan::StepKind::Random:
        if (step.kernel < 0) {
          draws.run(i, run.pointers);
          break;
        }
        run.pointers[step.arguments[0]] = run.states.emplace_back(draws.philox(i)).data();
        run_kernel(i, run);
        break;
      case plan::StepKind::Start:
      case plan::StepKind::Wait: require(false, "refused when it was loaded"); break;
    }
  }

  void run_kernel(size_t i, const Run& run) const {
    const plan::Step& step = plan().steps[i];
    if (step.parallel_extent == 0) return;
    std::vector<Argument> arguments;
    for (size_t a = 0; a < step.arguments.size(); ++a) {
      const plan::Buffer& buffer = plan().buffers[step.arguments[a]];
      arguments.push_back({run.pointers[step.arguments[a]], buffer.bytes, fresh_[i][a]});
      if (!arguments.back().data && buffer.bytes > 0)
        throw InternalError(fmt::format("plan {}, step {}: no memory for {}", plan().name, step.name, buffer.name));
    }
    uint32_t failed = 0;
    try {
      failed = run_nest(nests_[step.kernel], step.name, arguments, step.parallel_extent);
    } catch (const InternalError& e) {
      throw InternalError(
          fmt::format("plan {}, kernel {}{}: {}", plan().name, step.name,
                      step.origins.empty() ? "" : fmt::format(" from {}", fmt::join(step.origins, ", ")), e.what()));
    }
    ++count_->launches, count_->blocks += step.parallel_extent;
    if (failed)
      throw_failure(static_cast<Failure>(failed),
                    fmt::format(" in {} (check {} of {})", fmt::join(step.origins, ", "), failed, step.name));
  }

  const std::shared_ptr<Count> count_;
  std::vector<loop::LoopNest> nests_;         // by kernel
  std::vector<std::vector<bool>> fresh_;      // by step: arguments of which nothing has been written yet
  std::vector<std::vector<int>> dies_after_;  // by step: Extern buffers whose last use it is
};

class InterpretedForeach : public Foreach {
 public:
  InterpretedForeach(plan::Foreach given, std::shared_ptr<Count> count)
      : Foreach(std::move(given)), count_(std::move(count)), nest_(nest_of(plan().kernel)) {}

 private:
  void launch(std::span<void* const> tensors, std::span<const int64_t> numels, std::span<const double> scalars,
              void*) override {
    std::vector<uint64_t> slots;
    for (const ForeachInput& i : plan().inputs)
      if (i.scalar) slots.push_back(scalar_bits(scalars[slots.size()], i.dtype));
    for (size_t t = 0; t < numels.size(); ++t) {
      size_t tensor = t * static_cast<size_t>(tensor_inputs()), scalar = 0;
      int64_t numel = numels[t];
      std::vector<Argument> arguments;
      for (const ForeachInput& i : plan().inputs) {
        if (i.scalar) arguments.push_back({&slots[scalar++], size_of(i.dtype), false});
        else arguments.push_back({tensors[tensor++], numel * size_of(i.dtype), false});
      }
      arguments.push_back({&numel, sizeof numel, false});
      const int64_t chunks = (numel + plan().chunk - 1) / plan().chunk;
      if (chunks == 0) continue;
      // an elementwise kernel has no checks
      run_nest(nest_, plan().name + ", kernel " + plan().kernel.name, arguments, chunks);
      count_->blocks += chunks;
    }
    ++count_->launches;
  }

  const std::shared_ptr<Count> count_;
  const loop::LoopNest nest_;
};

}  // namespace

std::unique_ptr<Executable> InterpretedDevice::make(plan::Plan plan) const {
  return std::make_unique<InterpretedExecutable>(std::move(plan), count_);
}
std::unique_ptr<Foreach> InterpretedDevice::make(plan::Foreach plan) const {
  return std::make_unique<InterpretedForeach>(std::move(plan), count_);
}

void register_devices() {
  register_device("interpret", "interpret (device kernels without a GPU)",
                  [](const std::string& which) -> std::shared_ptr<const Device> {
                    if (which == "cuda") return std::make_shared<cuda::CudaDevice>(interpreted_driver());
                    return which.empty() ? std::make_shared<InterpretedDevice>() : nullptr;
                  });
}

}  // namespace trainc::runtime::interpreted
