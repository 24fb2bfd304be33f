// The ELF object of a kernel, before link(): what link's tests take apart.
#pragma once
#include <string>

#include "loop/loop.h"
#include "support/cpu.h"

namespace trainc::emit {

std::string object(const loop::LoopNest&, CpuLevel);

}  // namespace trainc::emit
