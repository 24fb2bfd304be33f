// One elementwise kernel over many tensors (an optimizer's step). Takes: a kernel of compiler::Foreach and pointers. Gives: effects.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "plan/plan.h"
#include "runtime/code.h"

namespace trainc::runtime {

struct ForeachInput {
  bool scalar = false;  // one value, shared by all tensors; else a pointer a tensor
  DType dtype = DType::F32;
};

class Foreach {
 public:
  /// Kernel arguments: `inputs` in order, then a pointer to the number of elements (i64). Its parallel iterations are chunks of `chunk` elements.
  Foreach(plan::Kernel, std::vector<ForeachInput> inputs, int64_t chunk);
  const plan::Kernel& kernel() const { return kernel_; }
  int64_t tensor_inputs() const { return tensor_inputs_; }  // those that are not scalars
  int64_t scalar_inputs() const { return static_cast<int64_t>(inputs_.size()) - tensor_inputs_; }
  /// `tensors`: tensor_inputs() pointers a tensor, tensor by tensor. `scalars`: in the order of the inputs, rounded to their dtype.
  /// Throws InternalError where counts differ. One element belongs to one thread, so the result does not depend on their number.
  void run(std::span<void* const> tensors, std::span<const int64_t> numels, std::span<const double> scalars) const;

 private:
  plan::Kernel kernel_;
  std::vector<ForeachInput> inputs_;
  int64_t chunk_, tensor_inputs_ = 0;
  MappedCode code_;
};

}  // namespace trainc::runtime
