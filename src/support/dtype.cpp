#include "support/dtype.h"

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
    case DType::Bool: break;
  }
  throw InternalError("round_to: not a float dtype");
}

int64_t truncate_to(DType dtype, double value) {
  const double limit = dtype == DType::I64 ? 0x1p63 : 0x1p31, whole = std::trunc(value);
  const bool fits = whole >= -limit && whole < limit;
  return wrap_to(dtype, static_cast<int64_t>(fits ? whole : -limit));
}

int64_t wrap_to(DType dtype, int64_t value) {
  switch (dtype) {
    case DType::I64: return value;
    case DType::I32: return static_cast<int32_t>(value);
    case DType::I16: return static_cast<int16_t>(value);
    case DType::I8: return static_cast<int8_t>(value);
    case DType::U8: return static_cast<uint8_t>(value);
    case DType::Bool: return value != 0;
    case DType::F64:
    case DType::F32:
    case DType::BF16:
    case DType::F16: break;
  }
  throw InternalError("wrap_to: not an integer dtype");
}

}  // namespace trainc
