#include "runtime/cpu_device.h"

#include "runtime/measure.h"

namespace trainc::runtime {

double CpuDevice::seconds_of(const plan::Kernel& kernel, int64_t extent,
                             const std::vector<int64_t>& argument_bytes) const {
  return runtime::seconds_of(kernel, extent, argument_bytes);
}

}  // namespace trainc::runtime
