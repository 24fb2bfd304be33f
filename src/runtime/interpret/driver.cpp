#include "runtime/interpret/driver.h"

#include "runtime/cuda/cublaslt.h"
#include "runtime/interpret/run_nest.h"
#include "support/bytes.h"

namespace trainc::runtime::interpreted {

using cuda::Function;
using cuda::Launch;
using cuda::Stream;

std::shared_ptr<InterpretedDriver> interpreted_driver() {
  static const auto driver = std::make_shared<InterpretedDriver>();
  return driver;
}

Function InterpretedDriver::load(const plan::Kernel& kernel) {
  auto nest = std::make_unique<loop::LoopNest>(nest_of(kernel));
  ++held;
  return nest.release();
}
void InterpretedDriver::unload(Function f) {
  --held;
  delete static_cast<loop::LoopNest*>(f);
}
void InterpretedDriver::copy_in(void* device, const void* host, int64_t bytes, Stream stream) {
  streams.insert(stream);
  copy_bytes(device, host, bytes);
}
void InterpretedDriver::copy(void* to, const void* from, int64_t bytes, Stream stream) {
  streams.insert(stream);
  copy_bytes(to, from, bytes);
}

void InterpretedDriver::launch(const Launch& l, Stream stream) {
  streams.insert(stream);
  pass();
  const auto& nest = *static_cast<const loop::LoopNest*>(l.function);
  void* const* table = static_cast<void* const*>(l.table);
  const bool foreach = l.tensors > 0;
  const size_t width = foreach ? l.bytes.size() / static_cast<size_t>(l.tensors) : l.slots.size();
  for (size_t t = 0; t < (foreach ? static_cast<size_t>(l.tensors) : 1); ++t) {
    std::vector<Argument> arguments;
    for (size_t i = 0; i < width; ++i)
      arguments.push_back({table[foreach ? t * width + i : static_cast<size_t>(l.slots[i])], l.bytes[t * width + i],
                           l.fresh[t * width + i] != 0});
    const int64_t extent = foreach ? l.first_chunk[t + 1] - l.first_chunk[t] : l.blocks;
    if (extent == 0) continue;
    if (const uint32_t failed = run_nest(nest, l.name ? *l.name : nest.name, arguments, extent)) *l.status = failed;
    blocks += extent;
  }
  ++launches;
}

void InterpretedDriver::multiply(const plan::Product& p, const cuda::Factors& f, Stream stream) {
  streams.insert(stream);
  cuda::run_on_host(cuda::cublaslt_call(p), f);
  pass(p);
  ++launches;
}

}  // namespace trainc::runtime::interpreted
