// The nest's tables.
#include "loop/loop.h"

namespace trainc::loop {

int LoopNest::add_buffer(Buffer buffer) {
  buffers.push_back(std::move(buffer));
  return static_cast<int>(buffers.size()) - 1;
}

int LoopNest::add_var(std::string var_name, int64_t extent) {
  vars.push_back({std::move(var_name), extent});
  return static_cast<int>(vars.size()) - 1;
}

int LoopNest::add_local(std::string local_name, DType dtype) {
  locals.push_back({std::move(local_name), dtype});
  return static_cast<int>(locals.size()) - 1;
}

int64_t LoopNest::scratch_bytes() const {
  int64_t total = 0;
  for (const Buffer& b : buffers)
    if (b.space == Space::Scratch) total += (b.numel * size_of(b.dtype) + 63) / 64 * 64;
  return total;
}

int64_t LoopNest::shared_bytes() const {
  int64_t total = 0;
  for (const Buffer& b : buffers)
    if (b.space == Space::Shared) total += (b.numel * size_of(b.dtype) + 15) / 16 * 16;
  return total;
}

}  // namespace trainc::loop
