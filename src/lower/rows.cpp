// Row groups: their rows are independent; elementwise groups are rows without sums, walked in runs.
#include "cost/walks.h"
#include "lower/domain.h"
#include "lower/kernels.h"
#include "lower/row_walks.h"

namespace trainc::lower {

using loop::block;
using loop::integer;

LoweredKernel lower_rows(const Schedule& schedule, const Group& group, const Machine& machine) {
  LoweredKernel kernel;
  kernel.nest.name = kernel_name(group);
  Expressions e(schedule, kernel);
  RowWalks walks(schedule, group.values, group.rows, group.columns, machine, e);
  walks.find_levels();
  walks.declare_arguments();
  auto [outer, inner] = walks.factors();
  const std::vector<int64_t> row_factors = outer;
  const int64_t run = inner[0];
  // a long run: pieces, the last one shorter
  const bool chunked = group.columns == 1 && run > cost::kFewPieces * cost::kPiece;
  if (chunked) outer.push_back((run + cost::kPiece - 1) / cost::kPiece);
  OuterLoops loops(kernel.nest, outer, machine);
  std::vector<Expr> variables = loops.variables();
  RowWalks::Columns columns{inner, nullptr, nullptr};
  if (chunked) {
    columns.start = variables.back() * cost::kPiece;
    columns.extent = run % cost::kPiece == 0
                         ? integer(cost::kPiece)
                         : loop::apply(Op::Min, {integer(cost::kPiece), integer(run) - columns.start});
    variables.pop_back();
  }
  kernel.nest.body = loops.close(block(walks.row(position_of(variables, row_factors), columns)));
  return kernel;
}

}  // namespace trainc::lower
