// The CPU: machine code in this process, over the framework's threads. Takes: plans. Gives: executables. Includes:
// plan.
#pragma once
#include "runtime/code.h"
#include "runtime/device.h"

namespace trainc::runtime {

class CpuExecutable : public Executable {
 public:
  explicit CpuExecutable(plan::Plan);  // maps the code read-execute, allocates the arena on first run
  ~CpuExecutable() override;
  void run(const Call&) override;
  std::unique_ptr<RunInParts> start(const Call&) override;
  std::unique_ptr<Trips> trips() override;
  std::vector<StepTime> step_times() const override;
  const Operation* operation(size_t step) const override;

 private:
  struct Impl;
  class InParts;
  class PlacedTrips;
  std::unique_ptr<Impl> impl_;
};

class CpuForeach : public Foreach {
 public:
  explicit CpuForeach(plan::Foreach);

 private:
  void launch(std::span<void* const> tensors, std::span<const int64_t> numels, std::span<const double> scalars,
              void* stream) override;
  MappedCode code_;
};

class CpuDevice : public HostMemory {
 public:
  std::string description() const override { return "cpu"; }
  std::string target() const override { return "cpu"; }
  double seconds_of(const plan::Kernel&, int64_t extent, const std::vector<int64_t>& argument_bytes) const override;

 protected:
  std::unique_ptr<Executable> make(plan::Plan plan) const override {
    return std::make_unique<CpuExecutable>(std::move(plan));
  }
  std::unique_ptr<Foreach> make(plan::Foreach plan) const override {
    return std::make_unique<CpuForeach>(std::move(plan));
  }
};

}  // namespace trainc::runtime
