#pragma once
#include "loop/loop.h"
#include "support/target.h"

namespace trainc::lower {

/// A nest as the schedule writes it (Parallel, Serial and Vector loops) -> the same for a device: Parallel iterations
/// become blocks, Vector loops Thread loops, Scratch buffers Shared ones.
///   1. Elements that depend on no other are dealt out evenly: Parallel and Vector loop become one range, cut into
///      blocks.
///   2. Otherwise a block is one Parallel iteration. Sums over a Vector loop are kept a thread, then combined: within
///      each warp by WarpReduce, across warps through Shared memory. Barriers stand wherever a later statement touches
///      what an earlier one wrote.
/// Then neighbours are read and written at once where that can be (wide_accesses.h).
/// The order of a sum depends on its extent, and on dtypes, alone, not on the device.
/// Needs: (1) a verified CPU nest; (2) iterations of the Vector loops independent but for Reduces; (3) a local that is
/// reduced in a Vector loop starts at the neutral element; (4) Scratch within kSharedBytes. InternalError otherwise.
loop::LoopNest map_to_device(const loop::LoopNest&, const Target&);

}  // namespace trainc::lower
