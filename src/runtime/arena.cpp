#include "runtime/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <vector>

#include "runtime/short_lock.h"
#include "support/division.h"

namespace trainc::runtime {

AlignedMemory::AlignedMemory(int64_t bytes) {
  constexpr int64_t kHugePage = 2 << 20;
  const int64_t alignment = bytes >= 2 * kHugePage ? kHugePage : 64;
  size_ = round_up(bytes, alignment);
  data_ = std::aligned_alloc(alignment, size_);
  if (!data_) throw std::bad_alloc();
  if (alignment == kHugePage) madvise(data_, size_, MADV_HUGEPAGE);  // a wish: nothing depends on it
}

AlignedMemory::~AlignedMemory() { std::free(data_); }

namespace {
std::vector<AlignedMemory>& pool() {
  // never destroyed: plans may still be given back while the process ends
  static auto* p = new std::vector<AlignedMemory>;
  return *p;
}
}  // namespace

Arena::Arena(int64_t bytes) {
  if (bytes == 0) return;
  std::vector<AlignedMemory> too_small;  // given back to the system after the lock
  {
    const ShortLock lock;
    std::vector<AlignedMemory>& free = pool();
    auto best = free.end();
    for (auto i = free.begin(); i != free.end(); ++i)
      if (i->size() >= bytes && (best == free.end() || i->size() < best->size())) best = i;
    if (best != free.end()) {
      memory_ = std::move(*best);
      free.erase(best);
      return;
    }
    too_small.swap(free);  // this block will serve those who used them
  }
  memory_ = AlignedMemory(bytes);
}

Arena::~Arena() {
  if (!memory_.data()) return;
  const ShortLock lock;
  pool().push_back(std::move(memory_));
}

}  // namespace trainc::runtime
