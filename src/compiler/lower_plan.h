// A graph, and which of its inputs and outputs lie in the handle's arena -> a plan without code. Inside compiler only.
#pragma once
#include "compiler/compiler.h"
#include "schedule/padding.h"

namespace trainc::compiler {

/// Which inputs and outputs of a plan lie in the handle's arena, and where: inputs from `arena_inputs_from` on, outputs
/// from `arena_outputs_from` on, each at its `arena_offsets`, as bits where `arena_bits` says so. All others are the
/// caller's tensors.
struct ArenaLayout {
  int64_t arena_inputs_from = -1, arena_outputs_from = -1;  // -1: none
  std::vector<int64_t> arena_offsets;
  std::vector<bool> arena_bits;
  int64_t saved_bytes = 0;
  bool overwrites = false;  // what the arena holds is read for the last time: it may be overwritten
  GivenAway given_away = {};
  // Of each output in the arena, what nobody reads of it in rows of padding, for such samples and tokens.
  std::vector<schedule::Unread> arena_unread;
  schedule::PaddedRows padded;
  bool copies = false;  // a result that is an input is given as a copy: the step overwrites the input
};

/// Whether kernels may pass over rows of padding.
bool passes_over_padding(const CompileOptions&);

/// `pipeline`: it has run what made the graph; the plan has its name.
LoweredPlan lower_graph(Graph, Pipeline& pipeline, const ArenaLayout&, const CompileOptions&, const Job&, Timing*);

/// `schedule::pad_products`, as a pass.
Graph padded(Graph, Pipeline&, int64_t vendor_flops);

/// A plan whose steps are all there, ordered around what some of them start, with its memory laid out; where they have
/// their kernels' code: verified, and dumped.
plan::Plan with_memory(plan::Plan);
plan::Plan finished(plan::Plan);

}  // namespace trainc::compiler
