// Sums over axes that are not the last ones: what is kept runs across vector lanes, or outside, and the rest is folded.
#include <algorithm>
#include <numeric>
#include <set>

#include "cost/sums.h"
#include "loop/runs.h"
#include "lower/domain.h"
#include "lower/kernels.h"
#include "support/division.h"

namespace trainc::lower {

using loop::block;
using loop::integer;
using loop::LoopKind;

namespace {

struct Factor {
  int64_t extent;
  bool kept;
};

/// The input's domain as factors, each all kept or all folded.
std::vector<Factor> factors_of(const Node* sum, const Schedule& schedule, const Group& group) {
  const Dims& shape = sum->in(0)->shape();
  const Dims& axes = sum->as<ReduceAttr>().axes;
  std::vector<int64_t> firm;
  const Dims strides = contiguous_strides(shape);
  auto folded = [&](size_t k) { return std::find(axes.begin(), axes.end(), static_cast<int64_t>(k)) != axes.end(); };
  std::set<int64_t> points;
  const int64_t all = sum->in(0)->type.numel();
  for (const Node* n : group.values) points.merge(split_points(n->in(0), schedule, all, 1));
  // An axis boundary matters only where kept and folded axes meet.
  for (size_t k = 1; k < shape.size(); ++k) {
    size_t before = k;
    while (before > 0 && shape[before - 1] == 1) --before;
    if (before > 0 && shape[k] != 1 && folded(k) != folded(before - 1)) firm.push_back(strides[before - 1]);
  }
  std::vector<Factor> factors;
  int64_t left = all;
  for (int64_t f : factor(all, firm, points)) {
    left /= f;
    int64_t stride = 0;  // which axis this factor lies in
    bool kept = false;
    for (size_t k = 0; k < shape.size(); ++k)
      if (shape[k] != 1 && strides[k] * shape[k] > left && (stride == 0 || strides[k] * shape[k] <= stride))
        stride = strides[k] * shape[k], kept = !folded(k);
    factors.push_back({f, kept});
  }
  return factors;
}

/// Whether an f64 value is made of f32 that was cast, or of products of such, so that sums of many have digits to
/// spare.
bool is_widened(const Node* n) {
  if (n->dtype() != DType::F64) return false;
  if (n->op == Op::Mul || is_movement(n->op)) return std::ranges::all_of(n->inputs, is_widened);
  return n->op == Op::Cast && is_float(n->in(0)->dtype()) && n->in(0)->dtype() != DType::F64;
}

/// How columns are dealt out: so many to a piece, in vectors of `width`.
struct Pieces {
  int64_t columns;
  int width;
};
/// Equal pieces, where there are such of the greatest width down to half of it: they need no minimum for the last one,
/// which hides from the algebra of indices where a column ends, so that each window would be found by divisions. Where
/// there are none, all columns are one piece, if `others` loops beside them are enough for the cores. (Not on a device,
/// whose threads are columns.)
Pieces pieces_of(int64_t columns, int lanes, int64_t others, bool device) {
  const int most = static_cast<int>(std::min<int64_t>(cost::kAcross, cost::kAcrossRegisters * lanes));
  for (int width = most; 2 * width >= most && width >= lanes; width /= 2)
    if (columns % width == 0) return {width, width};
  if (device) return {most, most};
  for (int64_t each = most; 2 * each >= most; --each)
    if (columns % each == 0) return {each, most};
  return {columns < most || others >= cost::kFewVectors ? columns : most, most};
}

}  // namespace

LoweredKernel lower_columns(const Schedule& schedule, const Group& group, const LoweringOptions& options) {
  LoweredKernel kernel;
  loop::LoopNest& nest = kernel.nest;
  nest.name = kernel_name(group);
  Expressions e(schedule, kernel);
  const Node* first = group.values[0];
  const std::vector<Factor> factors = factors_of(first, schedule, group);
  const bool across = factors.back().kept;  // the last kept factor lies across lanes
  const int64_t last = factors.back().extent;
  std::vector<int64_t> outer;
  for (size_t k = 0; k + 1 < factors.size(); ++k)
    if (factors[k].kept) outer.push_back(factors[k].extent);
  const int vector = lanes(options.target, last);
  const int64_t others = std::accumulate(outer.begin(), outer.end(), int64_t{1}, std::multiplies<>());
  const auto [each, width] =
      across ? pieces_of(last, vector, others, options.target.launches_blocks) : Pieces{last, vector};
  const int64_t pieces = ceil_div(last, each);
  if (across) outer.push_back(pieces);
  OuterLoops loops(nest, outer, options);

  // One variable a factor, in order.
  std::vector<Expr> variables;
  std::vector<std::pair<int, int64_t>> folded;  // serial loops
  size_t next_outer = 0;
  int vector_var = -1;
  Expr vector_extent;
  for (size_t k = 0; k < factors.size(); ++k) {
    const auto [extent, kept] = factors[k];
    if (k + 1 == factors.size()) {
      vector_var = nest.add_var("j", across && pieces > 1 ? each : extent);
      Expr j = nest.var(vector_var);
      if (!across) vector_extent = integer(extent);
      else if (pieces == 1) vector_extent = integer(last);
      else {
        Expr start = loops.variables().back() * each;
        vector_extent = last % each == 0 ? integer(each) : loop::apply(Op::Min, {integer(each), integer(last) - start});
        j = start + j;
      }
      variables.push_back(j);
    } else if (kept) {
      variables.push_back(loops.variables()[next_outer++]);
    } else {
      int v = nest.add_var("r" + std::to_string(k), extent);
      folded.push_back({v, extent});
      variables.push_back(nest.var(v));
    }
  }
  std::vector<int64_t> extents;
  for (const Factor& f : factors) extents.push_back(f.extent);
  const Expr position = position_of(variables, extents);
  std::vector<Expr> kept_variables;
  std::vector<int64_t> kept_extents;
  for (size_t k = 0; k < factors.size(); ++k)
    if (factors[k].kept) kept_variables.push_back(variables[k]), kept_extents.push_back(factors[k].extent);
  const Expr result_position = position_of(kept_variables, kept_extents);

  std::vector<Stmt> all, inside, finish;
  std::set<int> wide;
  for (const Node* n : group.values) {
    const ReduceKind kind = n->as<ReduceAttr>().kind;
    const Total total = total_of(n, nest, options);
    if (is_widened(n->in(0))) wide.insert(total.local);
    all.push_back(total.start);
    e.out = &inside;
    Expr v = e.value(n->in(0), Index::at_position(n->in(0)->shape(), position));
    inside.push_back(loop::reduce(total.local, kind, v));
    e.out = &finish;
    finish.push_back(e.store(n, result_position, total.result));
  }

  Stmt body = block(inside);
  if (!across) body = loop::for_loop(LoopKind::Vector, vector_var, vector_extent, body, width);
  for (size_t k = folded.size(); k-- > 0;)
    body = loop::for_loop(LoopKind::Serial, folded[k].first, integer(folded[k].second), body);
  all.push_back(body);
  all.insert(all.end(), finish.begin(), finish.end());
  body = add_in_runs(nest, block(all), options.fixed_blockings != nullptr, options.target.launches_blocks, wide);
  if (across) body = loop::for_loop(LoopKind::Vector, vector_var, vector_extent, body, width);
  nest.body = loops.close(body);
  return kernel;
}

}  // namespace trainc::lower
