#include "bindings/interpreted_driver.h"

#include <fmt/format.h>

#include <cstring>

#include "interpret/device.h"
#include "runtime/cuda/library.h"
#include "support/error.h"

namespace trainc::bindings {

using runtime::cuda::Function;
using runtime::cuda::Launch;
using runtime::cuda::Stream;

Function InterpretedDriver::load(const plan::Kernel& kernel) {
  auto nest = std::make_unique<loop::LoopNest>(loop::parse({reinterpret_cast<const char*>(kernel.code.data()), kernel.code.size()}));
  loop::verify(*nest);
  ++held;
  return nest.release();
}
void InterpretedDriver::unload(Function f) {
  --held;
  delete static_cast<loop::LoopNest*>(f);
}
void InterpretedDriver::copy_in(void* device, const void* host, int64_t bytes, Stream stream) {
  streams.insert(stream);
  std::memcpy(device, host, static_cast<size_t>(bytes));
}
void InterpretedDriver::copy(void* to, const void* from, int64_t bytes, Stream stream) {
  streams.insert(stream);
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

void InterpretedDriver::launch(const Launch& l, Stream stream) {
  streams.insert(stream);
  const auto& nest = *static_cast<const loop::LoopNest*>(l.function);
  void* const* table = static_cast<void* const*>(l.table);
  const bool foreach = l.tensors > 0;
  const size_t width = foreach ? l.bytes.size() / static_cast<size_t>(l.tensors) : l.slots.size();
  for (size_t t = 0; t < (foreach ? static_cast<size_t>(l.tensors) : 1); ++t) {
    std::vector<interpret::View> arguments;
    for (size_t i = 0; i < width; ++i) {
      void* p = table[foreach ? t * width + i : static_cast<size_t>(l.slots[i])];
      const int64_t bytes = l.bytes[t * width + i];
      const bool fresh = l.fresh[t * width + i];
      if (fresh && bytes > 0) std::memset(p, 0xff, static_cast<size_t>(bytes));  // NaN: what is left unwritten does not go unseen
      // A kernel may fill a part alone: a concatenation is several.
      arguments.push_back({static_cast<uint8_t*>(p), bytes, !fresh, false});
    }
    const int64_t extent = foreach ? l.first_chunk[t + 1] - l.first_chunk[t] : l.blocks;
    if (extent == 0) continue;
    const interpret::Findings found = interpret::run_on_device(nest, arguments, extent);
    if (!found.messages.empty()) throw InternalError(fmt::format("{}: {}", l.name ? *l.name : nest.name, fmt::join(found.messages, "; ")));
    if (found.status) *l.status = found.status;
    blocks += extent;
  }
  ++launches;
}

void InterpretedDriver::multiply(const plan::Product& p, const void* lhs, const void* rhs, void* result, void*, int64_t, Stream stream) {
  streams.insert(stream);
  const runtime::cuda::LibraryCall call = runtime::cuda::library_call(p);
  runtime::cuda::run_on_host(call, rhs, lhs, result);
  ++launches;
}

}  // namespace trainc::bindings
