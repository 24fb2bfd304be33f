// CUDA's driver as far as the runtime asks it, with kernels that compute: they are loop nests as text, run by
// src/interpret. For tests of runtime/cuda: its tables of pointers, order of streams, graphs and products then give
// numbers that can be compared.
#pragma once
#include <memory>
#include <set>

#include "runtime/cuda/executable.h"

namespace trainc::runtime::interpreted {

/// Runs each launch at once, in the host's memory. Whatever the interpreter finds is an InternalError that names the
/// kernel.
class InterpretedDriver : public cuda::NullDriver {
 public:
  std::string description() const override { return "the interpreter of device nests, behind a driver"; }
  std::string architecture() const override { return "interpret"; }
  cuda::Function load(const plan::Kernel&) override;
  void unload(cuda::Function) override;
  void copy_in(void* device, const void* host, int64_t bytes, cuda::Stream) override;
  void copy(void* to, const void* from, int64_t bytes, cuda::Stream) override;
  void launch(const cuda::Launch&, cuda::Stream) override;
  void multiply(const plan::Product&, const cuda::Factors&, cuda::Stream) override;

  int64_t launches = 0, blocks = 0;  // run so far
  std::set<cuda::Stream> streams;    // that anything was queued on
};

/// The one of "interpret:cuda".
std::shared_ptr<InterpretedDriver> interpreted_driver();

}  // namespace trainc::runtime::interpreted
