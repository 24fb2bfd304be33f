#include <elf.h>
#include <link.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "bindings/bindings.h"
#include "compiler/code_generator.h"
#include "emit/cuda/emit.h"
#include "interpret/amx.h"
#include "interpret/device.h"
#include "passes/pipeline.h"
#include "runtime/interpret/device.h"
#include "runtime/interpret/driver.h"
#include "support/cpu.h"
#include "support/error.h"
#include "support/float_environment.h"
#include "support/target.h"

// the linker's: where this module begins in memory
extern "C" const char __ehdr_start[] __attribute__((visibility("hidden")));

namespace trainc::bindings {
namespace {

/// The linker's hash of all that this module holds (its ELF build id), in hexadecimal; "" where it was linked without.
std::string build_id() {
  const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(__ehdr_start);
  const auto* segments = reinterpret_cast<const ElfW(Phdr)*>(__ehdr_start + header->e_phoff);
  for (int i = 0; i < header->e_phnum; ++i) {
    if (segments[i].p_type != PT_NOTE) continue;
    const char *p = __ehdr_start + segments[i].p_vaddr, *end = p + segments[i].p_memsz;
    const auto padded = [&](size_t size) {
      return (size + segments[i].p_align - 1) / segments[i].p_align * segments[i].p_align;
    };
    while (p + sizeof(ElfW(Nhdr)) <= end) {
      const auto* note = reinterpret_cast<const ElfW(Nhdr)*>(p);
      const char *name = p + sizeof *note, *content = name + padded(note->n_namesz);
      if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0) {
        std::string hex;
        for (size_t k = 0; k < note->n_descsz; ++k)
          for (int shift : {4, 0}) hex += "0123456789abcdef"[static_cast<uint8_t>(content[k]) >> shift & 15];
        return hex;
      }
      p = content + padded(note->n_descsz);
    }
  }
  return "";
}

}  // namespace

void bind_machine(nb::module_& m) {
  m.def(
      "cpu_level", [] { return std::string(name_of(cpu_level())); },
      "The level that kernels are compiled for; TRAINC_CPU forces another one.");
  m.def("machine_cpu_level", [] { return std::string(name_of(machine_cpu_level())); });
  m.def("quickest_cpu_level", [] { return std::string(name_of(quickest_cpu_level())); });
  m.def("emulate_amx", &interpret::emulate_amx,
        "For tests: kernels of level amx run here from now on, instruction by instruction; False where the machine is "
        "too far from it.");
  m.def("emulated_instructions", &interpret::emulated_instructions);
  m.def("cpu_model", &cpu_model);
  m.def("cpu_is_intel", &cpu_is_intel);
  m.def(
      "cache_sizes",
      [] {
        const CacheSizes c = cache_sizes();
        return std::vector<int64_t>{c.l1d, c.l2, c.l3, c.cores};
      },
      "Bytes of L1d, L2 and L3 that kernels are blocked for, and the number of cores that can run at a time.");
  m.def(
      "target", [](const std::string& device) { return runtime::device(device)->target(); }, nb::arg("device"),
      "What kernels for a device are compiled for: \"cpu\", \"interpret\", \"sm_90a\", ...");
  m.def(
      "multiplies", [](const std::string& device) { return runtime::device(device)->multiplies(); }, nb::arg("device"),
      "Whether the vendor's library of matrix products can be loaded.");
  m.def(
      "measures", [](const std::string& target) { return target_of(target, cpu_level()).tunes(); }, nb::arg("target"),
      "Whether kernels, or products of the vendor's library, for a target are timed while a plan is compiled: what "
      "tune=\"max\" needs.");
  m.def(
      "shares_kernels", [](const std::string& target) { return target_of(target, cpu_level()).shares_kernels; },
      nb::arg("target"), "Whether one kernel for a target may serve plans of different sizes.");
  m.def(
      "code_generator_version",
      [](const std::string& target) { return compiler::generator_of(target_of(target, cpu_level())).version(); },
      nb::arg("target"),
      "Of what makes a target's code and is no part of this module: NVRTC's. \"\" where nothing is.");
  m.def("build_id", &build_id, "The linker's hash of this module.");
  m.def("flushes_denormals", &flushes_denormals,
        "Whether denormal numbers count as zero on the calling thread (torch.set_flush_denormal).");
  m.def(
      "optional_passes",
      [] {
        const auto names = optional_passes();
        return std::vector<std::string>(names.begin(), names.end());
      },
      "The passes that TRAINC_DISABLE_PASSES may name.");
  m.def("thread_count", &runtime::thread_count);
  m.def(
      "device", [](const std::string& device) { return runtime::device(device)->description(); }, nb::arg("device"),
      "What the device is, in words; UserError where it is not there.");
  m.def(
      "interpreted_launches",
      [] {
        const auto& count =
            dynamic_cast<const runtime::interpreted::InterpretedDevice&>(*runtime::device("interpret")).count();
        return nb::make_tuple(count.launches.load(), count.blocks.load());
      },
      "Kernels launched on TRAINC_DEVICE=interpret so far, and their blocks.");
  m.def(
      "interpreted_streams",
      [] {
        std::vector<uintptr_t> streams;
        for (void* s : std::exchange(runtime::interpreted::interpreted_driver()->streams, {}))
          streams.push_back(reinterpret_cast<uintptr_t>(s));
        return streams;
      },
      "The streams that anything was queued on, on the device interpret:cuda, since this was last asked.");
  m.def(
      "compile_cuda",
      [](const std::string& nest, const std::string& gpu) {
        const Unlocked unlock;
        const loop::LoopNest parsed = loop::parse(nest);
        loop::verify(parsed);
        const emit::cuda::Resources r =
            emit::cuda::compile(emit::cuda::source(parsed), parsed.name, gpu_of(gpu)).resources;
        const Locked lock;
        return nb::make_tuple(r.registers, r.shared_bytes, r.stack_bytes, r.spill_bytes);
      },
      nb::arg("nest"), nb::arg("gpu"),
      "A device nest's text through NVRTC: (registers, shared, stack and spilled bytes).");
  m.def(
      "memory_traffic",
      [](const std::string& nest) {
        std::vector<interpret::Traffic> all;
        {
          const Unlocked unlock;
          const loop::LoopNest parsed = loop::parse(nest);
          loop::verify(parsed);
          all = interpret::traffic_of(parsed);
        }
        nb::list rows;
        for (const interpret::Traffic& t : all)
          rows.append(nb::make_tuple(t.buffer, t.shared, t.written, t.requests, t.units, t.least, t.bytes));
        return rows;
      },
      nb::arg("nest"),
      "What a device nest's warps ask of memory, a buffer at a time: (buffer, in Shared memory, written, requests, "
      "sectors or "
      "wavefronts, how few would do, bytes).");
  m.def("version", [] { return std::string(TRAINC_VERSION); });
}

}  // namespace trainc::bindings
