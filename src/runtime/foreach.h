// One elementwise kernel over many tensors (an optimizer's step). Takes: a plan::Foreach and pointers. Gives: effects.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "plan/plan.h"
#include "runtime/code.h"

namespace trainc::runtime {

using plan::ForeachInput;

/// `value` as a `dtype` in memory.
uint64_t scalar_bits(double value, DType dtype);

/// Whether no tensor that is written shares memory with another: else rows that are updated at once would read each other's results.
/// `tensors`, `numels`: as Foreach::run takes them.
bool writes_apart(const plan::Foreach&, std::span<void* const> tensors, std::span<const int64_t> numels);

class Foreach {
 public:
  explicit Foreach(plan::Foreach);
  const plan::Foreach& plan() const { return plan_; }
  int64_t tensor_inputs() const { return tensor_inputs_; }  // those that are not scalars
  int64_t scalar_inputs() const { return static_cast<int64_t>(plan_.inputs.size()) - tensor_inputs_; }
  /// `tensors`: tensor_inputs() pointers a tensor, tensor by tensor. `scalars`: in the order of the inputs, rounded to their dtype.
  /// Throws InternalError where counts differ. One element belongs to one thread, so the result does not depend on their number.
  void run(std::span<void* const> tensors, std::span<const int64_t> numels, std::span<const double> scalars) const;

 private:
  plan::Foreach plan_;
  int64_t tensor_inputs_ = 0;
  MappedCode code_;
};

}  // namespace trainc::runtime
