#include "runtime/short_lock.h"

#include <pthread.h>

#include <mutex>

namespace trainc::runtime {
namespace {

std::mutex& mutex() {
  static std::mutex* m = new std::mutex;  // never destroyed: memory may still be given back while the process ends
  return *m;
}

// The thread that forks takes the lock first, so that what it protects is whole in the child.
[[maybe_unused]] const int at_fork =
    pthread_atfork([] { mutex().lock(); }, [] { mutex().unlock(); }, [] { mutex().unlock(); });

}  // namespace

ShortLock::ShortLock() { mutex().lock(); }
ShortLock::~ShortLock() { mutex().unlock(); }

}  // namespace trainc::runtime
