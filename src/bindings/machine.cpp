#include <elf.h>
#include <link.h>

#include <cstring>

#include "bindings/bindings.h"
#include "support/cpu.h"

extern "C" const char __ehdr_start[] __attribute__((visibility("hidden")));  // the linker's: where this module begins in memory

namespace trainc::bindings {
namespace {

/// The linker's hash of all that this module holds (its ELF build id), in hexadecimal; "" where it was linked without.
std::string build_id() {
  const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(__ehdr_start);
  const auto* segments = reinterpret_cast<const ElfW(Phdr)*>(__ehdr_start + header->e_phoff);
  for (int i = 0; i < header->e_phnum; ++i) {
    if (segments[i].p_type != PT_NOTE) continue;
    const char *p = __ehdr_start + segments[i].p_vaddr, *end = p + segments[i].p_memsz;
    const auto padded = [&](size_t size) { return (size + segments[i].p_align - 1) / segments[i].p_align * segments[i].p_align; };
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
  m.def("cpu_level", [] { return std::string(name_of(cpu_level())); }, "The level that kernels are compiled for; TRAINC_CPU forces a lower one.");
  m.def("machine_cpu_level", [] { return std::string(name_of(machine_cpu_level())); });
  m.def("cpu_model", &cpu_model);
  m.def("cpu_is_intel", &cpu_is_intel);
  m.def("cache_sizes", [] {
    const CacheSizes c = cache_sizes();
    return std::vector<int64_t>{c.l1d, c.l2, c.l3};
  }, "Bytes of L1d, L2 and L3 that kernels are blocked for.");
  m.def("build_id", &build_id, "The linker's hash of this module.");
  m.def("thread_count", &runtime::thread_count);
  m.def("version", [] { return std::string(TRAINC_VERSION); });
}

}  // namespace trainc::bindings
