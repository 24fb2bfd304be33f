// Element types as LLVM sees them, and lanes. Includes LLVM: for the .cpp files of this folder only.
//
// In a value: Bool is i1, BF16 is its bits (i16: it never reaches arithmetic), F16 is half, the others are themselves.
// In memory: the same, but Bool is a byte, 0 or 1. A vector of one lane is a scalar.
#pragma once
#include "llvm/IR/IRBuilder.h"
#include "loop/loop.h"
#include "support/cpu.h"

namespace trainc::emit {

/// Makes instructions for a level of the CPU.
class Builder : public llvm::IRBuilder<> {
 public:
  Builder(llvm::LLVMContext& context, CpuLevel for_level) : llvm::IRBuilder<>(context), level(for_level) {}
  const CpuLevel level;
};

llvm::Type* value_type(llvm::LLVMContext&, DType);
llvm::Type* memory_type(llvm::LLVMContext&, DType);
inline llvm::Type* widen(llvm::Type* t, int lanes) { return lanes == 1 ? t : llvm::FixedVectorType::get(t, lanes); }
inline int lanes_of(llvm::Value* v) {
  auto* t = llvm::dyn_cast<llvm::FixedVectorType>(v->getType());
  return t ? static_cast<int>(t->getNumElements()) : 1;
}
inline llvm::Value* splat(Builder& b, llvm::Value* v, int lanes) {
  return lanes == lanes_of(v) ? v : b.CreateVectorSplat(lanes, v);
}
/// A number in each lane of `like`'s type.
inline llvm::Value* integer(llvm::Value* like, int64_t x) {
  return llvm::ConstantInt::get(like->getType(), static_cast<uint64_t>(x), true);
}
/// The integer type of `bits`, with as many lanes as `like`.
inline llvm::Type* int_like(llvm::Value* like, unsigned bits) {
  return widen(llvm::IntegerType::get(like->getContext(), bits), lanes_of(like));
}

/// One elementwise operation of ops.def on values of `dtype` (that of the operands; Select: of its second).
llvm::Value* elementwise(Builder&, Op, DType dtype, const std::vector<llvm::Value*>& operands);
llvm::Value* convert(Builder&, llvm::Value*, DType from, DType to);
llvm::Value* bitcast(Builder&, llvm::Value*, DType to);
/// loop.h's Pair and Dot.
llvm::Value* pair(Builder&, llvm::Value* low, llvm::Value* high);
llvm::Value* dot(Builder&, llvm::Value* a, llvm::Value* b, llvm::Value* c);
/// `local`, what came before, and `value` combined as loop.h says; and the value that changes nothing.
llvm::Value* combine(Builder&, ReduceKind, DType, llvm::Value* local, llvm::Value* value);
llvm::Constant* neutral(llvm::LLVMContext&, ReduceKind, DType);

}  // namespace trainc::emit
