// Scalars of the interpreter: elements of memory, elementwise operations, combines.
#pragma once
#include <algorithm>
#include <cstdint>

#include "graph/graph.h"

namespace trainc::interpret {

/// Float dtypes use `f` (exactly a value of the dtype), the others `i` (within the dtype's range; bool is 0 or 1).
struct Value {
  union {
    double f;
    int64_t i;
  };
};
inline Value float_value(double f) {
  Value v;
  v.f = f;
  return v;
}
inline Value int_value(int64_t i) {
  Value v;
  v.i = i;
  return v;
}

/// Element `index` of an array of the dtype.
Value load(const uint8_t* bytes, int64_t index, DType);
void store(uint8_t* bytes, int64_t index, DType, Value);

/// How many bits lie in so many bytes of an argument: `numel`, as the nest says, where that takes just these bytes,
/// else all that they have room for.
inline int64_t bits_in(int64_t numel, int64_t bytes) {
  return bytes == bytes_of_bits(numel) ? numel : std::max<int64_t>(bytes - bytes_of_bits(8) + 1, 0) * 8;
}

/// ops.def's elementwise `op` over operands of dtype `from`, giving `to` (Cast and comparisons: they differ).
Value elementwise(Op, DType from, DType to, const Value* args);
Value fused_multiply_add(DType, Value a, Value b, Value c);
Value pair_of(Value low, Value high);  // two bf16 as one i32
Value dot(Value a, Value b, Value c);  // loop.h's Dot; keeps denormals
/// loop.h's TileDot, of the bytes of three tiles.
void tile_dot(uint8_t* sums, const uint8_t* a, const uint8_t* b);

/// The start of a combine: combine(neutral, x) is x (but -0.0 becomes 0.0 in a sum).
Value neutral(ReduceKind, DType);
/// What came before, and the value: of 0.0 and -0.0, Max and Min keep what came first.
Value combine(ReduceKind, DType, Value before, Value value);

}  // namespace trainc::interpret
