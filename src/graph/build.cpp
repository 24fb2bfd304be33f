#include "graph/build.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "support/rounding.h"

namespace trainc {

const Node* Builder::input(int64_t index, Type type, Dims strides) {
  graph.input_count = std::max(graph.input_count, index + 1);
  if (strides == contiguous_strides(type.shape)) strides.clear();
  return graph.make(Op::Input, InputAttr{index, std::move(strides)}, {}, std::move(type), origin);
}

const Node* Builder::constant(DType dtype, double value) {
  if (!is_float(dtype)) {
    // 2^63 itself does not fit; NaN fails both comparisons.
    require(value == std::trunc(value) && value >= -0x1p63 && value < 0x1p63, "constant: no integer of 64 bits");
    return constant_int(dtype, static_cast<int64_t>(value));
  }
  return graph.make(Op::Constant, ConstantAttr{std::bit_cast<uint64_t>(round_to(dtype, value))}, {}, {dtype, {}},
                    origin);
}

const Node* Builder::constant_int(DType dtype, int64_t value) {
  if (is_float(dtype)) return constant(dtype, static_cast<double>(value));
  return graph.make(Op::Constant, ConstantAttr{static_cast<uint64_t>(wrap_to(dtype, value))}, {}, {dtype, {}}, origin);
}

const Node* Builder::full(DType dtype, const Dims& shape, double value) {
  return broadcast(constant(dtype, value), shape);
}

const Node* Builder::iota(DType dtype, const Dims& shape, int64_t axis) {
  return graph.make(Op::Iota, AxisAttr{axis}, {}, {dtype, shape}, origin);
}

const Node* Builder::random(const Dims& shape, RandomAttr attr) {
  return graph.make(Op::Random, attr, {}, {DType::Bool, shape}, origin);
}

const Node* Builder::unary(Op op, const Node* a) {
  return graph.make(op, NoAttr{}, {a}, {op == Op::IsNan ? DType::Bool : a->dtype(), a->shape()}, origin);
}

const Node* Builder::binary(Op op, const Node* a, const Node* b) {
  const bool compares = op == Op::Lt || op == Op::Le || op == Op::Eq || op == Op::Ne;
  return graph.make(op, NoAttr{}, {a, b}, {compares ? DType::Bool : a->dtype(), a->shape()}, origin);
}

const Node* Builder::select(const Node* c, const Node* a, const Node* b) {
  return graph.make(Op::Select, NoAttr{}, {c, a, b}, a->type, origin);
}

const Node* Builder::cast(const Node* a, DType dtype) {
  if (a->dtype() == dtype) return a;
  return graph.make(Op::Cast, NoAttr{}, {a}, {dtype, a->shape()}, origin);
}

const Node* Builder::bitcast(const Node* a, DType dtype) {
  if (a->dtype() == dtype) return a;
  return graph.make(Op::Bitcast, NoAttr{}, {a}, {dtype, a->shape()}, origin);
}

const Node* Builder::reduce(ReduceKind kind, const Node* a, Dims axes, bool keep_dims) {
  std::sort(axes.begin(), axes.end());
  Dims kept, ones = a->shape();
  for (int64_t i = 0; i < a->type.rank(); ++i) {
    if (std::binary_search(axes.begin(), axes.end(), i)) ones[i] = 1;
    else kept.push_back(a->shape()[i]);
  }
  const bool arg = kind == ReduceKind::ArgMax || kind == ReduceKind::ArgMin;
  const Node* reduced =
      graph.make(Op::Reduce, ReduceAttr{kind, std::move(axes)}, {a}, {arg ? DType::I64 : a->dtype(), kept}, origin);
  return keep_dims ? reshape(reduced, ones) : reduced;
}

const Node* Builder::scan(const Node* a, int64_t axis) {
  return graph.make(Op::Scan, AxisAttr{axis}, {a}, a->type, origin);
}

const Node* Builder::contract(const Node* lhs, const Node* rhs) {
  require(lhs->type.rank() == 3 && rhs->type.rank() == 3, "contract: both operands are rank 3");
  return graph.make(Op::Contract, NoAttr{}, {lhs, rhs},
                    {lhs->dtype(), {lhs->shape()[0], lhs->shape()[1], rhs->shape()[1]}}, origin);
}

const Node* Builder::reshape(const Node* a, const Dims& shape) {
  if (a->shape() == shape) return a;
  return graph.make(Op::Reshape, NoAttr{}, {a}, {a->dtype(), shape}, origin);
}

const Node* Builder::permute(const Node* a, const Dims& order) {
  Dims shape;
  bool same = true;
  for (size_t i = 0; i < order.size(); ++i) {
    require(order[i] >= 0 && order[i] < a->type.rank(), "permute: no such axis");
    shape.push_back(a->shape()[order[i]]);
    same &= order[i] == static_cast<int64_t>(i);
  }
  if (same && order.size() == a->shape().size()) return a;
  return graph.make(Op::Permute, AxesAttr{order}, {a}, {a->dtype(), shape}, origin);
}

const Node* Builder::broadcast(const Node* a, const Dims& shape) {
  require(a->shape().size() <= shape.size(), "broadcast: to fewer axes");
  Dims ones(shape.size() - a->shape().size(), 1);
  ones.insert(ones.end(), a->shape().begin(), a->shape().end());
  a = reshape(a, ones);
  if (a->shape() == shape) return a;
  return graph.make(Op::Broadcast, NoAttr{}, {a}, {a->dtype(), shape}, origin);
}

const Node* Builder::slice(const Node* a, const Dims& start, const Dims& extent, const Dims& step) {
  if (extent == a->shape() && std::all_of(step.begin(), step.end(), [](int64_t s) { return s == 1; }) &&
      std::all_of(start.begin(), start.end(), [](int64_t s) { return s == 0; }))
    return a;
  return graph.make(Op::Slice, SliceAttr{start, step}, {a}, {a->dtype(), extent}, origin);
}

const Node* Builder::slice_axis(const Node* a, int64_t axis, int64_t start, int64_t extent, int64_t step) {
  require(axis >= 0 && axis < a->type.rank(), "slice: no such axis");
  Dims starts(a->shape().size(), 0), steps(a->shape().size(), 1), extents = a->shape();
  starts[axis] = start;
  steps[axis] = step;
  extents[axis] = extent;
  return slice(a, starts, extents, steps);
}

const Node* Builder::pad(const Node* a, const Node* value, const Dims& low, const Dims& high) {
  require(low.size() == a->shape().size() && high.size() == low.size(), "pad: low and high have one number an axis");
  Dims shape = a->shape();
  for (size_t i = 0; i < shape.size(); ++i) shape[i] += low[i] + high[i];
  if (shape == a->shape()) return a;
  return graph.make(Op::Pad, PadAttr{low, high}, {a, value}, {a->dtype(), shape}, origin);
}

const Node* Builder::window(const Node* a, WindowAttr attr) {
  if (attr.axes.empty()) return a;
  Dims shape = a->shape();
  require(attr.size.size() == attr.axes.size() && attr.step.size() == attr.axes.size() &&
              attr.dilation.size() == attr.axes.size(),
          "window: size, step and dilation have one number for each of the axes");
  for (size_t i = 0; i < attr.axes.size(); ++i) {
    require(attr.axes[i] >= 0 && attr.axes[i] < a->type.rank(), "window: no such axis");
    const int64_t spare = shape[attr.axes[i]] - (attr.size[i] - 1) * attr.dilation[i] - 1;
    shape[attr.axes[i]] = spare < 0 ? 0 : spare / attr.step[i] + 1;
  }
  shape.insert(shape.end(), attr.size.begin(), attr.size.end());
  return graph.make(Op::Window, std::move(attr), {a}, {a->dtype(), shape}, origin);
}

const Node* Builder::concat(std::span<const Node* const> parts, int64_t axis) {
  require(!parts.empty(), "concat: of nothing");
  if (parts.size() == 1) return parts[0];
  Type type = parts[0]->type;
  require(axis >= 0 && axis < type.rank(), "concat: no such axis");
  for (const Node* part : parts.subspan(1)) {
    require(part->type.rank() == type.rank(), "concat: ranks differ");
    type.shape[axis] += part->shape()[axis];
  }
  return graph.make(Op::Concat, AxisAttr{axis}, {parts.begin(), parts.end()}, type, origin);
}

const Node* Builder::reverse(const Node* a, const Dims& axes) {
  if (axes.empty()) return a;
  return graph.make(Op::Reverse, AxesAttr{axes}, {a}, a->type, origin);
}

const Node* Builder::gather(const Node* a, const Node* index, int64_t axis, Failure failure) {
  return graph.make(Op::Gather, AxisAttr{axis, failure}, {a, index}, {a->dtype(), index->shape()}, origin);
}

const Node* Builder::scatter(ScatterKind kind, const Node* init, const Node* index, const Node* src, int64_t axis,
                             Failure failure) {
  return graph.make(Op::Scatter, ScatterAttr{axis, kind, failure}, {init, index, src}, init->type, origin);
}

const Node* Builder::extern_call(ExternAttr attr, std::vector<const Node*> inputs) {
  require(!attr.results.empty(), "extern: no results");
  Type first = attr.results[0];
  return graph.make(Op::Extern, std::move(attr), std::move(inputs), std::move(first), origin);
}

const Node* Builder::result(const Node* extern_node, int64_t index) {
  require(extern_node->op == Op::Extern, "result: not of an extern");
  const auto& results = extern_node->as<ExternAttr>().results;
  require(index >= 0 && index < static_cast<int64_t>(results.size()), "result: no such result");
  return graph.make(Op::Result, ResultAttr{index}, {extern_node}, results[index], origin);
}

Dims broadcast_shape(const Dims& a, const Dims& b) {
  Dims shape = a.size() >= b.size() ? a : b;
  const Dims& shorter = a.size() >= b.size() ? b : a;
  for (size_t i = 1; i <= shorter.size(); ++i) {
    int64_t& d = shape[shape.size() - i];
    const int64_t e = shorter[shorter.size() - i];
    require(d == e || d == 1 || e == 1,
            "broadcast_shape: " + std::to_string(d) + " and " + std::to_string(e) + " do not fit");
    if (d == 1) d = e;
  }
  return shape;
}

const Node* scaled_tensor(const Node* n) {
  const auto is_number = [](const Node* x) {
    while (x->op == Op::Broadcast || x->op == Op::Reshape) x = x->in(0);
    return x->op == Op::Constant;
  };
  if (n->op == Op::Reshape || n->op == Op::Cast) return n->in(0);
  if (!is_float(n->dtype())) return nullptr;
  if ((n->op == Op::Mul || n->op == Op::Div) && is_number(n->in(1))) return n->in(0);
  return n->op == Op::Mul && is_number(n->in(0)) ? n->in(1) : nullptr;
}

}  // namespace trainc
