#include "support/dtype.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "support/error.h"
#include "support/rounding.h"

namespace trainc {

DType dtype_of(std::string_view text) {
#define X(name, word, bytes, fl) \
  if (text == word) return DType::name;
  TRAINC_DTYPES(X)
#undef X
  throw InternalError("no dtype is called '" + std::string(text) + "'");
}

namespace {

/// Nearest value with `digits` binary digits (the leading one counted) and exponents from `lowest` (of the smallest
/// normal).
double round_binary(double value, int digits, int lowest, double largest) {
  if (!std::isfinite(value) || value == 0) return value;
  int exponent;
  std::frexp(value, &exponent);  // |value| in [2^(exponent-1), 2^exponent)
  const int ulp = std::max(exponent - digits, lowest - digits + 1);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -ulp)), ulp);
  return std::fabs(rounded) > largest ? std::copysign(std::numeric_limits<double>::infinity(), value) : rounded;
}

}  // namespace

double round_to(DType dtype, double value) {
  switch (dtype) {
    case DType::F64: return value;
    case DType::F32: return static_cast<float>(value);
    case DType::BF16: return round_binary(value, 8, -126, 0x1.FEp127);
    case DType::F16: return round_binary(value, 11, -14, 65504.0);
    case DType::I64:
    case DType::I32:
    case DType::I16:
    case DType::I8:
    case DType::U8:
    case DType::U16:
    case DType::U32:
    case DType::U64:
    case DType::Bool: break;
  }
  throw InternalError("round_to: not a float dtype");
}

namespace {

struct FloatFormat { int exponent_bits, mantissa_bits; };
FloatFormat format_of(DType dtype) {
  switch (dtype) {
    case DType::F64: return {11, 52};
    case DType::F32: return {8, 23};
    case DType::BF16: return {8, 7};
    case DType::F16: return {5, 10};
    default: throw InternalError("format_of: not a float dtype");
  }
}
constexpr uint64_t kMantissa = (uint64_t{1} << 52) - 1, kSign = uint64_t{1} << 63, kInfinity = uint64_t{0x7ff} << 52;

}  // namespace

uint64_t bits_of_float(DType dtype, double value) {
  const auto [exponent_bits, mantissa_bits] = format_of(dtype);
  const double rounded = std::isnan(value) ? value : round_to(dtype, value);
  const auto wide = std::bit_cast<uint64_t>(rounded);
  const uint64_t sign = (wide & kSign) >> (63 - exponent_bits - mantissa_bits);
  const uint64_t infinity = ((uint64_t{1} << exponent_bits) - 1) << mantissa_bits;
  const uint64_t mantissa = (wide & kMantissa) >> (52 - mantissa_bits);
  if (std::isnan(value)) return sign | infinity | (mantissa ? mantissa : uint64_t{1} << (mantissa_bits - 1));
  if (std::isinf(rounded)) return sign | infinity;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  int exponent;
  const double magnitude = std::frexp(std::fabs(rounded), &exponent);
  if (magnitude == 0 || exponent <= 1 - bias)  // subnormal: a whole number of the least one
    return sign | static_cast<uint64_t>(std::ldexp(std::fabs(rounded), bias - 1 + mantissa_bits));
  return sign | static_cast<uint64_t>(exponent - 1 + bias) << mantissa_bits | mantissa;
}

double float_of_bits(DType dtype, uint64_t bits) {
  const auto [exponent_bits, mantissa_bits] = format_of(dtype);
  const uint64_t sign = bits >> (exponent_bits + mantissa_bits) << 63;
  const uint64_t mantissa = bits & ((uint64_t{1} << mantissa_bits) - 1);
  const uint64_t exponent = bits >> mantissa_bits & ((uint64_t{1} << exponent_bits) - 1);
  if (exponent == (uint64_t{1} << exponent_bits) - 1)
    return std::bit_cast<double>(sign | kInfinity | mantissa << (52 - mantissa_bits));
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint64_t whole = exponent == 0 ? mantissa : mantissa | uint64_t{1} << mantissa_bits;
  const double magnitude =
      std::ldexp(static_cast<double>(whole), std::max(static_cast<int>(exponent), 1) - bias - mantissa_bits);
  return sign ? -magnitude : magnitude;
}

int64_t truncate_to(DType dtype, double value) {
  const double limit = size_of(dtype) == 8 ? 0x1p63 : 0x1p31, whole = std::trunc(value);
  const bool fits = whole >= -limit && whole < limit;
  return wrap_to(dtype, static_cast<int64_t>(fits ? whole : -limit));
}

int64_t wrap_to(DType dtype, int64_t value) {
  switch (dtype) {
    case DType::I64:
    case DType::U64: return value;
    case DType::I32: return static_cast<int32_t>(value);
    case DType::I16: return static_cast<int16_t>(value);
    case DType::I8: return static_cast<int8_t>(value);
    case DType::U8: return static_cast<uint8_t>(value);
    case DType::U16: return static_cast<uint16_t>(value);
    case DType::U32: return static_cast<uint32_t>(value);
    case DType::Bool: return value != 0;
    case DType::F64:
    case DType::F32:
    case DType::BF16:
    case DType::F16: break;
  }
  throw InternalError("wrap_to: not an integer dtype");
}

}  // namespace trainc
