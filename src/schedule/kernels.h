// One builder a kind of group, and what they share. Inside schedule only.
#pragma once
#include <string>

#include "schedule/expressions.h"

namespace trainc::schedule {

LoweredKernel lower_rows(const Graph&, const Schedule&, const Group&, const Machine&);
LoweredKernel lower_columns(const Graph&, const Schedule&, const Group&, const Machine&);
LoweredKernel lower_contract(const Graph&, const Schedule&, const Group&, const Machine&);
LoweredKernel lower_scan(const Graph&, const Schedule&, const Group&, const Machine&);
std::vector<LoweredKernel> lower_scatter(const Graph&, const Schedule&, const Group&, const Machine&);
std::vector<LoweredKernel> lower_concat(const Graph&, const Schedule&, const Group&, const Machine&);

/// A short name that tells what is inside: "rows_sum_exp_3".
std::string kernel_name(const Graph&, const Group&);
Expr neutral(ReduceKind, DType);
// Elements of an unbroken run that one parallel iteration takes.
constexpr int64_t kChunk = 4096;
/// Lanes for a vector loop of `extent`.
int lanes(CpuLevel, int64_t extent);

}  // namespace trainc::schedule
