// A forward and a backward plan as one, and updates of parameters within a plan. Inside compiler only.
#pragma once
#include "compiler/compiler.h"

namespace trainc::compiler {

/// The steps of `forward`, then of `backward`.
/// Needs: plans of one cut, none of whose results is an input. `backward` reads `saved_inputs` (i < primals is that
/// primal, primals + j the forward's result j), then the tangents.
/// Gives: inputs are the primals, then the tangents. Outputs are the forward's, then the backward's. What was saved is
/// a temporary: it lives no longer than it is read.
plan::Plan join(const plan::Plan& forward, const plan::Plan& backward, const std::vector<int64_t>& saved_inputs,
                int64_t primals);

/// `plan`, with each update right after its gradient is made and the old parameter was read for the last time.
/// Needs: output `gradients + u.gradient` is the gradient of update u: no input, one dense piece, laid out as its
/// parameter.
/// Gives: inputs are the plan's, then what `updates` name beyond them. A gradient that an update takes in is no
/// output but a temporary.
plan::Plan consume(plan::Plan, int64_t gradients, const std::vector<plan::Foreach>& formulas,
                   const std::vector<Update>& updates);

}  // namespace trainc::compiler
