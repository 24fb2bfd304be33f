#include "emit/llvm/bf16.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "llvm/ADT/SmallPtrSet.h"
#include "llvm/Analysis/VectorUtils.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/IntrinsicsX86.h"
#include "llvm/IR/PatternMatch.h"

namespace trainc::emit {
namespace {

using llvm::Value;
namespace pattern = llvm::PatternMatch;

constexpr unsigned kSeen = 200;  // values looked at, at most: a chain between two roundings has far fewer

/// Whether a value of float or double is known to have, wherever it is a NaN, zeros in the bits that bf16 has not. What
/// computes with floats passes on the bits of an operand's NaN, or makes x86's own, 0xffc00000; so it is enough that
/// this holds where values come from: in what was widened from bf16, and in constants.
class NansFitBf16 {
 public:
  bool of(const Value* v) {
    if (!seen_.insert(v).second) return true;  // looked at already, or just now
    if (seen_.size() > kSeen) return false;
    if (const auto* c = llvm::dyn_cast<llvm::Constant>(v)) return constant(*c);
    const auto* i = llvm::dyn_cast<llvm::Instruction>(v);
    return i && instruction(*i);
  }

 private:
  static bool constant(const llvm::Constant& c) {
    if (llvm::isa<llvm::PoisonValue>(c)) return true;  // the second operand of a shuffle that reads the first alone
    const auto* x = llvm::dyn_cast_or_null<llvm::ConstantFP>(c.getType()->isVectorTy() ? c.getSplatValue() : &c);
    return x && (!x->isNaN() || fits(*x));
  }
  static bool fits(const llvm::ConstantFP& x) {
    return x.getValueAPF().bitcastToAPInt().countr_zero() >= (x.getType()->isDoubleTy() ? 29u + 16u : 16u);
  }
  bool all(llvm::iterator_range<llvm::User::const_op_iterator> operands) {
    return std::all_of(operands.begin(), operands.end(), [this](const Value* v) { return of(v); });
  }
  bool instruction(const llvm::Instruction& i) {
    switch (i.getOpcode()) {
      case llvm::Instruction::FAdd:
      case llvm::Instruction::FSub:
      case llvm::Instruction::FMul:
      case llvm::Instruction::FDiv:
      case llvm::Instruction::FNeg:
      case llvm::Instruction::FPTrunc: return all(i.operands());
      case llvm::Instruction::FPExt:
        return i.getOperand(0)->getType()->getScalarType()->isFloatTy() && all(i.operands());
      case llvm::Instruction::Select: return of(i.getOperand(1)) && of(i.getOperand(2));
      case llvm::Instruction::ShuffleVector: return of(i.getOperand(0)) && of(i.getOperand(1));  // a register's part
      case llvm::Instruction::SIToFP:
      case llvm::Instruction::UIToFP: return true;  // never a NaN
      case llvm::Instruction::BitCast: return bits(i);
      case llvm::Instruction::Call: return call(i);
      default: return false;  // memory, arguments, sums of a loop
    }
  }
  /// Integers taken for floats: their lower half is zero in what bf16_to_f32 made, and in a power of two.
  static bool bits(const llvm::Instruction& cast) {
    const llvm::APInt* by = nullptr;
    return cast.getType()->getScalarType()->isFloatTy() &&
           pattern::match(cast.getOperand(0), pattern::m_Shl(pattern::m_Value(), pattern::m_APInt(by))) && by->uge(16);
  }
  bool call(const llvm::Instruction& i) {
    const auto* known = llvm::dyn_cast<llvm::IntrinsicInst>(&i);
    if (!known) return false;
    switch (known->getIntrinsicID()) {
      case llvm::Intrinsic::fma:
      case llvm::Intrinsic::arithmetic_fence:
      case llvm::Intrinsic::fabs:
      case llvm::Intrinsic::copysign:
      case llvm::Intrinsic::sqrt:
      case llvm::Intrinsic::floor:
      case llvm::Intrinsic::ceil:
      case llvm::Intrinsic::trunc:
      case llvm::Intrinsic::roundeven: return all(known->args());
      case llvm::Intrinsic::x86_avx512_mask_scalef_ps_256:
      case llvm::Intrinsic::x86_avx512_mask_scalef_ps_512: return of(i.getOperand(0)) && of(i.getOperand(1));
      default: return false;
    }
  }
  llvm::SmallPtrSet<const Value*, 32> seen_;
};

}  // namespace

Value* bf16_to_f32(Builder& b, Value* x) {
  Value* wide = b.CreateShl(b.CreateZExt(x, int_like(x, 32)), 16);
  return b.CreateBitCast(wide, widen(b.getFloatTy(), lanes_of(x)));
}

// By hand at every level: vcvtneps2bf16 flushes denormals (dot_operands.h has where that is nothing). Everything
// happens in place, in the upper half, so that a value rounded and widened again is not shifted at all. Sums alone, for
// compares and their masks take time; a NaN whose lower half is not zero needs one, for the sum could carry it into a
// number.
Value* f32_to_bf16(Builder& b, Value* x) {
  Value* narrow = nullptr;  // a value that was widened is not rounded again
  if (pattern::match(x, pattern::m_BitCast(
                            pattern::m_Shl(pattern::m_ZExt(pattern::m_Value(narrow)), pattern::m_SpecificInt(16)))) &&
      narrow->getType() == int_like(x, 16))
    return narrow;
  Value* bits = b.CreateBitCast(x, widen(b.getInt32Ty(), lanes_of(x)));
  Value* odd = b.CreateAnd(b.CreateLShr(bits, 16), integer(bits, 1));
  Value* rounded = b.CreateAdd(b.CreateAdd(bits, integer(bits, 0x7fff)), odd);
  if (!NansFitBf16().of(x))
    rounded = b.CreateSelect(b.CreateFCmpUNO(x, x), b.CreateOr(bits, integer(bits, 0x400000)), rounded);
  return b.CreateTrunc(b.CreateLShr(rounded, 16), int_like(bits, 16));
}

namespace {

Value* lanes_from(Builder& b, Value* x, int first, int count) {
  std::vector<int> lanes(static_cast<size_t>(count));
  std::iota(lanes.begin(), lanes.end(), first);
  return b.CreateShuffleVector(x, lanes);
}

/// What f32_to_bf16 rounded and bf16_to_f32 widened again; else `x`.
Value* before_rounding(Value* x) {
  Value *rounded = nullptr, *bits = nullptr, *before = nullptr;
  const auto upper = pattern::m_LShr(pattern::m_Value(rounded), pattern::m_SpecificInt(16));
  if (!pattern::match(
          x, pattern::m_BitCast(pattern::m_Shl(pattern::m_ZExt(pattern::m_Trunc(upper)), pattern::m_SpecificInt(16)))))
    return x;
  pattern::match(rounded, pattern::m_Select(pattern::m_Value(), pattern::m_Value(), pattern::m_Value(rounded)));
  const auto odd =
      pattern::m_And(pattern::m_LShr(pattern::m_Deferred(bits), pattern::m_SpecificInt(16)), pattern::m_SpecificInt(1));
  const bool sums = pattern::match(
      rounded, pattern::m_Add(pattern::m_Add(pattern::m_Value(bits), pattern::m_SpecificInt(0x7fff)), odd));
  return sums && pattern::match(bits, pattern::m_BitCast(pattern::m_Value(before))) && before->getType() == x->getType()
             ? before
             : x;
}

Value* two_to_bf16(Builder& b, Value* low, Value* high) {
  const llvm::Intrinsic::ID id = llvm::Intrinsic::x86_avx512bf16_cvtne2ps2bf16_512;
  llvm::Function* rounded = llvm::Intrinsic::getDeclaration(b.GetInsertBlock()->getModule(), id);
  return b.CreateBitCast(b.CreateCall(rounded, {high, low}), widen(b.getInt16Ty(), 32));
}

}  // namespace

Value* f32_to_bf16_flushed(Builder& b, Value* x) {
  x = before_rounding(x);
  const int lanes = lanes_of(x);
  if (lanes == 32) return two_to_bf16(b, lanes_from(b, x, 0, 16), lanes_from(b, x, 16, 16));
  if (lanes == 48 || lanes == 64)
    return llvm::concatenateVectors(
        b, {f32_to_bf16_flushed(b, lanes_from(b, x, 0, 32)), f32_to_bf16_flushed(b, lanes_from(b, x, 32, lanes - 32))});
  if (lanes != 16) return nullptr;
  const llvm::Intrinsic::ID id = llvm::Intrinsic::x86_avx512bf16_cvtneps2bf16_512;
  llvm::Function* rounded = llvm::Intrinsic::getDeclaration(b.GetInsertBlock()->getModule(), id);
  return b.CreateBitCast(b.CreateCall(rounded, {x}), widen(b.getInt16Ty(), 16));
}

Value* pairs_to_bf16_flushed(Builder& b, Value* low, Value* high) {
  std::vector<int> turns;
  for (int i = 0; i < 16; ++i) turns.push_back(i), turns.push_back(16 + i);
  return b.CreateBitCast(b.CreateShuffleVector(two_to_bf16(b, before_rounding(low), before_rounding(high)), turns),
                         widen(b.getInt32Ty(), 16));
}

}  // namespace trainc::emit
