// A device without a GPU that does compute: kernels are loop nests as text, run by src/interpret. TRAINC_DEVICE=interpret; for tests.
#pragma once
#include <set>

#include "runtime/cuda/driver.h"

namespace trainc::bindings {

/// Runs each launch at once, in the host's memory. Whatever the interpreter finds is an InternalError that names the kernel.
class InterpretedDriver : public runtime::cuda::NullDriver {
 public:
  std::string description() const override { return "the interpreter of device nests"; }
  std::string architecture() const override { return "interpret"; }
  runtime::cuda::Function load(const plan::Kernel&) override;
  void unload(runtime::cuda::Function) override;
  void copy_in(void* device, const void* host, int64_t bytes, runtime::cuda::Stream) override;
  void copy(void* to, const void* from, int64_t bytes, runtime::cuda::Stream) override;
  void launch(const runtime::cuda::Launch&, runtime::cuda::Stream) override;
  void multiply(const plan::Product&, const void* lhs, const void* rhs, void* result, void* memory, int64_t bytes, runtime::cuda::Stream) override;

  int64_t launches = 0, blocks = 0;  // run so far
  std::set<runtime::cuda::Stream> streams;  // that anything was queued on
};

}  // namespace trainc::bindings
