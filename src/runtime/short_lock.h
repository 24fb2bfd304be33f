// One lock for what all runs of a process share: pools of memory. Includes: nothing.
#pragma once

namespace trainc::runtime {

/// Held for a few instructions, never while code of the framework or of the user runs: nobody waits for long, and
/// nobody for himself. A forked child finds it free, also where another thread held it in the parent.
class ShortLock {
 public:
  ShortLock();
  ~ShortLock();
  ShortLock(const ShortLock&) = delete;
  ShortLock& operator=(const ShortLock&) = delete;
};

}  // namespace trainc::runtime
