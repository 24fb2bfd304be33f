// Streams: contraction -> rows -> contraction as one kernel, block of rows by block of rows; the matrix between them
// never is in memory as a whole.
//
// Glossary
//   matrix   what lies between: values of batch x rows x columns, row-major.
//   source   a contraction that makes such a value out of narrow operands (queries and keys).
//   sink     a contraction that reads one as an operand: as its lhs (rows are rows: probabilities times values), or
//            with k running over the rows (`turned`: the gradients of keys and values).
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

/// The matrix that a contraction makes, where it is worth streaming: operands as narrow as an attention head, so that a
/// block of rows has them at hand.
OrRefused<Matrix> matrix_of(const Node* contract);

/// How operand `which` of `contract` reads a matrix: which node's elements (a value's, or those of an elementwise
/// expression that is made for it), and whether turned. Nothing where it reads no matrix of this shape, or in another
/// order.
struct BlockOperand {
  const Node* node;
  bool turned;
};
std::optional<BlockOperand> block_operand(const Node* contract, int which, const Matrix&);

/// The contractions among `nodes` whose matrix goes, with a sum over its rows on the way, into another one of them that
/// is worth streaming: attention's scores.
std::unordered_set<const Node*> stream_sources(const std::vector<const Node*>& nodes);

/// Why a contraction that drains a matrix is not worth streaming; nullptr where it is.
const char* refuse_sink(const Node* sink, bool turned, const Matrix&);

}  // namespace trainc::schedule
