// When a kernel may write one argument over the memory of another. Includes: loop.h.
#pragma once
#include "loop/loop.h"

namespace trainc::loop {

/// Why argument `written` may not lie in the memory of argument `read`; empty where it may.
/// It may if no element is read after it was overwritten, whatever the threads do:
///   (1) a nest for a CPU; both arguments of one dtype, `read` never written, nothing over it yet
///   (2) `read` is loaded, and `written` stored, at sums of variable * number (variable // n and variable % n are
///       variables), `read` not in a Transpose
///   (3) each load stands before each store: in an earlier statement of the loops that enclose both, or in the store
///       itself
///   (4) different iterations of those loops touch different elements
/// Found by reading the nest, so that it holds for whatever lowering wrote.
std::string refuse_in_place(const LoopNest&, int written, int read);

/// Whether each element that a nest of two arguments stores is the other argument's at the same place: where both lie
/// in one memory there is nothing to do.
bool is_copy(const LoopNest&);

}  // namespace trainc::loop
