// What a cubin (an ELF file) and ptxas's words say about a kernel. Inside emit/cuda only.
#pragma once
#include "emit/cuda/emit.h"

namespace trainc::emit::cuda {

/// Registers and stack from .nv.info, shared memory from the size of its section, spills from the log of `ptxas -v`.
/// InternalError where the file has no such kernel.
Resources resources_of(const std::vector<uint8_t>& cubin, const std::string& kernel, const std::string& log);

}  // namespace trainc::emit::cuda
