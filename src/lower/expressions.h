// From nodes to expressions over a nest: movements become index arithmetic, values become loads or locals, all else is
// inlined.
#pragma once
#include <functional>
#include <unordered_map>
#include <vector>

#include "loop/index.h"
#include "loop/loop.h"
#include "lower/lower.h"
#include "schedule/schedule.h"

namespace trainc::lower {

using loop::Expr;
using loop::Index;
using loop::Stmt;

class Expressions {
 public:
  Expressions(const Schedule& schedule, LoweredKernel& kernel) : schedule_(schedule), kernel_(kernel) {}

  /// The value of `n` at `index`, dtype n's (bf16 and f16: as f32, rounded). Statements that it needs (Let, Check) go
  /// to `out`.
  Expr value(const Node* n, Index index);
  /// Statement that stores `value` as n's element at `position`.
  Stmt store(const Node* n, Expr position, Expr value);
  /// Binds a value of the group: later uses, all of them aligned, read the local.
  Expr bind(const Node* n, Expr value);
  int argument(const Node* base, bool written = false);
  /// Makes a Let out of an expression that more than one place uses.
  Expr keep(const char* name, Expr value);

  /// The index that `n` gives at `index`, held within [0, size) after a Check that it lies there.
  Expr checked_index(const Node* n, Index index, int64_t size, Failure failure);

  std::vector<Stmt>* out = nullptr;  // nullptr: one expression, no statements (a contraction's operand)
  std::unordered_map<const Node*, Expr> bound;
  // Values of this group that are not simply loaded: the kernel's builder says how they are had here.
  std::unordered_set<const Node*> own;
  std::function<Expr(const Node*, Index&)> own_value;
  loop::LoopNest& nest() { return kernel_.nest; }
  /// The definition of a value, computed at `index` (its op, not its memory).
  Expr definition(const Node* n, Index index);

 private:
  Expr elementwise(const Node* n, Index& index);
  Expr gather(const Node* n, Index& index);
  Expr load(const Node* n, Index& index);

  const Schedule& schedule_;
  LoweredKernel& kernel_;
  std::unordered_map<const Node*, int> buffers_;
  Expr guard_;  // loads touch memory only where this holds
};

loop::Expr arithmetic(DType to, Expr);  // rounds an f32 expression through bf16 or f16 where `to` says so
DType arithmetic_dtype(DType);          // what arithmetic on this dtype is done in

}  // namespace trainc::lower
