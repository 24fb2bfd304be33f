#include "compiler/code_generator.h"

#include <map>
#include <mutex>

#include "emit/cuda/emit.h"
#ifdef TRAINC_LLVM
#include "emit/llvm/emit.h"
#endif
#include "support/error.h"

namespace trainc::compiler {
namespace {

#ifdef TRAINC_LLVM
/// Machine code of this kind of CPU, which needs no linking.
class LlvmGenerator : public CodeGenerator {
 public:
  Code generate(const loop::LoopNest& nest, const Target& target, Entry) const override {
    emit::Blob blob = emit::compile(nest, cpu_level_of(target.cpu));
    return {std::move(blob.code), blob.entry};
  }
  Listing listing(const loop::LoopNest& nest, const Target& target, Entry) const override {
    return {".s", emit::assembly(nest, cpu_level_of(target.cpu))};
  }
};
#else
/// In the place of LLVM, in a build without it.
class LlvmGenerator : public CodeGenerator {
 public:
  Code generate(const loop::LoopNest& nest, const Target&, Entry) const override { missing(nest); }
  Listing listing(const loop::LoopNest& nest, const Target&, Entry) const override { missing(nest); }

 private:
  [[noreturn]] static void missing(const loop::LoopNest& nest) {
    throw UserError(
        "kernel " + nest.name +
        " is for a CPU, and this build of trainc has no LLVM (TRAINC_LLVM=OFF): it compiles for GPUs alone. "
        "Move the model and its tensors to a GPU, or install a build with LLVM");
  }
};
#endif

/// CUDA C++, through NVRTC to a cubin.
class NvrtcGenerator : public CodeGenerator {
 public:
  Code generate(const loop::LoopNest& nest, const Target& target, Entry entry) const override {
    return {emit::cuda::compile(text(nest, entry), nest.name, gpu_of(target.device)).code};
  }
  Listing listing(const loop::LoopNest& nest, const Target&, Entry entry) const override {
    return {".cu", text(nest, entry)};
  }
  std::string version() const override { return emit::cuda::nvrtc_version(); }

 private:
  static std::string text(const loop::LoopNest& nest, Entry entry) {
    return emit::cuda::source(nest, entry == Entry::Foreach ? emit::cuda::Entry::Foreach : emit::cuda::Entry::Plan);
  }
};

/// The nest itself as text, for a device that interprets it.
class NestPrinter : public NvrtcGenerator {
 public:
  Code generate(const loop::LoopNest& nest, const Target&, Entry) const override {
    const std::string text = loop::print(nest);
    return {{text.begin(), text.end()}};
  }
  std::string version() const override { return ""; }
};

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<const CodeGenerator>> generators;

  Registry() {
    generators["llvm"] = std::make_unique<LlvmGenerator>();
    generators["nvrtc"] = std::make_unique<NvrtcGenerator>();
    generators["nests"] = std::make_unique<NestPrinter>();
  }
};

Registry& registry() {
  static Registry registry;
  return registry;
}

}  // namespace

const CodeGenerator& generator_of(const Target& target) {
  const std::lock_guard lock(registry().mutex);
  const auto it = registry().generators.find(target.generator);
  if (it == registry().generators.end()) throw InternalError("nobody generates code by '" + target.generator + "'");
  return *it->second;
}

void register_generator(const std::string& name, std::unique_ptr<const CodeGenerator> generator) {
  const std::lock_guard lock(registry().mutex);
  require(registry().generators.emplace(name, std::move(generator)).second,
          "there is a code generator '" + name + "' already");
}

}  // namespace trainc::compiler
