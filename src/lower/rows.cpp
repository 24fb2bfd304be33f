// Row groups: their rows are independent; elementwise groups are rows without sums, looped over in runs.
#include "cost/loops.h"
#include "lower/domain.h"
#include "lower/kernels.h"
#include "lower/row_loops.h"

namespace trainc::lower {

using loop::block;
using loop::integer;
using loop::LoopKind;

namespace {

/// Of a group that passes over rows of padding: `body` where the row is shown, zeros in all that it stores elsewhere.
/// `first`: the position of the iteration's first element; `columns`: how many it has.
Stmt where_shown(Stmt body, const Schedule& schedule, const Group& group, const LoweringOptions& options,
                 Expressions& e, const Expr& row, const Expr& first, const Expr& columns) {
  loop::LoopNest& nest = e.nest();
  const int64_t elements = group.rows * group.columns;
  const int shown = nest.add_local("shown", DType::I64);
  const Expr is_shown = nest.local(shown);
  std::vector<Stmt> zeros;
  for (const Node* n : group.values) {
    if (!schedule.stored.count(n)) continue;
    const Expr zero = loop::real(0, arithmetic_dtype(n->dtype()));
    if (n->type.numel() != elements) {
      zeros.push_back(e.store(n, row, zero));
      continue;
    }
    const int j = nest.add_var("j", columns->kind == loop::ExprKind::Int ? columns->int_value : -1);
    zeros.push_back(loop::for_loop(LoopKind::Vector, j, columns, e.store(n, first + nest.var(j), zero),
                                   lanes(options.target, options.target.f32_lanes)));
  }
  const Expr mask = loop::cast(nest.load(e.argument(schedule.padded.shown), row), DType::I64);
  return block(
      {loop::let(shown, mask), loop::for_loop(LoopKind::Serial, nest.add_var("shown", 1), is_shown, std::move(body)),
       loop::for_loop(LoopKind::Serial, nest.add_var("hidden", 1), integer(1) - is_shown, block(std::move(zeros)))});
}

}  // namespace

LoweredKernel lower_rows(const Schedule& schedule, const Group& group, const LoweringOptions& options) {
  LoweredKernel kernel;
  kernel.nest.name = kernel_name(group);
  Expressions e(schedule, kernel);
  RowLoops row_loops(schedule, group.values, group.rows, group.columns, options, e);
  row_loops.find_levels();
  row_loops.declare_arguments();
  const bool passes = group.passes == schedule::Passes::Rows;
  if (passes) e.argument(schedule.padded.shown);
  const int64_t width = passes ? group.rows * group.columns / schedule.padded.rows() : 0;  // of a row of hidden states
  auto [outer, inner] = row_loops.factors(width);
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
  const Expr row = position_of(variables, row_factors);
  Stmt body = block(row_loops.row(row, columns));
  if (passes) {
    const int64_t length = group.columns > 1 ? group.columns : run;
    const Expr first = columns.start ? row * length + columns.start : row * length;
    body = where_shown(std::move(body), schedule, group, options, e, loop::floor_div(row * length, width), first,
                       columns.extent ? columns.extent : integer(length));
  }
  kernel.nest.body = loops.close(std::move(body));
  return kernel;
}

}  // namespace trainc::lower
