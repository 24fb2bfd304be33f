#pragma once
#include "loop/loop.h"

namespace trainc::lower {

/// A device's nest whose threads read and write neighbours by one access of up to 16 bytes (loop.h, Copy): a Thread
/// loop of independent elements becomes one of groups of them, and what begins a group is read into registers first and
/// written from there at last. What an index leaves over of the last group is a Thread loop of its own.
/// A Thread loop stays as it is
///   1. whose body is more than Lets, Stores, Reduces and Checks;
///   2. that loads a buffer after it has stored to it, or an argument that may be another's memory;
///   3. where some element of memory that differs within a group does not lie beside the next one's, or where a group
///      might begin at no multiple of its size;
///   4. whose groups would leave more than half of the threads without one.
/// The order of a sum is a thread's groups one by one: it depends on the extent and on dtypes alone.
loop::LoopNest widen_accesses(loop::LoopNest);

}  // namespace trainc::lower
