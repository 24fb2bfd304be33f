// bf16 and float, as bits. Takes: values of LLVM. Gives: the same at every level. Includes LLVM: for the .cpp files of
// this folder only.
#pragma once
#include "emit/llvm/values.h"

namespace trainc::emit {

/// i16 -> float, or vectors of them.
llvm::Value* bf16_to_f32(Builder&, llvm::Value*);
/// float -> i16, rounded to nearest even; denormals are kept, and a NaN is a NaN.
llvm::Value* f32_to_bf16(Builder&, llvm::Value*);
/// The same by the instruction of level avx512_bf16, which takes denormals for zero: of 16, 32, 48 or 64 lanes, else
/// null.
llvm::Value* f32_to_bf16_flushed(Builder&, llvm::Value*);
/// Two floats of 16 lanes as Pair of them rounded so.
llvm::Value* pairs_to_bf16_flushed(Builder&, llvm::Value* low, llvm::Value* high);

}  // namespace trainc::emit
