#include "runtime/foreach.h"

#include <algorithm>
#include <cstring>

#include "runtime/runtime.h"
#include "support/error.h"

namespace trainc::runtime {
namespace {

template <class T> void put(uint64_t& slot, T value) { std::memcpy(&slot, &value, sizeof value); }

}  // namespace

uint64_t scalar_bits(double value, DType dtype) {
  uint64_t slot = 0;
  switch (dtype) {
    case DType::F64: put(slot, value); return slot;
    case DType::F32: put(slot, static_cast<float>(value)); return slot;
    case DType::I64: put(slot, static_cast<int64_t>(value)); return slot;
    case DType::I32: put(slot, static_cast<int32_t>(value)); return slot;
    case DType::Bool: put(slot, static_cast<uint8_t>(value != 0)); return slot;
    case DType::BF16: case DType::F16: case DType::I16: case DType::I8: case DType::U8: break;
  }
  throw InternalError("foreach: a scalar of dtype " + std::string(name_of(dtype)));
}

bool writes_apart(const plan::Foreach& plan, std::span<void* const> tensors, std::span<const int64_t> numels) {
  struct Span {
    uintptr_t begin, end;
    bool written;
  };
  std::vector<Span> spans;
  spans.reserve(tensors.size());
  size_t next = 0;
  for (const int64_t n : numels)
    for (const ForeachInput& i : plan.inputs) {
      if (i.scalar) continue;
      const auto begin = reinterpret_cast<uintptr_t>(tensors[next++]);
      if (n > 0) spans.push_back({begin, begin + static_cast<uintptr_t>(n * size_of(i.dtype)), i.written});
    }
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  uintptr_t end_of_read = 0, end_of_written = 0;  // the furthest that spans so far reach
  for (const Span& s : spans) {
    if (s.begin < end_of_written || (s.written && s.begin < end_of_read)) return false;
    uintptr_t& end = s.written ? end_of_written : end_of_read;
    end = std::max(end, s.end);
  }
  return true;
}

Foreach::Foreach(plan::Foreach plan) : plan_(std::move(plan)), code_({plan_.kernel}) {
  require_level(plan_.name, plan_.cpu);
  require(plan_.chunk > 0, "foreach: chunk must be positive");
  tensor_inputs_ = std::count_if(plan_.inputs.begin(), plan_.inputs.end(), [](const ForeachInput& i) { return !i.scalar; });
}

void Foreach::run(std::span<void* const> tensors, std::span<const int64_t> numels, std::span<const double> scalars) const {
  require(tensors.size() == numels.size() * tensor_inputs_, "foreach: a pointer is missing");
  require(static_cast<int64_t>(scalars.size()) == scalar_inputs(), "foreach: a scalar is missing");
  std::vector<uint64_t> slots;
  for (size_t i = 0, s = 0; i < plan_.inputs.size(); ++i)
    if (plan_.inputs[i].scalar) slots.push_back(scalar_bits(scalars[s++], plan_.inputs[i].dtype));

  const size_t width = plan_.inputs.size() + 1;  // arguments a tensor
  std::vector<void*> arguments;
  arguments.reserve(width * numels.size());
  std::vector<int64_t> first_chunk{0};  // of each tensor, in the flattened order of all chunks; then their number
  for (size_t t = 0; t < numels.size(); ++t) {
    size_t tensor = t * tensor_inputs_, scalar = 0;
    for (const ForeachInput& i : plan_.inputs) arguments.push_back(i.scalar ? static_cast<void*>(&slots[scalar++]) : tensors[tensor++]);
    arguments.push_back(const_cast<int64_t*>(&numels[t]));
    first_chunk.push_back(first_chunk.back() + (numels[t] + plan_.chunk - 1) / plan_.chunk);
  }

  const KernelEntry entry = code_.entry(0);
  parallel_for(first_chunk.back(), [&](int64_t begin, int64_t end) {
    void* scratch = thread_scratch(plan_.kernel.scratch_bytes);
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
