// Matmul chains: contraction -> rows -> contraction as one kernel (attention, fused as flash attention does), block of
// rows by block of rows; the matrix between them never is in memory as a whole.
//
// Glossary
//   matrix   what lies between: values of batch x rows x columns, row-major.
//   producer   a contraction that makes such a value out of narrow operands (queries and keys).
//   consumer     a contraction that reads one as an operand: as its lhs (rows are rows: probabilities times values), or
//            with k running over the rows (`transposed`: the gradients of keys and values).
#pragma once
#include <optional>

#include "schedule/schedule.h"
#include "support/remark.h"

namespace trainc::schedule {

/// Batch, rows and columns of a matrix.
struct Matrix {
  int64_t batch = 0, rows = 0, columns = 0;
  bool operator==(const Matrix&) const = default;
};

/// The matrix that a contraction makes, where it may begin a matmul chain; else why not: its operands are wider than an
/// attention head, so that a block of rows would read them from memory again.
OrRefused<Matrix> matrix_of(const Node* contract);

/// How operand `which` of `contract` reads a matrix: which node's elements (a value's, or those of an elementwise
/// expression that is made for it), and whether transposed. Nothing where it reads no matrix of this shape, or in
/// another order.
struct BlockOperand {
  const Node* node;
  bool transposed;
};
std::optional<BlockOperand> block_operand(const Node* contract, int which, const Matrix&);

/// The contractions among `nodes` whose matrix goes, with a sum over its rows on the way, into another one of them that
/// is worth fusing with it: attention's scores.
std::unordered_set<const Node*> chain_producers(const std::vector<const Node*>& nodes);

/// Why a contraction that reads a matrix is too wide (or has too few tasks) to be the chain's consumer; nullptr where
/// it is not.
const char* refuse_wide_consumer(const Node* consumer, bool transposed, const Matrix&);

}  // namespace trainc::schedule
