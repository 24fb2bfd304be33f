#include "runtime/times.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>

namespace trainc::runtime {
namespace {

thread_local StepTimer* innermost = nullptr;

}  // namespace

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int64_t thread_number() { return syscall(SYS_gettid); }

StepTimer::StepTimer(StepTime* into) : into_(into) {
  if (!into_) return;
  outer_ = innermost, innermost = this;
  into_->thread = thread_number();
  into_->parts.clear();
  into_->start = monotonic_seconds();
}

StepTimer::~StepTimer() {
  if (!into_) return;
  into_->seconds = monotonic_seconds() - into_->start;
  innermost = outer_;
}

StepTimer* StepTimer::current() { return innermost; }

void StepTimer::add_part(double start) {
  const Part part{thread_number(), start, monotonic_seconds() - start};
  const std::lock_guard lock(mutex_);
  into_->parts.push_back(part);
}

}  // namespace trainc::runtime
