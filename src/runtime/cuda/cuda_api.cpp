#include "runtime/cuda/cuda_api.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "support/error.h"

namespace trainc::runtime::cuda {

DriverApi load_api() {
  DriverApi a{};
  const char* named = std::getenv("TRAINC_LIBCUDA");
  const char* file = named && *named ? named : "libcuda.so.1";
  void* handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    throw UserError(
        fmt::format("there is no NVIDIA driver on this machine ({} cannot be loaded: {}): a plan for a GPU needs one",
                    file, dlerror()));
  auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (!function) throw UserError(fmt::format("the NVIDIA driver on this machine has no {}: it is too old", name));
  };
  find(a.init, "cuInit");
  find(a.device_count, "cuDeviceGetCount");
  find(a.context_push, "cuCtxPushCurrent_v2");
  find(a.context_pop, "cuCtxPopCurrent_v2");
  find(a.device_get, "cuDeviceGet");
  find(a.primary_retain, "cuDevicePrimaryCtxRetain");
  find(a.primary_release, "cuDevicePrimaryCtxRelease_v2");
  find(a.device_name, "cuDeviceGetName");
  find(a.device_attribute, "cuDeviceGetAttribute");
  find(a.module_load, "cuModuleLoadData");
  find(a.module_unload, "cuModuleUnload");
  find(a.module_function, "cuModuleGetFunction");
  find(a.memory_allocate, "cuMemAlloc_v2");
  find(a.memory_free, "cuMemFree_v2");
  find(a.host_allocate, "cuMemHostAlloc");
  find(a.host_free, "cuMemFreeHost");
  find(a.copy_in, "cuMemcpyHtoDAsync_v2");
  find(a.copy, "cuMemcpyDtoDAsync_v2");
  find(a.launch, "cuLaunchKernel");
  find(a.stream_create, "cuStreamCreate");
  find(a.stream_destroy, "cuStreamDestroy_v2");
  find(a.capture_begin, "cuStreamBeginCapture_v2");
  find(a.capture_end, "cuStreamEndCapture");
  find(a.graph_instantiate, "cuGraphInstantiateWithFlags");
  find(a.graph_launch, "cuGraphLaunch");
  find(a.graph_exec_destroy, "cuGraphExecDestroy");
  find(a.graph_destroy, "cuGraphDestroy");
  find(a.error_string, "cuGetErrorString");
  find(a.stream_wait, "cuStreamSynchronize");
  find(a.stream_query, "cuStreamQuery");
  find(a.copy_in_and_wait, "cuMemcpyHtoD_v2");
  find(a.copy_out_and_wait, "cuMemcpyDtoH_v2");
  find(a.context_wait, "cuCtxSynchronize");
  find(a.event_create, "cuEventCreate");
  find(a.event_record, "cuEventRecord");
  find(a.event_query, "cuEventQuery");
  find(a.event_destroy, "cuEventDestroy_v2");
  find(a.event_elapsed, "cuEventElapsedTime");
  find(a.stream_wait_event, "cuStreamWaitEvent");
  return a;
}

bool is_sticky(Status status) {
  // CUresult: an uncorrectable ECC or NVLink error, an illegal address, a launch that took too long, an assertion, and
  // those of the hardware
  constexpr Status kSticky[] = {214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719};
  return std::find(std::begin(kSticky), std::end(kSticky), status) != std::end(kSticky);
}

}  // namespace trainc::runtime::cuda
