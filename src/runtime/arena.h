// Memory for arenas and scratch: aligned blocks, and a pool that plans share.
#pragma once
#include <cstdint>
#include <utility>

namespace trainc::runtime {

/// A block aligned to 64 bytes; from 4 MB on to 2 MB, with huge pages asked for. Not zeroed.
class AlignedMemory {
 public:
  AlignedMemory() = default;
  explicit AlignedMemory(int64_t bytes);  // throws std::bad_alloc
  ~AlignedMemory();
  AlignedMemory(AlignedMemory&& o) noexcept
      : data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}
  AlignedMemory& operator=(AlignedMemory&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
    return *this;
  }
  void* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  int64_t size_ = 0;
};

/// An arena for the time of one run, from a pool of the process: a forward and a backward plan, which never run at
/// once, share one block.
class Arena {
 public:
  explicit Arena(int64_t bytes);
  ~Arena();  // gives the block back to the pool
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  uint8_t* data() const { return static_cast<uint8_t*>(memory_.data()); }

 private:
  AlignedMemory memory_;
};

}  // namespace trainc::runtime
