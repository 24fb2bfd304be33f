// Nests -> what the device of a target loads. One implementation for each way to do so; a target names its own
// (Target::generator).
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "loop/loop.h"
#include "support/target.h"

namespace trainc::compiler {

/// How a kernel is entered, where that differs: as a step of a plan, or over many tensors in one launch
/// (plan::Foreach).
enum class Entry : uint8_t { Plan, Foreach };

/// Safe from several threads at once.
class CodeGenerator {
 public:
  virtual ~CodeGenerator() = default;
  struct Code {
    std::vector<uint8_t> bytes;
    int64_t entry = 0;  // where in them the kernel begins
  };
  virtual Code generate(const loop::LoopNest&, const Target&, Entry) const = 0;
  struct Listing {
    std::string ending, text;  // of its file's name, with the point
  };
  /// What TRAINC_DUMP=asm shows.
  virtual Listing listing(const loop::LoopNest&, const Target&, Entry) const = 0;
  /// Of what makes the code and is loaded apart from this module; "" where there is none such.
  virtual std::string version() const { return ""; }
};

/// "llvm", "nvrtc", "nests", or what was registered; InternalError where a target names another.
const CodeGenerator& generator_of(const Target&);
/// From any thread; for as long as the process runs. InternalError for a name that is taken.
void register_generator(const std::string& name, std::unique_ptr<const CodeGenerator>);

}  // namespace trainc::compiler
