#include <algorithm>
#include <charconv>

#include "runtime/cuda/executable.h"
#include "support/gpu.h"

namespace trainc::runtime::cuda {

std::shared_ptr<void> CudaDevice::allocate(int64_t bytes) const {
  return {driver_->allocate(std::max<int64_t>(bytes, 1)), [driver = driver_](void* p) { driver->release(p); }};
}

void register_devices() {
  register_device("cuda", "cuda:0, ...", [](const std::string& which) -> std::shared_ptr<const Device> {
    int index = 0;
    const auto [end, error] = std::from_chars(which.data(), which.data() + which.size(), index);
    const bool number = error == std::errc() && end == which.data() + which.size() && index >= 0;
    return number ? std::make_shared<CudaDevice>(cuda_driver(index)) : nullptr;
  });
  register_device(
      "null", "null:sm_90a, ... (no kernels run)", [](const std::string& which) -> std::shared_ptr<const Device> {
        return std::make_shared<CudaDevice>(std::make_shared<NullDriver>(std::string(name_of(gpu_of(which)))));
      });
}

}  // namespace trainc::runtime::cuda
