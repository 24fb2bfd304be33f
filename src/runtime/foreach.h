// One elementwise kernel over many tensors (an optimizer's step). Takes: a plan::Foreach and pointers. Gives: effects.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "plan/plan.h"

namespace trainc::runtime {

using plan::ForeachInput;

/// `value` as a `dtype` in memory.
uint64_t scalar_bits(double value, DType dtype);

/// Whether no tensor that is written shares memory with another: else rows that are updated at once would read each
/// other's results. `tensors`, `numels`: as Foreach::run takes them.
bool writes_apart(const plan::Foreach&, std::span<void* const> tensors, std::span<const int64_t> numels);

/// A kernel that a device has loaded (device.h).
class Foreach {
 public:
  explicit Foreach(plan::Foreach);  // InternalError where it is malformed
  virtual ~Foreach() = default;
  const plan::Foreach& plan() const { return plan_; }
  int64_t tensor_inputs() const { return tensor_inputs_; }  // those that are not scalars
  int64_t scalar_inputs() const { return static_cast<int64_t>(plan_.inputs.size()) - tensor_inputs_; }
  /// `tensors`: tensor_inputs() pointers a tensor, of the device's memory, tensor by tensor. `scalars`: in the order of
  /// the inputs, rounded to their dtype. `stream`: as Call's. Throws InternalError where counts differ. One element
  /// belongs to one thread, so the result does not depend on their number.
  void run(std::span<void* const> tensors, std::span<const int64_t> numels, std::span<const double> scalars,
           void* stream = nullptr);

 protected:
  /// `run`, with counts that agree.
  virtual void launch(std::span<void* const> tensors, std::span<const int64_t> numels, std::span<const double> scalars,
                      void* stream) = 0;

 private:
  plan::Foreach plan_;
  int64_t tensor_inputs_ = 0;
};

}  // namespace trainc::runtime
