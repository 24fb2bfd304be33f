// Row groups: their rows are independent; elementwise groups are rows without sums, looped over in runs.
#include "cost/loops.h"
#include "lower/domain.h"
#include "lower/kernels.h"
#include "lower/row_loops.h"

namespace trainc::lower {

using loop::block;
using loop::integer;

LoweredKernel lower_rows(const Schedule& schedule, const Group& group, const LoweringOptions& options) {
  LoweredKernel kernel;
  kernel.nest.name = kernel_name(group);
  Expressions e(schedule, kernel);
  RowLoops row_loops(schedule, group.values, group.rows, group.columns, options, e);
  row_loops.find_levels();
  row_loops.declare_arguments();
  auto [outer, inner] = row_loops.factors();
  const std::vector<int64_t> row_factors = outer;
  const int64_t run = inner[0];
  // a long run: pieces, the last one shorter
  const bool chunked = group.columns == 1 && run > cost::kFewPieces * cost::kPiece;
  if (chunked) outer.push_back((run + cost::kPiece - 1) / cost::kPiece);
  OuterLoops loops(kernel.nest, outer, options);
  std::vector<Expr> variables = loops.variables();
  RowLoops::Columns columns{inner, nullptr, nullptr};
  if (chunked) {
    columns.start = variables.back() * cost::kPiece;
    columns.extent = run % cost::kPiece == 0
                         ? integer(cost::kPiece)
                         : loop::apply(Op::Min, {integer(cost::kPiece), integer(run) - columns.start});
    variables.pop_back();
  }
  kernel.nest.body = loops.close(block(row_loops.row(position_of(variables, row_factors), columns)));
  return kernel;
}

}  // namespace trainc::lower
