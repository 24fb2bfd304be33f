// Kernels -> machine code, each distinct one once, on several threads. Inside compiler only.
#pragma once
#include "compiler/kernels.h"
#include "support/dump.h"

namespace trainc::compiler {

struct Code {
  std::vector<plan::Kernel> kernels;        // distinct ones
  std::vector<int> kernel_of;               // for each nest
  std::vector<ParameterValues> parameters;  // for each nest: what its kernel takes as last arguments
  int64_t compiled = 0;                     // kernels that code was generated for
};
/// `role`: of a plan whose kernels are shared with those of other sizes.
Code code_of(const std::vector<loop::LoopNest>& nests, const CompileOptions&, const Job&, Entry = Entry::Plan,
             SharedKernels::Impl::Role* role = nullptr);
/// As the plan has it before there is code.
plan::Kernel without_code(const loop::LoopNest&);
/// The nest without what differs between kernels of identical layers: name, origins, counts.
loop::LoopNest anonymous(loop::LoopNest);
/// From the first element to the last, gaps included.
int64_t storage_bytes(const Type&, const Dims& strides);
/// Writes a file that TRAINC_DUMP asked for; UserError where the directory cannot be written.
void dump(const std::string& name, const std::string& text);
/// The nest, and its kernel's listing, as far as TRAINC_DUMP asks for them, as NAME.HASH-OF-THE-CODE.loop, ...
void dump_kernel(const std::string& name, const loop::LoopNest&, const plan::Kernel&, const Target&, Entry);

}  // namespace trainc::compiler
