// Kernels -> machine code, each distinct one once, on several threads. Inside compiler only.
#pragma once
#include "compiler/compiler.h"
#include "emit/llvm/emit.h"

namespace trainc::compiler {

struct Code {
  std::vector<plan::Kernel> kernels;  // distinct ones
  std::vector<int> kernel_of;         // for each nest
};
Code generate(const std::vector<const loop::LoopNest*>& nests, const Options&);

/// TRAINC_DUMP holds `what` ("graph", "loop", "asm", "plan").
bool dumping(const char* what);
/// Writes TRAINC_DUMP_DIR/name (./trainc-dump unless set); a directory that cannot be written is a UserError.
void dump(const std::string& name, const std::string& text);

}  // namespace trainc::compiler
