#include "emit/llvm/dot_operands.h"
#include "emit/llvm/printer.h"
#include "loop/runs.h"
#include "support/error.h"

namespace trainc::emit {
using llvm::Value;
using loop::Expr;
using loop::LoopKind;
using loop::Space;
using loop::Stmt;
using loop::StmtKind;
using loop::StmtNode;

namespace {

void visit(const Stmt& s, const std::function<void(const StmtNode&)>& f) {
  f(*s);
  for (const Stmt& child : s->body) visit(child, f);
}

bool any(const Stmt& s, const std::function<bool(const StmtNode&)>& p) {
  bool found = false;
  visit(s, [&](const StmtNode& n) { found |= p(n); });
  return found;
}

// `seen`: expressions are shared, and as trees they can be exponentially larger.
bool reads_buffer(const Expr& e, const std::function<bool(int)>& p, std::set<const loop::ExprNode*>& seen) {
  if (!e || !seen.insert(e.get()).second) return false;
  if (e->kind == loop::ExprKind::Load && p(e->id)) return true;
  for (const Expr& a : e->args)
    if (reads_buffer(a, p, seen)) return true;
  return false;
}

}  // namespace

Printer::Printer(llvm::Module& m, const loop::LoopNest& nest, CpuLevel level)
    : module_(m), context_(m.getContext()), nest_(nest), b_(context_, level) {}

void Printer::print() {
  llvm::Type *ptr = b_.getPtrTy(), *i64 = b_.getInt64Ty();
  function_ = llvm::Function::Create(llvm::FunctionType::get(b_.getVoidTy(), {ptr, ptr, ptr, i64, i64}, false),
                                     llvm::Function::ExternalLinkage, nest_.name, module_);
  function_->setDSOLocal(true);
  function_->setDoesNotThrow();
  function_->addFnAttr("no-builtins");
  function_->addFnAttr("no-jump-tables", "true");
  const char* names[] = {"arguments", "scratch", "status", "begin", "end"};
  for (unsigned i = 0; i < 5; ++i) {
    function_->getArg(i)->setName(names[i]);
    if (i < 3) function_->addParamAttr(i, llvm::Attribute::NoAlias);
  }
  function_->addParamAttr(1, llvm::Attribute::getWithAlignment(context_, llvm::Align(64)));
  status_ = function_->getArg(2);
  b_.SetInsertPoint(llvm::BasicBlock::Create(context_, "entry", function_));
  llvm::BasicBlock* body = llvm::BasicBlock::Create(context_, "body", function_);

  visit(nest_.body, [&](const StmtNode& n) {
    if (n.kind == StmtKind::Reduce) reduced_.insert(n.local);
  });
  if (has_bf16_dot(b_.level)) multiplied_ = dot_operands(nest_);
  prepare_memory();
  if (has_tile_buffers()) configure_tiles();
  b_.CreateBr(body);
  b_.SetInsertPoint(body);
  forget();
  statement(nest_.body);
  if (has_tile_buffers()) release_tiles();
  b_.CreateRetVoid();
}

void Printer::statement(const Stmt& s) {
  const StmtNode& n = *s;
  switch (n.kind) {
    case StmtKind::Block:
      for (const Stmt& child : n.body) statement(child);
      return;
    case StmtKind::Store:
      forget();
      store(n);
      return;
    case StmtKind::Let:
      forget();
      let(n);
      return;
    case StmtKind::Reduce:
      forget();
      reduce(n);
      return;
    case StmtKind::Check:
      forget();
      check(n);
      return;
    case StmtKind::Prefetch:
      forget();
      prefetch(n);
      return;
    case StmtKind::Transpose:
      forget();
      transpose(n);
      return;
    case StmtKind::TileZero:
    case StmtKind::TileLoad:
    case StmtKind::TileDot:
    case StmtKind::TileStore:
      forget();
      tile(n);
      return;
    case StmtKind::For: break;
    case StmtKind::Barrier:
    case StmtKind::WarpReduce:
    case StmtKind::Mma:
    case StmtKind::Copy:
    case StmtKind::CopyAsync:
    case StmtKind::CommitCopies:
    case StmtKind::WaitCopies:
    case StmtKind::LoadMatrix: throw InternalError("emit: " + nest_.name + " is a nest for a device");
  }
  const Stmt& body = n.body.at(0);
  switch (n.loop) {
    case LoopKind::Parallel:
      for_range(function_->getArg(3), function_->getArg(4), false, [&](Value* i) {
        vars_[n.var] = i;
        statement(body);
      });
      return;
    case LoopKind::Serial: {
      forget();
      require(uniform(n.extent), "emit: " + nest_.name + ": a loop whose extent differs between the lanes around it");
      const loop::Range range = range_of(n.extent);
      for_range(b_.getInt64(0), scalar(n.extent), range.known && range.low > 0, [&](Value* i) {
        vars_[n.var] = i;
        statement(body);
      });
      return;
    }
    case LoopKind::Unroll:
      require(n.extent->kind == loop::ExprKind::Int, "emit: " + nest_.name + ": an Unroll loop needs a number");
      for (int64_t i = 0; i < n.extent->int_value; ++i) {
        vars_[n.var] = b_.getInt64(static_cast<uint64_t>(i));
        statement(body);
      }
      return;
    case LoopKind::Vector: vector_loop(n); return;
    case LoopKind::Thread: throw InternalError("emit: " + nest_.name + " is a nest for a device");
  }
}

// if (low < high) { i = low; do body(i) while (++i < high); }
void Printer::for_range(Value* low, Value* high, bool runs, const std::function<void(Value*)>& body) {
  llvm::BasicBlock* before = b_.GetInsertBlock();
  llvm::BasicBlock* loop = llvm::BasicBlock::Create(context_, "loop", function_);
  llvm::BasicBlock* after = llvm::BasicBlock::Create(context_, "after", function_);
  if (runs) b_.CreateBr(loop);
  else b_.CreateCondBr(b_.CreateICmpSLT(low, high), loop, after);
  b_.SetInsertPoint(loop);
  llvm::PHINode* i = b_.CreatePHI(b_.getInt64Ty(), 2, "i");
  i->addIncoming(low, before);
  body(i);
  Value* next = b_.CreateNSWAdd(i, b_.getInt64(1));
  i->addIncoming(next, b_.GetInsertBlock());
  b_.CreateCondBr(b_.CreateICmpSLT(next, high), loop, after);
  b_.SetInsertPoint(after);
}

void Printer::vector_loop(const StmtNode& n) {
  require(in_.var < 0, "emit: " + nest_.name + ": a Vector loop inside another");
  forget();
  const Stmt& body = n.body.at(0);
  const int lanes = n.lanes;
  Value* extent = scalar(n.extent);
  in_ = {n.var, lanes, nullptr, nullptr};
  start_partials(body);

  const auto in_registers = [&](int buffer) {
    return nest_.buffers[static_cast<size_t>(buffer)].space == Space::Register;
  };
  std::set<const loop::ExprNode*> seen;
  const bool registers = any(body, [&](const StmtNode& s) {
    return (s.kind == StmtKind::Store && in_registers(s.buffer)) || reads_buffer(s.index, in_registers, seen) ||
           reads_buffer(s.value, in_registers, seen);
  });
  const auto whole = [&](Value* i) {
    vector_body(n, b_.CreateNSWMul(i, b_.getInt64(static_cast<uint64_t>(lanes))), extent, false);
  };
  size_t levels = 1;
  for (const auto& [id, p] : partials_) levels = std::max(levels, p.slots.size());
  const auto end_runs_above = [&](size_t level) {
    while (++level < levels) end_run(level);
  };
  if (auto* number = llvm::dyn_cast<llvm::ConstantInt>(extent)) {
    const int64_t total = number->getSExtValue(), full = total / lanes;
    // Register buffers are indexed by numbers alone, so these loops are written out.
    if (registers || full <= 1) {
      for (int64_t i = 0; i < full; ++i) {
        vector_body(n, b_.getInt64(static_cast<uint64_t>(i * lanes)), extent, false);
        for (size_t level = 1; level < levels && (i + 1) % loop::run_of(level) == 0; ++level) end_run(level);
      }
      if (full > 0) end_runs_above(0);
    } else {
      end_runs_above(
          whole_vectors(levels - 1, full, b_.getInt64(0), b_.getInt64(static_cast<uint64_t>(full)), true, whole));
    }
    if (total > 0 && total % lanes != 0) {
      vector_body(n, b_.getInt64(static_cast<uint64_t>(full * lanes)), extent, true);
      end_runs_above(0);
    }
  } else {
    require(!registers, "emit: " + nest_.name + ": a Vector loop over a Register buffer needs a number as extent");
    Value* full = b_.CreateSDiv(extent, b_.getInt64(static_cast<uint64_t>(lanes)));
    end_runs_above(whole_vectors(levels - 1, std::numeric_limits<int64_t>::max(), b_.getInt64(0), full, false, whole));
    if (lanes > 1) {
      Value* done = b_.CreateNSWMul(full, b_.getInt64(static_cast<uint64_t>(lanes)));
      llvm::BasicBlock* tail = llvm::BasicBlock::Create(context_, "tail", function_);
      llvm::BasicBlock* after = llvm::BasicBlock::Create(context_, "after", function_);
      b_.CreateCondBr(b_.CreateICmpSLT(done, extent), tail, after);
      b_.SetInsertPoint(tail);
      vector_body(n, done, extent, true);
      end_runs_above(0);
      b_.CreateBr(after);
      b_.SetInsertPoint(after);
    }
  }
  in_ = {};
  fold_partials();
  forget();
}

/// Locals bound outside that the body runs.
void Printer::start_partials(const Stmt& body) {
  std::set<int> bound;
  visit(body, [&](const StmtNode& s) {
    if (s.kind == StmtKind::Let) bound.insert(s.local);
  });
  visit(body, [&](const StmtNode& s) {
    if (s.kind != StmtKind::Reduce || bound.count(s.local)) return;
    const loop::LocalInfo& info = nest_.locals[static_cast<size_t>(s.local)];
    const DType terms = s.value->dtype;
    if (auto known = partials_.find(s.local); known != partials_.end()) {
      require(known->second.terms == terms, "emit: " + nest_.name + ": one local reduced in two ways");
      return;
    }
    Partial& p = partials_[s.local] = {{}, s.combine, terms, info.dtype};
    for (size_t k = 0; k < loop::levels_of(s.combine, terms, info.dtype); ++k) {
      llvm::Constant* start = neutral(context_, s.combine, k == 0 ? terms : info.dtype);
      p.slots.push_back(temporary(widen(start->getType(), in_.lanes), info.name + ".lanes"));
      b_.CreateStore(splat(b_, start, in_.lanes), p.slots.back());
    }
  });
}

/// Whole vectors from `low` on, `most` of them at most, in runs up to those of `level`. Gives the level of the longest
/// that were needed.
size_t Printer::whole_vectors(size_t level, int64_t most, Value* low, Value* high, bool runs,
                              const std::function<void(Value*)>& one) {
  while (level > 0 && most <= loop::run_of(level)) --level;
  if (level == 0) {
    for_range(low, high, runs, one);
    return 0;
  }
  const int64_t run = loop::run_of(level);
  const auto number = [&](int64_t x) { return b_.getInt64(static_cast<uint64_t>(x)); };
  Value* count = b_.CreateSDiv(b_.CreateNSWAdd(b_.CreateNSWSub(high, low), number(run - 1)), number(run));
  for_range(number(0), count, runs, [&](Value* i) {
    Value* from = b_.CreateNSWAdd(low, b_.CreateNSWMul(i, number(run)));
    Value* to = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, high, b_.CreateNSWAdd(from, number(run)));
    whole_vectors(level - 1, run, from, to, true, one);
    end_run(level);
  });
  return level;
}

/// What the runs below hold goes up to `level`; they begin anew.
void Printer::end_run(size_t level) {
  for (const auto& [id, p] : partials_) {
    if (level >= p.slots.size()) continue;
    const DType below = level == 1 ? p.terms : p.total;
    llvm::Type *from = widen(value_type(context_, below), in_.lanes),
               *to = widen(value_type(context_, p.total), in_.lanes);
    Value* run = convert(b_, b_.CreateLoad(from, p.slots[level - 1]), below, p.total);
    b_.CreateStore(combine(b_, p.kind, p.total, b_.CreateLoad(to, p.slots[level]), run), p.slots[level]);
    b_.CreateStore(splat(b_, neutral(context_, p.kind, below), in_.lanes), p.slots[level - 1]);
  }
}

/// The lanes in halves, log2(lanes) times; at last the start value.
void Printer::fold_partials() {
  for (const auto& [id, p] : partials_) {
    llvm::Type* element = value_type(context_, p.total);
    auto* slot = llvm::cast<llvm::AllocaInst>(p.slots.back());
    Value* v = b_.CreateLoad(slot->getAllocatedType(), slot);
    for (int half = lanes_of(v) / 2; half >= 1; half /= 2) {
      std::vector<int> low, high;
      for (int i = 0; i < half; ++i) {
        low.push_back(i);
        high.push_back(half + i);
      }
      v = half > 1 ? combine(b_, p.kind, p.total, b_.CreateShuffleVector(v, low), b_.CreateShuffleVector(v, high))
                   : combine(b_, p.kind, p.total, b_.CreateExtractElement(v, uint64_t{0}),
                             b_.CreateExtractElement(v, uint64_t{1}));
    }
    const Local& local = locals_[id];
    require(local.slot && local.lanes == 1, "emit: " + nest_.name + ": Reduce into a local that no Let has bound");
    b_.CreateStore(combine(b_, p.kind, p.total, b_.CreateLoad(element, local.slot), v), local.slot);
  }
  partials_.clear();
}

void Printer::vector_body(const StmtNode& n, Value* base, Value* extent, bool tail) {
  in_.mask = in_.active = nullptr;
  if (tail) {
    in_.active = b_.CreateNSWSub(extent, base);
    Value* count = splat(b_, b_.CreateTrunc(in_.active, b_.getInt32Ty()), in_.lanes);
    in_.mask = b_.CreateICmpSLT(lane_numbers(b_.getInt32Ty(), 1), count);
  }
  vars_[n.var] = base;
  statement(n.body.at(0));
}

void Printer::let(const StmtNode& n) {
  Local local;
  if (!reduced_.count(n.local)) {
    local.value = either(n.value);
    local.lanes = lanes_of(local.value);
  } else {
    Value* start = vector(n.value);
    local.slot = temporary(start->getType(), nest_.locals[static_cast<size_t>(n.local)].name);
    local.lanes = lanes_of(start);
    b_.CreateStore(start, local.slot);
  }
  locals_[n.local] = local;
}

void Printer::reduce(const StmtNode& n) {
  Value* value = vector(n.value);
  auto partial = partials_.find(n.local);
  const DType dtype =
      partial != partials_.end() ? partial->second.terms : nest_.locals[static_cast<size_t>(n.local)].dtype;
  Value* slot = partial != partials_.end() ? partial->second.slots[0] : locals_[n.local].slot;
  require(slot != nullptr, "emit: " + nest_.name + ": Reduce into a local that no Let has bound");
  value = convert(b_, value, n.value->dtype, dtype);
  Value* old = b_.CreateLoad(value->getType(), slot);
  Value* next = combine(b_, n.combine, dtype, old, value);
  if (partial != partials_.end() && in_.mask) next = b_.CreateSelect(in_.mask, next, old);
  b_.CreateStore(next, slot);
}

void Printer::check(const StmtNode& n) {
  Value* ok = either(n.value);
  if (lanes_of(ok) > 1) {
    if (in_.mask) ok = b_.CreateOr(ok, b_.CreateNot(in_.mask));
    ok = b_.CreateAndReduce(ok);
  }
  llvm::BasicBlock* failed = llvm::BasicBlock::Create(context_, "failed", function_);
  llvm::BasicBlock* after = llvm::BasicBlock::Create(context_, "after", function_);
  b_.CreateCondBr(ok, after, failed);
  b_.SetInsertPoint(failed);
  // the greatest code stays: which one is told depends neither on the order of elements nor on threads
  llvm::Type* word = b_.getInt32Ty();
  b_.CreateStore(b_.CreateBinaryIntrinsic(llvm::Intrinsic::umax, b_.CreateLoad(word, status_),
                                          llvm::ConstantInt::get(word, static_cast<uint32_t>(n.code))),
                 status_);
  b_.CreateBr(after);
  b_.SetInsertPoint(after);
}

void Printer::prefetch(const StmtNode& n) {
  const Storage& s = storage_[static_cast<size_t>(n.buffer)];
  Value* index = scalar(n.index);
  Value* pointer = address(s, s.bits ? b_.CreateAShr(index, 3) : index, false);
  const uint32_t locality = n.level == 1 ? 3 : 2;  // prefetcht0, prefetcht1
  b_.CreateIntrinsic(llvm::Intrinsic::prefetch, {pointer->getType()},
                     {pointer, b_.getInt32(0), b_.getInt32(locality), b_.getInt32(1)});
}

}  // namespace trainc::emit
