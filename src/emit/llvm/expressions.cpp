#include <llvm/Analysis/VectorUtils.h>
#include <llvm/IR/InlineAsm.h>

#include <algorithm>

#include "emit/llvm/bf16.h"
#include "emit/llvm/printer.h"
#include "support/error.h"

namespace trainc::emit {
using llvm::Value;
using loop::Expr;
using loop::ExprKind;
using loop::ExprNode;
using loop::Space;

void Printer::forget() {
  scalars_.clear();
  vectors_.clear();
  strides_ = strides_now();
}

std::unique_ptr<Strides> Printer::strides_now() {
  return std::make_unique<Strides>(in_.var, in_.lanes, [this](int local) { return locals_[local].lanes > 1; });
}

Value* Printer::lane_numbers(llvm::Type* element, int64_t step) {
  std::vector<llvm::Constant*> numbers;
  for (int i = 0; i < in_.lanes; ++i)
    numbers.push_back(llvm::ConstantInt::get(element, static_cast<uint64_t>(i * step), true));
  return in_.lanes == 1 ? numbers[0] : llvm::ConstantVector::get(numbers);
}

Value* Printer::apply(const ExprNode& e, const std::vector<Value*>& operands) {
  if (e.kind == ExprKind::Fma) return b_.CreateIntrinsic(llvm::Intrinsic::fma, {operands[0]->getType()}, operands);
  if (e.kind == ExprKind::Pair) return pair(b_, operands[0], operands[1]);
  if (e.kind == ExprKind::Dot) return dot(b_, operands[0], operands[1], operands[2]);
  const DType operand = e.args[e.op == Op::Select ? 1 : 0]->dtype;
  if (e.op == Op::Cast) return convert(b_, operands[0], operand, e.dtype);
  if (e.op == Op::Bitcast) return bitcast(b_, operands[0], e.dtype);
  return elementwise(b_, e.op, operand, operands);
}

Value* Printer::scalar(const Expr& e) {
  auto found = scalars_.find(e.get());
  if (found != scalars_.end()) return found->second;
  llvm::Type* type = value_type(context_, e->dtype);
  Value* v = nullptr;
  switch (e->kind) {
    case ExprKind::Int: v = llvm::ConstantInt::get(type, static_cast<uint64_t>(e->int_value), true); break;
    case ExprKind::Float:
      v = llvm::ConstantFP::get(e->dtype == DType::BF16 ? b_.getFloatTy() : type, e->float_value);
      if (e->dtype == DType::BF16) v = convert(b_, v, DType::F32, DType::BF16);
      break;
    case ExprKind::Var: {
      auto var = vars_.find(e->id);
      require(var != vars_.end(), "emit: " + nest_.name + ": a variable outside its loop");
      v = var->second;
      break;
    }
    case ExprKind::Local: {
      const Local& local = locals_[e->id];
      require((local.value || local.slot) && local.lanes == 1,
              "emit: " + nest_.name + ": a local that is not bound, or not the same in all lanes");
      v = local.slot ? b_.CreateLoad(type, local.slot) : local.value;
      break;
    }
    case ExprKind::Load: v = load_scalar(*e); break;
    case ExprKind::Pair:
      if ((v = load_pair(*e))) break;
      [[fallthrough]];
    case ExprKind::Fma:
    case ExprKind::Dot:
    case ExprKind::Apply: {
      std::vector<Value*> operands;
      for (const Expr& a : e->args) operands.push_back(scalar(a));
      const bool index = e->kind == ExprKind::Apply && e->dtype == DType::I64 && strides_->of(e).pure;
      if (index && e->op == Op::Add) v = b_.CreateNSWAdd(operands[0], operands[1]);
      else if (index && e->op == Op::Sub) v = b_.CreateNSWSub(operands[0], operands[1]);
      else if (index && e->op == Op::Mul) v = b_.CreateNSWMul(operands[0], operands[1]);
      else if (index && (e->op == Op::FloorDiv || e->op == Op::Mod) && e->args[1]->kind == ExprKind::Int &&
               e->args[1]->int_value > 0 && range_of(e->args[0]).known && range_of(e->args[0]).low >= 0)
        v = e->op == Op::FloorDiv ? b_.CreateUDiv(operands[0], operands[1]) : b_.CreateURem(operands[0], operands[1]);
      else v = apply(*e, operands);
      break;
    }
  }
  return scalars_[e.get()] = v;
}

Value* Printer::either(const Expr& e) { return in_.lanes == 1 || uniform(e) ? scalar(e) : vector(e); }

Value* Printer::vector(const Expr& e) {
  if (in_.lanes == 1) return scalar(e);
  auto found = vectors_.find(e.get());
  if (found != vectors_.end()) return found->second;
  const Stride s = strides_->of(e);
  Value* v = nullptr;
  if (s.known) {
    v = splat(b_, scalar(e), in_.lanes);
    if (s.stride != 0) v = b_.CreateAdd(v, lane_numbers(b_.getInt64Ty(), s.stride));
  } else {
    switch (e->kind) {
      case ExprKind::Local: {
        const Local& local = locals_[e->id];
        v = local.slot ? b_.CreateLoad(widen(value_type(context_, e->dtype), in_.lanes), local.slot) : local.value;
        break;
      }
      case ExprKind::Load: v = load_vector(*e); break;
      case ExprKind::Fma:
      case ExprKind::Pair:
      case ExprKind::Dot:
      case ExprKind::Apply: {
        if ((v = compare_indices(*e))) break;
        std::vector<Value*> operands;
        for (const Expr& a : e->args) operands.push_back(vector(a));
        v = apply(*e, operands);
        break;
      }
      case ExprKind::Int:
      case ExprKind::Float:
      case ExprKind::Var: throw InternalError("emit: a leaf without stride");
    }
  }
  return vectors_[e.get()] = v;
}

// A vector rounded to bf16, or two as pairs. `vcvtne2ps2bf16` flushes denormals, as the product would that they are
// for.
Value* Printer::rounded_to_multiply(const Expr& e) {
  const auto float_of = [](const Expr& x) {
    const bool rounds = x->kind == ExprKind::Apply && x->op == Op::Cast && x->dtype == DType::BF16;
    return rounds && x->args[0]->dtype == DType::F32 ? x->args[0] : nullptr;
  };
  const Expr low = float_of(e->kind == ExprKind::Pair ? e->args[0] : e),
             high = e->kind == ExprKind::Pair ? float_of(e->args[1]) : nullptr;
  if (!low || (e->kind == ExprKind::Pair) != (high != nullptr)) return nullptr;
  if (e->kind == ExprKind::Pair && in_.lanes == 16) return pairs_to_bf16_flushed(b_, vector(low), vector(high));
  return high ? nullptr : f32_to_bf16_flushed(b_, vector(low));
}

// a < b of indices that both move by a constant a lane: the difference at lane 0 decides, and 32 bits are enough for it
// once it is clamped, for the lanes move it by little. Guards and causal masks are made of these.
Value* Printer::compare_indices(const ExprNode& e) {
  if (e.kind != ExprKind::Apply || e.args.size() != 2 || e.args[0]->dtype != DType::I64) return nullptr;
  if (e.op != Op::Lt && e.op != Op::Le && e.op != Op::Eq && e.op != Op::Ne) return nullptr;
  const Stride x = strides_->of(e.args[0]), y = strides_->of(e.args[1]);
  const int64_t step = x.stride - y.stride, far = int64_t{1} << 30;
  if (!x.known || !y.known || !x.pure || !y.pure || std::abs(step) > (1 << 20)) return nullptr;
  Value* difference = b_.CreateNSWSub(scalar(e.args[0]), scalar(e.args[1]));
  difference = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, difference, b_.getInt64(static_cast<uint64_t>(-far)));
  difference = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, difference, b_.getInt64(static_cast<uint64_t>(far)));
  Value* first = splat(b_, b_.CreateTrunc(difference, b_.getInt32Ty()), in_.lanes);
  return elementwise(b_, e.op, DType::I32, {first, lane_numbers(b_.getInt32Ty(), -step)});
}

// --- memory

void Printer::prepare_memory() {
  llvm::MDBuilder metadata(context_);
  llvm::MDNode* domain = metadata.createAnonymousAliasScopeDomain(nest_.name);
  std::vector<llvm::Metadata*> scopes;
  for (const loop::Buffer& buffer : nest_.buffers)
    scopes.push_back(metadata.createAnonymousAliasScope(domain, buffer.name));

  Value *arguments = function_->getArg(0), *scratch = function_->getArg(1);
  int64_t offset = 0;
  for (size_t i = 0; i < nest_.buffers.size(); ++i) {
    const loop::Buffer& buffer = nest_.buffers[i];
    Storage s;
    s.dtype = buffer.dtype;
    s.space = buffer.space;
    s.bits = buffer.bits;
    s.element = memory_type(context_, buffer.dtype);
    s.written = buffer.written || buffer.space != Space::Argument ||
                std::any_of(nest_.buffers.begin(), nest_.buffers.end(),
                            [&](const loop::Buffer& b) { return b.over == static_cast<int>(i); });
    switch (buffer.space) {
      case Space::Argument: {
        auto* load =
            b_.CreateLoad(b_.getPtrTy(), b_.CreateConstInBoundsGEP1_64(b_.getPtrTy(), arguments, i), buffer.name);
        load->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(context_, {}));
        s.pointer = load;
        break;
      }
      case Space::Scratch:
        s.pointer = b_.CreateConstInBoundsGEP1_64(b_.getInt8Ty(), scratch, static_cast<uint64_t>(offset), buffer.name);
        offset += (buffer.numel * size_of(buffer.dtype) + 63) / 64 * 64;
        break;
      case Space::Register:
        // Room for a whole vector at the last element: tails of Register buffers are read and written whole.
        s.pointer = temporary(llvm::ArrayType::get(s.element, static_cast<uint64_t>(buffer.numel) + 64), buffer.name);
        break;
      case Space::Tile: break;  // tile_number
      case Space::Shared: throw InternalError("emit: " + nest_.name + " is a nest for a device");
    }
    if (buffer.space != Space::Register && buffer.space != Space::Tile) {
      std::vector<llvm::Metadata*> others;
      for (size_t j = 0; j < scopes.size(); ++j)
        if (j != i && buffer.over != static_cast<int>(j) && nest_.buffers[j].over != static_cast<int>(i))
          others.push_back(scopes[j]);
      s.scope = llvm::MDNode::get(context_, {scopes[i]});
      s.noalias = llvm::MDNode::get(context_, others);
    }
    storage_.push_back(s);
  }
}

Value* Printer::temporary(llvm::Type* type, const llvm::Twine& name) {
  llvm::BasicBlock& entry = function_->getEntryBlock();
  llvm::IRBuilder<> b(&entry, entry.begin());
  auto* slot = b.CreateAlloca(type, nullptr, name);
  slot->setAlignment(llvm::Align(64));
  return slot;
}

llvm::Instruction* Printer::tag(llvm::Instruction* access, const Storage& s) {
  if (s.scope) {
    access->setMetadata(llvm::LLVMContext::MD_alias_scope, s.scope);
    access->setMetadata(llvm::LLVMContext::MD_noalias, s.noalias);
    if (!s.written && access->mayReadFromMemory())
      access->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(context_, {}));
  }
  return access;
}

Value* Printer::from_memory(Value* v, DType d) {
  return d == DType::Bool ? b_.CreateICmpNE(v, llvm::Constant::getNullValue(v->getType())) : v;
}
Value* Printer::to_memory(Value* v, DType d) {
  return d == DType::Bool ? b_.CreateZExt(v, widen(b_.getInt8Ty(), lanes_of(v))) : v;
}

Value* Printer::zeros() {
  if (!zeros_) {
    auto* type = llvm::ArrayType::get(b_.getInt8Ty(), 64 * 8);
    zeros_ = new llvm::GlobalVariable(module_, type, true, llvm::GlobalValue::PrivateLinkage,
                                      llvm::ConstantAggregateZero::get(type), "zeros");
    zeros_->setAlignment(llvm::Align(64));
  }
  return zeros_;
}

Value* Printer::address(const Storage& s, Value* index, bool inbounds) {
  return inbounds ? b_.CreateInBoundsGEP(s.element, s.pointer, index) : b_.CreateGEP(s.element, s.pointer, index);
}

Value* Printer::addresses(const Storage& s, const Expr& index) {
  const Stride stride = strides_->of(index);
  const int64_t limit = int64_t{1} << 30;
  if (stride.known && std::abs(stride.stride) < limit / 64)
    return b_.CreateGEP(s.element, address(s, scalar(index), false), lane_numbers(b_.getInt32Ty(), stride.stride));
  Value* lanes = vector(index);
  const loop::Range range = range_of(index);  // 32-bit offsets gather twice as fast
  if (range.known && range.low >= -limit && range.high < limit) lanes = b_.CreateTrunc(lanes, int_like(lanes, 32));
  return b_.CreateGEP(s.element, s.pointer, lanes);
}

Value* Printer::load_scalar(const ExprNode& e) {
  const Storage& s = storage_[static_cast<size_t>(e.id)];
  Value* guard = e.args.size() > 1 && e.args[1] ? scalar(e.args[1]) : nullptr;
  if (s.bits) return load_bit(s, scalar(e.args[0]), guard);
  Value* pointer = address(s, scalar(e.args[0]), !guard);
  if (guard) pointer = b_.CreateSelect(guard, pointer, zeros());
  return from_memory(tag(b_.CreateAlignedLoad(s.element, pointer, align_of(s)), s), s.dtype);
}

Value* Printer::load_pair(const ExprNode& e) {
  const Expr &low = e.args[0], &high = e.args[1];
  if (low->kind != ExprKind::Load || high->kind != ExprKind::Load || low->id != high->id || low->args.size() > 1 ||
      high->args.size() > 1)
    return nullptr;
  const Expr step = high->args[0] - low->args[0];
  const Storage& s = storage_[static_cast<size_t>(low->id)];
  if (step->kind != ExprKind::Int || step->int_value != 1 || s.space == Space::Register) return nullptr;
  return tag(b_.CreateAlignedLoad(b_.getInt32Ty(), address(s, scalar(low->args[0]), true), align_of(s)), s);
}

/// Neighbours from `pointer` on, zeros where the mask is false, on AVX2; a register at a time, with masks that LLVM
/// does not see through: where 19.1 finds late that one is false for each lane, it loads without it.
Value* Printer::masked_load(const Storage& s, Value* pointer, Value* mask) {
  const unsigned bits = static_cast<unsigned>(s.element->getPrimitiveSizeInBits());
  const int lanes = lanes_of(mask), each = std::min<int>(lanes, 256 / static_cast<int>(bits));
  auto* integers = llvm::FixedVectorType::get(b_.getIntNTy(bits), static_cast<unsigned>(each));
  auto* type = llvm::FixedVectorType::get(s.element, static_cast<unsigned>(each));
  auto* same = llvm::InlineAsm::get(llvm::FunctionType::get(integers, {integers}, false), "", "=x,0", false);
  llvm::SmallVector<Value*, 8> parts;
  for (int at = 0; at < lanes; at += each) {
    llvm::SmallVector<int, 32> part;
    for (int k = 0; k < each; ++k) part.push_back(at + k);
    Value* some = each == lanes ? mask : b_.CreateShuffleVector(mask, part);
    Value* hidden = b_.CreateCall(same, {b_.CreateSExt(some, integers)});
    Value* from = at == 0 ? pointer : b_.CreateConstGEP1_64(s.element, pointer, static_cast<uint64_t>(at));
    parts.push_back(tag(
        b_.CreateMaskedLoad(type, from, align_of(s), b_.CreateICmpSLT(hidden, llvm::Constant::getNullValue(integers)),
                            llvm::Constant::getNullValue(type)),
        s));
  }
  return parts.size() == 1 ? parts[0] : llvm::concatenateVectors(b_, parts);
}

Value* Printer::load_vector(const ExprNode& e) {
  const Storage& s = storage_[static_cast<size_t>(e.id)];
  if (s.bits) return load_bits(e);
  const Expr& index = e.args[0];
  const Expr guard = e.args.size() > 1 ? e.args[1] : nullptr;
  const Stride stride = strides_->of(index);
  llvm::Type* type = widen(s.element, in_.lanes);
  Value* zero = llvm::Constant::getNullValue(type);
  const bool same_guard = guard && uniform(guard);
  // Lanes that may touch memory; null: all.
  Value* mask = in_.mask;
  if (guard && !same_guard) mask = mask ? b_.CreateAnd(mask, vector(guard)) : vector(guard);

  if (stride.known && stride.stride == 0) {  // one element, wanted by some lanes (or uniform() would have been asked)
    Value* any = b_.CreateOrReduce(mask);
    Value* pointer = b_.CreateSelect(any, address(s, scalar(index), false), zeros());
    Value* one = tag(b_.CreateAlignedLoad(s.element, pointer, align_of(s)), s);
    return from_memory(b_.CreateSelect(mask, splat(b_, one, in_.lanes), zero), s.dtype);
  }
  if (stride.known && stride.stride == 1) {
    Value* pointer = address(s, scalar(index), !guard);
    if (same_guard) pointer = b_.CreateSelect(scalar(guard), pointer, zeros());
    Value* v = nullptr;
    if (s.space == Space::Register) {  // its memory is longer than asked for: read whole
      v = b_.CreateAlignedLoad(type, pointer, align_of(s));
      if (guard && !same_guard) v = b_.CreateSelect(vector(guard), v, zero);
    } else if (mask && mask != in_.mask && b_.level == CpuLevel::Avx2 && size_of(s.dtype) * in_.lanes >= 16 &&
               size_of(s.dtype) >= 4) {  // narrower ones go one by one
      v = masked_load(s, pointer, mask);
    } else if (mask) {
      v = tag(b_.CreateMaskedLoad(type, pointer, align_of(s), mask, zero), s);
    } else {
      v = tag(b_.CreateAlignedLoad(type, pointer, align_of(s)), s);
    }
    return from_memory(v, s.dtype);
  }
  if (same_guard) mask = mask ? b_.CreateAnd(mask, vector(guard)) : vector(guard);
  Value* all = llvm::ConstantInt::getTrue(widen(b_.getInt1Ty(), in_.lanes));
  return from_memory(tag(b_.CreateMaskedGather(type, addresses(s, index), align_of(s), mask ? mask : all, zero), s),
                     s.dtype);
}

void Printer::store(const loop::StmtNode& n) {
  const Storage& s = storage_[static_cast<size_t>(n.buffer)];
  const Stride stride = strides_->of(n.index);
  if (in_.lanes == 1 || (stride.known && stride.stride == 0)) {
    // Uniform place: the last iteration wins.
    Value* value = either(n.value);
    if (lanes_of(value) > 1) {
      Value* last = in_.active ? b_.CreateSub(in_.active, b_.getInt64(1))
                               : static_cast<Value*>(b_.getInt64(static_cast<uint64_t>(in_.lanes - 1)));
      value = b_.CreateExtractElement(value, last);
    }
    tag(b_.CreateAlignedStore(to_memory(value, s.dtype), address(s, scalar(n.index), true), align_of(s)), s);
    return;
  }
  Value* value = multiplied_.count(n.buffer) ? rounded_to_multiply(n.value) : nullptr;
  value = to_memory(value ? value : vector(n.value), s.dtype);
  if (stride.known && stride.stride == 1) {
    Value* pointer = address(s, scalar(n.index), true);
    if (s.space == Space::Register && in_.mask)
      value = b_.CreateSelect(in_.mask, value, b_.CreateAlignedLoad(value->getType(), pointer, align_of(s)));
    if (s.space != Space::Register && in_.mask) tag(b_.CreateMaskedStore(value, pointer, align_of(s), in_.mask), s);
    else tag(b_.CreateAlignedStore(value, pointer, align_of(s)), s);
    return;
  }
  Value* all = llvm::ConstantInt::getTrue(widen(b_.getInt1Ty(), in_.lanes));
  tag(b_.CreateMaskedScatter(value, addresses(s, n.index), align_of(s), in_.mask ? in_.mask : all), s);
}

}  // namespace trainc::emit
