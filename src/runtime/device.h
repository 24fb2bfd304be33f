// Where plans run. One interface for all devices, and a register of them: name -> Device. Takes: plans. Gives:
// executables. Includes: plan.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/foreach.h"
#include "runtime/runtime.h"

namespace trainc::runtime {

/// Safe from several threads at once.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string description() const = 0;  // in words: "NVIDIA H100 80GB HBM3, sm_90a"
  /// The name of the target that its kernels are made for (support/target.h): "cpu", "sm_90a", ...
  virtual std::string target() const = 0;
  /// Whether the library of matrix products is there that plans for this target may call (plan::Product).
  virtual bool multiplies() const { return false; }
  /// Whether that library has an algorithm for a product, epilogue included, that needs no more memory beside them
  /// than so many bytes.
  virtual bool has_algorithm(const plan::Product&, int64_t /*bytes*/) const { return multiplies(); }

  /// UserError where the plan was made for another target.
  std::unique_ptr<Executable> load(plan::Plan) const;
  std::unique_ptr<Foreach> load(plan::Foreach) const;

  /// Memory for whoever has no framework that gives it: tests, programs that run a stored plan.
  virtual std::shared_ptr<void> allocate(int64_t bytes) const = 0;
  /// Both wait until the copy is made; `copy_out` also for all that was queued before.
  virtual void copy_in(void* device, const void* host, int64_t bytes) const = 0;
  virtual void copy_out(void* host, const void* device, int64_t bytes) const = 0;
  /// Waits for all that was queued.
  virtual void synchronize() const {}

  /// Seconds of a kernel over iterations [0, extent), of arguments of so many bytes each; InternalError where nothing
  /// is timed (Target::measures).
  virtual double seconds_of(const plan::Kernel&, int64_t extent, const std::vector<int64_t>& argument_bytes) const;
  /// The library's algorithms for a product, its own choice first, that need no more memory beside than so many bytes:
  /// at most so many (plan::Product::algorithm). Seconds of a product by the one that it names
  /// (Target::measures_products).
  virtual std::vector<std::string> algorithms(const plan::Product&, int64_t /*bytes*/, int /*most*/) const {
    return {};
  }
  virtual double seconds_of(const plan::Product&, int64_t bytes) const;

 protected:
  /// Of what was made for its target.
  virtual std::unique_ptr<Executable> make(plan::Plan) const = 0;
  virtual std::unique_ptr<Foreach> make(plan::Foreach) const = 0;
};

/// A device whose memory is the host's.
class HostMemory : public Device {
 public:
  std::shared_ptr<void> allocate(int64_t bytes) const override;
  void copy_in(void* device, const void* host, int64_t bytes) const override;
  void copy_out(void* host, const void* device, int64_t bytes) const override;
};

/// The device of this name: its kind, and behind a colon which of that kind ("cpu", "cuda:0"). It is made once.
/// UserError for a name that is none, with the names there are, or where there is no such device.
std::shared_ptr<const Device> device(const std::string& name);

/// `make(which)`: what stands behind the colon, "" without; it gives nullptr for what it does not know.
using MakeDevice = std::function<std::shared_ptr<const Device>(const std::string& which)>;
/// `names`: for messages: "cuda:0, ...". The CPU is there already; others are registered by who starts the process
/// (bindings/module.cpp). A kind that is there is replaced.
void register_device(const std::string& kind, const std::string& names, MakeDevice make);

}  // namespace trainc::runtime
