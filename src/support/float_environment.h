// How the calling thread computes with floating-point numbers: its MXCSR on x86. A program may change it
// (torch.set_flush_denormal), and the constants that a compile folds must not depend on who happens to call it.
#pragma once
#include <cstdint>

namespace trainc {

/// Whether denormal numbers count as zero, as operands or as results (PyTorch sets both at once). False where the CPU
/// is no x86.
bool flushes_denormals();

/// As long as it lives, the thread rounds to nearest and traps nothing, and denormal numbers count as zero or do not.
/// After it, the thread computes as before.
class FloatEnvironment {
 public:
  explicit FloatEnvironment(bool flushes_denormals);
  ~FloatEnvironment();
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
  uint32_t before_ = 0;
};

}  // namespace trainc
