// Element types, from one table.
#pragma once
#include <cstdint>
#include <string_view>

namespace trainc {

// clang-format off
//      name  text   bytes float
#define TRAINC_DTYPES(X) \
  X(F64, "f64", 8, true) X(F32, "f32", 4, true) X(BF16, "bf16", 2, true) X(F16, "f16", 2, true) \
  X(I64, "i64", 8, false) X(I32, "i32", 4, false) X(I16, "i16", 2, false) X(I8, "i8", 1, false) \
  X(U8, "u8", 1, false) X(Bool, "bool", 1, false) \
  X(U64, "u64", 8, false) X(U32, "u32", 4, false) X(U16, "u16", 2, false)
// clang-format on

enum class DType : uint8_t {
#define X(name, text, bytes, fl) name,
  TRAINC_DTYPES(X)
#undef X
};

constexpr int64_t size_of(DType d) {
  switch (d) {
#define X(name, text, bytes, fl) \
  case DType::name: return bytes;
    TRAINC_DTYPES(X)
#undef X
  }
  return 0;
}
constexpr bool is_float(DType d) {
  switch (d) {
#define X(name, text, bytes, fl) \
  case DType::name: return fl;
    TRAINC_DTYPES(X)
#undef X
  }
  return false;
}
/// Bool among them: 0 and 1.
constexpr bool is_unsigned(DType d) {
  return d == DType::U8 || d == DType::U16 || d == DType::U32 || d == DType::U64 || d == DType::Bool;
}
constexpr std::string_view name_of(DType d) {
  switch (d) {
#define X(name, text, bytes, fl) \
  case DType::name: return text;
    TRAINC_DTYPES(X)
#undef X
  }
  return "?";
}
/// Bytes of `numel` bools as bits: element i is bit i % 8 of byte i / 8. The bytes behind them mean nothing; they are
/// there so that a vector's worth of bits may be loaded as one integer, from whichever byte its first one lies in.
constexpr int64_t bytes_of_bits(int64_t numel) { return numel == 0 ? 0 : (numel + 7) / 8 + 16; }

/// The dtype called `text` ("f32"); throws InternalError for another word.
DType dtype_of(std::string_view text);

}  // namespace trainc
