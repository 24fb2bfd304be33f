// A value that is another one in a different order (a convolution's weight for its product, and the product's result
// for the weight's gradient): squares of elements are transposed in registers, so that both sides are read and written
// by whole cache lines. The plain loop gathers one side element by element.
#include <algorithm>
#include <functional>

#include "cost/loops.h"
#include "loop/substitute.h"
#include "lower/domain.h"
#include "lower/kernels.h"

namespace trainc::lower {

using loop::block;
using loop::integer;
using loop::LoopKind;

namespace {

/// Whether `n` is another value (or an input) moved and cast, element by element, and nothing else.
bool moved(const Node* n, const Schedule& schedule) {
  for (const Node* x = n; x == n || !(schedule.values.count(x) || x->op == Op::Input); x = x->in(0))
    if (x->op != Op::Reshape && x->op != Op::Permute && x->op != Op::Reverse && x->op != Op::Slice && x->op != Op::Cast)
      return false;
  return true;
}

/// The one load under casts; nullptr where it is guarded.
const loop::ExprNode* only_load(const Expr& e) {
  if (e->kind == loop::ExprKind::Load) return e->args.size() == 1 ? e.get() : nullptr;
  return e->kind == loop::ExprKind::Apply && e->op == Op::Cast ? only_load(e->args[0]) : nullptr;
}
Expr with_load(const Expr& e, const Expr& load) {
  return e->kind == loop::ExprKind::Load ? load : loop::cast(with_load(e->args[0], load), e->dtype);
}

/// An axis of the domain: so many places, with these strides where it is read and where it is written. Counted
/// backwards where it is read so.
struct Axis { int64_t extent, read, written; };

/// `axes`, innermost first, as one: where its place `at` lies by `stride`, one of the two.
Expr place(const std::vector<Axis>& axes, const Expr& at, int64_t Axis::* stride) {
  Expr e = integer(0);
  int64_t below = 1;
  for (const Axis& a : axes) {
    e = e + loop::mod(loop::floor_div(at, below), a.extent) * (a.*stride);
    below *= a.extent;
  }
  return e;
}
int64_t extent_of(const std::vector<Axis>& axes) {
  int64_t n = 1;
  for (const Axis& a : axes) n *= a.extent;
  return n;
}

/// The axes that follow each other without a gap by `stride`, from its neighbours on; those taken are left out of
/// `rest`.
std::vector<Axis> unbroken(std::vector<Axis>& rest, int64_t Axis::* stride) {
  std::vector<Axis> run;
  for (int64_t next = 1;;) {
    const auto it = std::find_if(rest.begin(), rest.end(), [&](const Axis& a) { return a.*stride == next; });
    if (it == rest.end()) return run;
    next *= it->extent;
    run.push_back(*it);
    rest.erase(it);
  }
}

}  // namespace

std::optional<LoweredKernel> lower_transpose(const Schedule& schedule, const Group& group,
                                             const LoweringOptions& options) {
  const Node* n = group.values[0];
  const int64_t all = n->type.numel();
  if (!options.target.transposes_in_registers || group.columns != 1 || group.values.size() != 1 ||
      all < cost::kWorthTransposing || n->type.rank() == 0 || !moved(n, schedule))
    return std::nullopt;
  LoweredKernel kernel;
  loop::LoopNest& nest = kernel.nest;
  nest.name = kernel_name(group);
  Expressions e(schedule, kernel);
  const int out = e.argument(n, true);

  // Every axis with its strides.
  std::vector<int64_t> own = contiguous_strides(n->shape());
  own.pop_back();
  const std::vector<int64_t> factors = factor(all, own, split_points(n, schedule, all, 1));
  std::vector<int> ids;
  std::vector<Expr> variables;
  for (const int64_t f : factors) ids.push_back(nest.add_var("axis", f)), variables.push_back(nest.var(ids.back()));
  const Expr value = e.definition(n, Index::at_position(n->shape(), position_of(variables, factors)));
  const loop::ExprNode* load = only_load(value);
  if (!load || kernel.arguments.size() != 2) return std::nullopt;
  std::vector<Axis> axes;  // innermost first
  Expr first_read = load->args[0];
  int64_t first_written = 0, written = 1;
  for (size_t i = factors.size(); i-- > 0;) {
    Axis a{factors[i], loop::stride_of(value, ids[i], -1), written};
    written *= a.extent;
    first_read = first_read - variables[i] * a.read;
    if (a.read < 0) {
      first_read = first_read + integer(a.read * (a.extent - 1));
      first_written += a.written * (a.extent - 1);
      a.read = -a.read, a.written = -a.written;
    }
    if (a.extent == 1) continue;
    if (a.read == 0) return std::nullopt;
    if (!axes.empty() && a.read == axes.back().read * axes.back().extent &&
        a.written == axes.back().written * axes.back().extent)
      axes.back().extent *= a.extent;
    else axes.push_back(a);
  }
  if (first_read->kind != loop::ExprKind::Int) return std::nullopt;  // there is a division left

  // One side's neighbours are one axis, `across`; the other's may be several, `along`, which the squares treat as one:
  // of those an element's place takes divisions, but once a row of a square.
  const int lanes = options.target.f32_lanes;
  const auto transposed = [&](int64_t Axis::* near, int64_t Axis::* far) -> bool {
    std::vector<Axis> rest = axes;
    const auto it = std::find_if(rest.begin(), rest.end(), [&](const Axis& a) { return a.*near == 1; });
    if (it == rest.end() || (*it).*far == 1 || it->extent % lanes != 0) return false;
    const Axis across = *it;
    rest.erase(it);
    const std::vector<Axis> along = unbroken(rest, far);
    const int64_t squares = extent_of(along) / lanes;
    if (extent_of(along) % lanes != 0) return false;
    const int64_t abreast = across.extent % (lanes * cost::kAbreast) == 0 ? cost::kAbreast : 1;
    std::vector<int64_t> loops_of;
    for (const Axis& a : rest) loops_of.push_back(a.extent);
    loops_of.push_back(across.extent / (lanes * abreast)), loops_of.push_back(squares);
    OuterLoops loops(nest, loops_of, options);
    const std::vector<Expr>& at = loops.variables();
    const int64_t width = abreast * lanes;  // of a row of squares
    const int tile = nest.add_buffer({"squares", DType::F32, lanes * width, loop::Space::Scratch, true});
    const int side = nest.add_var("side", abreast), row = nest.add_var("row", lanes),
              lane = nest.add_var("lane", width);
    const Expr along_at = at.back() * lanes;
    const auto begins = [&](int64_t Axis::* stride, int64_t first) {
      Expr b = integer(first) + at[rest.size()] * (width * (across.*stride));
      for (size_t i = 0; i < rest.size(); ++i) b = b + at[i] * (rest[i].*stride);
      return b;
    };
    const bool transposes_what_it_reads =
        near == &Axis::written;  // the squares' rows are neighbours where they are written
    const Expr row_at = along_at + nest.var(row), from = begins(&Axis::read, first_read->int_value),
               to = begins(&Axis::written, first_written);
    const Expr in_tile = nest.var(row) * width + nest.var(lane);
    const auto rows = [&](const Stmt& s) {
      return loop::for_loop(LoopKind::Serial, row, integer(lanes),
                            loop::for_loop(LoopKind::Vector, lane, integer(width), s, lanes));
    };
    const auto sides = [&](const Stmt& s) { return loop::for_loop(LoopKind::Serial, side, integer(abreast), s); };
    std::vector<Stmt> body;
    if (transposes_what_it_reads) {
      body.push_back(
          sides(loop::transpose(tile, nest.var(side) * lanes, width, load->id,
                                from + along_at + nest.var(side) * (lanes * across.read), across.read, lanes)));
      body.push_back(rows(e.store(n, to + place(along, row_at, &Axis::written) + nest.var(lane),
                                  with_load(value, nest.load(tile, in_tile)))));
    } else {
      body.push_back(rows(loop::store(
          tile, in_tile,
          with_load(value, nest.load(load->id, from + place(along, row_at, &Axis::read) + nest.var(lane))))));
      body.push_back(sides(loop::transpose(out, to + along_at + nest.var(side) * (lanes * across.written),
                                           across.written, tile, nest.var(side) * lanes, width, lanes)));
    }
    nest.body = loops.close(block(std::move(body)));
    return true;
  };
  const DType stored = n->dtype(), read = nest.buffers[static_cast<size_t>(load->id)].dtype;
  if (read == DType::F32 && transposed(&Axis::written, &Axis::read)) return kernel;
  if (stored == DType::F32 && value->dtype == DType::F32 && transposed(&Axis::read, &Axis::written)) return kernel;
  return std::nullopt;
}

}  // namespace trainc::lower
