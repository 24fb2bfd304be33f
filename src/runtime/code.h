// Machine code, mapped read-execute; never writable and executable at once. Includes: plan.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace trainc::runtime {

/// UserError where `cpu`, the level that a plan was compiled for ("": any), is above this machine's.
void require_level(const std::string& plan, const std::string& cpu);

/// A kernel's entry: see emit/llvm/emit.h.
using KernelEntry = void (*)(void* const* arguments, void* scratch, uint32_t* status, int64_t begin, int64_t end);

class MappedCode {
 public:
  /// Maps a copy of each kernel's code, at a 64-byte boundary. Throws InternalError where the system refuses.
  explicit MappedCode(const std::vector<plan::Kernel>&);
  ~MappedCode();
  MappedCode(const MappedCode&) = delete;
  MappedCode& operator=(const MappedCode&) = delete;
  KernelEntry entry(int kernel) const { return entries_.at(kernel); }

 private:
  uint8_t* base_ = nullptr;
  size_t size_ = 0;
  std::vector<KernelEntry> entries_;
};

/// This thread's scratch memory: at least `bytes`, 64-byte aligned, grown as needed and kept until the thread ends.
/// nullptr for 0.
void* thread_scratch(int64_t bytes);

/// Runs iterations [0, extent) of a kernel, on this thread alone where `inline_` is set; `poisoned` fills its scratch
/// memory before (poison.h); `flushes_denormals`: the arithmetic that every thread is put into meanwhile (none: its
/// own). Gives the greatest code of a failed Check, or 0.
uint32_t run_kernel(KernelEntry, void* const* arguments, int64_t scratch_bytes, int64_t extent, bool inline_,
                    bool poisoned = false, std::optional<bool> flushes_denormals = {});

}  // namespace trainc::runtime
