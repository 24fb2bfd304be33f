// A forward and a backward plan, and updates of parameters, as one plan. Inside compiler only.
#pragma once
#include "compiler/compiler.h"

namespace trainc::compiler {

/// The steps of `forward`, then of `backward`, with each update as soon as its gradient is made and nobody reads the old parameter any more.
/// Needs: plans of one cut, none of whose results is an input. `backward` reads `saved_inputs` (i < primals is that primal, primals + j the forward's result j), then the tangents;
/// its results that updates consume are one dense piece, laid out as their parameter.
/// Gives: inputs are the primals, the tangents, then what `updates` name beyond them. Outputs are the forward's, then the backward's, where a
/// consumed one is none. What was saved, and each consumed gradient, is a temporary: it lives no longer than it is read.
plan::Plan join_step(const plan::Plan& forward, const plan::Plan& backward, const std::vector<int64_t>& saved_inputs, int64_t primals,
                     const std::vector<Formula>& formulas, const std::vector<Update>& updates);

}  // namespace trainc::compiler
