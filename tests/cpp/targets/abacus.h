// A fourth device, made of what anyone has who adds one: a target with capabilities of its own, a code generator, a
// Device. It computes by the interpreter of nests, in memory that nobody else can touch.
#pragma once
#include <algorithm>
#include <cstring>
#include <memory>

#include "compiler/code_generator.h"
#include "interpret/interpret.h"
#include "runtime/arena.h"
#include "runtime/call_buffers.h"
#include "runtime/device.h"
#include "support/error.h"

namespace trainc::testing {

/// Its numbers stand on rods: an address of its memory is none of the host's.
inline uint8_t* on_rods(void* host) {
  return reinterpret_cast<uint8_t*>(reinterpret_cast<uintptr_t>(host) | uintptr_t{1} << 62);
}
inline uint8_t* on_host(const void* rods) {
  return reinterpret_cast<uint8_t*>(reinterpret_cast<uintptr_t>(rods) & ~(uintptr_t{1} << 62));
}

/// Vectors of four, and nothing else that anyone asks for.
inline Target plain_abacus(const CacheSizes& caches = {}) {
  return {.device = "abacus", .generator = "abacus", .caches = caches, .f32_lanes = 4};
}

class AbacusGenerator : public compiler::CodeGenerator {
 public:
  Code generate(const loop::LoopNest& nest, const Target&, compiler::Entry) const override {
    const std::string text = loop::print(nest);
    return {{text.begin(), text.end()}};
  }
  Listing listing(const loop::LoopNest& nest, const Target&, compiler::Entry) const override {
    return {".beads", loop::print(nest)};
  }
};

class AbacusKernel {
 public:
  explicit AbacusKernel(const plan::Kernel& k)
      : nest_(loop::parse({reinterpret_cast<const char*>(k.code.data()), k.code.size()})) {}
  struct Argument {
    uint8_t* data;
    int64_t bytes;
  };
  /// The number of iterations is the caller's: an optimizer's step has one for each chunk of a tensor.
  void run(const std::vector<Argument>& arguments, int64_t extent) {
    if (extent == 0) return;
    if (const loop::StmtNode& parallel = *nest_.body; extent != nest_.parallel_extent)
      nest_.body = loop::for_loop(parallel.loop, parallel.var, loop::integer(extent), parallel.body[0], parallel.lanes),
      nest_.parallel_extent = extent;
    std::vector<interpret::Memory> memory;
    for (const Argument& a : arguments) memory.push_back({{a.data, a.data + a.bytes}});
    const interpret::Findings found = interpret::run(nest_, memory);
    if (!found.messages.empty()) throw InternalError(nest_.name + ": " + found.messages[0]);
    size_t i = 0;
    for (const loop::Buffer& b : nest_.buffers) {
      if (b.space != loop::Space::Argument) continue;
      if (b.written) std::copy(memory[i].bytes.begin(), memory[i].bytes.end(), arguments[i].data);
      ++i;
    }
  }

 private:
  loop::LoopNest nest_;
};

class AbacusExecutable : public runtime::Executable {
 public:
  explicit AbacusExecutable(plan::Plan given) : Executable(std::move(given)) {
    for (const plan::Kernel& k : plan().kernels) kernels_.emplace_back(k);
  }
  void run(const runtime::Call& call) override {
    const runtime::Arena arena(plan().temp_bytes);
    const std::vector<void*> pointers = runtime::place_buffers(plan(), call, arena.data());
    for (const plan::Step& s : plan().steps) {
      require(s.kind == plan::StepKind::Kernel, "the abacus has kernels alone");
      std::vector<AbacusKernel::Argument> arguments;
      require(s.shifts.empty(), "the abacus reads every argument from its beginning");
      for (int b : s.arguments) arguments.push_back({on_host(pointers[b]), plan().buffers[b].bytes});
      kernels_[s.kernel].run(arguments, s.parallel_extent);
    }
  }

 private:
  std::vector<AbacusKernel> kernels_;
};

class AbacusForeach : public runtime::Foreach {
 public:
  explicit AbacusForeach(plan::Foreach given) : Foreach(std::move(given)), kernel_(plan().kernel) {}

 private:
  void launch(std::span<void* const> tensors, std::span<const int64_t> numels, std::span<const double> scalars,
              void*) override {
    for (size_t t = 0, next = 0; t < numels.size(); ++t) {
      std::vector<AbacusKernel::Argument> arguments;
      std::vector<uint64_t> slots;
      slots.reserve(scalars.size());
      for (const plan::ForeachInput& i : plan().inputs) {
        if (i.scalar)
          slots.push_back(runtime::scalar_bits(scalars[slots.size()], i.dtype)),
              arguments.push_back({reinterpret_cast<uint8_t*>(&slots.back()), size_of(i.dtype)});
        else arguments.push_back({on_host(tensors[next++]), numels[t] * size_of(i.dtype)});
      }
      int64_t numel = numels[t];
      arguments.push_back({reinterpret_cast<uint8_t*>(&numel), 8});
      kernel_.run(arguments, (numel + plan().chunk - 1) / plan().chunk);
    }
  }
  AbacusKernel kernel_;
};

class Abacus : public runtime::Device {
 public:
  std::string description() const override { return "an abacus"; }
  std::string target() const override { return "abacus"; }
  std::shared_ptr<void> allocate(int64_t bytes) const override {
    const auto memory = std::make_shared<runtime::AlignedMemory>(std::max<int64_t>(bytes, 1));
    return {memory, on_rods(memory->data())};
  }
  void copy_in(void* device, const void* host, int64_t bytes) const override {
    if (bytes > 0) std::memcpy(on_host(device), host, static_cast<size_t>(bytes));
  }
  void copy_out(void* host, const void* device, int64_t bytes) const override {
    if (bytes > 0) std::memcpy(host, on_host(device), static_cast<size_t>(bytes));
  }

 protected:
  std::unique_ptr<runtime::Executable> make(plan::Plan plan) const override {
    return std::make_unique<AbacusExecutable>(std::move(plan));
  }
  std::unique_ptr<runtime::Foreach> make(plan::Foreach plan) const override {
    return std::make_unique<AbacusForeach>(std::move(plan));
  }
};

/// All that it takes.
inline void register_abacus() {
  static const bool once = [] {
    register_target("abacus", [](CpuLevel, const CacheSizes& caches) { return plain_abacus(caches); });
    compiler::register_generator("abacus", std::make_unique<AbacusGenerator>());
    runtime::register_device("abacus", "abacus", [](const std::string& which) {
      return which.empty() ? std::make_shared<Abacus>() : nullptr;
    });
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace trainc::testing
