// Loads of bools that lie as bits: neighbours are one integer, whose bits are the vector (a mask register, with
// AVX-512); what is strewn is gathered as words of 32 bits. bytes_of_bits (support/dtype.h) says why a load may reach
// beyond the last bit.
#include "emit/llvm/printer.h"

namespace trainc::emit {
using llvm::Value;

/// Bit `index`; false where `guard` is.
Value* Printer::load_bit(const Storage& s, Value* index, Value* guard) {
  Value* pointer = address(s, b_.CreateAShr(index, 3), !guard);
  if (guard) pointer = b_.CreateSelect(guard, pointer, zeros());
  Value* byte = tag(b_.CreateAlignedLoad(b_.getInt8Ty(), pointer, llvm::Align(1)), s);
  return b_.CreateTrunc(b_.CreateLShr(byte, b_.CreateAnd(b_.CreateTrunc(index, b_.getInt8Ty()), 7)), b_.getInt1Ty());
}

/// The bits from lane 0's on; false where the one `guard` of all lanes is. Lanes beyond a tail have whatever lies
/// there.
Value* Printer::run_of_bits(const Storage& s, const loop::Expr& index, Value* guard) {
  const auto lanes = static_cast<unsigned>(in_.lanes);
  const int64_t multiple = strides_->of(index).multiple;
  const bool whole_bytes = multiple % 8 == 0;
  unsigned width = 8;
  while (width < lanes + (whole_bytes ? 0 : 7)) width *= 2;
  Value* first = scalar(index);
  Value* pointer = address(s, b_.CreateAShr(first, 3), !guard);
  if (guard) pointer = b_.CreateSelect(guard, pointer, zeros());
  Value* bits = tag(b_.CreateAlignedLoad(b_.getIntNTy(width), pointer, llvm::Align(1)), s);
  if (!whole_bytes) bits = b_.CreateLShr(bits, b_.CreateZExtOrTrunc(b_.CreateAnd(first, 7), bits->getType()));
  return b_.CreateBitCast(b_.CreateTrunc(bits, b_.getIntNTy(lanes)), widen(b_.getInt1Ty(), in_.lanes));
}

/// The bits at `index`, one a lane; false, and no memory touched, where `mask` is.
Value* Printer::gather_bits(const Storage& s, const loop::Expr& index, Value* mask) {
  Value *lanes = vector(index), *words = b_.CreateAShr(lanes, 5);
  const loop::Range range = range_of(index);
  const int64_t limit = int64_t{1} << 30;
  if (range.known && range.low >= -limit && range.high < limit) words = b_.CreateTrunc(words, int_like(words, 32));
  llvm::Type* type = widen(b_.getInt32Ty(), in_.lanes);
  Value* zero = llvm::Constant::getNullValue(type);
  Value* gathered =
      tag(b_.CreateMaskedGather(type, b_.CreateGEP(b_.getInt32Ty(), s.pointer, words), llvm::Align(1), mask, zero), s);
  Value* place = b_.CreateAnd(b_.CreateTrunc(lanes, type), 31);
  return b_.CreateTrunc(b_.CreateLShr(gathered, place), widen(b_.getInt1Ty(), in_.lanes));
}

Value* Printer::load_bits(const loop::ExprNode& e) {
  const Storage& s = storage_[static_cast<size_t>(e.id)];
  const loop::Expr& index = e.args[0];
  const loop::Expr guard = e.args.size() > 1 ? e.args[1] : nullptr;
  const Stride stride = strides_->of(index);
  const bool same_guard = guard && uniform(guard);
  Value* mask = in_.mask;
  if (guard && !same_guard) mask = mask ? b_.CreateAnd(mask, vector(guard)) : vector(guard);
  if (stride.known && stride.stride == 0) {  // one element, wanted by some lanes
    Value* bit = load_bit(s, scalar(index), b_.CreateOrReduce(mask));
    return b_.CreateAnd(splat(b_, bit, in_.lanes), mask);
  }
  // Where lanes have guards of their own, the first one may lie outside.
  if (stride.known && stride.stride == 1 && (!guard || same_guard)) {
    Value* run = run_of_bits(s, index, same_guard ? scalar(guard) : nullptr);
    return mask ? b_.CreateAnd(run, mask) : run;
  }
  if (same_guard) mask = mask ? b_.CreateAnd(mask, vector(guard)) : vector(guard);
  return gather_bits(s, index, mask ? mask : llvm::ConstantInt::getTrue(widen(b_.getInt1Ty(), in_.lanes)));
}

}  // namespace trainc::emit
