// One block of memory on the device holds all that a launch reads beside the tensors: rows of pointers, scalars,
// numbers of elements, first chunks.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

#include "runtime/cuda/executable.h"
#include "support/error.h"

namespace trainc::runtime::cuda {

struct CudaForeach::Impl {
  std::shared_ptr<Driver> driver;
  Function function = nullptr;
  uint32_t* status = nullptr;
  uint8_t* block = nullptr;
  int64_t block_bytes = 0;
  std::optional<Stream> last;  // of the last run, which may still read the block
  std::mutex mutex;            // of the block: from its copy to the launch that reads it

  ~Impl() {
    driver->drain();
    if (block) driver->release(block);
    if (status) driver->release_status(status);
    if (function) driver->unload(function);
  }
  void make_room(int64_t bytes) {
    if (bytes <= block_bytes) return;
    driver->drain();
    if (block) driver->release(std::exchange(block, nullptr));
    block_bytes = 0;
    block = static_cast<uint8_t*>(driver->allocate(bytes * 2));
    block_bytes = bytes * 2;
  }
};

CudaForeach::CudaForeach(plan::Foreach given, std::shared_ptr<Driver> driver)
    : Foreach(std::move(given)), impl_(std::make_unique<Impl>()) {
  impl_->driver = std::move(driver);
  impl_->function = impl_->driver->load(plan().kernel);
  impl_->status = impl_->driver->allocate_status(1);
}
CudaForeach::~CudaForeach() = default;

void CudaForeach::launch(std::span<void* const> tensors, std::span<const int64_t> numels,
                         std::span<const double> scalars, void* stream) {
  Impl& self = *impl_;
  const size_t count = numels.size(), width = plan().inputs.size() + 1;  // arguments a tensor
  const size_t at_scalars = count * width * 8, at_numels = at_scalars + scalars.size() * 8,
               at_chunks = at_numels + count * 8;
  const size_t bytes = at_chunks + (count + 1) * 4;
  const std::lock_guard lock(self.mutex);
  self.make_room(static_cast<int64_t>(bytes));
  std::vector<uint8_t> host(bytes);
  auto put = [&](size_t at, const auto& value) { std::memcpy(host.data() + at, &value, sizeof value); };

  size_t scalar = 0;
  for (const ForeachInput& i : plan().inputs)
    if (i.scalar) put(at_scalars + scalar * 8, scalar_bits(scalars[scalar], i.dtype)), ++scalar;
  Launch launch{.function = self.function,
                .threads = plan().kernel.threads,
                .table = self.block,
                .tensors = static_cast<int>(count),
                .status = self.status,
                .name = &plan().kernel.name};
  launch.first_chunk = reinterpret_cast<const int*>(self.block + at_chunks);
  int64_t chunks = 0;
  for (size_t t = 0; t < count; ++t) {
    size_t tensor = t * static_cast<size_t>(tensor_inputs()), at = t * width * 8;
    scalar = 0;
    auto argument = [&](const void* pointer, int64_t size) {
      put(at, pointer);
      launch.bytes.push_back(size);
      launch.fresh.push_back(0);
      at += 8;
    };
    for (const ForeachInput& i : plan().inputs) {
      if (i.scalar) argument(self.block + at_scalars + 8 * scalar++, size_of(i.dtype));
      else argument(tensors[tensor++], numels[t] * size_of(i.dtype));
    }
    argument(self.block + at_numels + 8 * t, 8);
    put(at_numels + 8 * t, numels[t]);
    put(at_chunks + 4 * t, static_cast<int>(chunks));
    chunks += (numels[t] + plan().chunk - 1) / plan().chunk;
  }
  require(chunks < (int64_t{1} << 31), "foreach: more elements than one launch has blocks for");
  put(at_chunks + 4 * count, static_cast<int>(chunks));
  if (chunks == 0) return;
  launch.blocks = chunks;
  if (self.last && *self.last != stream) self.driver->order(*self.last, stream);
  self.last = stream;
  self.driver->copy_in(self.block, host.data(), static_cast<int64_t>(bytes), stream);
  const std::string which = plan().name + ", kernel " + plan().kernel.name + ": ";
  try {
    self.driver->launch(launch, stream);
  } catch (const DeviceLost& e) { throw DeviceLost(which + e.what()); } catch (const InternalError& e) {
    throw InternalError(which + e.what());
  }
}

}  // namespace trainc::runtime::cuda
