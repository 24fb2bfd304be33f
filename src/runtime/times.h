// When what ran: steps, and the parts of them that threads ran. Takes: nothing. Gives: seconds of the system's
// monotonic clock, which Python's time.perf_counter reads too. Includes: nothing.
#pragma once
#include <cstdint>
#include <mutex>
#include <vector>

namespace trainc::runtime {

/// What one thread ran of a step, in one go.
struct Part {
  int64_t thread = 0;  // the system's number of it, by which profilers know it
  double start = 0, seconds = 0;
};
struct StepTime {
  double start = 0, seconds = 0;
  int64_t thread = 0;       // that called; the only one where `parts` is empty
  std::vector<Part> parts;  // of each parallel_for within; in no order
  double over = 0;          // of a Start: when what it began was over; 0: nobody knows
};

double monotonic_seconds();
int64_t thread_number();

/// Times a step while it exists: the whole, and each part that parallel_for gives to a thread on behalf of the thread
/// that made it. `into` == nullptr: nothing is timed.
class StepTimer {
 public:
  explicit StepTimer(StepTime* into);
  ~StepTimer();
  StepTimer(const StepTimer&) = delete;
  StepTimer& operator=(const StepTimer&) = delete;
  /// The one of this thread that was made last; nullptr: none.
  static StepTimer* current();
  /// A part that began at `start` is over, on this thread.
  void add_part(double start);

 private:
  StepTime* into_;
  StepTimer* outer_ = nullptr;  // an extern step may run another plan
  std::mutex mutex_;
};

}  // namespace trainc::runtime
