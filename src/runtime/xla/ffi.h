// XLA's C interface of foreign functions, as far as a handler needs it: jaxlib's xla/ffi/api/c_api.h says the same
// under its own names, and is not needed to build. Layouts are those of the versions from 0.1 to 0.3, in which what is
// here has not changed; the handler refuses to be registered with another.
#pragma once
#include <cstddef>
#include <cstdint>

namespace trainc::runtime::xla {

constexpr int kFfiMajor = 0, kFfiOldestMinor = 1, kFfiNewestMinor = 3;

struct FfiExtension {
  size_t struct_size;
  int type;  // 1: metadata
  FfiExtension* next;
};
constexpr int kFfiMetadata = 1;

struct FfiVersion {
  size_t struct_size;
  FfiExtension* extensions;
  int major, minor;
};

struct FfiMetadata {
  size_t struct_size;
  FfiVersion version;
  uint32_t traits;
};
struct FfiMetadataExtension {
  FfiExtension base;
  FfiMetadata* metadata;
};

struct FfiError;
struct FfiErrorCreate {
  size_t struct_size;
  FfiExtension* extensions;
  const char* message;
  int code;
};
constexpr int kFfiInternal = 13;

struct FfiBytes {
  const char* data;
  size_t size;
};
struct FfiErrorMessage {
  size_t struct_size;
  FfiExtension* extensions;
  FfiError* error;
  const char* message;
};
struct FfiErrorDestroy {
  size_t struct_size;
  FfiExtension* extensions;
  FfiError* error;
};
struct FfiCall;
using FfiHandler = FfiError*(FfiCall*);
struct FfiRegister {
  size_t struct_size;
  FfiExtension* extensions;
  FfiBytes name, platform;
  FfiHandler *instantiate, *prepare, *initialize, *execute;
  uint32_t traits;
};

struct FfiApi {
  size_t struct_size;
  FfiExtension* extensions;
  FfiVersion version;
  const void* internal;
  FfiError* (*create_error)(FfiErrorCreate*);
  void (*message_of_error)(FfiErrorMessage*);
  void (*destroy_error)(FfiErrorDestroy*);
  FfiError* (*register_handler)(FfiRegister*);
};

struct FfiBuffer {
  size_t struct_size;
  FfiExtension* extensions;
  int dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};
constexpr int kFfiBuffer = 1;

struct FfiBuffers {
  size_t struct_size;
  FfiExtension* extensions;
  int64_t size;
  int* types;
  FfiBuffer** buffers;
};

constexpr int kFfiString = 4;

struct FfiAttributes {
  size_t struct_size;
  FfiExtension* extensions;
  int64_t size;
  int* types;
  FfiBytes** names;
  void** values;
};

constexpr int kFfiExecute = 3;
struct FfiCall {
  size_t struct_size;
  FfiExtension* extensions;
  const FfiApi* api;
  void* context;
  int stage;
  FfiBuffers arguments, results;
  FfiAttributes attributes;
};

}  // namespace trainc::runtime::xla
