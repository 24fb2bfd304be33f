// Where a value's elements lie in the memory of the one that it is moved from.
#pragma once
#include "graph/graph.h"

namespace trainc::frontend::aten {

/// Element (i, j, ...) of a value is element offset + i * strides[0] + j * strides[1] + ... of `base`, in its memory.
struct StridedView {
  const Node* base;
  Dims strides;
  int64_t offset = 0;
};
/// Looks through permutes, slices, broadcasts, and the reshapes that strides can tell, down to what is none of them: a
/// value in row-major order, or an input as it lies.
StridedView strided_view(const Node*);
/// Whether both say the same of a tensor of this shape: an axis of one element may have any stride.
bool lie_alike(const Dims& shape, const Dims& strides, const Dims& others);
/// The axes from the outermost in memory to the innermost, where the elements lie side by side in that order; empty
/// where they do not.
Dims order_in_memory(const Dims& shape, const Dims& strides);

}  // namespace trainc::frontend::aten
