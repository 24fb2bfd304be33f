// NVRTC by dlopen: nvrtc.h's C functions, declared here as its documentation has them.
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <sstream>

#include "emit/cuda/cubin.h"
#include "emit/cuda/emit.h"
#include "support/error.h"

namespace trainc::emit::cuda {
namespace {

using Program = void*;

struct Nvrtc {
  int (*version)(int*, int*);
  int (*create)(Program*, const char* source, const char* name, int headers, const char* const*, const char* const*);
  int (*compile)(Program, int options, const char* const*);
  int (*log_size)(Program, size_t*);
  int (*log)(Program, char*);
  int (*cubin_size)(Program, size_t*);
  int (*cubin)(Program, char*);
  int (*destroy)(Program*);
  const char* (*error)(int);
  std::string missing;  // why it is not there
};

/// NVRTC asks the loader for its builtins by name alone: what lies beside it is loaded first, so that the name is
/// known.
void load_builtins(const std::filesystem::path& nvrtc) {
  std::error_code ignored;  // a folder that cannot be read: NVRTC's own message says what is missing
  for (const auto& file : std::filesystem::directory_iterator(nvrtc.parent_path(), ignored))
    if (file.path().filename().string().starts_with("libnvrtc-builtins.so"))
      dlopen(file.path().c_str(), RTLD_NOW | RTLD_GLOBAL);
}

const Nvrtc& nvrtc() {
  static const Nvrtc loaded = [] {
    Nvrtc n{};
    void* handle = nullptr;
    // TRAINC_NVRTC: a file (the Python package names the one that pip installed); else what the loader finds.
    const char* named = std::getenv("TRAINC_NVRTC");
    if (named && *named) {
      load_builtins(named);
      handle = dlopen(named, RTLD_NOW | RTLD_LOCAL);
      if (!handle) n.missing = fmt::format("TRAINC_NVRTC={} cannot be loaded: {}", named, dlerror());
    } else {
      for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"})
        if (!handle) handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (!handle)
        n.missing = "NVRTC is not installed: pip install nvidia-cuda-nvrtc, or name its libnvrtc.so in TRAINC_NVRTC";
    }
    if (!handle) return n;
    auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
      if (!function) n.missing = fmt::format("NVRTC has no {}", name);
    };
    find(n.version, "nvrtcVersion");
    find(n.create, "nvrtcCreateProgram");
    find(n.compile, "nvrtcCompileProgram");
    find(n.log_size, "nvrtcGetProgramLogSize");
    find(n.log, "nvrtcGetProgramLog");
    find(n.cubin_size, "nvrtcGetCUBINSize");
    find(n.cubin, "nvrtcGetCUBIN");
    find(n.destroy, "nvrtcDestroyProgram");
    find(n.error, "nvrtcGetErrorString");
    return n;
  }();
  return loaded;
}

}  // namespace

std::string nvrtc_missing() { return nvrtc().missing; }

std::string nvrtc_version() {
  if (!nvrtc().missing.empty()) return "";
  int major = 0, minor = 0;
  nvrtc().version(&major, &minor);
  return fmt::format("{}.{}", major, minor);
}

namespace {

/// The line of the text that the log's first error is of ("name.cu(12): error: ..."), with its number.
std::string line_of_error(const std::string& source, const std::string& log) {
  const size_t error = log.find("): error");
  const size_t open = error == std::string::npos ? error : log.rfind('(', error);
  if (open == std::string::npos) return "";
  const int wanted = std::atoi(log.c_str() + open + 1);
  std::istringstream lines(source);
  std::string line;
  for (int i = 0; i < wanted; ++i) std::getline(lines, line);
  return fmt::format("\nline {}: {}", wanted, line);
}

Cubin compile_once(const std::string& source, const std::string& name, Gpu gpu, const char* blocks) {
  const Nvrtc& n = nvrtc();
  auto check = [&](int status, const char* what) {
    if (status != 0) throw InternalError(fmt::format("NVRTC, {} of {}: {}", what, name, n.error(status)));
  };
  Program program = nullptr;
  check(n.create(&program, source.c_str(), (name + ".cu").c_str(), 0, nullptr, nullptr), "program");
  const std::unique_ptr<Program, int (*)(Program*)> held(&program, n.destroy);

  const std::string arch = fmt::format("--gpu-architecture={}", name_of(gpu));
  // -v has ptxas say what was spilled; nothing else in a cubin does.
  const char* options[] = {arch.c_str(),         "--std=c++17",        "--device-as-default-execution-space",
                           "--ptxas-options=-v", "--disable-warnings", blocks};
  const int status = n.compile(program, 6, options);
  size_t size = 0;
  n.log_size(program, &size);
  std::string log(size, '\0');
  if (size) n.log(program, log.data());
  while (!log.empty() && log.back() == '\0') log.pop_back();
  if (status != 0)
    throw InternalError(fmt::format("NVRTC, {} for {}: {}\n{}", name, name_of(gpu), n.error(status), log) +
                        line_of_error(source, log));
  Cubin cubin;
  check(n.cubin_size(program, &size), "cubin's size");
  cubin.code.resize(size);
  check(n.cubin(program, reinterpret_cast<char*>(cubin.code.data())), "cubin");
  cubin.resources = resources_of(cubin.code, name, log);
  return cubin;
}

}  // namespace

Cubin compile(const std::string& source, std::string_view kernel, Gpu gpu) {
  if (!nvrtc().missing.empty()) throw UserError(nvrtc().missing);
  const std::string name(kernel);
  Cubin cubin = compile_once(source, name, gpu, "-DMIN_BLOCKS=");
  // ptxas gives up a few registers to have more blocks at once, and may spill for it: then it is told that one block is
  // enough.
  if (cubin.resources.spill_bytes > 0) cubin = compile_once(source, name, gpu, "-DMIN_BLOCKS=,1");
  return cubin;
}

}  // namespace trainc::emit::cuda
