// Runs a plan on reference tensors: what compiled code gives, in the oracle's own form.
#pragma once
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "reference/reference.h"
#include "runtime/cpu_device.h"
#include "support/rounding.h"

namespace trainc::testing {

template <class T> void put(std::vector<uint8_t>& bytes, T v) {
  const auto* p = reinterpret_cast<const uint8_t*>(&v);
  bytes.insert(bytes.end(), p, p + sizeof v);
}
template <class T> T get(const uint8_t* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

/// Row-major bytes of a tensor.
inline std::vector<uint8_t> to_bytes(const reference::Tensor& t) {
  std::vector<uint8_t> bytes;
  for (int64_t i = 0; i < t.type.numel(); ++i) switch (t.type.dtype) {
      case DType::F64: put(bytes, t.f[i]); break;
      case DType::F32: put(bytes, static_cast<float>(t.f[i])); break;
      case DType::BF16:
        put(bytes, static_cast<uint16_t>(get<uint32_t>(reinterpret_cast<const uint8_t*>(
                                             std::vector<float>{static_cast<float>(t.f[i])}.data())) >>
                                         16));
        break;
      case DType::F16: put(bytes, static_cast<_Float16>(t.f[i])); break;
      case DType::U64:  // by its bits, as the reference has it
      case DType::I64: put(bytes, t.i[i]); break;
      case DType::U32: put(bytes, static_cast<uint32_t>(t.i[i])); break;
      case DType::U16: put(bytes, static_cast<uint16_t>(t.i[i])); break;
      case DType::I32: put(bytes, static_cast<int32_t>(t.i[i])); break;
      case DType::I16: put(bytes, static_cast<int16_t>(t.i[i])); break;
      case DType::I8: put(bytes, static_cast<int8_t>(t.i[i])); break;
      case DType::U8:
      case DType::Bool: put(bytes, static_cast<uint8_t>(t.i[i])); break;
    }
  return bytes;
}

/// A bool tensor as bits, and bytes behind them that mean nothing.
inline std::vector<uint8_t> to_bits(const reference::Tensor& t) {
  std::vector<uint8_t> bits(static_cast<size_t>(bytes_of_bits(t.type.numel())), 0);
  for (int64_t i = 0; i < t.type.numel(); ++i) bits[i / 8] = static_cast<uint8_t>(bits[i / 8] | t.i[i] << i % 8);
  for (size_t i = (t.type.numel() + 7) / 8; i < bits.size(); ++i) bits[i] = 0xA5;
  return bits;
}

inline reference::Tensor from_bytes(const Type& type, const uint8_t* p) {
  reference::Tensor t{type, {}, {}};
  for (int64_t i = 0; i < type.numel(); ++i) switch (type.dtype) {
      case DType::F64: t.f.push_back(get<double>(p + 8 * i)); break;
      case DType::F32: t.f.push_back(get<float>(p + 4 * i)); break;
      case DType::BF16: {
        const uint32_t bits = static_cast<uint32_t>(get<uint16_t>(p + 2 * i)) << 16;
        t.f.push_back(get<float>(reinterpret_cast<const uint8_t*>(&bits)));
        break;
      }
      case DType::F16: t.f.push_back(static_cast<float>(get<_Float16>(p + 2 * i))); break;
      case DType::U64:  // by its bits, as the reference has it
      case DType::I64: t.i.push_back(get<int64_t>(p + 8 * i)); break;
      case DType::U32: t.i.push_back(get<uint32_t>(p + 4 * i)); break;
      case DType::U16: t.i.push_back(get<uint16_t>(p + 2 * i)); break;
      case DType::I32: t.i.push_back(get<int32_t>(p + 4 * i)); break;
      case DType::I16: t.i.push_back(get<int16_t>(p + 2 * i)); break;
      case DType::I8: t.i.push_back(get<int8_t>(p + i)); break;
      case DType::U8:
      case DType::Bool: t.i.push_back(p[i]); break;
    }
  return t;
}

/// All results of `plan`; memory the plan must fill is poisoned first, so that what it forgets is seen. `saved`: the
/// arena that the forward and the backward plan share. `after`: gets the inputs as the plan left them. A result that
/// may take an input's memory has it.
inline std::vector<reference::Tensor> run_plan(const plan::Plan& plan, const std::vector<reference::Tensor>& inputs,
                                               void* saved = nullptr, runtime::Generator generator = {},
                                               std::vector<reference::Tensor>* after = nullptr) {
  runtime::CpuExecutable executable(plan);
  std::vector<std::vector<uint8_t>> in, out;
  runtime::Call call;
  call.saved = saved;
  call.generator = std::move(generator);
  for (const auto& t : inputs) in.push_back(to_bytes(t));
  for (auto& bytes : in) bytes.reserve(bytes.size() + 64), call.inputs.push_back(bytes.data());
  for (int64_t i = 0; i < plan.output_count; ++i) {
    const int b = plan.outputs[i];
    const bool fresh = b >= 0 && plan.buffers[b].space == plan::MemorySpace::Output;
    out.emplace_back(fresh ? plan.buffers[b].bytes + 64 : 0, 0xCD);
    void* p = fresh ? out.back().data() : nullptr;
    if (fresh && plan.buffers[b].over >= 0) p = call.inputs[plan.buffers[plan.buffers[b].over].index];
    call.outputs.push_back(p);
  }
  executable.run(call);
  for (size_t i = 0; after && i < inputs.size(); ++i) after->push_back(from_bytes(inputs[i].type, in[i].data()));
  std::vector<reference::Tensor> results;
  for (int64_t i = 0; i < plan.output_count; ++i) {
    const int b = plan.outputs[i];
    if (b < 0) {
      results.emplace_back();
      continue;
    }
    const plan::Buffer& buffer = plan.buffers[b];
    const void* p = buffer.space == plan::MemorySpace::Input ? in[buffer.index].data() : call.outputs[i];
    results.push_back(from_bytes({buffer.dtype, buffer.shape}, static_cast<const uint8_t*>(p)));
  }
  return results;
}

}  // namespace trainc::testing
