// The CUDA driver by dlopen: cuda.h's C functions, declared here as its documentation has them. Inside runtime/cuda
// only.
#pragma once
#include <string>

#include "runtime/cuda/driver.h"

namespace trainc::runtime::cuda {

using Status = int;  // CUresult
using DevicePointer = unsigned long long;

struct DriverApi {
  Status (*init)(unsigned);
  Status (*device_count)(int*);
  Status (*context_push)(void*);
  Status (*context_pop)(void**);
  Status (*device_get)(int*, int number);
  Status (*primary_retain)(void**, int device);
  Status (*primary_release)(int device);
  Status (*device_name)(char*, int, int device);
  Status (*device_attribute)(int*, int attribute, int device);
  Status (*module_load)(void**, const void*);
  Status (*module_unload)(void*);
  Status (*module_function)(void**, void*, const char*);
  Status (*memory_allocate)(DevicePointer*, size_t);
  Status (*memory_free)(DevicePointer);
  Status (*host_allocate)(void**, size_t, unsigned flags);
  Status (*host_free)(void*);
  Status (*copy_in)(DevicePointer, const void*, size_t, Stream);
  Status (*copy)(DevicePointer, DevicePointer, size_t, Stream);
  Status (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared, Stream,
                   void** arguments, void** extra);
  Status (*stream_create)(Stream*, unsigned flags);
  Status (*stream_destroy)(Stream);
  Status (*capture_begin)(Stream, int mode);
  Status (*capture_end)(Stream, void**);
  Status (*graph_instantiate)(void**, void*, unsigned long long flags);
  Status (*graph_launch)(void*, Stream);
  Status (*graph_exec_destroy)(void*);
  Status (*graph_destroy)(void*);
  Status (*error_string)(Status, const char**);
  Status (*stream_wait)(Stream);
  Status (*stream_query)(Stream);
  Status (*copy_in_and_wait)(DevicePointer, const void*, size_t);
  Status (*copy_out_and_wait)(void*, DevicePointer, size_t);
  Status (*context_wait)();
  Status (*event_create)(void**, unsigned flags);
  Status (*event_record)(void*, Stream);
  Status (*event_query)(void*);
  Status (*event_destroy)(void*);
  Status (*event_elapsed)(float* milliseconds, void* start, void* end);
  Status (*stream_wait_event)(Stream, void*, unsigned flags);
};

/// libcuda.so.1, or the file that TRAINC_LIBCUDA names. UserError where it cannot be loaded, or lacks a function.
DriverApi load_api();

/// Makes a context the calling thread's current one, and puts back afterwards what was there: the framework's calls go
/// to whichever is current. (Threads of autograd's have none yet.)
class InContext {
 public:
  InContext(const DriverApi& api, void* context) : status(api.context_push(context)), api_(api) {}
  ~InContext() {
    void* mine;
    if (status == 0) api_.context_pop(&mine);
  }
  InContext(const InContext&) = delete;
  const Status status;  // not 0: it could not be made the current one, and nothing is put back

 private:
  const DriverApi& api_;
};

/// Whether every later call in the process fails as well: the device has lost the context.
bool is_sticky(Status);

}  // namespace trainc::runtime::cuda
