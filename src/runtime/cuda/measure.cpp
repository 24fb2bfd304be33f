#include "runtime/cuda/measure.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

namespace trainc::runtime::cuda {
namespace {

constexpr int kRounds = 5, kRunsOfARound = 4;

/// Released when nothing that is queued uses it any more, whatever has failed meanwhile.
template <class T, class Release> std::shared_ptr<T> held(Driver& driver, T* p, const Release& release) {
  return {p, [&driver, release](T* p) {
            driver.drain();
            release(p);
          }};
}

std::shared_ptr<void> allocate(Driver& driver, int64_t bytes) {
  return held(driver, driver.allocate(std::max<int64_t>(bytes, 1)), [&driver](void* p) { driver.release(p); });
}

/// Words of 16 bits that are bf16 between 1/128 and 1, of either sign: as f16, and as the upper half of f32 and f64,
/// they are no larger than 2.
std::shared_ptr<void> random_numbers(Driver& driver, int64_t bytes) {
  constexpr int64_t kPattern = 1 << 20;
  if (bytes == 0) return allocate(driver, 0);
  std::vector<uint16_t> words(static_cast<size_t>(std::min(bytes, kPattern) + 1) / 2);
  std::mt19937 generator(1);
  for (uint16_t& w : words) {
    const uint32_t bits = generator();
    w = static_cast<uint16_t>((bits & 0x8000) | (0x3c00 + bits % 0x380));
  }
  std::shared_ptr<void> memory = allocate(driver, bytes);
  auto* begin = static_cast<uint8_t*>(memory.get());
  int64_t filled = std::min(bytes, kPattern);
  driver.load_data(begin, words.data(), filled);
  for (; filled < bytes; filled += std::min(filled, bytes - filled))
    driver.copy(begin + filled, begin, std::min(filled, bytes - filled), nullptr);
  return memory;
}

double least(Driver& driver, const std::function<void(Stream)>& run) {
  driver.seconds(run);  // the library loads what it needs, and caches are as a step would leave them
  double best = std::numeric_limits<double>::infinity();
  const auto round = [&](Stream stream) {
    for (int i = 0; i < kRunsOfARound; ++i) run(stream);
  };
  for (int i = 0; i < kRounds; ++i) best = std::min(best, driver.seconds(round) / kRunsOfARound);
  return best;
}

int64_t bytes_of(const plan::Matrix& x, int64_t batch, int64_t rows, int64_t columns) {
  const int64_t last =
      x.offset + (batch - 1) * x.batch_stride + (rows - 1) * x.row_stride + (columns - 1) * x.column_stride;
  return (last + 1) * size_of(x.dtype);
}

}  // namespace

double seconds_of(Driver& driver, const plan::Product& p, int64_t bytes) {
  const int64_t item = size_of(p.result.dtype), result = bytes_of(p.result, p.batch, p.m, p.n);
  const std::shared_ptr<void> lhs = random_numbers(driver, bytes_of(p.lhs, p.batch, p.m, p.k)),
                              rhs = random_numbers(driver, bytes_of(p.rhs, p.batch, p.k, p.n)),
                              d = allocate(driver, result), memory = allocate(driver, bytes);
  std::shared_ptr<void> bias, addend, sums;
  if (p.bias) bias = random_numbers(driver, p.n * item);
  if (p.addend) addend = random_numbers(driver, result);
  if (p.sums_of != plan::SumsOf::None) sums = allocate(driver, std::max(p.m, p.n) * item);
  const Factors factors{lhs.get(), rhs.get(), d.get(), bias.get(), addend.get(), sums.get(), memory.get(), bytes};
  return least(driver, [&](Stream stream) { driver.multiply(p, factors, stream); });
}

double seconds_of(Driver& driver, const plan::Kernel& kernel, int64_t extent,
                  const std::vector<int64_t>& argument_bytes) {
  std::vector<std::shared_ptr<void>> memory;
  std::vector<void*> pointers;
  for (int64_t n : argument_bytes) {
    memory.push_back(random_numbers(driver, n));
    pointers.push_back(memory.back().get());
  }
  const auto table_bytes = static_cast<int64_t>(pointers.size() * sizeof(void*));
  const std::shared_ptr<void> table = allocate(driver, table_bytes);
  driver.load_data(table.get(), pointers.data(), table_bytes);
  const auto status = held(driver, driver.allocate_status(1), [&](uint32_t* p) { driver.release_status(p); });
  const auto function = held(driver, driver.load(kernel), [&](Function f) { driver.unload(f); });
  Launch launch{.function = function.get(),
                .blocks = extent,
                .threads = kernel.threads,
                .table = table.get(),
                .slots = std::vector<int>(pointers.size()),
                .status = status.get(),
                .name = &kernel.name,
                .bytes = argument_bytes,
                .fresh = std::vector<char>(pointers.size(), 0)};
  std::iota(launch.slots.begin(), launch.slots.end(), 0);
  const double seconds = least(driver, [&](Stream stream) { driver.launch(launch, stream); });
  require(*status == 0, "a measured kernel failed its own check");
  return seconds;
}

}  // namespace trainc::runtime::cuda
