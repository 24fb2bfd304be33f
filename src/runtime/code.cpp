#include "runtime/code.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "plan/live.h"
#include "runtime/arena.h"
#include "runtime/poison.h"
#include "runtime/runtime.h"
#include "support/cpu.h"
#include "support/error.h"
#include "support/float_environment.h"

namespace trainc::runtime {

void require_level(const std::string& plan, const std::string& cpu) {
  if (!cpu.empty() && cpu_level_of(cpu) < machine_cpu_level())
    throw UserError("plan " + plan + " was compiled for " + cpu + "; this machine has only " +
                    std::string(name_of(machine_cpu_level())) + ". Compile it here.");
}

MappedCode::MappedCode(const std::vector<plan::Kernel>& kernels) {
  std::vector<size_t> at;
  for (const plan::Kernel& k : kernels) {
    at.push_back(size_);
    size_ += plan::aligned(static_cast<int64_t>(k.code.size()));
  }
  if (size_ == 0) return;
  void* memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(memory != MAP_FAILED, std::string("no memory for machine code: ") + std::strerror(errno));
  base_ = static_cast<uint8_t*>(memory);
  for (size_t i = 0; i < kernels.size(); ++i) {
    std::memcpy(base_ + at[i], kernels[i].code.data(), kernels[i].code.size());
    entries_.push_back(reinterpret_cast<KernelEntry>(base_ + at[i] + kernels[i].entry));
  }
  if (mprotect(base_, size_, PROT_READ | PROT_EXEC) != 0) {
    const int error = errno;
    munmap(base_, size_);
    throw InternalError(std::string("the system does not let machine code be mapped: ") + std::strerror(error));
  }
}

MappedCode::~MappedCode() {
  if (base_) munmap(base_, size_);
}

void* thread_scratch(int64_t bytes) {
  thread_local AlignedMemory memory;
  if (bytes > memory.size()) memory = AlignedMemory(bytes);
  return bytes > 0 ? memory.data() : nullptr;
}

uint32_t run_kernel(KernelEntry entry, void* const* arguments, int64_t scratch_bytes, int64_t extent, bool inline_,
                    bool poisoned, std::optional<bool> flushes_denormals) {
  std::atomic<uint32_t> failed{0};
  const auto body = [&](int64_t begin, int64_t end) {
    std::optional<FloatEnvironment> environment;
    if (flushes_denormals) environment.emplace(*flushes_denormals);
    uint32_t status = 0;  // this part's own: threads do not write to one word
    void* scratch = thread_scratch(scratch_bytes);
    if (poisoned) poison(scratch, scratch_bytes);
    entry(arguments, scratch, &status, begin, end);
    for (uint32_t old = failed; status > old && !failed.compare_exchange_weak(old, status);) {}
  };
  if (extent <= 0) return 0;
  if (inline_) body(0, extent);
  else parallel_for(extent, body);
  return failed;
}

}  // namespace trainc::runtime
