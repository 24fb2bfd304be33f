// What is asked of a newer glibc than the machines have that the wheel is for (manylinux_2_34: RHEL 9, Ubuntu 22.04).
#include <sys/random.h>

#include <cstdint>

/// glibc has it since 2.36. Debian 12's LLVM was built with that, and calls it for names of temporary files: nothing
/// else in the module needs more than 2.34. Hidden, as all of the module's symbols are: the process's own stays as it
/// is.
extern "C" uint32_t arc4random() noexcept {
  uint32_t bits = 0;
  while (getrandom(&bits, sizeof bits, 0) != sizeof bits) {  // a signal came before the system's generator was ready
  }
  return bits;
}
