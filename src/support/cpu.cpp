#include "support/cpu.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "support/error.h"

namespace trainc {
namespace {

struct Cpuid { uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0; };

/// Under a hypervisor each CPUID leaves the guest, which takes tens of microseconds: what is found by it, is found
/// once.
Cpuid cpuid(uint32_t leaf, uint32_t subleaf = 0) {
  Cpuid r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);  // zeros where the leaf is not there
  return r;
}

bool bit(uint32_t word, int n) { return (word >> n) & 1; }

/// Register states that the operating system saves at a task switch: a CPU that has AVX-512 under a kernel that does
/// not save zmm would corrupt numbers silently.
uint64_t saved_states() {
  if (!bit(cpuid(1).ecx, 27)) return 0;  // OSXSAVE
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

/// Linux hands out the 8 KB of tile registers to processes that ask. It refuses where a thread's alternative signal
/// stack is too small for them.
bool tiles_permitted() {
  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA: asm/prctl.h, not in all systems' headers
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  static const bool permitted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return permitted;
}

bool has(CpuLevel level) {
  constexpr uint64_t kYmm = 0x6, kZmm = 0xE6, kTiles = 0x60000;
  const uint64_t saved = saved_states();
  const Cpuid one = cpuid(1), seven = cpuid(7);
  switch (level) {
    case CpuLevel::Avx2:  // avx2, fma, f16c, bmi1, bmi2
      return (saved & kYmm) == kYmm && bit(seven.ebx, 5) && bit(one.ecx, 12) && bit(one.ecx, 29) && bit(seven.ebx, 3) &&
             bit(seven.ebx, 8);
    case CpuLevel::Avx512:  // f, dq, cd, bw, vl
      return has(CpuLevel::Avx2) && (saved & kZmm) == kZmm && bit(seven.ebx, 16) && bit(seven.ebx, 17) &&
             bit(seven.ebx, 28) && bit(seven.ebx, 30) && bit(seven.ebx, 31);
    case CpuLevel::Avx512Bf16:  // vnni (part of LLVM's cooperlake), bf16
      return has(CpuLevel::Avx512) && bit(seven.ecx, 11) && bit(cpuid(7, 1).eax, 5);
    case CpuLevel::Amx:  // amx-tile, amx-bf16
      return has(CpuLevel::Avx512Bf16) && (saved & kTiles) == kTiles && bit(seven.edx, 24) && bit(seven.edx, 22) &&
             tiles_permitted();
  }
  return false;
}

bool vendor_is_intel() {
  const Cpuid r = cpuid(0);
  char vendor[12];
  std::memcpy(vendor, &r.ebx, 4);
  std::memcpy(vendor + 4, &r.edx, 4);
  std::memcpy(vendor + 8, &r.ecx, 4);
  return std::string_view(vendor, 12) == "GenuineIntel";
}

CacheSizes find_cache_sizes() {
  CacheSizes sizes;
  const uint32_t smt = std::max(1u, cpuid(0xB, 0).ebx & 0xFFFF);  // hardware threads a core
  const uint32_t leaf = cpu_is_intel() ? 4u : 0x8000001Du;
  for (uint32_t i = 0; i < 16; ++i) {
    const Cpuid c = cpuid(leaf, i);
    const uint32_t type = c.eax & 31, level = (c.eax >> 5) & 7;
    if (type == 0) break;
    if (type == 2) continue;  // instructions
    const int64_t line = (c.ebx & 0xFFF) + 1, partitions = ((c.ebx >> 12) & 0x3FF) + 1, ways = (c.ebx >> 22) + 1;
    const int64_t bytes = line * partitions * ways * (static_cast<int64_t>(c.ecx) + 1);
    const int64_t cores = std::max(1u, (((c.eax >> 14) & 0xFFF) + 1) / smt);  // that share it
    if (level == 1) sizes.l1d = bytes / cores;
    if (level == 2) sizes.l2 = bytes / cores;
    if (level == 3) sizes.l3 = bytes;
  }
  if (const long online = sysconf(_SC_NPROCESSORS_ONLN); online > 0) sizes.cores = static_cast<int>(online);
  return sizes;
}

std::string find_cpu_model() {
  char text[49] = {};
  for (uint32_t i = 0; i < 3; ++i) {
    const Cpuid r = cpuid(0x80000002u + i);
    std::memcpy(text + 16 * i, &r, 16);
  }
  std::string model(text);
  const size_t first = model.find_first_not_of(' '), last = model.find_last_not_of(' ');
  return first == std::string::npos ? "unknown CPU" : model.substr(first, last - first + 1);
}

/// Intel's cores since Sapphire Rapids, which are those with AVX-512 FP16. Measured on an Emerald Rapids: one in two
/// cycles, of FMAs four.
bool has_slow_bf16_dot() {
  static const bool slow = vendor_is_intel() && bit(cpuid(7).edx, 23);
  return slow;
}

std::atomic<int> told_level{-1};  // set_machine_cpu_level

constexpr std::array kLevels = {
#define X(name, text, cpu, lanes) CpuLevel::name,
    TRAINC_CPU_LEVELS(X)
#undef X
};

CpuLevel best_level() {
  for (CpuLevel level : kLevels)  // best first
    if (has(level)) return level;
  throw UserError("trainc needs a CPU with AVX2 and FMA; " + cpu_model() +
                  " has not, or its operating system does not save their registers");
}

std::string level_words() {
  std::string words;
  for (CpuLevel level : kLevels) words += (words.empty() ? "" : ", ") + std::string(name_of(level));
  return words;
}

}  // namespace

std::string_view name_of(CpuLevel level) {
  switch (level) {
#define X(name, text, cpu, lanes) \
  case CpuLevel::name: return text;
    TRAINC_CPU_LEVELS(X)
#undef X
  }
  return "?";
}

std::string_view llvm_cpu_of(CpuLevel level) {
  switch (level) {
#define X(name, text, cpu, lanes) \
  case CpuLevel::name: return cpu;
    TRAINC_CPU_LEVELS(X)
#undef X
  }
  return "?";
}

int f32_lanes(CpuLevel level) {
  switch (level) {
#define X(name, text, cpu, lanes) \
  case CpuLevel::name: return lanes;
    TRAINC_CPU_LEVELS(X)
#undef X
  }
  return 0;
}

CpuLevel cpu_level_of(std::string_view text) {
  for (CpuLevel level : kLevels)
    if (name_of(level) == text) return level;
  throw UserError("'" + std::string(text) + "' is not a CPU level; there are " + level_words());
}

CpuLevel machine_cpu_level() {
  if (const int level = told_level.load(); level >= 0) return static_cast<CpuLevel>(level);
  static const CpuLevel best = best_level();
  return best;
}

void set_machine_cpu_level(CpuLevel level) { told_level.store(static_cast<int>(level)); }

CpuLevel quickest_cpu_level() {
  const CpuLevel best = machine_cpu_level();
  return best == CpuLevel::Avx512Bf16 && has_slow_bf16_dot() ? CpuLevel::Avx512 : best;
}

CpuLevel cpu_level() {
  const char* forced = std::getenv("TRAINC_CPU");
  if (!forced || !*forced) return quickest_cpu_level();
  const CpuLevel machine = machine_cpu_level();
  CpuLevel level;
  try {
    level = cpu_level_of(forced);
  } catch (const UserError& e) { throw UserError("TRAINC_CPU: " + std::string(e.what())); }
  if (level < machine)  // the list is best first
    throw UserError("TRAINC_CPU=" + std::string(forced) + ": this machine's best level is " +
                    std::string(name_of(machine)));
  return level;
}

bool cpu_is_intel() {
  static const bool intel = vendor_is_intel();
  return intel;
}

CacheSizes cache_sizes() {
  static const CacheSizes sizes = find_cache_sizes();
  return sizes;
}

std::string cpu_model() {
  static const std::string model = find_cpu_model();
  return model;
}

}  // namespace trainc
