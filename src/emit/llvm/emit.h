// Loop nest -> relocation-free machine code, through LLVM. The only folder that includes LLVM headers (this one, which
// others include, does not).
// Takes: a verified LoopNest and a CPU level. Gives: a Blob. No decision of its own: a printer.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "loop/loop.h"
#include "support/cpu.h"

namespace trainc::emit {

// The kernel's entry, System V x86-64:
//   void kernel(void* const* arguments, void* scratch, uint32_t* status, int64_t begin, int64_t end)
// arguments[i] is buffer i (Space::Argument) of the nest; scratch is 64-byte aligned, LoopNest::scratch_bytes long;
// a failed Check with code c leaves at least c in *status (0 before the call). [begin, end) of the outermost Parallel
// loop.
struct Blob {
  std::vector<uint8_t> code;  // position independent, no relocation left, map it anywhere at a 64-byte boundary
  int64_t entry = 0;          // offset of the kernel
};

/// Compiles one nest for one level. Safe from several threads at once.
/// Throws InternalError where a relocation to something outside the blob is left, or LLVM refuses.
Blob compile(const loop::LoopNest&, CpuLevel);

/// What TRAINC_DUMP writes: optimised LLVM IR, and assembly.
std::string llvm_ir(const loop::LoopNest&, CpuLevel);
std::string assembly(const loop::LoopNest&, CpuLevel);

}  // namespace trainc::emit
