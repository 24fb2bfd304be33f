// Compiling many kernels for every architecture, each distinct one once, and the table of what they need.
#pragma once
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "emit/cuda/emit.h"

namespace trainc::testing {

inline const Gpu kGpus[] = {Gpu::Sm80, Gpu::Sm90a, Gpu::Sm100};

struct Compiled {
  std::string kernel;
  Gpu gpu;
  emit::cuda::Resources resources;
  std::string error;
};

/// The nests that differ in more than their names.
inline std::vector<loop::LoopNest> distinct(const std::vector<loop::LoopNest>& nests) {
  std::vector<loop::LoopNest> kept;
  std::set<std::string> seen;
  for (loop::LoopNest n : nests) {
    const std::string name = n.name;
    n.name = "kernel";
    n.origins.clear();
    n.bytes = n.flops = 0;
    if (!seen.insert(loop::print(n)).second) continue;
    n.name = name;
    kept.push_back(std::move(n));
  }
  return kept;
}

inline std::vector<Compiled> compile_all(const std::vector<loop::LoopNest>& nests) {
  std::vector<Compiled> all;
  for (const loop::LoopNest& n : nests)
    for (Gpu gpu : kGpus) all.push_back({n.name, gpu, {}, ""});
  std::atomic<size_t> next = 0;
  auto work = [&] {
    for (size_t i; (i = next++) < all.size();) {
      try {
        all[i].resources =
            emit::cuda::compile(emit::cuda::source(nests[i / std::size(kGpus)]), all[i].kernel, all[i].gpu).resources;
      } catch (const std::exception& e) { all[i].error = e.what(); }
    }
  };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < std::max(1u, std::thread::hardware_concurrency()); ++t) threads.emplace_back(work);
  for (std::thread& t : threads) t.join();
  return all;
}

/// One line a kernel: registers, shared memory and stack for each architecture. Fails where one does not compile, or
/// spills.
inline void expect_no_spills(const std::vector<loop::LoopNest>& nests) {
  const std::vector<Compiled> all = compile_all(nests);
  std::printf("%-40s %s\n", "kernel", "registers/shared bytes/spilled bytes for sm_80, sm_90a, sm_100");
  for (size_t i = 0; i < all.size(); i += std::size(kGpus)) {
    std::printf("%-40s", all[i].kernel.c_str());
    for (size_t g = 0; g < std::size(kGpus); ++g) {
      const Compiled& c = all[i + g];
      EXPECT_EQ(c.error, "") << emit::cuda::source(nests[i / std::size(kGpus)]);
      EXPECT_EQ(c.resources.spill_bytes, 0) << c.kernel << " on " << name_of(c.gpu);
      EXPECT_EQ(c.resources.stack_bytes, 0) << c.kernel << " on " << name_of(c.gpu);
      EXPECT_GT(c.resources.registers, 0);
      std::printf("  %3d/%5ld/%ld", c.resources.registers, static_cast<long>(c.resources.shared_bytes),
                  static_cast<long>(c.resources.spill_bytes));
    }
    std::printf("\n");
  }
}

}  // namespace trainc::testing
