// TRAINC_DEBUG=poison: memory that holds no value is filled with NaN (integers and bools: with 0xa5 bytes), so that a
// read of what was never written, or is used again, shows in the results. Includes: plan.
#pragma once
#include <vector>

#include "plan/plan.h"

namespace trainc::runtime {

/// What a run of one plan fills, and when. It finds by itself when memory is in use, from the steps' effects alone.
class Poison {
 public:
  explicit Poison(const plan::Plan&);
  /// Temporaries and results, before the first step.
  void begin(const std::vector<void*>& pointers, void* arena) const;
  /// What this step is the first to write: others may have been there before.
  void before(size_t step, const std::vector<void*>& pointers) const { fill(first_[step], pointers); }
  /// What nobody reads after this step.
  void after(size_t step, const std::vector<void*>& pointers) const { fill(last_[step], pointers); }

 private:
  void fill(const std::vector<int>& buffers, const std::vector<void*>& pointers) const;
  const plan::Plan& plan_;
  std::vector<std::vector<int>> first_, last_;  // by step: buffers
  std::vector<int> results_;
};

/// Fills memory of any type: 0xff bytes are NaN for each type of float.
void poison(void*, int64_t bytes);

}  // namespace trainc::runtime
