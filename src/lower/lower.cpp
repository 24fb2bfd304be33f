#include "lower/lower.h"

#include <algorithm>
#include <limits>

#include "cost/loops.h"
#include "cost/sums.h"
#include "loop/runs.h"
#include "lower/domain.h"
#include "lower/kernels.h"
#include "lower/map_device.h"
#include "support/division.h"

namespace trainc::lower {

using loop::block;
using loop::integer;
using loop::LoopKind;

Expr neutral(ReduceKind kind, DType dtype) {
  auto number = [&](double of_float, int64_t of_int) {
    return is_float(dtype) ? loop::real(of_float, dtype) : integer(of_int, dtype);
  };
  constexpr double inf = std::numeric_limits<double>::infinity();
  auto limit = [&](bool greatest) -> int64_t {
    switch (dtype) {
      case DType::I64: return greatest ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int64_t>::min();
      case DType::I32: return greatest ? std::numeric_limits<int32_t>::max() : std::numeric_limits<int32_t>::min();
      case DType::I16: return greatest ? 32767 : -32768;
      case DType::I8: return greatest ? 127 : -128;
      case DType::U8: return greatest ? 255 : 0;
      case DType::U16: return greatest ? 65535 : 0;
      case DType::U32: return greatest ? 0xffffffff : 0;
      case DType::U64: return greatest ? -1 : 0;  // its bits
      case DType::Bool: return greatest ? 1 : 0;
      case DType::F64:
      case DType::F32:
      case DType::BF16:
      case DType::F16: return 0;
    }
    return 0;
  };
  switch (kind) {
    case ReduceKind::Sum: return number(0, 0);
    case ReduceKind::Prod: return number(1, 1);
    case ReduceKind::Max: return number(-inf, limit(false));
    case ReduceKind::Min: return number(inf, limit(true));
    case ReduceKind::ArgMax:
    case ReduceKind::ArgMin: break;
  }
  throw InternalError("ArgMax and ArgMin do not reach the kernels");
}

Total total_of(const Node* sum, loop::LoopNest& nest, const LoweringOptions& options) {
  const ReduceKind kind = sum->op == Op::Scan ? ReduceKind::Sum : sum->as<ReduceAttr>().kind;
  const DType terms = arithmetic_dtype(sum->dtype()),
              dtype = options.target.has_wide_totals ? loop::total_dtype(kind, terms) : terms;
  const int local = nest.add_local("s" + std::to_string(nest.locals.size()), dtype);
  const Expr total = nest.local(local);
  return {local, loop::let(local, neutral(kind, dtype)),
          arithmetic(sum->dtype(), dtype == terms ? total : loop::cast(total, terms))};
}

int lanes(const Target& target, int64_t extent) {
  int n = target.f32_lanes;
  while (n > 1 && n / 2 >= extent) n /= 2;
  return n;
}

std::string kernel_name(const Group& group) {
  std::string name;
  switch (group.kind) {
    case GroupKind::Rows: name = group.columns > 1 ? "rows" : "map"; break;
    case GroupKind::Columns: name = "columns"; break;
    case GroupKind::Contract: name = "contract"; break;
    case GroupKind::MatmulChain: name = "matmul_chain"; break;
    case GroupKind::Scan: name = "scan"; break;
    case GroupKind::Scatter: name = "scatter"; break;
    case GroupKind::Concat: name = "concat"; break;
    case GroupKind::Random: name = "random"; break;
    case GroupKind::Extern: name = "extern"; break;
  }
  std::vector<std::string> words;
  for (const Node* n : group.values) {
    std::string word(name_of(n->op));
    if (word != name && std::find(words.begin(), words.end(), word) == words.end() && words.size() < 4)
      words.push_back(word);
  }
  for (const std::string& w : words) name += "_" + w;
  return name;
}

namespace {

/// A kernel that loops over the elements of `value` and makes what `body` says of each. `firm`: where `body` itself
/// cuts positions.
template <class Body>
LoweredKernel map_over(const std::string& name, const Schedule& schedule, const Node* value,
                       const std::vector<int64_t>& firm, const LoweringOptions& options, const Body& body) {
  LoweredKernel kernel;
  loop::LoopNest& nest = kernel.nest;
  nest.name = name;
  Expressions e(schedule, kernel);
  const int64_t all = value->type.numel();
  std::vector<int64_t> factors = factor(all, firm, split_points(value, schedule, all, 1));
  const std::vector<int64_t> domain = factors;
  const int64_t last = factors.back(), pieces = (last + cost::kPiece - 1) / cost::kPiece;
  factors.pop_back();
  if (pieces > 1) factors.push_back(pieces);
  OuterLoops loops(nest, factors, options);
  const int j = nest.add_var("j", last);
  std::vector<Expr> variables = loops.variables();
  Expr start;
  if (pieces > 1) start = variables.back() * cost::kPiece, variables.pop_back();
  variables.push_back(nest.var(j));
  std::vector<Stmt> inside;
  e.out = &inside;
  body(e, Index::at_position(value->shape(), position_of(variables, domain)), inside);
  Expr extent = integer(last);
  if (pieces > 1) {
    extent = loop::apply(Op::Min, {integer(cost::kPiece), integer(last) - start});
    count_from(nest, start, j, inside);
  }
  nest.body =
      loops.close(loop::for_loop(LoopKind::Vector, j, extent, block(std::move(inside)), lanes(options.target, last)));
  return kernel;
}

}  // namespace

std::vector<LoweredKernel> lower_concat(const Schedule& schedule, const Group& group, const LoweringOptions& options) {
  const Node* n = group.values[0];
  const int64_t axis = n->as<AxisAttr>().axis;
  std::vector<LoweredKernel> kernels;
  int64_t start = 0;
  for (const Node* piece : n->inputs) {
    const int64_t at = start;
    start += piece->shape()[axis];
    if (piece->type.numel() == 0) continue;
    const std::vector<int64_t> firm =
        axis > 0 ? std::vector<int64_t>{contiguous_strides(piece->shape())[axis - 1]} : std::vector<int64_t>{};
    kernels.push_back(map_over(kernel_name(group), schedule, piece, firm, options,
                               [&](Expressions& e, Index index, std::vector<Stmt>& out) {
                                 Expr v = e.value(piece, index);
                                 std::vector<Expr> axes = index.coordinates();
                                 axes[axis] = axes[axis] + integer(at);
                                 out.push_back(e.store(n, Index::at_axes(n->shape(), axes).linear(), v));
                               }));
  }
  return kernels;
}

namespace {

/// Parts that the places of a scatter are dealt to on a device, in turn: the threads of each read where every source
/// goes, and add those of their own places.
int64_t scatter_parts(int64_t elements, int64_t sources, int64_t places, const Target& target) {
  if (!target.launches_blocks || sources == 0) return 1;
  const int64_t wanted = ceil_div(target.multiprocessors * cost::kScatterThreads, elements / sources);
  return std::max<int64_t>(1, std::min({wanted, places, sources / cost::kLeastTerms}));
}

}  // namespace

std::vector<LoweredKernel> lower_scatter(const Schedule& schedule, const Group& group, const LoweringOptions& options) {
  const Node* n = group.values[0];
  const auto& [axis, kind, failure] = n->as<ScatterAttr>();
  const Node *init = n->in(0), *index_node = n->in(1), *src = n->in(2);
  std::vector<LoweredKernel> kernels;
  kernels.push_back(map_over(kernel_name(group) + "_init", schedule, init, {}, options,
                             [&](Expressions& e, Index index, std::vector<Stmt>& out) {
                               Expr v = e.value(init, index);
                               out.push_back(e.store(n, index.linear(), v));
                             }));
  if (src->type.numel() == 0) return kernels;

  const Dims& shape = src->shape();
  const int64_t size = n->shape()[axis], parts = scatter_parts(src->type.numel(), shape[axis], size, options.target);
  /// Adds the source at `axes` to its element of the place `at`.
  const auto add = [&, axis = axis, kind = kind](Expressions& e, std::vector<Expr> axes, const Expr& at) {
    Expr v = e.value(src, Index::at_axes(shape, axes));
    axes[axis] = at;
    const Expr position = Index::at_axes(n->shape(), axes).linear();
    if (kind == ScatterKind::Sum) {
      Expr old = e.nest().load(e.argument(n, true), position);
      if (arithmetic_dtype(n->dtype()) != n->dtype()) old = loop::cast(old, DType::F32);
      v = arithmetic(n->dtype(), loop::apply(n->dtype() == DType::Bool ? Op::Or : Op::Add, {old, v}));
    }
    return e.store(n, position, v);
  };
  if (parts > 1 && goes_by_source(n)) {
    kernels.push_back(lower_dealt_scatter(schedule, group, parts, add));
    return kernels;
  }

  // Sources are added in row-major order along the axis, whatever runs beside each other: axes after it lie across
  // lanes, axes before it, pieces of those after it, and on a device parts of the places are independent.
  LoweredKernel kernel;
  loop::LoopNest& nest = kernel.nest;
  nest.name = kernel_name(group);
  Expressions e(schedule, kernel);
  std::vector<int64_t> outer;
  std::vector<Expr> axes(shape.size());
  if (parts > 1) outer.push_back(parts);
  for (int64_t k = 0; k < axis; ++k)
    if (shape[k] != 1) outer.push_back(shape[k]);
  // what the lanes of a vector do is the same for all: with parts each thread has an element
  const bool across = parts == 1 && axis + 1 < static_cast<int64_t>(shape.size()) && shape.back() > 1;
  const int64_t last = across ? shape.back() : 1;
  const int width =
      across ? static_cast<int>(std::min<int64_t>(cost::kAcross, cost::kAcrossRegisters * lanes(options.target, last)))
             : 1;
  const int64_t pieces = ceil_div(last, width);
  for (int64_t k = axis + 1; k + (across ? 1 : 0) < static_cast<int64_t>(shape.size()); ++k)
    if (shape[k] != 1) outer.push_back(shape[k]);
  if (across) outer.push_back(pieces);
  OuterLoops loops(nest, outer, options);
  size_t next = parts > 1 ? 1 : 0;
  int serial = nest.add_var("s", shape[axis]);
  int j = nest.add_var("j", pieces > 1 ? width : last);
  Expr extent = integer(last);
  for (int64_t k = 0; k < static_cast<int64_t>(shape.size()); ++k) {
    if (k == axis) axes[k] = nest.var(serial);
    else if (across && k + 1 == static_cast<int64_t>(shape.size())) {
      Expr start = loops.variables().back() * width;
      axes[k] = pieces > 1 ? start + nest.var(j) : nest.var(j);
      if (pieces > 1)
        extent = last % width == 0 ? integer(width) : loop::apply(Op::Min, {integer(width), integer(last) - start});
    } else axes[k] = shape[k] == 1 ? integer(0) : loops.variables()[next++];
  }
  std::vector<Stmt> inside;
  e.out = &inside;
  e.argument(n, true);
  const Expr at = e.checked_index(index_node, Index::at_axes(index_node->shape(), axes), size, failure);
  std::vector<Stmt> sum;
  e.out = &sum;
  sum.push_back(add(e, axes, at));
  if (parts > 1) {  // a loop of one turn where the place is of this part, of none elsewhere
    const Expr mine = loop::apply(Op::Eq, {loop::apply(Op::Mod, {at, integer(parts)}), loops.variables()[0]});
    const int turn = nest.add_var("mine", -1);
    inside.push_back(loop::for_loop(LoopKind::Serial, turn, loop::cast(mine, DType::I64), block(std::move(sum))));
  } else {
    inside.insert(inside.end(), sum.begin(), sum.end());
  }
  Stmt body = block(std::move(inside));
  auto lanes_loop = [&](Stmt s) {
    return loop::for_loop(across ? LoopKind::Vector : LoopKind::Serial, j, extent, std::move(s), across ? width : 1);
  };
  auto sources_loop = [&](Stmt s) {
    return loop::for_loop(LoopKind::Serial, serial, integer(shape[axis]), std::move(s));
  };
  // On a device each thread adds up the sources of its own elements.
  nest.body =
      loops.close(options.target.launches_blocks ? lanes_loop(sources_loop(body)) : sources_loop(lanes_loop(body)));
  if (size > 0) kernels.push_back(std::move(kernel));
  return kernels;
}

LoweredKernel lower_scan(const Schedule& schedule, const Group& group, const LoweringOptions& options) {
  const Node* n = group.values[0];
  const int64_t axis = n->as<AxisAttr>().axis;
  const Dims& shape = n->shape();
  LoweredKernel kernel;
  loop::LoopNest& nest = kernel.nest;
  nest.name = kernel_name(group);
  Expressions e(schedule, kernel);
  std::vector<int64_t> outer;
  const bool across = axis + 1 < static_cast<int64_t>(shape.size()) && shape.back() > 1;
  for (size_t k = 0; k < shape.size(); ++k)
    if (static_cast<int64_t>(k) != axis && !(across && k + 1 == shape.size()) && shape[k] != 1)
      outer.push_back(shape[k]);
  OuterLoops loops(nest, outer, options);
  int step = nest.add_var("s", shape[axis]), j = nest.add_var("j", across ? shape.back() : 1);
  std::vector<Expr> axes(shape.size());
  size_t next = 0;
  for (size_t k = 0; k < shape.size(); ++k) {
    if (static_cast<int64_t>(k) == axis) axes[k] = nest.var(step);
    else if (across && k + 1 == shape.size()) axes[k] = nest.var(j);
    else axes[k] = shape[k] == 1 ? integer(0) : loops.variables()[next++];
  }
  const Total total = total_of(n, nest, options);
  std::vector<Stmt> inside, body{total.start};
  e.out = &inside;
  Index index = Index::at_axes(shape, axes);
  inside.push_back(loop::reduce(total.local, ReduceKind::Sum, e.value(n->in(0), index)));
  inside.push_back(e.store(n, index.linear(), total.result));
  body.push_back(loop::for_loop(LoopKind::Serial, step, integer(shape[axis]), block(std::move(inside))));
  Stmt stmt = block(std::move(body));
  if (across)
    stmt = loop::for_loop(LoopKind::Vector, j, integer(shape.back()), stmt, lanes(options.target, shape.back()));
  nest.body = loops.close(stmt);
  return kernel;
}

namespace {

bool replaces_elements(const Group& group) {
  return group.kind == GroupKind::Scatter && group.values[0]->as<ScatterAttr>().kind == ScatterKind::Last;
}

}  // namespace

std::vector<LoweredKernel> lower(const Graph& graph, const Schedule& schedule, const Group& group,
                                 const LoweringOptions& options, Remarks* to) {
  const NodeRemarks remarks(graph, "schedule", to);
  bool elements = false;
  for (const Node* n : group.values) elements = elements || n->type.numel() > 0;
  std::vector<LoweredKernel> kernels;
  if (!elements) return kernels;
  switch (group.kind) {
    case GroupKind::Rows: {
      std::optional<LoweredKernel> transposed = lower_transpose(schedule, group, options);
      kernels.push_back(transposed ? std::move(*transposed) : lower_rows(schedule, group, options));
      break;
    }
    case GroupKind::Columns: kernels.push_back(lower_columns(schedule, group, options)); break;
    case GroupKind::Contract: kernels.push_back(lower_contract(schedule, group, options, remarks)); break;
    case GroupKind::MatmulChain: kernels.push_back(lower_matmul_chain(schedule, group, options, remarks)); break;
    case GroupKind::Scan: kernels.push_back(lower_scan(schedule, group, options)); break;
    case GroupKind::Scatter: kernels = lower_scatter(schedule, group, options); break;
    case GroupKind::Concat: kernels = lower_concat(schedule, group, options); break;
    case GroupKind::Random:
      if (group.values[0]->as<RandomAttr>().threads == 0) return kernels;
      kernels.push_back(lower_philox(schedule, group, options));
      break;
    case GroupKind::Extern: return kernels;
  }
  for (LoweredKernel& k : kernels) {
    for (const Node* n : group.values)
      for (const std::string& origin : graph.origins(n))
        if (k.nest.origins.size() < 16 &&
            std::find(k.nest.origins.begin(), k.nest.origins.end(), origin) == k.nest.origins.end())
          k.nest.origins.push_back(origin);
    k.nest.bytes = 0;
    for (const Node* n : k.arguments) k.nest.bytes += n ? schedule.bytes(n) : 0;
    // Of what it puts few elements into, it touches these.
    if (&k != &kernels.front() && replaces_elements(group))
      k.nest.bytes -= std::max<int64_t>(0, schedule.bytes(group.values[0]) - group.values[0]->in(2)->type.bytes());
    if (k.product) continue;
    const int64_t bytes = k.nest.bytes;
    if (options.target.launches_blocks && k.nest.threads == 0) {
      loop::verify(k.nest);
      k.nest = map_to_device(k.nest, options.target);
    }
    k.nest.bytes = bytes;
    loop::verify(k.nest);
  }
  return kernels;
}

}  // namespace trainc::lower
