// Linear -> loss in chunks of rows: the logits of a chunk are made, summed up, turned into their gradient and
// multiplied away before the next chunk's.
#pragma once
#include <optional>

#include "cost/chunking.h"
#include "graph/graph.h"
#include "support/remark.h"

namespace trainc::schedule {

struct Chunks {
  int64_t rows = cost::kChunkRows;            // of a chunk, at most
  int64_t worth = cost::kWorthChunks;         // bytes that it must save
  int64_t skip_flops = cost::kWorthSkipping;  // of the contractions, from which on hidden rows are passed over
  // Whether forward and backward become one plan. If not, gradients that are made early, in the forward, are stored
  // until the backward, and that memory counts against the chunks.
  bool one_plan = false;
};

/// Finds contractions that make a matrix [rows, columns] (logits) which only sums over its rows, and contractions that
/// consume it, read; and computes both chunk by chunk of rows, so that the matrix never is in memory as a whole.
/// Nothing is known of softmax or labels but that they are row by row. What is a value of the rows (the loss of each)
/// is put together again; a contraction whose rows are rows (the gradient of the input) too; one whose k runs over the
/// rows (the gradient of the weight), and a sum over the rows (of the bias), is added up over the chunks in their
/// order. Gradients: a loss's backward is linear in its tangent, a single number. So gradients are computed in the
/// forward with the tangent 1, while the chunk of logits is there, and multiplied by the real tangent later.
///
/// Rows whose loss and gradient are 0 because of their label (hidden_rows.h) are put behind the others, and a chunk of
/// them alone is not computed (row_order.h, guards.h): which they are, and how many, is found at run time. That is done
/// where it is worth `skip_flops`, whether memory is saved or not. Needs: a joint graph (inputs from `primals` on are
/// tangents). Gives: the same outputs, but for the order of sums over rows; nothing where no matrix is cut. Leaves (and
/// says why in `remarks`): a matrix that is an output; that anything reads but element by element, row by row or as a
/// contraction's operand; that is put together with another tensor of its size; whose gradient needs something of all
/// rows of it, or comes of several tangents or of f16.
std::optional<Graph> chunk_rows(const Graph& joint, int64_t primals, const Chunks&, Remarks* remarks = nullptr);

}  // namespace trainc::schedule
