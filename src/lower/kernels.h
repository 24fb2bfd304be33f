// One builder a kind of group, and what they share. Inside lower only.
#pragma once
#include <functional>
#include <string>

#include "graph/remarks.h"
#include "lower/expressions.h"

namespace trainc::lower {

LoweredKernel lower_rows(const Schedule&, const Group&, const LoweringOptions&);
/// A row group that is one f32 value in another order, where squares of it can be transposed; none else.
std::optional<LoweredKernel> lower_transpose(const Schedule&, const Group&, const LoweringOptions&);
LoweredKernel lower_columns(const Schedule&, const Group&, const LoweringOptions&);
LoweredKernel lower_contract(const Schedule&, const Group&, const LoweringOptions&, const NodeRemarks&);
LoweredKernel lower_matmul_chain(const Schedule&, const Group&, const LoweringOptions&, const NodeRemarks&);
LoweredKernel lower_scan(const Schedule&, const Group&, const LoweringOptions&);
std::vector<LoweredKernel> lower_scatter(const Schedule&, const Group&, const LoweringOptions&);
/// Whether the place that a source goes to depends on its position along the axis alone.
bool goes_by_source(const Node* scatter);
/// The additions of such a scatter, on a device, its places dealt to `parts`, of which there are as many as places at
/// most. `add(e, axes, place)`: adds the source at `axes` to its element of the place.
LoweredKernel lower_dealt_scatter(
    const Schedule&, const Group&, int64_t parts,
    const std::function<Stmt(Expressions& e, std::vector<Expr> axes, const Expr& place)>&);
std::vector<LoweredKernel> lower_concat(const Schedule&, const Group&, const LoweringOptions&);
LoweredKernel lower_philox(const Schedule&, const Group&, const LoweringOptions&);

/// A short name that tells what is inside: "rows_sum_exp_3".
std::string kernel_name(const Group&);
Expr neutral(ReduceKind, DType);
/// The local that a sum runs in, wider than its terms where runs.h says so, the statement that binds it, and what the
/// sum is in the end.
struct Total {
  int local;
  Stmt start;
  Expr result;
};
Total total_of(const Node* sum, loop::LoopNest&, const LoweringOptions&);
/// Lanes for a vector loop of `extent`.
int lanes(const Target&, int64_t extent);

}  // namespace trainc::lower
