// The interpreter of device nests as a device of its own: kernels are the text of their nests, memory is the host's,
// steps run one by one as they are called.
// Takes: plans. Gives: executables. Includes: plan, interpret.
#pragma once
#include <atomic>

#include "runtime/device.h"

namespace trainc::runtime::interpreted {

/// What has run so far, of all that was loaded by one device.
struct Count { std::atomic<int64_t> launches = 0, blocks = 0; };

/// Whatever the interpreter finds is an InternalError that names the kernel; masks without a kernel are drawn as on the
/// CPU.
class InterpretedDevice : public HostMemory {
 public:
  std::string description() const override { return "the interpreter of device nests"; }
  std::string target() const override { return "interpret"; }
  bool multiplies() const override { return true; }
  const Count& count() const { return *count_; }

 protected:
  std::unique_ptr<Executable> make(plan::Plan) const override;
  std::unique_ptr<Foreach> make(plan::Foreach) const override;

 private:
  const std::shared_ptr<Count> count_ = std::make_shared<Count>();
};

/// "interpret"; and "interpret:cuda": a CudaDevice whose driver interprets (driver.h).
void register_devices();

}  // namespace trainc::runtime::interpreted
