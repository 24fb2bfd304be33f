// One nest -> one LLVM function. Statements are in statements.cpp, expressions and memory in expressions.cpp.
// Includes LLVM: for the .cpp files of this folder only.
#pragma once
#include <map>
#include <memory>
#include <set>

#include "emit/llvm/stride.h"
#include "emit/llvm/values.h"
#include "llvm/IR/MDBuilder.h"
#include "llvm/IR/Module.h"
#include "support/cpu.h"

namespace trainc::emit {

class Printer {
 public:
  Printer(llvm::Module&, const loop::LoopNest&, CpuLevel);
  void print();  // adds the function, once

 private:
  using Value = llvm::Value;

  // --- statements
  void statement(const loop::Stmt&);
  void for_range(Value* low, Value* high, bool runs_once_at_least, const std::function<void(Value*)>& body);
  void vector_loop(const loop::StmtNode&);
  void vector_body(const loop::StmtNode&, Value* base, Value* extent, bool tail);
  void start_partials(const loop::Stmt& body);
  size_t whole_vectors(size_t level, int64_t most, Value* low, Value* high, bool runs_once_at_least,
                       const std::function<void(Value*)>& one);
  void end_run(size_t level);
  void fold_partials();
  void store(const loop::StmtNode&);
  void let(const loop::StmtNode&);
  void reduce(const loop::StmtNode&);
  void check(const loop::StmtNode&);
  void prefetch(const loop::StmtNode&);
  void transpose(const loop::StmtNode&);
  void tile(const loop::StmtNode&);
  void configure_tiles();
  void release_tiles();
  llvm::Value* tile_number(int buffer);  // the register's

  // --- expressions. `scalar`: the value for lane 0, which is that of all lanes where the expression is uniform.
  Value* scalar(const loop::Expr&);
  Value* vector(const loop::Expr&);  // as many lanes as the current Vector loop
  Value* either(const loop::Expr&);  // scalar where uniform
  Value* compare_indices(const loop::ExprNode&);
  Value* apply(const loop::ExprNode&, const std::vector<Value*>&);
  Value* rounded_to_multiply(const loop::Expr&);   // by the level's instruction; null where that is none of it
  Value* lane_numbers(llvm::Type*, int64_t step);  // 0, step, 2 step, ...
  bool uniform(const loop::Expr& e) { return strides_->of(e).uniform(); }

  // --- memory
  struct Storage {
    Value* pointer = nullptr;
    llvm::Type* element = nullptr;  // as in memory
    DType dtype = DType::F32;
    loop::Space space = loop::Space::Argument;
    bool written = true;
    bool bits = false;
    llvm::MDNode *scope = nullptr, *noalias = nullptr;
  };
  Value* load_scalar(const loop::ExprNode&);
  Value* load_pair(const loop::ExprNode& pair);  // two neighbours at once; null where they are none
  Value* load_vector(const loop::ExprNode&);
  Value* masked_load(const Storage&, Value* pointer, Value* mask);
  Value* load_bit(const Storage&, Value* index, Value* guard);  // in bits.cpp, as the others of bits
  Value* load_bits(const loop::ExprNode&);
  Value* run_of_bits(const Storage&, const loop::Expr& index, Value* guard);
  Value* gather_bits(const Storage&, const loop::Expr& index, Value* mask);
  Value* address(const Storage&, Value* index, bool inbounds);
  Value* addresses(const Storage&, const loop::Expr& index);   // one a lane
  llvm::Instruction* tag(llvm::Instruction*, const Storage&);  // which memory this can be
  Value* from_memory(Value*, DType);
  Value* to_memory(Value*, DType);
  Value* zeros();  // memory that holds 64 zero elements of any dtype
  Value* temporary(llvm::Type*, const llvm::Twine& name);
  llvm::Align align_of(const Storage& s) const { return llvm::Align(static_cast<uint64_t>(size_of(s.dtype))); }

  bool has_tile_buffers() const;
  void prepare_memory();
  void forget();  // expressions of the last statement: memory or bindings have changed
  std::unique_ptr<Strides> strides_now();

  struct Local {
    Value* value = nullptr;
    Value* slot = nullptr;  // memory of one that a Reduce adds to
    int lanes = 1;
  };
  // One value a lane, of a local bound outside the Vector loop: a run of terms, then longer ones (loop/runs.h); the
  // last is the total.
  struct Partial {
    std::vector<Value*> slots;
    ReduceKind kind;
    DType terms, total;
  };
  // mask: of the tail, else null
  struct VectorLoop {
    int var = -1, lanes = 1;
    Value* mask = nullptr;
    Value* active = nullptr;
  };

  llvm::Module& module_;
  llvm::LLVMContext& context_;
  const loop::LoopNest& nest_;
  Builder b_;
  llvm::Function* function_ = nullptr;
  std::vector<Storage> storage_;
  std::map<int, Value*> vars_;
  std::map<int, Local> locals_;
  std::map<int, Partial> partials_;
  std::set<int> reduced_;     // locals that some Reduce runs
  std::set<int> multiplied_;  // buffers of operands of dot products alone, where the level has the instruction
  VectorLoop in_;             // the Vector loop being printed; lanes 1 and var -1: none
  std::unique_ptr<Strides> strides_;
  std::map<const loop::ExprNode*, Value*> scalars_, vectors_;
  llvm::GlobalVariable* zeros_ = nullptr;
  llvm::Value* status_ = nullptr;
};

}  // namespace trainc::emit
