// Runs a schedule under the interpreter: what its kernels compute, and what they do to memory that they must not.
#pragma once
#include <string>
#include <unordered_map>
#include <vector>

#include "../common/random_graph.h"
#include "../common/run_plan.h"
#include "interpret/interpret.h"
#include "lower/lower.h"
#include "schedule/schedule.h"

namespace trainc::testing {

struct Interpreted {
  std::vector<reference::Tensor> outputs;
  std::vector<std::string> findings;  // each with the kernel's name
  uint32_t status = 0;
  std::vector<loop::LoopNest> nests;
};

/// `graph` after prepare; externs as random graphs have them. Inputs row-major, as their strides are.
inline Interpreted interpret_schedule(const Graph& graph, const schedule::Schedule& schedule,
                                      const std::vector<reference::Tensor>& inputs,
                                      const lower::LoweringOptions& lowering) {
  Interpreted result;
  std::unordered_map<const Node*, interpret::Memory> memory;
  for (const Node& n : graph.nodes())
    if (n.op == Op::Input) memory[&n] = {to_bytes(inputs.at(n.as<InputAttr>().index))};
  for (const schedule::Group& group : schedule.groups) {
    if (group.kind == schedule::GroupKind::Random) {
      const Node* mask = group.values[0];
      memory[mask] = {schedule.bits.count(mask) ? to_bits(random_mask(mask)) : to_bytes(random_mask(mask))};
    }
    if (group.kind == schedule::GroupKind::Extern) {
      const Node* call = group.values[0];
      std::vector<reference::Tensor> operands;
      for (const Node* i : call->inputs) {
        const Node* base = schedule::base_of(i);
        if (!memory.count(base) && i->type.numel() > 0)
          result.findings.push_back("an extern reads a value that nobody has made");
        operands.push_back(from_bytes(i->type, memory[base].bytes.data()));
      }
      const auto results = extern_results(call, operands);
      for (const Node* n : group.values)
        if (n->op == Op::Result) memory[n] = {to_bytes(results.at(n->as<ResultAttr>().index))};
    }
    const auto kernels = lower::lower(graph, schedule, group, lowering);
    for (const lower::LoweredKernel& k : kernels) {
      std::vector<interpret::Memory> arguments;
      for (size_t i = 0; i < k.arguments.size(); ++i) {
        const Node* n = k.arguments[i];
        if (!memory.count(n)) {
          if (!k.nest.buffers[i].written && n->type.numel() > 0)
            result.findings.push_back(k.nest.name + ": reads a value that nobody has made");
          memory[n] = interpret::output_of(n->type.bytes());
          if (kernels.size() > 1) memory[n].initialised = true;  // each kernel of a group fills a part
        }
        arguments.push_back(std::move(memory[n]));
      }
      const interpret::Findings findings = interpret::run(k.nest, arguments);
      for (const std::string& m : findings.messages) result.findings.push_back(k.nest.name + ": " + m);
      result.status |= findings.status;
      for (size_t i = 0; i < k.arguments.size(); ++i) {
        arguments[i].initialised = true;
        memory[k.arguments[i]] = std::move(arguments[i]);
      }
      result.nests.push_back(k.nest);
    }
  }
  for (const Output& o : graph.outputs) {
    if (!o.value) {
      result.outputs.emplace_back();
      continue;
    }
    const interpret::Memory& m = memory[schedule::base_of(o.value)];
    if (static_cast<int64_t>(m.bytes.size()) != o.value->type.bytes())
      result.findings.push_back("an output has no memory");
    else result.outputs.push_back(from_bytes(o.value->type, m.bytes.data()));
  }
  return result;
}

}  // namespace trainc::testing
