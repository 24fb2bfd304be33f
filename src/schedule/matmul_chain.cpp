#include "schedule/matmul_chain.h"

#include <algorithm>

#include "cost/matmul_chain.h"
#include "loop/index.h"

namespace trainc::schedule {

using loop::Expr;
using loop::Index;

namespace {

/// Whether a sum with one result a row lies between `producer` and `n`.
bool sums_rows(const Node* n, const Node* producer, int64_t rows) {
  // Down to contractions, which are as far away as the program is long: no recursion. First from `n` to the sums, then
  // from these on.
  std::vector<const Node*> stack{n}, sums;
  std::unordered_set<const Node*> seen;
  while (!stack.empty()) {
    const Node* x = stack.back();
    stack.pop_back();
    if (x->op == Op::Contract || !seen.insert(x).second) continue;
    if (is_sum(x) && is_trailing_reduce(x) && x->type.numel() == rows) sums.push_back(x->in(0));
    else stack.insert(stack.end(), x->inputs.begin(), x->inputs.end());
  }
  seen.clear();
  while (!sums.empty()) {
    const Node* x = sums.back();
    sums.pop_back();
    if (x == producer) return true;
    if (x->op != Op::Contract && seen.insert(x).second) sums.insert(sums.end(), x->inputs.begin(), x->inputs.end());
  }
  return false;
}

bool equal(const Expr& a, const Expr& b) {
  const Expr difference = a - b;
  return difference->kind == loop::ExprKind::Int && difference->int_value == 0;
}

}  // namespace

OrRefused<Matrix> matrix_of(const Node* c) {
  const int64_t k = c->in(0)->shape()[2], columns = c->shape()[2];
  if (c->type.numel() == 0 || k == 0) return "there is nothing to multiply";
  if (columns < 2) return "the matrix has a single column";
  if (k > cost::kWidestHead) return "its operands are wider than an attention head";
  if (columns * k * 4 > cost::kPackedOperand) return "its packed operand is larger than a thread keeps";
  const Matrix matrix{c->shape()[0], c->shape()[1], columns};
  // One entry alone may be any layer of a network: it is worth it where the matrix is larger than what it is made of.
  if (matrix.batch == 1 && matrix.rows * columns <= (matrix.rows + columns) * k)
    return "the matrix is no larger than what it is made of";
  return matrix;
}

const char* refuse_wide_consumer(const Node* consumer, bool transposed, const Matrix& matrix) {
  const int64_t width = consumer->type.numel() / (matrix.batch * (transposed ? matrix.columns : matrix.rows));
  if (width == 0) return "there is nothing to multiply";
  if (width > cost::kWidestHead) return "the next contraction's result is wider than an attention head";
  if (matrix.columns * width * 4 > cost::kPackedOperand)
    return "the next contraction's packed operand is larger than a thread keeps";
  if (transposed && matrix.batch < cost::kLeastEntries) return "the sums over all rows would be too few tasks";
  return nullptr;
}

std::unordered_set<const Node*> chain_producers(const std::vector<const Node*>& nodes) {
  std::unordered_set<const Node*> contractions, producers;
  for (const Node* n : nodes)
    if (n->op == Op::Contract) contractions.insert(n);
  for (const Node* consumer : contractions) {
    const Dims& lhs = consumer->in(0)->shape();
    const Matrix matrix{lhs[0], lhs[1], lhs[2]};
    if (consumer->type.numel() == 0 || refuse_wide_consumer(consumer, false, matrix)) continue;
    const std::optional<BlockOperand> operand = block_operand(consumer, 0, matrix);
    if (!operand || !is_elementwise(operand->node->op)) continue;
    const int64_t rows = matrix.batch * matrix.rows;
    // Sums are looked through, as if they were computed where they are used; one that reads a producer makes it worth
    // the while.
    for (const Read& r : reads_of(operand->node, contractions, rows, matrix.columns)) {
      if (r.access != Access::Full || !contractions.count(r.value)) continue;
      const OrRefused<Matrix> producer = matrix_of(r.value);
      if (producer && *producer == matrix && sums_rows(operand->node, r.value, rows)) producers.insert(r.value);
    }
  }
  return producers;
}

std::optional<BlockOperand> block_operand(const Node* contract, int which, const Matrix& matrix) {
  const Node* n = contract->in(which);
  const auto& [batch, rows, columns] = matrix;
  if (n->type.numel() != batch * rows * columns || n->shape()[0] != batch) return std::nullopt;
  // Where the element (b, row, k) of the operand lies in what its movements read.
  loop::LoopNest nest;
  std::vector<Expr> at;
  for (const char* name : {"b", "row", "k"}) at.push_back(nest.var(nest.add_var(name, n->shape()[at.size()])));
  Index index = Index::at_axes(n->shape(), at);
  for (;;) {
    if (n->op == Op::Reshape) {
      index = Index::at_position(n->in(0)->shape(), index.linear());
    } else if (n->op == Op::Permute) {
      std::vector<Expr> axes(n->shape().size());
      for (size_t k = 0; k < axes.size(); ++k) axes[n->as<AxesAttr>().axes[k]] = index.coordinates()[k];
      index = Index::at_axes(n->in(0)->shape(), std::move(axes));
    } else if (!(n->op == Op::Cast && n->dtype() == DType::F32 &&
                 n->in(0)->dtype() == DType::BF16)) {  // multiplied as the bf16 that it is
      break;
    }
    n = n->in(0);
  }
  const Dims shape{batch, rows, columns};
  const auto lies = [&](const Expr& row, const Expr& column) {
    return equal(index.linear(), Index::at_axes(shape, {at[0], row, column}).linear());
  };
  const Dims& operand = contract->in(which)->shape();
  if (which == 0 && operand[1] == rows && lies(at[1], at[2])) return BlockOperand{n, false};
  if (operand[1] == columns && lies(at[2], at[1])) return BlockOperand{n, true};
  return std::nullopt;
}

}  // namespace trainc::schedule
