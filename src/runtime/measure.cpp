#include "runtime/measure.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>

#include "runtime/arena.h"
#include "runtime/code.h"
#include "support/error.h"

namespace trainc::runtime {
namespace {

constexpr int kLeastRuns = 3, kMostRuns = 20;
constexpr double kEnough = 0.02;  // seconds, of all runs together

}  // namespace

double seconds_of(const plan::Kernel& kernel, int64_t extent, const std::vector<int64_t>& argument_bytes) {
  const MappedCode code({kernel});
  std::vector<AlignedMemory> memory;
  std::vector<void*> arguments;
  for (int64_t bytes : argument_bytes) {
    memory.emplace_back(bytes);
    if (bytes > 0) std::memset(memory.back().data(), 0, static_cast<size_t>(bytes));
    arguments.push_back(memory.back().data());
  }
  const auto run = [&] {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    require(run_kernel(code.entry(0), arguments.data(), kernel.scratch_bytes, extent, false) == 0,
            "a measured kernel failed its own check");
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  run();  // wakes the threads, and fills the caches as the step would
  double best = std::numeric_limits<double>::infinity(), spent = 0;
  for (int i = 0; i < kMostRuns && (i < kLeastRuns || spent < kEnough); ++i) {
    const double seconds = run();
    best = std::min(best, seconds), spent += seconds;
  }
  return best;
}

}  // namespace trainc::runtime
