// Runs a blob where the interpreter runs its nest, and compares.
#pragma once
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "../common/levels.h"
#include "emit/llvm/emit.h"
#include "interpret/interpret.h"
#include "loop/loop.h"

namespace trainc::emit::test {

using interpret::Memory;

using testing::all_levels;
using testing::runnable_levels;

/// A blob mapped read-execute, as the runtime does it.
class Mapped {
 public:
  explicit Mapped(const Blob& blob) : size_(blob.code.size()) {
    memory_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory_, MAP_FAILED);
    std::memcpy(memory_, blob.code.data(), size_);
    EXPECT_EQ(mprotect(memory_, size_, PROT_READ | PROT_EXEC), 0);
    entry_ = reinterpret_cast<Entry>(static_cast<char*>(memory_) + blob.entry);
  }
  ~Mapped() { munmap(memory_, size_); }
  Mapped(const Mapped&) = delete;
  using Entry = void (*)(void* const*, void*, uint32_t*, int64_t, int64_t);
  Entry operator*() const { return entry_; }

 private:
  size_t size_;
  void* memory_;
  Entry entry_;
};

/// Arguments between guard bytes, off every alignment but the element's: an access outside shows.
class Guarded {
 public:
  static constexpr size_t guard = 192;
  explicit Guarded(const std::vector<Memory>& arguments, size_t shift) : shift_(shift) {
    for (const Memory& m : arguments) {
      auto& b = blocks_.emplace_back(m.bytes.size() + 2 * guard + 64, uint8_t{0xA5});
      std::memcpy(start(b), m.bytes.data(), m.bytes.size());
      pointers_.push_back(start(b));
    }
  }
  void* const* pointers() const { return pointers_.data(); }
  void read_back(std::vector<Memory>& arguments) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      auto& b = blocks_[i];
      uint8_t *first = start(b), *last = first + arguments[i].bytes.size();
      bool whole = true;
      for (uint8_t* p = b.data(); p < first; ++p) whole &= *p == 0xA5;
      for (uint8_t* p = last; p < b.data() + b.size(); ++p) whole &= *p == 0xA5;
      EXPECT_TRUE(whole) << "argument " << i << ": written outside";
      std::memcpy(arguments[i].bytes.data(), first, arguments[i].bytes.size());
    }
  }

 private:
  uint8_t* start(std::vector<uint8_t>& b) const {
    const auto at = reinterpret_cast<uintptr_t>(b.data()) + guard;
    return reinterpret_cast<uint8_t*>((at + 63) / 64 * 64 + shift_);
  }
  size_t shift_;
  std::vector<std::vector<uint8_t>> blocks_;
  std::vector<void*> pointers_;
};

/// Runs the compiled nest over [0, parallel_extent) in two parts, as two threads would. Returns the status word.
inline uint32_t run(const loop::LoopNest& nest, CpuLevel level, std::vector<Memory>& arguments) {
  const Mapped kernel(compile(nest, level));
  Guarded guarded(arguments, 8);
  const size_t bytes = static_cast<size_t>(nest.scratch_bytes() + 64);
  void* scratch = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  std::memset(scratch, 0xFF, bytes);
  uint32_t status = 0;
  const int64_t n = nest.parallel_extent;
  if (n > 1) (*kernel)(guarded.pointers(), scratch, &status, n / 2, n);
  (*kernel)(guarded.pointers(), scratch, &status, 0, n > 1 ? n / 2 : n);
  std::free(scratch);
  guarded.read_back(arguments);
  return status;
}

/// Expects the same bytes from the interpreter and from the code of every level that this machine has.
inline void expect_as_interpreted(const loop::LoopNest& nest, const std::vector<Memory>& arguments) {
  SCOPED_TRACE(loop::print(nest));
  loop::verify(nest);
  std::vector<Memory> expected = arguments;
  const interpret::Findings findings = interpret::run(nest, expected);
  EXPECT_TRUE(findings.messages.empty()) << findings.messages.front();
  for (CpuLevel level : runnable_levels()) {
    SCOPED_TRACE(std::string(name_of(level)));
    std::vector<Memory> got = arguments;
    EXPECT_EQ(run(nest, level, got), findings.status);
    for (size_t i = 0; i < got.size(); ++i) {
      if (got[i].bytes == expected[i].bytes) continue;
      size_t at = 0;
      while (got[i].bytes[at] == expected[i].bytes[at]) ++at;
      const int64_t size = size_of(nest.buffers[i].dtype);
      ADD_FAILURE() << nest.buffers[i].name << " differs first at element " << at / static_cast<size_t>(size) << " of "
                    << got[i].bytes.size() / static_cast<size_t>(size);
    }
  }
}

inline std::vector<float> random_floats(size_t n, unsigned seed = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (float& x : v) x = normal(generator);
  return v;
}

}  // namespace trainc::emit::test
