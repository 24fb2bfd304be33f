#include "frontend/formulas/elementwise.h"

#include <cmath>
#include <limits>

namespace trainc::formulas {
namespace {

Value from_start(Value x, Value end, Value w) { return x + w * (end - x); }
Value from_end(Value x, Value end, Value w) { return end + (w - 1) * (end - x); }

}  // namespace

Value lerp(Value x, Value end, Value w) { return where(abs(w) < 0.5, from_start(x, end, w), from_end(x, end, w)); }
Value lerp(Value x, Value end, double w) {
  return std::abs(w) < 0.5 ? from_start(x, end, number(x, w)) : from_end(x, end, number(x, w));
}

Value logaddexp(Value x, Value y) {
  return where((x == y) & (abs(x) == INFINITY), x, max(x, y) + log1p(exp(-abs(x - y))));  // inf - inf is NaN
}

Value nan_to_num(Value x, double nan, double infinity, double minus_infinity) {
  Value y = where(is_nan(x), nan, x);
  y = where(x == INFINITY, infinity, y);
  return where(x == -INFINITY, minus_infinity, y);
}

double largest(DType d) {
  switch (d) {
    case DType::F64: return std::numeric_limits<double>::max();
    case DType::F32: return std::numeric_limits<float>::max();
    case DType::BF16: return 0x1.fep127;
    default: return 65504;  // f16
  }
}

}  // namespace trainc::formulas
