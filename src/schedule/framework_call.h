// A contraction as one call of the framework's own operator: its matrix product, its convolution. tune="max" measures
// it beside the kernel that the schedule makes (compiler/framework_calls.h). Takes: an optimised graph, before
// `prepare`. Gives: the call. Includes: graph.
#pragma once
#include <optional>
#include <unordered_map>
#include <vector>

#include "graph/build.h"
#include "support/remark.h"

namespace trainc::schedule {

/// What python/trainc/torch/run/framework_calls.py runs: an Extern node's call, and its one result's way back to what
/// the contraction gives.
struct FrameworkCall {
  /// Memory that the call reads as it lies: what is under the contraction's operands once reshapes, permutes, windows,
  /// their padding with zeros, and a cast from bf16 are taken off. The call says itself how to look at it.
  struct Operand {
    const Node* memory;
    std::vector<const Node*> above;  // what was taken off
  };
  std::vector<Operand> operands;
  ExternAttr
      attr;    // of one result: target "framework.product", "framework.convolution" or "framework.convolution_weight"
  Dims order;  // permute(result, order), reshaped, is the contraction; empty: no permute

  /// The call's result as the contraction has it, its dtype included.
  const Node* as_contraction(Builder&, const Node* result, const Node* contraction) const;
  /// The way back: `value`, shaped as the contraction is, as the call gives it.
  const Node* as_result(Builder&, const Node* value) const;
  const Type& result() const { return attr.results[0]; }
};

/// Who reads each node of a graph, outputs (nullptr) among them.
using Readers = std::unordered_map<const Node*, std::vector<const Node*>>;
Readers readers_of(const Graph&);

/// None for a contraction in f64, without elements, or in bf16 whose f32 sums are wanted before they are rounded: the
/// framework rounds at once.
OrRefused<FrameworkCall> framework_call(const Node* contraction, const Readers&);

}  // namespace trainc::schedule
