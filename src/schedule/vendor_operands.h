// Contractions that are large enough for the vendor's library of matrix products, and their operands in memory as it
// takes them. Inside schedule only, but for `prepare`.
//
// The library reads matrices and writes one. So what an operand is computed from is computed beforehand, by a kernel of
// its own, where a kernel of ours would take it in; and what is done with the result is done afterwards.
#pragma once
#include <optional>

#include "graph/build.h"
#include "graph/graph.h"

namespace trainc::schedule {

/// Whether a contraction has so many operations (0: none has). One whose operand is read through windows, or backwards,
/// is no product of two matrices in memory.
bool for_vendor(const Node* contract, int64_t least_flops);

/// What lies under an operand's movements and the cast that widens it: it is to be in memory.
const Node* vendor_source(const Node* operand);

/// Where the elements of an operand lie in its source, as strides; none where no strides say it.
std::optional<Dims> strides_in_source(const Node* operand);

/// The strides of the same elements in the order of another shape, for a source that they begin with: none where no
/// strides say it, or something is cut off.
std::optional<Dims> strides_without_offset(const Node* operand, const Dims& shape);

/// Whether its source has its rows or its columns side by side.
bool has_plain_matrices(const Node* operand);

/// The operand, or a copy of it where its source has neither its rows nor its columns side by side. `widen`: in f32,
/// whatever its source is, for the library multiplies two matrices of one dtype.
const Node* vendor_operand(Builder&, const Node* operand, bool widen);

}  // namespace trainc::schedule
