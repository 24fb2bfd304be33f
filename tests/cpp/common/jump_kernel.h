// A kernel that is a function of the test's own, reached by a few bytes of machine code: movabs rax, address; jmp rax.
#pragma once
#include <string>
#include <vector>

#include "plan/plan.h"
#include "runtime/code.h"

namespace trainc::testing {

inline plan::Kernel jump_kernel(const std::string& name, runtime::KernelEntry f, int64_t scratch = 0) {
  std::vector<uint8_t> code = {0x90, 0x48, 0xb8};  // nop (so that the entry is not 0); movabs rax, f
  for (int i = 0; i < 8; ++i) code.push_back(static_cast<uint8_t>(reinterpret_cast<uintptr_t>(f) >> (8 * i)));
  code.insert(code.end(), {0xff, 0xe0});  // jmp rax
  return {.name = name, .code = code, .entry = 1, .scratch_bytes = scratch};
}

}  // namespace trainc::testing
