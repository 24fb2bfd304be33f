// A GPU. Takes: plans, a Driver, pointers of the device. Gives: effects, in the order of the framework's stream.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "runtime/cuda/driver.h"
#include "runtime/cuda/measure.h"
#include "runtime/device.h"

namespace trainc::runtime::cuda {

class CudaExecutable : public Executable {
 public:
  /// Loads the kernels. InternalError where a step has no place on a GPU: what is started beside the kernels, and masks
  /// of the CPU's generator.
  CudaExecutable(plan::Plan, std::shared_ptr<Driver>);
  ~CudaExecutable() override;
  /// Queues all steps and returns without waiting: one CUDA graph for all that lies between two calls of the framework
  /// (plan/parts.h). Kernels reach their arguments through the table; products have their pointers in the graph, which
  /// is recorded when they come a second time. `temp` is the caller's: of the framework's allocator, as all memory.
  /// Nothing is allocated. A failed Check is found when the device has come to it: IndexError at a later run or
  /// finish(). Where the driver refuses something: InternalError with the kernel's name and the user's lines.
  void run(const Call&) override;
  /// Throws IndexError where a Check of what the device has done so far failed, naming the step and its lines.
  void finish() override;
  /// Where it is not one graph: why.
  std::vector<std::string> notes() const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// An optimizer's step over many tensors in one launch (runtime::Foreach, on a device).
class CudaForeach : public Foreach {
 public:
  CudaForeach(plan::Foreach, std::shared_ptr<Driver>);
  ~CudaForeach() override;

 private:
  /// Its tables grow with the number of tensors; else nothing is allocated.
  void launch(std::span<void* const> tensors, std::span<const int64_t> numels, std::span<const double> scalars,
              void* stream) override;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A device behind a driver: CUDA's, or one that stands in for it.
class CudaDevice : public Device {
 public:
  explicit CudaDevice(std::shared_ptr<Driver> driver) : driver_(std::move(driver)) {}
  std::string description() const override { return driver_->description(); }
  std::string target() const override { return driver_->architecture(); }
  bool multiplies() const override { return driver_->multiplies(); }
  bool has_algorithm(const plan::Product& p, int64_t bytes) const override { return driver_->has_algorithm(p, bytes); }
  std::vector<std::string> algorithms(const plan::Product& p, int64_t bytes, int most) const override {
    return driver_->algorithms(p, bytes, most);
  }
  double seconds_of(const plan::Kernel& kernel, int64_t extent,
                    const std::vector<int64_t>& argument_bytes) const override {
    return cuda::seconds_of(*driver_, kernel, extent, argument_bytes);
  }
  double seconds_of(const plan::Product& p, int64_t bytes) const override {
    return cuda::seconds_of(*driver_, p, bytes);
  }
  std::shared_ptr<void> allocate(int64_t bytes) const override;
  void copy_in(void* device, const void* host, int64_t bytes) const override {
    driver_->load_data(device, host, bytes);
  }
  void copy_out(void* host, const void* device, int64_t bytes) const override {
    driver_->read_data(host, device, bytes);
  }
  void synchronize() const override { driver_->synchronize(); }

 protected:
  std::unique_ptr<Executable> make(plan::Plan plan) const override {
    return std::make_unique<CudaExecutable>(std::move(plan), driver_);
  }
  std::unique_ptr<Foreach> make(plan::Foreach plan) const override {
    return std::make_unique<CudaForeach>(std::move(plan), driver_);
  }

 private:
  const std::shared_ptr<Driver> driver_;
};

/// "cuda:0", ...; and "null:sm_90a", ...: nothing runs, all else is as on such a GPU.
void register_devices();

}  // namespace trainc::runtime::cuda
