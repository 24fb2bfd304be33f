// The constant offsets of a nest's accesses. Nests that read another part of the same tensor (a step of a scan, `x[:,
// t]`) differ in nothing else.
#pragma once
#include <vector>

#include "loop/loop.h"

namespace trainc::loop {

/// Takes out of the indices of each Argument what all of them begin with: a constant number of elements, by buffer. The
/// nest then computes the same where it is given pointers that many elements further on. No code assumes more of a
/// pointer's alignment than its element's, so the kernel is as fast as before. `most`: by Argument, the last element of
/// its memory; further on no pointer begins (a guarded access may: of what is padded and reversed, say).
/// Leaves: bits (elements are no addresses), and buffers that lie over each other.
std::vector<int64_t> take_offsets(LoopNest&, const std::vector<int64_t>& most);

}  // namespace trainc::loop
