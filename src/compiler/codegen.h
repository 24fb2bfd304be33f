// Kernels -> machine code, each distinct one once, on several threads. Inside compiler only.
#pragma once
#include "compiler/kernels.h"
#include "emit/cuda/emit.h"
#include "emit/llvm/emit.h"
#include "support/dump.h"

namespace trainc::compiler {

struct Code {
  std::vector<plan::Kernel> kernels;  // distinct ones
  std::vector<int> kernel_of;         // for each nest
  std::vector<Given> given;           // for each nest: what its kernel is given, as last arguments
  int64_t compiled = 0;               // kernels that code was generated for
};
/// `role`: of a plan whose kernels are shared with those of other sizes. Dry: a kernel without code a nest, and kernel_of is -1.
Code generate(const std::vector<const loop::LoopNest*>& nests, const Options&, emit::cuda::Entry = emit::cuda::Entry::Plan, SharedKernels::Impl::Role* role = nullptr);
/// The nest without what differs between kernels of identical layers: name, origins, counts.
loop::LoopNest anonymous(loop::LoopNest);
/// From the first element to the last, gaps included.
int64_t storage_bytes(const Type&, const Dims& strides);
/// What plan::Plan::device says of kernels for these options.
std::string device_of(const Options&);

/// Writes a file that TRAINC_DUMP asked for; UserError where the directory cannot be written.
void dump(const std::string& name, const std::string& text);

}  // namespace trainc::compiler
