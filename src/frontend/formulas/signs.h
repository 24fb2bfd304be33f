// What functions of real and of complex numbers share. Inside formulas only.
#pragma once
#include <limits>
#include <numbers>

#include "frontend/formulas/value.h"

namespace trainc::formulas {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kPi = std::numbers::pi;

inline Value sin(Value x) { return unary(Op::Sin, x); }
inline Value cos(Value x) { return unary(Op::Cos, x); }
/// Whether x, of f32 or f64, has a sign: -0 has, too.
inline Value negative(Value x) {
  return with(x, x.b->bitcast(x.node, x.dtype() == DType::F32 ? DType::I32 : DType::I64)) < 0.0;
}
inline Value with_sign(Value magnitude, Value sign) { return where(negative(sign), -magnitude, magnitude); }

}  // namespace trainc::formulas
