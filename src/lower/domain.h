// The loops of a kernel: a domain of elements, factored so that every use reads with plain strides.
#pragma once
#include <set>
#include <vector>

#include "lower/expressions.h"

namespace trainc::lower {

/// Where movements below `value` cut a domain of `rows` x `columns` elements: each cut as the number of elements that
/// one step of that axis is (a row-major suffix product). A loop that is split at such a number needs no division.
std::set<int64_t> split_points(const Node* value, const Schedule&, int64_t rows, int64_t columns);

/// A chain total = f0 * f1 * ... of factors whose suffix products are the points, as far as they divide each other.
/// `firm` points first.
std::vector<int64_t> factor(int64_t total, const std::vector<int64_t>& firm, const std::set<int64_t>& points);

/// Loops over `factors` (outermost first): the first ones (on a device: all) as one Parallel loop, the others Serial,
/// around `body`. `variables` are the factors' indices, made by open() and used by whoever builds the body.
class OuterLoops {
 public:
  OuterLoops(loop::LoopNest&, const std::vector<int64_t>& factors, const LoweringOptions&);
  const std::vector<Expr>& variables() const { return variables_; }
  /// Wraps `body` and sets parallel_extent.
  Stmt close(Stmt body);

 private:
  loop::LoopNest& nest_;
  std::vector<int64_t> factors_;
  size_t parallel_ = 0;  // this many factors are one loop
  int parallel_var_ = -1;
  std::vector<int> serial_vars_;
  std::vector<Expr> variables_;
};

/// Makes `inside`, whose variable `j` counts a whole run, the body of a piece of it that begins at `start`: j counts
/// from there on. A body is built for the whole run first, because the range of j is known then, and divisions by the
/// run's length vanish.
void count_from(loop::LoopNest&, const Expr& start, int j, std::vector<Stmt>& inside);

/// sum of variable * (product of the factors after it)
Expr position_of(const std::vector<Expr>& variables, const std::vector<int64_t>& factors);

}  // namespace trainc::lower
