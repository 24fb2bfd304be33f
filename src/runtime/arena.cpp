#include "runtime/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

namespace trainc::runtime {

AlignedMemory::AlignedMemory(int64_t bytes) {
  constexpr int64_t kHugePage = 2 << 20;
  const int64_t alignment = bytes >= 2 * kHugePage ? kHugePage : 64;
  size_ = (bytes + alignment - 1) / alignment * alignment;
  data_ = std::aligned_alloc(alignment, size_);
  if (!data_) throw std::bad_alloc();
  if (alignment == kHugePage) madvise(data_, size_, MADV_HUGEPAGE);  // a wish: nothing depends on it
}

AlignedMemory::~AlignedMemory() { std::free(data_); }

namespace {
struct Pool {
  std::mutex mutex;
  std::vector<AlignedMemory> free;
};
Pool& pool() {
  static Pool* p = new Pool;  // never destroyed: plans may still be given back while the process ends
  return *p;
}
}  // namespace

Arena::Arena(int64_t bytes) {
  if (bytes == 0) return;
  {
    std::lock_guard lock(pool().mutex);
    auto& free = pool().free;
    auto best = free.end();
    for (auto i = free.begin(); i != free.end(); ++i)
      if (i->size() >= bytes && (best == free.end() || i->size() < best->size())) best = i;
    if (best != free.end()) {
      memory_ = std::move(*best);
      free.erase(best);
      return;
    }
    free.clear();  // all too small: this block will serve those who used them
  }
  memory_ = AlignedMemory(bytes);
}

Arena::~Arena() {
  if (!memory_.data()) return;
  std::lock_guard lock(pool().mutex);
  pool().free.push_back(std::move(memory_));
}

}  // namespace trainc::runtime
