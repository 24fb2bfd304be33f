// Runs device nests block by block, all threads of a block together, and watches what they do.
#pragma once
#include <vector>

#include "interpret/interpret.h"
#include "interpret/traffic.h"

namespace trainc::interpret {

/// An argument in place: memory that belongs to the caller.
struct View {
  uint8_t* data = nullptr;
  int64_t bytes = 0;
  bool initialised = true;  // false: reading an element before it is stored is a finding
  bool whole = true;        // not initialised: elements that are never stored are one, too
};

/// Finds, beside what run() finds in any nest:
///   races          two threads touch one element, one of them writing, with no Barrier between them; or two blocks do
///                  at all
///   barriers       a Barrier, WarpReduce or Mma that some threads of the block (of the warp) do not reach; a Thread
///                  loop whose extent differs
///   copies         that begin at no multiple of what they take
///   unwritten      reads of Shared memory that this block, of registers that this thread never wrote
/// What threads do between two Barriers is done in one order here and in any order on a device: where no race is found,
/// the results are the same.
Findings run_on_device(const loop::LoopNest&, const std::vector<View>& arguments, int64_t parallel_extent);
/// The same over arguments of its own; outputs must be written in full.
Findings run_on_device(const loop::LoopNest&, std::vector<Memory>& arguments, int64_t parallel_extent);

/// What a nest's warps ask of memory, from its indices alone: arguments begin at a multiple of 32 bytes, hold zeros and
/// need no memory, so that nests of any size can be asked. Of long loops, and of many blocks, eight iterations are
/// followed and stand for all. A load counts wherever the nest has it, though a compiler moves it out of loops, or a
/// cache answers it. InternalError for a CPU's nest.
std::vector<Traffic> traffic_of(const loop::LoopNest&);

}  // namespace trainc::interpret
