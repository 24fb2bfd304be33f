#include "support/float_environment.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trainc {

#if defined(__x86_64__)

namespace {
constexpr uint32_t kDefault = 0x1f80;  // to nearest, all exceptions masked, none seen
constexpr uint32_t kFlushes = _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON;
}  // namespace

bool flushes_denormals() { return (_mm_getcsr() & kFlushes) != 0; }

FloatEnvironment::FloatEnvironment(bool flushes_denormals) : before_(_mm_getcsr()) {
  _mm_setcsr(kDefault | (flushes_denormals ? kFlushes : 0));
}
FloatEnvironment::~FloatEnvironment() { _mm_setcsr(before_); }

#else

bool flushes_denormals() { return false; }
FloatEnvironment::FloatEnvironment(bool) {}
FloatEnvironment::~FloatEnvironment() = default;

#endif

}  // namespace trainc
