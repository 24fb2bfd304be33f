// Device nest -> CUDA C++ text -> cubin. Neither needs a GPU or a driver: NVRTC is loaded when it is first asked for.
// Takes: a verified device nest and an architecture. Gives: text, machine code. No decision of its own: a printer.
// Includes: loop.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "loop/loop.h"
#include "support/gpu.h"

namespace trainc::emit::cuda {

/// How a kernel comes by its arguments; `slots` and the chunk map lie in memory of the device.
///   Plan      kernel(void* const* table, Slots slots, unsigned* status): argument i is table[slots.at[i]]; one block a
///             Parallel iteration
///   Foreach   kernel(void* const* table, const int* first_chunk, int tensors, unsigned* status): many tensors in one
///             launch. Tensor t's arguments are the t-th row of the table; blocks [first_chunk[t], first_chunk[t + 1])
///             run its Parallel iterations from 0 on
/// A failed Check with code c leaves at least c in *status.
enum class Entry : uint8_t { Plan, Foreach };

/// The text of one kernel, complete: helpers, then an extern "C" __global__ function of the nest's name.
std::string source(const loop::LoopNest&, Entry = Entry::Plan);

/// What a kernel needs of a multiprocessor.
struct Resources {
  int registers = 0;         // a thread
  int64_t shared_bytes = 0;  // a block
  int64_t stack_bytes = 0;   // a thread; what is spilled lies there
  int64_t spill_bytes = 0;   // stores and loads, as ptxas counts them
};

struct Cubin {
  std::vector<uint8_t> code;
  Resources resources;
};

/// Compiles the text for one architecture. UserError where NVRTC cannot be loaded (the message says what to install),
/// InternalError with its log where it refuses the text.
Cubin compile(const std::string& source, std::string_view kernel, Gpu);

/// Whether NVRTC can be loaded; empty, or why not.
std::string nvrtc_missing();
std::string nvrtc_version();

}  // namespace trainc::emit::cuda
