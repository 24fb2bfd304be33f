// Plans on devices without a GPU, and the oracle beside them.
#pragma once
#include <algorithm>

#include "../common/compare.h"
#include "../common/copy_of.h"
#include "../common/random_graph.h"
#include "../common/run_plan.h"
#include "compiler/compiler.h"
#include "runtime/cuda/executable.h"

namespace trainc::testing {

using reference::Tensor;

inline compiler::CompileOptions device_options(bool interpreted) {
  return {.target = target_of(interpreted ? "interpret" : "sm_90a", cpu_level())};
}

/// Steps that the vendor's library computes.
inline int products(const plan::Plan& plan) {
  return static_cast<int>(std::ranges::count(plan.steps, plan::StepKind::Product, &plan::Step::kind));
}

/// All results of `plan` on a driver whose memory is the host's.
inline std::vector<Tensor> run_on_device(const plan::Plan& plan, std::shared_ptr<runtime::cuda::Driver> driver,
                                         const std::vector<Tensor>& inputs, void* saved = nullptr) {
  runtime::cuda::CudaExecutable executable(plan, std::move(driver));
  std::vector<std::vector<uint8_t>> in, out;
  runtime::Call call;
  call.saved = saved;
  for (const auto& t : inputs) in.push_back(to_bytes(t));
  for (auto& bytes : in) bytes.reserve(bytes.size() + 1), call.inputs.push_back(bytes.data());
  for (int64_t i = 0; i < plan.output_count; ++i) {
    const int b = plan.outputs[i];
    out.emplace_back(b >= 0 && plan.buffers[b].space == plan::MemorySpace::Output ? plan.buffers[b].bytes + 1 : 0,
                     0xCD);
    call.outputs.push_back(out.back().empty() ? nullptr : out.back().data());
  }
  std::vector<uint8_t> temp(plan.temp_bytes + 1);
  call.temp = temp.data();
  executable.run(call);
  std::vector<Tensor> results;
  for (int64_t i = 0; i < plan.output_count; ++i) {
    const int b = plan.outputs[i];
    if (b < 0) {
      results.emplace_back();
      continue;
    }
    const plan::Buffer& buffer = plan.buffers[b];
    results.push_back(from_bytes({buffer.dtype, buffer.shape},
                                 buffer.space == plan::MemorySpace::Input ? in[buffer.index].data() : out[i].data()));
  }
  return results;
}

inline std::vector<Tensor> oracle(const Graph& graph, const std::vector<Tensor>& inputs) {
  return reference::evaluate(graph, inputs, {.precision = reference::Precision::Rounded, .random = {}, .call = {}});
}

}  // namespace trainc::testing
