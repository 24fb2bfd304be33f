#include <algorithm>

#include "runtime/cpu_device.h"

namespace trainc::runtime {

CpuForeach::CpuForeach(plan::Foreach plan) : Foreach(std::move(plan)), code_({this->plan().kernel}) {
  require_level(this->plan().name, this->plan().cpu);
}

void CpuForeach::launch(std::span<void* const> tensors, std::span<const int64_t> numels,
                        std::span<const double> scalars, void*) {
  std::vector<uint64_t> slots;
  for (size_t i = 0, s = 0; i < plan().inputs.size(); ++i)
    if (plan().inputs[i].scalar) slots.push_back(scalar_bits(scalars[s++], plan().inputs[i].dtype));

  const size_t width = plan().inputs.size() + 1;  // arguments a tensor
  std::vector<void*> arguments;
  arguments.reserve(width * numels.size());
  std::vector<int64_t> first_chunk{0};  // of each tensor, in the flattened order of all chunks; then their number
  for (size_t t = 0; t < numels.size(); ++t) {
    size_t tensor = t * static_cast<size_t>(tensor_inputs()), scalar = 0;
    for (const ForeachInput& i : plan().inputs)
      arguments.push_back(i.scalar ? static_cast<void*>(&slots[scalar++]) : tensors[tensor++]);
    arguments.push_back(const_cast<int64_t*>(&numels[t]));
    first_chunk.push_back(first_chunk.back() + (numels[t] + plan().chunk - 1) / plan().chunk);
  }

  const KernelEntry entry = code_.entry(0);
  parallel_for(first_chunk.back(), [&](int64_t begin, int64_t end) {
    void* scratch = thread_scratch(plan().kernel.scratch_bytes);
    uint32_t status = 0;  // an elementwise kernel has no checks
    size_t t = std::upper_bound(first_chunk.begin(), first_chunk.end(), begin) - first_chunk.begin() - 1;
    for (; begin < end; ++t) {
      const int64_t stop = std::min(end, first_chunk[t + 1]);
      if (begin < stop) entry(&arguments[t * width], scratch, &status, begin - first_chunk[t], stop - first_chunk[t]);
      begin = std::max(begin, stop);
    }
  });
}

}  // namespace trainc::runtime
