// What the foreach kernels of all devices share.
#include "runtime/foreach.h"

#include <algorithm>
#include <cstring>

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
    case DType::BF16:
    case DType::F16:
    case DType::I16:
    case DType::I8:
    case DType::U8:
    case DType::U16:
    case DType::U32:
    case DType::U64: break;
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

Foreach::Foreach(plan::Foreach plan) : plan_(std::move(plan)) {
  require(plan_.chunk > 0, "foreach: chunk must be positive");
  tensor_inputs_ =
      std::count_if(plan_.inputs.begin(), plan_.inputs.end(), [](const ForeachInput& i) { return !i.scalar; });
}

void Foreach::run(std::span<void* const> tensors, std::span<const int64_t> numels, std::span<const double> scalars,
                  void* stream) {
  require(tensors.size() == numels.size() * static_cast<size_t>(tensor_inputs_), "foreach: a pointer is missing");
  require(static_cast<int64_t>(scalars.size()) == scalar_inputs(), "foreach: a scalar is missing");
  launch(tensors, numels, scalars, stream);
}

}  // namespace trainc::runtime
