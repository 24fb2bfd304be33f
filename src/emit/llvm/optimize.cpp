#include "emit/llvm/optimize.h"

#include <mutex>

#include "llvm/Analysis/TargetLibraryInfo.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Module.h"
#include "llvm/IR/Verifier.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/Transforms/InstCombine/InstCombine.h"
#include "llvm/Transforms/Scalar/ADCE.h"
#include "llvm/Transforms/Scalar/DeadStoreElimination.h"
#include "llvm/Transforms/Scalar/EarlyCSE.h"
#include "llvm/Transforms/Scalar/GVN.h"
#include "llvm/Transforms/Scalar/LICM.h"
#include "llvm/Transforms/Scalar/LoopPassManager.h"
#include "llvm/Transforms/Scalar/SROA.h"
#include "llvm/Transforms/Scalar/SimplifyCFG.h"
#include "support/error.h"

namespace trainc::emit {
namespace {

constexpr const char* triple = "x86_64-unknown-linux-gnu";

// Where a kernel runs there is no C library: nothing may become a call of one of its functions.
llvm::TargetLibraryInfoImpl no_functions() {
  llvm::TargetLibraryInfoImpl info{llvm::Triple(triple)};
  info.disableAllFunctions();
  return info;
}

}  // namespace

std::unique_ptr<llvm::TargetMachine> target_machine(CpuLevel level) {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
  });
  std::string error;
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(triple, error);
  require(target != nullptr, "emit: " + error);
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;  // no contraction but by Fma
  options.TrapUnreachable = false;
  std::unique_ptr<llvm::TargetMachine> machine(target->createTargetMachine(
      triple, std::string(llvm_cpu_of(level)), has_tiles(level) ? std::string(kTileFeatures) : "", options,
      llvm::Reloc::PIC_, llvm::CodeModel::Small, llvm::CodeGenOptLevel::Default));
  require(machine != nullptr, "emit: no target machine");
  return machine;
}

void optimize(llvm::Module& module, llvm::TargetMachine& machine) {
  std::string problem;
  llvm::raw_string_ostream stream(problem);
  if (llvm::verifyModule(module, &stream)) throw InternalError("emit: invalid LLVM IR: " + problem);

  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager sccs;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder builder(&machine);
  functions.registerPass([] { return llvm::TargetLibraryAnalysis(no_functions()); });
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(sccs);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, sccs, modules);

  // A short list, not O2: nests come tiled and vectorised as `loop` decided, so that the vectorisers and unrollers
  // would only undo it, and loop idioms would make calls to memset. What is left is promotion to registers, CSE, and
  // hoisting.
  llvm::FunctionPassManager pm;
  const auto licm = [] {
    return llvm::createFunctionToLoopPassAdaptor(llvm::LICMPass(llvm::LICMOptions()), /*UseMemorySSA=*/true);
  };
  pm.addPass(llvm::SROAPass(llvm::SROAOptions::ModifyCFG));
  pm.addPass(llvm::EarlyCSEPass(true));
  pm.addPass(llvm::InstCombinePass());
  pm.addPass(llvm::SimplifyCFGPass());
  pm.addPass(licm());
  pm.addPass(llvm::GVNPass());
  pm.addPass(llvm::DSEPass());
  pm.addPass(licm());
  pm.addPass(llvm::InstCombinePass());
  pm.addPass(llvm::ADCEPass());
  pm.addPass(llvm::SimplifyCFGPass());
  for (llvm::Function& f : module)
    if (!f.isDeclaration()) pm.run(f, functions);
}

std::string generate(llvm::Module& module, llvm::TargetMachine& machine, Output output) {
  llvm::SmallVector<char, 0> bytes;
  llvm::raw_svector_ostream stream(bytes);
  llvm::legacy::PassManager pm;
  pm.add(new llvm::TargetLibraryInfoWrapperPass(no_functions()));
  const auto type = output == Output::Object ? llvm::CodeGenFileType::ObjectFile : llvm::CodeGenFileType::AssemblyFile;
  if (machine.addPassesToEmitFile(pm, stream, nullptr, type)) throw InternalError("emit: LLVM cannot write this file");
  pm.run(module);
  return std::string(bytes.begin(), bytes.end());
}

}  // namespace trainc::emit
