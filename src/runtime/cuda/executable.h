// Runs plans on a device. Takes: a Plan, a Driver, pointers of the device. Gives: effects, in the order of the framework's stream.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "runtime/cuda/driver.h"
#include "runtime/foreach.h"
#include "runtime/runtime.h"

namespace trainc::runtime::cuda {

/// Memory of the device that the framework's allocator gives, for the time of one run.
struct DeviceCall {
  Call host;             // inputs, outputs, saved: pointers of the device; extern_call: the framework runs on `stream`
  void* temp = nullptr;  // Plan::temp_bytes
  Stream stream = nullptr;
};

/// UserError where `device`, what `name` was compiled for, is not the driver's.
void require_architecture(const std::string& name, const std::string& device, const Driver&);

class Executable {
 public:
  /// Loads the kernels. UserError where the plan was compiled for another architecture than the driver's.
  Executable(plan::Plan, std::shared_ptr<Driver>);
  ~Executable();
  const plan::Plan& plan() const;
  /// Queues all steps and returns without waiting: one CUDA graph where every step is a kernel, its arguments reached through the table.
  /// Nothing is allocated. A failed Check is found when the device has come to it: IndexError at a later run or finish(). Where the driver refuses
  /// something: InternalError with the kernel's name and the user's lines.
  /// Random steps without a kernel draw from the host's generator, into memory that the host can write: drivers without a GPU alone (InternalError on one).
  void run(const DeviceCall&);
  /// Throws IndexError where a Check of what the device has done so far failed, naming the step and its lines.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// An optimizer's step over many tensors in one launch (runtime::Foreach, on a device).
class DeviceForeach {
 public:
  /// UserError where it was compiled for another architecture than the driver's.
  DeviceForeach(plan::Foreach, std::shared_ptr<Driver>);
  ~DeviceForeach();
  const plan::Foreach& plan() const;
  int64_t tensor_inputs() const;
  int64_t scalar_inputs() const;
  /// As runtime::Foreach::run, with pointers of the device. Its tables grow with the number of tensors; else nothing is allocated.
  void run(std::span<void* const> tensors, std::span<const int64_t> numels, std::span<const double> scalars, Stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainc::runtime::cuda
