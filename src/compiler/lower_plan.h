// A graph with homes for its inputs and outputs -> a plan. Inside compiler only.
#pragma once
#include "compiler/compiler.h"

namespace trainc::compiler {

/// Inputs from `arena_inputs_from` on, and outputs from `arena_outputs_from` on, lie in the handle's arena at `arena_offsets`,
/// as bits where `arena_bits` says so.
struct Homes {
  int64_t arena_inputs_from = -1, arena_outputs_from = -1;  // -1: none
  std::vector<int64_t> arena_offsets;
  std::vector<bool> arena_bits;
  int64_t saved_bytes = 0;
  bool consumes = false;  // what the arena holds is read for the last time: it may be overwritten
  bool copies = false;  // a result that is an input is a copy of it: the input is to be overwritten
};

plan::Plan compile_graph(Graph, const std::string& name, const Homes&, const Options&, Timing*);

/// A plan whose steps are all there: with its memory laid out, verified (but not a dry one, which has no code) and dumped.
plan::Plan finished(plan::Plan, const Options&);

}  // namespace trainc::compiler
