#include "support/target.h"

#include <map>
#include <mutex>
#include <utility>

#include "support/error.h"

namespace trainc {

Target cpu_target(CpuLevel level, const CacheSizes& caches) {
  return {.cpu = std::string(name_of(level)),
          .generator = "llvm",
          .caches = caches,
          .f32_lanes = f32_lanes(level),
          .vector_registers = f32_lanes(level) == 16 ? 32 : 16,
          .has_bf16_dot = has_bf16_dot(level),
          .has_tiles = has_tiles(level),
          .transposes_in_registers = true,
          .has_wide_totals = true,
          .shifts_arguments = true,
          .writes_in_place = true,
          .masks_as_bits = true,
          .skips_steps = true,
          .fuses_chains = true,
          .chunks_losses = true,
          .shares_kernels = true,
          .measures = true};
}

Target gpu_target(Gpu gpu) {
  return {.device = std::string(name_of(gpu)),
          .generator = "nvrtc",
          .f32_lanes = 16,
          .vector_registers = 32,
          .launches_blocks = true,
          .multiprocessors = multiprocessors(gpu),
          .draws_in_kernels = true,
          .has_tf32 = true,
          .has_vendor_products = true,
          .masks_as_bits = true,
          .measures_products = true};
}

namespace {

Target interpreted_target() {
  Target target = gpu_target(Gpu::Sm90a);
  target.device = "interpret";
  target.generator = "nests";
  return target;
}

/// What nests for blocks of threads have no words for.
void require_consistent(const std::string& name, const Target& t) {
  const auto apart = [&](bool capability, const char* word) {
    require(!(t.launches_blocks && capability),
            "target " + name + ": blocks of threads and " + word + " do not go together");
  };
  apart(t.has_wide_totals, "has_wide_totals");
  apart(t.fuses_chains, "fuses_chains");
  apart(t.transposes_in_registers, "transposes_in_registers");
  apart(t.shifts_arguments, "shifts_arguments");
  apart(t.has_bf16_dot, "has_bf16_dot");
  apart(t.has_tiles, "has_tiles");
  require(t.has_bf16_dot || !t.has_tiles, "target " + name + ": has_tiles without has_bf16_dot");
}

struct Registry {
  std::mutex mutex;
  std::map<std::string, MakeTarget, std::less<>> makers;

  Registry() {
    makers["cpu"] = cpu_target;
    makers["interpret"] = [](CpuLevel, const CacheSizes&) { return interpreted_target(); };
#define X(name, text, multiprocessors) makers[text] = [](CpuLevel, const CacheSizes&) { return gpu_target(Gpu::name); };
    TRAINC_GPUS(X)
#undef X
  }
};

Registry& registry() {
  static Registry registry;
  return registry;
}

}  // namespace

Target target_of(std::string_view name, CpuLevel level, const CacheSizes& caches) {
  MakeTarget make;
  {
    const std::lock_guard lock(registry().mutex);
    const auto it = registry().makers.find(name);
    if (it == registry().makers.end()) {
      std::string known;
      for (const auto& [word, maker] : registry().makers) known += (known.empty() ? "" : ", ") + word;
      throw UserError("kernels are not made for " + std::string(name) + "; there are " + known);
    }
    make = it->second;
  }
  Target target = make(level, caches);
  require_consistent(std::string(name), target);
  return target;
}

void register_target(std::string name, MakeTarget make) {
  const std::lock_guard lock(registry().mutex);
  registry().makers[std::move(name)] = std::move(make);
}

}  // namespace trainc
