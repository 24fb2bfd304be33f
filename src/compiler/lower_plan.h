// A graph with homes for its inputs and outputs -> a plan without code. Inside compiler only.
#pragma once
#include "compiler/compiler.h"

namespace trainc::compiler {

/// Inputs from `arena_inputs_from` on, and outputs from `arena_outputs_from` on, lie in the handle's arena at
/// `arena_offsets`, as bits where `arena_bits` says so.
struct Homes {
  int64_t arena_inputs_from = -1, arena_outputs_from = -1;  // -1: none
  std::vector<int64_t> arena_offsets;
  std::vector<bool> arena_bits;
  int64_t saved_bytes = 0;
  bool consumes = false;  // what the arena holds is read for the last time: it may be overwritten
  bool copies = false;    // a result that is an input is a copy of it: the input is to be overwritten
};

/// `pipeline`: it has run what made the graph; the plan has its name.
LoweredPlan lower_graph(Graph, Pipeline& pipeline, const Homes&, const CompileOptions&, const Job&, Timing*);

/// A plan whose steps are all there, ordered around what some of them start, with its memory laid out; where they have
/// their kernels' code: verified, and dumped.
plan::Plan with_memory(plan::Plan);
plan::Plan finished(plan::Plan);

}  // namespace trainc::compiler
