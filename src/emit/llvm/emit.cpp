#include "emit/llvm/emit.h"

#include "emit/llvm/link.h"
#include "emit/llvm/object.h"
#include "emit/llvm/optimize.h"
#include "emit/llvm/printer.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Target/TargetMachine.h"

namespace trainc::emit {
namespace {

// One nest, printed and optimised; every compile has a context and a machine of its own, so that threads share nothing.
struct Compiled {
  llvm::LLVMContext context;
  std::unique_ptr<llvm::TargetMachine> machine;
  std::unique_ptr<llvm::Module> module;

  Compiled(const loop::LoopNest& nest, CpuLevel level)
      : machine(target_machine(level)), module(new llvm::Module(nest.name, context)) {
    module->setTargetTriple(machine->getTargetTriple().str());
    module->setDataLayout(machine->createDataLayout());
    Printer(*module, nest, level).print();
    for (llvm::Function& f : *module) {
      f.addFnAttr("target-cpu", machine->getTargetCPU());
      if (has_tiles(level)) f.addFnAttr("target-features", kTileFeatures);
      // these CPUs' own preference is 256 bits, made for their first generation's clocks
      if (level != CpuLevel::Avx2) {
        f.addFnAttr("prefer-vector-width", "512");
        f.addFnAttr("min-legal-vector-width", "512");
      }
    }
    optimize(*module, *machine);
  }
};

}  // namespace

std::string object(const loop::LoopNest& nest, CpuLevel level) {
  Compiled c(nest, level);
  return generate(*c.module, *c.machine, Output::Object);
}

Blob compile(const loop::LoopNest& nest, CpuLevel level) { return link(object(nest, level), nest.name); }

std::string llvm_ir(const loop::LoopNest& nest, CpuLevel level) {
  Compiled c(nest, level);
  std::string text;
  llvm::raw_string_ostream stream(text);
  c.module->print(stream, nullptr);
  return text;
}

std::string assembly(const loop::LoopNest& nest, CpuLevel level) {
  Compiled c(nest, level);
  return generate(*c.module, *c.machine, Output::Assembly);
}

}  // namespace trainc::emit
