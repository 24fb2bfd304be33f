// Bytes of memory, copied.
#pragma once
#include <cstdint>
#include <cstring>

namespace trainc {

/// `bytes` from one place to another that it does not overlap. Of none, either pointer may be null, which memcpy
/// forbids: a tensor without elements has no memory.
inline void copy_bytes(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace trainc
