// The machine: CPU levels (a list, best first), cache sizes.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace trainc {

//         name        text           LLVM cpu          f32 lanes
#define TRAINC_CPU_LEVELS(X)                     \
  X(Amx, "amx", "cooperlake", 16)                \
  X(Avx512Bf16, "avx512_bf16", "cooperlake", 16) \
  X(Avx512, "avx512", "skylake-avx512", 16)      \
  X(Avx2, "avx2", "haswell", 8)

enum class CpuLevel : uint8_t {
#define X(name, text, cpu, lanes) name,
  TRAINC_CPU_LEVELS(X)
#undef X
};
std::string_view name_of(CpuLevel);
std::string_view llvm_cpu_of(CpuLevel);
int f32_lanes(CpuLevel);
inline bool has_bf16_dot(CpuLevel level) { return level <= CpuLevel::Avx512Bf16; }  // vdpbf16ps
// tdpbf16ps; LLVM's features beside its cpu are kTileFeatures
inline bool has_tiles(CpuLevel level) { return level <= CpuLevel::Amx; }
inline constexpr std::string_view kTileFeatures = "+amx-tile,+amx-bf16";

/// What code is made for: the machine's quickest level, or the one that TRAINC_CPU names. Throws UserError where
/// TRAINC_CPU names none, or one above the machine; or where the machine has no AVX2.
CpuLevel cpu_level();
/// The machine's best level, which says what it can run: whatever TRAINC_CPU says, what CPUID and the operating system
/// (XGETBV; for AMX also its permission, which is asked for once) allow.
CpuLevel machine_cpu_level();
/// The level that is quickest on this machine: its best one, but for a CPU that was built to multiply bf16 on tiles and
/// whose tiles a hypervisor hides. Its vdpbf16ps takes as long as four FMAs of f32, which do half the work each.
CpuLevel quickest_cpu_level();
/// For whoever carries out a level's instructions where the CPU does not (interpret/amx.h): the machine's best level
/// from now on.
void set_machine_cpu_level(CpuLevel);
CpuLevel cpu_level_of(std::string_view text);  // UserError for another word

struct CacheSizes {
  int64_t l1d = 32 << 10, l2 = 1 << 20, l3 = 16 << 20;  // bytes, a core's share of each but l3
  // Cores that can run at a time; work is cut to suit any number of threads up to it.
  int cores = 16;
};
/// From CPUID (leaf 4, or 0x8000001D); the defaults above where it says nothing. Cores are those that are online.
CacheSizes cache_sizes();
std::string cpu_model();  // "AMD EPYC ...": what reports print
bool cpu_is_intel();      // which of eager's dropout generators the framework uses

}  // namespace trainc
