// tune="max": contractions that the framework's own operators are to compute, decided by measurement. Inside compiler
// only.
// Takes: an optimised graph. Gives: the same with calls in place of the contractions that were chosen.
#pragma once
#include <unordered_map>

#include "compiler/lower_plan.h"
#include "schedule/framework_call.h"
#include "schedule/vendor_library.h"

namespace trainc::compiler {

/// Contractions, and the calls that are to stand for them.
using FrameworkCalls = std::unordered_map<const Node*, schedule::FrameworkCall>;

/// Asks `job.tuning->framework` of each contraction that has a kernel of its own (a contraction within a matmul chain
/// has none) and that the framework has an operator for. What stands beside it in that kernel, the epilogue, is
/// measured with it: with the call it is a kernel of its own. `notes`: what was said of each choice, once a kind.
/// `remarks`: gets one for each that stays a kernel.
FrameworkCalls framework_calls(const Graph&, const ArenaLayout&, const CompileOptions&, const Job&,
                               std::vector<std::string>& notes, Remarks* remarks = nullptr);
/// Needs: calls that were chosen for this very graph.
Graph with_framework_calls(const Graph&, const FrameworkCalls&);

/// `schedule::prepare` for a plan whose inputs and outputs lie so.
Graph prepared(const Graph&, const ArenaLayout&, std::unordered_map<const Node*, const Node*>* made = nullptr,
               const schedule::VendorLibrary& = {}, int64_t sum_threads = 0);

}  // namespace trainc::compiler
