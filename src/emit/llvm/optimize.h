// LLVM module -> optimised module -> object or assembly. Includes LLVM: for the .cpp files of this folder only.
#pragma once
#include <memory>
#include <string>

#include "support/cpu.h"

namespace llvm {
class Module;
class TargetMachine;
}  // namespace llvm

namespace trainc::emit {

/// A machine of that level; one a compile, for TargetMachine is not safe between threads.
std::unique_ptr<llvm::TargetMachine> target_machine(CpuLevel);
/// In place. Throws InternalError where the module is not valid IR.
void optimize(llvm::Module&, llvm::TargetMachine&);
enum class Output { Object, Assembly };
std::string generate(llvm::Module&, llvm::TargetMachine&, Output);

}  // namespace trainc::emit
