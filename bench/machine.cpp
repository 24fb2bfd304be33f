// The machine's peaks, with all threads at once: fp32 multiply-adds, bf16 dot products (0 where it has none that are
// quicker), and memory copied.
//   bench_machine THREADS      prints one line of JSON: FLOPs and bytes (read + written) per second, each the best of
//                              several short rounds; and FLOPs per second over a whole second ("sustained"), for a
//                              clock that a round is too short to slow down
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "peak.h"

namespace trainc::bench {
namespace {

constexpr int kRounds = 16;
// a round of arithmetic: some 10 ms, short enough to fit between other processes
constexpr int64_t kSteps = 200000;
constexpr size_t kCopied = size_t(64) << 20;  // bytes a thread copies in a round: beyond its share of any cache

using Clock = std::chrono::steady_clock;

// `work()` on `threads` threads, begun together; the best of `rounds` of (sum of what it returns) / (seconds until the
// last is done).
double best_rate(int rounds, int threads, const std::function<double(int)>& work) {
  double best = 0;
  for (int round = 0; round < rounds; ++round) {
    std::atomic<int> waiting{threads};
    std::vector<double> done(threads);
    std::vector<Clock::time_point> begun(threads), ended(threads);
    std::vector<std::thread> running;
    for (int t = 0; t < threads; ++t)
      running.emplace_back([&, t] {
        --waiting;
        while (waiting.load() > 0) std::this_thread::yield();
        begun[t] = Clock::now();
        done[t] = work(t);
        ended[t] = Clock::now();
      });
    for (auto& thread : running) thread.join();
    double seconds = std::chrono::duration<double>(*std::max_element(ended.begin(), ended.end()) -
                                                   *std::min_element(begun.begin(), begun.end()))
                         .count();
    double total = 0;
    for (double part : done) total += part;
    best = std::max(best, total / seconds);
  }
  return best;
}

// `work()` again and again for a second on `threads` threads: what it returns, per second.
double sustained_rate(int threads, const std::function<double(int)>& work) {
  return best_rate(1, threads, [&](int t) {
    double done = 0;
    for (const auto begun = Clock::now(); Clock::now() - begun < std::chrono::seconds(1);) done += work(t);
    return done;
  });
}

struct Flops { double best = 0, sustained = 0; };
Flops flops_of(int threads, const std::function<double(int64_t)>& chains) {
  const auto work = [&](int) { return chains(kSteps); };
  return {best_rate(kRounds, threads, work), sustained_rate(threads, work)};
}

}  // namespace
}  // namespace trainc::bench

int main(int argc, char** argv) {
  using namespace trainc;
  const int threads = argc > 1 ? std::atoi(argv[1]) : int(std::thread::hardware_concurrency());
  if (argc > 2 || threads < 1) {
    std::fprintf(stderr, "usage: bench_machine [THREADS]\n");
    return 2;
  }
  const CpuLevel level = quickest_cpu_level();
  const auto fp32 = bench::flops_of(threads, [&](int64_t steps) { return bench::fma_chains(level, steps); });
  bench::Flops bf16;
  if (has_tiles(level)) bf16 = bench::flops_of(threads, bench::tile_chains);
  else if (has_bf16_dot(level)) bf16 = bench::flops_of(threads, bench::bf16_chains);

  struct Buffers { std::unique_ptr<char[]> from, to; };
  std::vector<Buffers> buffers(threads);
  for (auto& [from, to] : buffers) {
    from.reset(new char[bench::kCopied]), to.reset(new char[bench::kCopied]);
    std::memset(from.get(), 1, bench::kCopied), std::memset(to.get(), 2, bench::kCopied);
  }
  double copy = bench::best_rate(bench::kRounds, threads, [&](int t) {
    std::memcpy(buffers[t].to.get(), buffers[t].from.get(), bench::kCopied);
    benchmark::DoNotOptimize(buffers[t].to[0]);
    return 2.0 * bench::kCopied;
  });
  std::printf(
      "{\"cpu\": \"%s\", \"level\": \"%s\", \"threads\": %d, \"fp32_flops\": %.6g, \"bf16_flops\": %.6g, "
      "\"fp32_sustained\": %.6g, \"bf16_sustained\": %.6g, \"copy_bytes\": %.6g}\n",
      cpu_model().c_str(), std::string(name_of(level)).c_str(), threads, fp32.best, bf16.best, fp32.sustained,
      bf16.sustained, copy);
}
