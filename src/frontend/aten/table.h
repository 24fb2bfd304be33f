// The table of ATen operations: one row each, a file a family.
#pragma once
#include "frontend/aten/call.h"
#include "support/table.h"

namespace trainc::frontend::aten {

using Table = TableOf<Handler>;

const Table& table();

void add_elementwise(Table&);    // arithmetic, comparisons, logic, where, clamp, casts
void add_activations(Table&);    // relu, gelu, silu, ... and their backwards
void add_reductions(Table&);     // sum, mean, var, max, argmax, any, norms, cumsum
void add_views(Table&);          // reshape, permute, slice, cat, pad and their backwards and scatters
void add_strided(Table&);        // diagonals, unfold, im2col, as_strided: views by strides, and what writes there
void add_creation(Table&);       // full, arange, tril, ...
void add_contractions(Table&);   // mm, bmm, addmm, ...
void add_convolutions(Table&);   // convolution, transposed or not, and its backward
void add_softmax(Table&);        // softmax and log-softmax
void add_normalization(Table&);  // layer, batch and group norm
void add_losses(Table&);  // negative log-likelihood, mse, smooth L1, Huber, binary cross entropy, and their backwards
void add_attention(Table&);  // the fused attention of the CPU
void add_indexing(Table&);   // embedding, gather, scatter, index, index_put
void add_random(Table&);     // dropout, bernoulli
void add_pooling(Table&);    // max pools, and the average pools that are plain means

}  // namespace trainc::frontend::aten
