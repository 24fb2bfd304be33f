#include "compiler/framework_calls.h"

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "graph/remarks.h"
#include "graph/text.h"
#include "passes/rewrite.h"
#include "schedule/prepare.h"
#include "schedule/schedule.h"

namespace trainc::compiler {
namespace {

using schedule::FrameworkCall;

const Node* called(Builder& b, const FrameworkCall& call, std::vector<const Node*> operands) {
  return b.result(b.extern_call(call.attr, std::move(operands)), 0);
}

/// Copies a part of a graph into a graph of its own.
class Subgraph {
 public:
  explicit Subgraph(std::unordered_set<const Node*> leaves) : leaves_(std::move(leaves)) {}

  /// The contraction is `call` from now on.
  void replace(const Node* contraction, const FrameworkCall& call) { contraction_ = contraction, call_ = &call; }

  /// What stands for `n`; leaves become inputs, in the order in which they are met.
  const Node* copy(const Node* n) {
    const auto found = made_.find(n);
    if (found != made_.end()) return found->second;
    const Node* made = nullptr;
    if (n->op == Op::Input || leaves_.count(n)) {
      made = builder_.input(graph_.input_count++, n->type, n->op == Op::Input ? n->as<InputAttr>().strides : Dims{});
    } else if (n == contraction_) {
      std::vector<const Node*> operands;
      for (const FrameworkCall::Operand& o : call_->operands) operands.push_back(copy(o.memory));
      made = call_->as_contraction(builder_, called(builder_, *call_, std::move(operands)), n);
    } else {
      std::vector<const Node*> inputs;
      for (const Node* i : n->inputs) inputs.push_back(copy(i));
      made = with_inputs(builder_, n, inputs);
    }
    return made_[n] = made;
  }

  Builder& builder() { return builder_; }
  Graph with_outputs(const std::vector<const Node*>& outputs) {
    for (const Node* n : outputs) graph_.outputs.push_back({n, {}});
    return std::move(graph_);
  }

 private:
  std::unordered_set<const Node*> leaves_;
  const Node* contraction_ = nullptr;
  const FrameworkCall* call_ = nullptr;
  Graph graph_;
  Builder builder_{graph_, {}};
  std::unordered_map<const Node*, const Node*> made_;
};

/// Contractions that might be calls of the framework's operators, and the kernels that they are in otherwise: by the
/// schedule of the graph without calls, seen from the graph before `prepare`.
class CallCandidates {
 public:
  CallCandidates(const Graph& graph, const ArenaLayout& layout)
      : graph_(graph), readers_(schedule::readers_of(graph)), prepared_(prepared(graph, layout, &made_)) {
    schedule_ = schedule::make_schedule(prepared_, true);
  }

  OrRefused<FrameworkCall> call(const Node* contraction) const {
    const auto group = schedule_.group_of.find(made_.at(contraction));
    if (group == schedule_.group_of.end()) return "no kernel makes it";
    if (schedule_.groups[group->second].kind != schedule::GroupKind::Contract)
      return "it is part of a matmul chain's kernel";
    return schedule::framework_call(contraction, readers_);
  }

  /// The contraction's kernel, with the call in its place where one is given: what it reads are inputs, what it stores
  /// are outputs.
  Graph kernel(const Node* contraction, const FrameworkCall* call) const {
    std::unordered_set<const Node*> leaves;
    const int group = schedule_.group_of.at(made_.at(contraction));
    std::vector<const Node*> stored;
    for (const Node* n : graph_.live()) {
      const Node* made = made_.at(n);
      const auto its = schedule_.group_of.find(made);
      if (n->op == Op::Result ||
          (schedule_.values.count(made) && (its == schedule_.group_of.end() || its->second != group)))
        leaves.insert(n);
      if (its != schedule_.group_of.end() && its->second == group && schedule_.stored.count(made)) stored.push_back(n);
    }
    // Our kernel reads a copy with padding around it; the framework's call pads by itself. To make that operand costs
    // both about the same, so it is left out of the comparison.
    if (call)
      for (const FrameworkCall::Operand& o : call->operands)
        if (std::any_of(o.above.begin(), o.above.end(), [&](const Node* n) { return leaves.count(n) > 0; }))
          leaves.insert(o.memory);
    for (const Node*& n : stored)
      for (const Node* above : movements(n)) leaves.erase(n = above);
    Subgraph subgraph(std::move(leaves));
    if (call) subgraph.replace(contraction, *call);
    for (const Node*& n : stored) n = subgraph.copy(n);
    return subgraph.with_outputs(stored);
  }

 private:
  /// The movements that bring `n` into the order of a graph's output, where nothing else reads it (a weight's
  /// gradient). They are a kernel of their own, or part of the call: so they are measured with the candidate.
  std::vector<const Node*> movements(const Node* n) const {
    std::vector<const Node*> found;
    for (;;) {
      const std::vector<const Node*>& readers = readers_.at(n);
      if (readers.size() != 1) return {};
      if (!readers[0]) return found;
      if (readers[0]->op != Op::Reshape && readers[0]->op != Op::Permute) return {};
      found.push_back(n = readers[0]);
    }
  }

  const Graph& graph_;
  const schedule::Readers readers_;
  std::unordered_map<const Node*, const Node*> made_;
  Graph prepared_;
  schedule::Schedule schedule_;
};

/// The contraction alone, of what the call reads, in the shape of the call's result.
Graph alone(const Node* contraction, const FrameworkCall& call) {
  std::unordered_set<const Node*> leaves;
  for (const FrameworkCall::Operand& o : call.operands) leaves.insert(o.memory);
  Subgraph subgraph(std::move(leaves));
  for (const FrameworkCall::Operand& o : call.operands) subgraph.copy(o.memory);  // inputs in the call's order
  return subgraph.with_outputs({call.as_result(subgraph.builder(), subgraph.copy(contraction))});
}

}  // namespace

Graph prepared(const Graph& graph, const ArenaLayout& layout, std::unordered_map<const Node*, const Node*>* made,
               const schedule::VendorLibrary& library, int64_t sum_threads) {
  const auto until = [](int64_t from) { return from < 0 ? std::numeric_limits<int64_t>::max() : from; };
  return schedule::prepare(graph, layout.copies ? 0 : until(layout.arena_inputs_from), until(layout.arena_outputs_from),
                           made, library, sum_threads);
}

FrameworkCalls framework_calls(const Graph& graph, const ArenaLayout& layout, const CompileOptions& options,
                               const Job& job, std::vector<std::string>& notes, Remarks* to) {
  const NodeRemarks remarks(graph, "compiler", to);
  const CallCandidates candidates(graph, layout);
  Job plain = job;
  plain.progress = {};
  Job tuned = plain;
  plain.tuning.reset();
  tuned.tuning->framework = {};
  FrameworkCalls chosen;
  std::unordered_map<std::string, std::string> answers;  // by text: equal layers are asked for once
  for (const Node* contraction : graph.live()) {
    if (contraction->op != Op::Contract) continue;
    const auto refused = [&](const char* why) {
      remarks.missed(missed::kFrameworkCall, why, contraction, nullptr, contraction->type.bytes());
    };
    const OrRefused<FrameworkCall> call = candidates.call(contraction);
    if (!call) {
      refused(call.why());
      continue;
    }
    const auto kernel = [&] { return candidates.kernel(contraction, nullptr); };
    const auto with_call = [&] { return candidates.kernel(contraction, &*call); };
    const auto compiled = [&](Graph subgraph, const char* name, const Job& how) {
      Pipeline pipeline(name, options.disabled_passes);
      return generate(lower_graph(std::move(subgraph), pipeline, {}, options, how, nullptr), options, how);
    };
    const std::string text = print(kernel()) + print(with_call());
    auto [answer, fresh] = answers.emplace(text, "");
    if (fresh) {
      answer->second = job.tuning->framework({
          .text = text,
          .call = call->attr.target,
          .ours = [&] { return compiled(kernel(), "ours", plain); },
          .framework = [&] { return compiled(with_call(), "framework", plain); },
          .tuned = [&] { return compiled(kernel(), "tuned", tuned); },
          .alone = [&] { return compiled(alone(contraction, *call), "alone", plain); },
      });
      if (!answer->second.empty()) notes.push_back(answer->second);
    }
    if (answer->second.empty()) refused("measured to be no faster than a kernel");
    else chosen.emplace(contraction, *call);
  }
  return chosen;
}

Graph with_framework_calls(const Graph& graph, const FrameworkCalls& calls) {
  std::unordered_map<const Node*, const Node*> made;
  return rewrite(graph, [&](Builder& b, const Node* from, const std::vector<const Node*>& inputs) {
    const auto call = calls.find(from);
    if (call == calls.end()) return made[from] = with_inputs(b, from, inputs);
    std::vector<const Node*> operands;
    for (const FrameworkCall::Operand& o : call->second.operands) operands.push_back(made.at(o.memory));
    const Node* result = called(b, call->second, std::move(operands));
    for (const std::string& origin : graph.origins(from)) b.graph.add_origin(result->in(0), origin);
    return made[from] = call->second.as_contraction(b, result, from);
  });
}

}  // namespace trainc::compiler
