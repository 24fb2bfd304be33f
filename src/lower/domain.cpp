#include "lower/domain.h"

#include <algorithm>
#include <limits>

#include "cost/loops.h"
#include "loop/substitute.h"

namespace trainc::lower {

using loop::integer;

std::set<int64_t> split_points(const Node* value, const Schedule& schedule, int64_t rows, int64_t columns) {
  std::set<int64_t> points;
  std::set<std::pair<const Node*, Access>> seen;
  const int64_t all = rows * columns;
  auto cut = [&](const Node* n, Access access, size_t axis) {  // between axis - 1 and axis
    const Dims strides = contiguous_strides(n->shape());
    if (axis == 0 || axis >= strides.size()) return;
    const int64_t point = strides[axis - 1] * (access == Access::Row ? columns : 1);
    if (point > 1 && point < all) points.insert(point);
  };
  auto visit = [&](auto&& self, const Node* n, Access access) -> void {
    if (access == Access::Other || !seen.insert({n, access}).second) return;
    const size_t rank = n->shape().size();
    if (n->op == Op::Input && !n->as<InputAttr>().strides.empty())
      for (size_t k = 1; k < rank; ++k) cut(n, access, k);
    if (n != value && (schedule.values.count(n) || n->op == Op::Input)) return;
    switch (n->op) {
      case Op::Reshape: return self(self, n->in(0), access);
      case Op::Reduce: return self(self, n->in(0), access == Access::Row ? Access::Full : access);
      case Op::Broadcast: {
        const Dims &in = n->in(0)->shape(), &out = n->shape();
        for (size_t k = 1; k < rank; ++k) {  // runs of repeated and of kept axes
          size_t before = k;
          while (before > 0 && out[before - 1] == 1) --before;
          if (before == 0 || out[k] == 1) continue;
          if ((in[k] == out[k]) != (in[before - 1] == out[before - 1])) cut(n, access, k);
        }
        if (n->in(0)->type.numel() == n->type.numel()) self(self, n->in(0), access);
        else if (access == Access::Full && columns > 1 && n->in(0)->type.numel() == rows && broadcasts_rows(n, columns))
          self(self, n->in(0), Access::Row);
        return;
      }
      case Op::Permute: {
        const Dims& order = n->as<AxesAttr>().axes;
        // Of windows, each place and each tap is a loop of its own: together they would be found by a division a tap.
        const auto in_window = [&](int64_t axis) {
          const Node* in = n->in(0);
          if (in->op != Op::Window || schedule.values.count(in)) return false;
          const Dims& axes = in->as<WindowAttr>().axes;
          return axis >= in->in(0)->type.rank() || std::find(axes.begin(), axes.end(), axis) != axes.end();
        };
        for (size_t k = 1; k < rank; ++k)
          if (order[k] != order[k - 1] + 1 || in_window(order[k]) || in_window(order[k - 1])) cut(n, access, k);
        return;
      }
      case Op::Slice:
      case Op::Pad:
        if (is_copy(n)) return self(self, n->in(0), access);
        for (size_t k = 0; k < rank; ++k) {
          if (n->shape()[k] == n->in(0)->shape()[k]) continue;
          cut(n, access, k);
          // Whether an element lies within the padding is a question to this axis: asked once a run of what lies behind
          // it, where that is a loop of its own.
          const int64_t run = contiguous_strides(n->shape())[k];
          if (n->op == Op::Pad && run >= cost::kRunOfItsOwn) cut(n, access, k + 1);
        }
        return;
      case Op::Window:
        for (int64_t axis : n->as<WindowAttr>().axes) cut(n, access, axis), cut(n, access, axis + 1);
        for (size_t k = n->in(0)->shape().size(); k < rank; ++k) cut(n, access, k);
        return;
      case Op::Iota:
      case Op::Concat:
        cut(n, access, n->as<AxisAttr>().axis);
        cut(n, access, n->as<AxisAttr>().axis + 1);
        return;
      case Op::Reverse:
        for (int64_t axis : n->as<AxesAttr>().axes) cut(n, access, axis), cut(n, access, axis + 1);
        return;
      case Op::Gather:
        cut(n, access, n->as<AxisAttr>().axis);
        cut(n, access, n->as<AxisAttr>().axis + 1);
        return self(self, n->in(1), access);
      default:
        if (is_elementwise(n->op))
          for (const Node* i : n->inputs) self(self, i, access);
    }
  };
  visit(visit, value, columns > 1 && value->type.numel() == rows ? Access::Row : Access::Full);
  return points;
}

std::vector<int64_t> factor(int64_t total, const std::vector<int64_t>& firm, const std::set<int64_t>& points) {
  std::vector<int64_t> chain;  // accepted suffix products
  auto accept = [&](int64_t p) {
    if (p <= 1 || p >= total || total % p != 0) return;
    for (int64_t a : chain)
      if (a % p != 0 && p % a != 0) return;
    if (std::find(chain.begin(), chain.end(), p) == chain.end()) chain.push_back(p);
  };
  for (int64_t p : firm) accept(p);
  for (int64_t p : points) accept(p);
  std::sort(chain.rbegin(), chain.rend());
  std::vector<int64_t> factors;
  int64_t left = total;
  for (int64_t p : chain) factors.push_back(left / p), left = p;
  factors.push_back(left);
  return factors;
}

void count_from(loop::LoopNest& nest, const Expr& start, int j, std::vector<Stmt>& inside) {
  nest.vars[j].extent = -1;
  for (Stmt& s : inside) s = loop::substitute(s, {{j, start + nest.var(j)}});
}

Expr position_of(const std::vector<Expr>& variables, const std::vector<int64_t>& factors) {
  Expr e = integer(0);
  int64_t stride = 1;
  for (size_t k = variables.size(); k-- > 0;) {
    e = e + variables[k] * stride;
    stride *= factors[k];
  }
  return e;
}

OuterLoops::OuterLoops(loop::LoopNest& nest, const std::vector<int64_t>& factors, const LoweringOptions& options)
    : nest_(nest), factors_(factors) {
  const int64_t enough = options.target.launches_blocks ? std::numeric_limits<int64_t>::max() : cost::kEnoughTasks;
  int64_t extent = 1;
  while (parallel_ < factors.size() && extent < enough) extent *= factors[parallel_++];
  if (parallel_ > 0) {
    parallel_var_ = nest.add_var("p", extent);
    Expr p = nest.var(parallel_var_);
    int64_t below = extent;
    for (size_t k = 0; k < parallel_; ++k) {
      below /= std::max<int64_t>(factors[k], 1);
      Expr e = below > 0 ? loop::floor_div(p, below) : integer(0);
      variables_.push_back(k == 0 || factors[k] == 0 ? e : loop::mod(e, factors[k]));
    }
  }
  nest.parallel_extent = extent;
  for (size_t k = parallel_; k < factors.size(); ++k) {
    serial_vars_.push_back(nest.add_var("r" + std::to_string(k), factors[k]));
    variables_.push_back(nest.var(serial_vars_.back()));
  }
}

Stmt OuterLoops::close(Stmt body) {
  for (size_t k = factors_.size(); k-- > parallel_;)
    body = loop::for_loop(loop::LoopKind::Serial, serial_vars_[k - parallel_], integer(factors_[k]), body);
  if (parallel_var_ >= 0)
    body = loop::for_loop(loop::LoopKind::Parallel, parallel_var_, integer(nest_.parallel_extent), body);
  return body;
}

}  // namespace trainc::lower
