// Transcendental functions as IR: branch-free, the same code and the same bits at every level and number of lanes.
// Errors in ulp: docs/emit.md, printed by tests/cpp/emit/math_test.cpp. Includes LLVM.
#pragma once
#include "emit/llvm/values.h"

namespace trainc::emit {

/// Exp, Expm1, Log, Log1p, Sin, Cos, Tanh, Erf or Erfc of a float or double, or a vector of them.
llvm::Value* transcendental(Builder&, Op, llvm::Value*);
/// Sin or cos, at every magnitude (trigonometry.cpp: the reduction is exact).
llvm::Value* sine(Builder&, llvm::Value*, bool cosine);
llvm::Value* power(Builder&, llvm::Value* base, llvm::Value* exponent);

}  // namespace trainc::emit
