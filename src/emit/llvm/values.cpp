#include "emit/llvm/values.h"

#include "llvm/IR/IntrinsicsX86.h"

#include "emit/llvm/bf16.h"
#include "emit/llvm/math.h"
#include "support/error.h"

namespace trainc::emit {
using llvm::Value;
using Id = llvm::Intrinsic::ID;

llvm::Type* value_type(llvm::LLVMContext& c, DType d) {
  switch (d) {
    case DType::F64: return llvm::Type::getDoubleTy(c);
    case DType::F32: return llvm::Type::getFloatTy(c);
    case DType::F16: return llvm::Type::getHalfTy(c);
    case DType::BF16: return llvm::Type::getInt16Ty(c);
    case DType::Bool: return llvm::Type::getInt1Ty(c);
    case DType::I64:
    case DType::I32:
    case DType::I16:
    case DType::I8:
    case DType::U64:
    case DType::U32:
    case DType::U16:
    case DType::U8: break;
  }
  return llvm::Type::getIntNTy(c, static_cast<unsigned>(size_of(d)) * 8);
}

llvm::Type* memory_type(llvm::LLVMContext& c, DType d) {
  return d == DType::Bool ? llvm::Type::getInt8Ty(c) : value_type(c, d);
}

namespace {

Value* number(Value* like, double x) { return llvm::ConstantFP::get(like->getType(), x); }

// x, where `before` says so, else y: vmaxps or vminps, which give y where either is NaN. A NaN in x must win by hand.
// Without the fence LLVM joins both conditions into one, and no single instruction is left; y then waits for two
// comparisons, an `or` and a blend, where the test of x alone waits for nothing that comes before.
Value* first_or_nan(Builder& b, Value* x, Value* y, Value* before) {
  Value* better = b.CreateSelect(before, x, y);
  return b.CreateSelect(b.CreateFCmpUNO(x, x), x, b.CreateUnaryIntrinsic(llvm::Intrinsic::arithmetic_fence, better));
}
Value* maximum(Builder& b, DType d, Value* x, Value* y) {
  if (!is_float(d))
    return b.CreateBinaryIntrinsic(is_unsigned(d) ? llvm::Intrinsic::umax : llvm::Intrinsic::smax, x, y);
  return first_or_nan(b, x, y, b.CreateFCmpOGT(x, y));
}
Value* minimum(Builder& b, DType d, Value* x, Value* y) {
  if (!is_float(d))
    return b.CreateBinaryIntrinsic(is_unsigned(d) ? llvm::Intrinsic::umin : llvm::Intrinsic::smin, x, y);
  return first_or_nan(b, x, y, b.CreateFCmpOLT(x, y));
}

// Truncated and floored integer division that never traps: x / 0 is 0, and x / -1 is -x (the hardware faults for the
// lowest x).
struct Division { Value *quotient, *remainder; };
Division divide(Builder& b, DType d, Value* x, Value* y) {
  Value *zero = integer(x, 0), *by_zero = b.CreateICmpEQ(y, zero);
  if (is_unsigned(d)) {
    Value* q = b.CreateUDiv(x, b.CreateSelect(by_zero, integer(x, 1), y));
    return {b.CreateSelect(by_zero, zero, q), b.CreateSub(x, b.CreateMul(q, y))};
  }
  Value* by_minus_one = b.CreateICmpEQ(y, integer(x, -1));
  Value* q = b.CreateSDiv(x, b.CreateSelect(b.CreateOr(by_zero, by_minus_one), integer(x, 1), y));
  q = b.CreateSelect(by_zero, zero, b.CreateSelect(by_minus_one, b.CreateNeg(x), q));
  return {q, b.CreateSub(x, b.CreateMul(q, y))};
}
Value* floor_divide(Builder& b, DType d, Value* x, Value* y) {
  const Division div = divide(b, d, x, y);
  if (is_unsigned(d)) return div.quotient;
  Value* zero = integer(x, 0);
  Value* inexact = b.CreateAnd(b.CreateICmpNE(div.remainder, zero), b.CreateICmpNE(y, zero));
  Value* down = b.CreateAnd(inexact, b.CreateICmpSLT(b.CreateXor(x, y), zero));
  return b.CreateSelect(down, b.CreateSub(div.quotient, integer(x, 1)), div.quotient);
}

// a ^ b by squaring; a negative exponent gives the truncated 1 / a^|b|: 0 but for a = 1 and -1.
Value* integer_power(Builder& b, DType d, Value* x, Value* y) {
  Value *result = integer(x, 1), *base = x;
  const auto bits = static_cast<unsigned>(size_of(d)) * 8;
  for (unsigned i = 0; i + (is_unsigned(d) ? 0 : 1) < bits; ++i) {
    Value* bit = b.CreateICmpNE(b.CreateAnd(y, b.CreateShl(integer(x, 1), i)), integer(x, 0));
    result = b.CreateSelect(bit, b.CreateMul(result, base), result);
    base = b.CreateMul(base, base);
  }
  if (is_unsigned(d)) return result;
  Value* odd = b.CreateICmpNE(b.CreateAnd(y, integer(x, 1)), integer(x, 0));
  Value* inverse = b.CreateSelect(b.CreateICmpEQ(x, integer(x, -1)), b.CreateSelect(odd, integer(x, -1), integer(x, 1)),
                                  b.CreateSelect(b.CreateICmpEQ(x, integer(x, 1)), integer(x, 1), integer(x, 0)));
  return b.CreateSelect(b.CreateICmpSLT(y, integer(x, 0)), inverse, result);
}

// LLVM's shifts are poison from the width on.
Value* shift(Builder& b, Op op, Value* x, Value* by) {
  const unsigned bits = x->getType()->getScalarSizeInBits();
  Value *within = b.CreateICmpULT(by, integer(x, bits)), *last = integer(x, bits - 1);
  if (op == Op::Sar) return b.CreateAShr(x, b.CreateSelect(within, by, last));
  Value* bounded = b.CreateSelect(within, by, integer(x, 0));
  Value* moved = op == Op::Shl ? b.CreateShl(x, bounded) : b.CreateLShr(x, bounded);
  return b.CreateSelect(within, moved, integer(x, 0));
}

// Out of range and NaN give the lowest integer, as cvttss2si does; fptosi alone would be poison there.
Value* float_to_int(Builder& b, Value* x, unsigned bits) {
  llvm::Type* type = widen(b.getIntNTy(bits), lanes_of(x));
  const double limit = bits == 32 ? 0x1p31 : 0x1p63;
  // -2^31 - 0.5 truncates into range; only f64 can say it.
  const bool finer = bits == 32 && x->getType()->getScalarType()->isDoubleTy();
  Value* low = finer ? b.CreateFCmpOGT(x, number(x, -limit - 1)) : b.CreateFCmpOGE(x, number(x, -limit));
  Value* fits = b.CreateAnd(low, b.CreateFCmpOLT(x, number(x, limit)));
  return b.CreateSelect(fits, b.CreateFPToSI(x, type),
                        llvm::ConstantInt::get(type, llvm::APInt::getSignedMinValue(bits)));
}

/// Behind a fence: seeing the widening, LLVM would compare halves as halves, and make calls of fminf out of that.
Value* f16_to_f32(Builder& b, Value* x) {
  Value* wide = b.CreateFPExt(x, widen(b.getFloatTy(), lanes_of(x)));
  return b.CreateIntrinsic(llvm::Intrinsic::arithmetic_fence, {wide->getType()}, {wide});
}

}  // namespace

Value* convert(Builder& b, Value* x, DType from, DType to) {
  if (from == to) return x;
  const int lanes = lanes_of(x);
  llvm::Type* type = widen(value_type(b.getContext(), to), lanes);
  if (from == DType::BF16) return convert(b, bf16_to_f32(b, x), DType::F32, to);
  if (from == DType::F16) return convert(b, f16_to_f32(b, x), DType::F32, to);
  if (is_float(from)) {
    if (is_float(to)) {
      // Halves are reached through f32: there is no instruction from f64 (and eager goes the same way).
      if (to == DType::BF16) return f32_to_bf16(b, convert(b, x, from, DType::F32));
      if (to == DType::F16) return b.CreateFPTrunc(convert(b, x, from, DType::F32), type);
      return to == DType::F64     ? b.CreateFPExt(x, type)
             : from == DType::F64 ? b.CreateFPTrunc(x, type)
                                  : b.CreateFPExt(x, type);
    }
    if (to == DType::Bool) return b.CreateFCmpUNE(x, number(x, 0));
    return b.CreateTrunc(float_to_int(b, x, size_of(to) == 8 ? 64 : 32), type);
  }
  if (to == DType::Bool) return b.CreateICmpNE(x, integer(x, 0));
  if (to == DType::BF16 || to == DType::F16) return convert(b, convert(b, x, from, DType::F32), DType::F32, to);
  if (is_float(to)) return is_unsigned(from) ? b.CreateUIToFP(x, type) : b.CreateSIToFP(x, type);
  return is_unsigned(from) ? b.CreateZExtOrTrunc(x, type) : b.CreateSExtOrTrunc(x, type);
}

Value* bitcast(Builder& b, Value* x, DType to) {
  return b.CreateBitCast(x, widen(value_type(b.getContext(), to), lanes_of(x)));
}

Value* elementwise(Builder& b, Op op, DType d, const std::vector<Value*>& v) {
  const bool f = is_float(d);
  const auto refuse = [&]() -> Value* {
    throw InternalError("emit: no " + std::string(name_of(op)) + " of " + std::string(name_of(d)));
  };
  const auto arithmetic = [&] {
    if (d == DType::BF16 || d == DType::F16) refuse();
  };
  const auto unary = [&](Id id) { return f ? b.CreateUnaryIntrinsic(id, v[0]) : v[0]; };
  const auto compare = [&](llvm::CmpInst::Predicate real, llvm::CmpInst::Predicate natural,
                           llvm::CmpInst::Predicate whole) {
    arithmetic();
    return f ? b.CreateFCmp(real, v[0], v[1]) : b.CreateICmp(is_unsigned(d) ? natural : whole, v[0], v[1]);
  };
  if (op != Op::Select) arithmetic();
  using P = llvm::CmpInst;
  switch (op) {
    case Op::Neg: return f ? b.CreateFNeg(v[0]) : b.CreateNeg(v[0]);
    case Op::Abs:
      if (f) return b.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, v[0]);
      return is_unsigned(d) ? v[0] : b.CreateBinaryIntrinsic(llvm::Intrinsic::abs, v[0], b.getFalse());
    case Op::Sign: {
      if (!f) {
        Value* positive = b.CreateZExt(b.CreateICmp(is_unsigned(d) ? P::ICMP_UGT : P::ICMP_SGT, v[0], integer(v[0], 0)),
                                       v[0]->getType());
        return is_unsigned(d) ? positive
                              : b.CreateSelect(b.CreateICmpSLT(v[0], integer(v[0], 0)), integer(v[0], -1), positive);
      }
      Value* zero = number(v[0], 0);
      return b.CreateSelect(b.CreateFCmpOGT(v[0], zero), number(v[0], 1),
                            b.CreateSelect(b.CreateFCmpOLT(v[0], zero), number(v[0], -1), zero));
    }
    case Op::Floor: return unary(llvm::Intrinsic::floor);
    case Op::Ceil: return unary(llvm::Intrinsic::ceil);
    case Op::Round: return unary(llvm::Intrinsic::roundeven);
    case Op::Trunc: return unary(llvm::Intrinsic::trunc);
    case Op::Sqrt: return f ? b.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, v[0]) : refuse();
    case Op::Rsqrt:
      return f ? b.CreateFDiv(number(v[0], 1), b.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, v[0])) : refuse();
    case Op::Exp:
    case Op::Expm1:
    case Op::Log:
    case Op::Log1p:
    case Op::Sin:
    case Op::Cos:
    case Op::Tanh:
    case Op::Erf:
    case Op::Erfc: return f ? transcendental(b, op, v[0]) : refuse();
    case Op::Not: return f ? refuse() : b.CreateNot(v[0]);
    case Op::IsNan:
      return f ? b.CreateFCmpUNO(v[0], v[0])
               : static_cast<Value*>(llvm::ConstantInt::getFalse(widen(b.getInt1Ty(), lanes_of(v[0]))));
    case Op::Add:
      return f ? b.CreateFAdd(v[0], v[1]) : d == DType::Bool ? b.CreateOr(v[0], v[1]) : b.CreateAdd(v[0], v[1]);
    case Op::Sub: return f ? b.CreateFSub(v[0], v[1]) : b.CreateSub(v[0], v[1]);
    case Op::Mul: return f ? b.CreateFMul(v[0], v[1]) : b.CreateMul(v[0], v[1]);
    case Op::Div: return f ? b.CreateFDiv(v[0], v[1]) : divide(b, d, v[0], v[1]).quotient;
    case Op::FloorDiv:
      return f ? b.CreateUnaryIntrinsic(llvm::Intrinsic::floor, b.CreateFDiv(v[0], v[1]))
               : floor_divide(b, d, v[0], v[1]);
    case Op::Mod: {
      if (f) {
        Value* q = b.CreateUnaryIntrinsic(llvm::Intrinsic::floor, b.CreateFDiv(v[0], v[1]));
        return b.CreateFSub(v[0], b.CreateFMul(q, v[1]));
      }
      return b.CreateSub(v[0], b.CreateMul(floor_divide(b, d, v[0], v[1]), v[1]));
    }
    case Op::Pow: return f ? power(b, v[0], v[1]) : d == DType::Bool ? refuse() : integer_power(b, d, v[0], v[1]);
    case Op::Max: return maximum(b, d, v[0], v[1]);
    case Op::Min: return minimum(b, d, v[0], v[1]);
    case Op::And: return f ? refuse() : b.CreateAnd(v[0], v[1]);
    case Op::Or: return f ? refuse() : b.CreateOr(v[0], v[1]);
    case Op::Xor: return f ? refuse() : b.CreateXor(v[0], v[1]);
    case Op::Shl:
    case Op::Shr:
    case Op::Sar: return f ? refuse() : shift(b, op, v[0], v[1]);
    case Op::Lt: return compare(P::FCMP_OLT, P::ICMP_ULT, P::ICMP_SLT);
    case Op::Le: return compare(P::FCMP_OLE, P::ICMP_ULE, P::ICMP_SLE);
    case Op::Eq: return compare(P::FCMP_OEQ, P::ICMP_EQ, P::ICMP_EQ);
    case Op::Ne: return compare(P::FCMP_UNE, P::ICMP_NE, P::ICMP_NE);
    case Op::Select: return b.CreateSelect(v[0], v[1], v[2]);
    // What an expression of a nest never is:
    case Op::Cast:  // ExprNode knows both dtypes: convert() and bitcast() above
    case Op::Bitcast:
    case Op::Input:
    case Op::Constant:
    case Op::Iota:
    case Op::Random:
    case Op::Reduce:
    case Op::Scan:
    case Op::Contract:
    case Op::Reshape:
    case Op::Permute:
    case Op::Broadcast:
    case Op::Slice:
    case Op::Pad:
    case Op::Window:
    case Op::Concat:
    case Op::Reverse:
    case Op::Gather:
    case Op::Scatter:
    case Op::Extern:
    case Op::Result: break;
  }
  return refuse();
}

Value* combine(Builder& b, ReduceKind kind, DType d, Value* local, Value* value) {
  switch (kind) {
    case ReduceKind::Sum: return elementwise(b, Op::Add, d, {local, value});
    case ReduceKind::Prod: return elementwise(b, Op::Mul, d, {local, value});
    // The result so far last, which alone waits for the terms before (first_or_nan).
    case ReduceKind::Max: return elementwise(b, Op::Max, d, {value, local});
    case ReduceKind::Min: return elementwise(b, Op::Min, d, {value, local});
    case ReduceKind::ArgMax:
    case ReduceKind::ArgMin: break;
  }
  throw InternalError("emit: this reduction is not one of a nest");
}

llvm::Constant* neutral(llvm::LLVMContext& c, ReduceKind kind, DType d) {
  llvm::Type* type = value_type(c, d);
  const unsigned bits = type->isIntegerTy() ? type->getIntegerBitWidth() : 0;
  const auto whole = [&](const llvm::APInt& v) { return llvm::ConstantInt::get(type, v); };
  switch (kind) {
    case ReduceKind::Sum: return llvm::Constant::getNullValue(type);
    case ReduceKind::Prod: return is_float(d) ? llvm::ConstantFP::get(type, 1) : llvm::ConstantInt::get(type, 1);
    case ReduceKind::Max:
      if (is_float(d)) return llvm::ConstantFP::getInfinity(type, true);
      return whole(is_unsigned(d) ? llvm::APInt(bits, 0) : llvm::APInt::getSignedMinValue(bits));
    case ReduceKind::Min:
      if (is_float(d)) return llvm::ConstantFP::getInfinity(type, false);
      return whole(is_unsigned(d) ? llvm::APInt::getAllOnes(bits) : llvm::APInt::getSignedMaxValue(bits));
    case ReduceKind::ArgMax:
    case ReduceKind::ArgMin: break;
  }
  throw InternalError("emit: this reduction is not one of a nest");
}

Value* pair(Builder& b, Value* low, Value* high) {
  return b.CreateOr(b.CreateShl(b.CreateZExt(high, int_like(high, 32)), 16), b.CreateZExt(low, int_like(low, 32)));
}

Value* dot(Builder& b, Value* x, Value* y, Value* sum) {
  llvm::Intrinsic::ID id = llvm::Intrinsic::not_intrinsic;
  switch (has_bf16_dot(b.level) ? lanes_of(sum) : 0) {
    case 4: id = llvm::Intrinsic::x86_avx512bf16_dpbf16ps_128; break;
    case 8: id = llvm::Intrinsic::x86_avx512bf16_dpbf16ps_256; break;
    case 16: id = llvm::Intrinsic::x86_avx512bf16_dpbf16ps_512; break;
  }
  if (id != llvm::Intrinsic::not_intrinsic) {
    llvm::Function* instruction = llvm::Intrinsic::getDeclaration(b.GetInsertBlock()->getModule(), id);
    llvm::Type* pairs = instruction->getFunctionType()->getParamType(1);
    return b.CreateCall(instruction, {sum, b.CreateBitCast(x, pairs), b.CreateBitCast(y, pairs)});
  }
  const auto half = [&](Value* p, bool high) {
    Value* bits = high ? b.CreateAnd(p, llvm::ConstantInt::get(p->getType(), 0xFFFF0000u)) : b.CreateShl(p, 16);
    return b.CreateBitCast(bits, sum->getType());
  };
  for (bool high : {true, false})
    sum = b.CreateIntrinsic(llvm::Intrinsic::fma, {sum->getType()}, {half(x, high), half(y, high), sum});
  return sum;
}

}  // namespace trainc::emit
