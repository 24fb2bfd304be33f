// bf16 and float, as bits. Takes: values of LLVM. Gives: the same at every level. Includes LLVM: for the .cpp files of
// this folder only.
#pragma once
#include "emit/llvm/values.h"

namespace trainc::emit {

/// i16 -> float, or vectors of them.
llvm::Value* bf16_to_f32(Builder&, llvm::Value*);
/// float -> i16, rounded to nearest even; denormals are kept, and a NaN is a NaN.
llvm::Value* f32_to_bf16(Builder&, llvm::Value*);

}  // namespace trainc::emit
