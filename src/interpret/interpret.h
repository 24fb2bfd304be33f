// Runs loop nests as written, for tests: the semantics of loop.h in the plainest code, and a watch over memory.
// Takes: a LoopNest and the bytes of its arguments. Gives: the arguments changed, and findings. Includes: loop,
// graph/graph.h for Op.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "loop/loop.h"

namespace trainc::interpret {

/// An argument: its elements as they lie in memory (bits: bytes_of_bits of them). Its size is the bound that accesses
/// are held to.
struct Memory {
  std::vector<uint8_t> bytes;
  // false: an output; reading an element before it is stored, or never storing one, is a finding
  bool initialised = true;
};
template <class T> Memory memory_of(const std::vector<T>& values) {
  Memory m;
  m.bytes.resize(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(m.bytes.data(), values.data(), m.bytes.size());
  return m;
}
/// An output of so many bytes: NaN in every float dtype, -1 in the integers.
inline Memory output_of(int64_t bytes) { return {std::vector<uint8_t>(static_cast<size_t>(bytes), 0xff), false}; }
template <class T> std::vector<T> values_of(const Memory& m) {
  std::vector<T> values(m.bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), m.bytes.data(), values.size() * sizeof(T));
  return values;
}

struct Findings {
  std::vector<std::string> messages;  // one a kind of fault and buffer, with how often it happened; empty: clean
  uint32_t status = 0;                // the greatest code of a Check that failed
};

/// Runs the nest over all of [0, parallel_extent). Arithmetic: f32 in float, each operation rounded; functions (exp,
/// ...) in double, rounded to f32; bf16 and f16 round to nearest even; lanes fold in the tree that loop.h states. So
/// results equal the emitted code's bit for bit but for the functions.
/// Finds: accesses out of bounds (they read 0, or are dropped); reads of scratch, register and uninitialised argument
/// elements that this parallel iteration (or the code before the parallel loop) never wrote; uninitialised arguments
/// left in part unwritten; two parallel iterations that write one element, or one that reads what another writes; loop
/// extents that differ between lanes. Throws InternalError where `arguments` are not as many as the nest's.
/// A device nest runs block by block, its threads together (device.h says what is found there).
/// `parallel_extent`: of a device nest, where the caller decides it (an optimizer's chunks); -1: the nest's.
Findings run(const loop::LoopNest&, std::vector<Memory>& arguments, int64_t parallel_extent = -1);

}  // namespace trainc::interpret
