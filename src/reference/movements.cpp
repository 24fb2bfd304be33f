// Movements and what goes by index: every one is a walk over one shape with the strides of another.
#include "reference/kernels.h"
#include "support/rounding.h"

namespace trainc::reference {
namespace {

/// Calls fn with both tensors' vectors, floats or integers, whichever they have.
template <class Fn> void with_values(Tensor& out, const Tensor& in, Fn fn) {
  if (is_float(out.type.dtype)) fn(out.f, in.f);
  else fn(out.i, in.i);
}

void pick(Tensor& out, const Tensor& in, const Dims& strides, int64_t base) {
  with_values(out, in, [&](auto& to, const auto& from) {
    walk(out.type.shape, strides, base, [&](int64_t linear, int64_t offset) { to[linear] = from[offset]; });
  });
}

void put(Tensor& out, const Tensor& in, int64_t base) {
  with_values(out, in, [&](auto& to, const auto& from) {
    walk(in.type.shape, contiguous_strides(out.type.shape), base,
         [&](int64_t linear, int64_t offset) { to[offset] = from[linear]; });
  });
}

/// For each element of `index`: the offset in a tensor of `shape` of its place with index[...] instead of the axis.
template <class Visit> void by_index(const Tensor& index, const Dims& shape, int64_t axis, Failure failure,
                                     Visit visit) {
  Dims strides = contiguous_strides(shape);
  const int64_t along = strides[axis];
  strides[axis] = 0;
  walk(index.type.shape, strides, 0, [&](int64_t linear, int64_t offset) {
    const int64_t i = index.i[linear];
    if (i < 0 || i >= shape[axis])
      throw_failure(failure, ": index " + std::to_string(i) + " is out of bounds for axis " + std::to_string(axis) +
                                 " with size " + std::to_string(shape[axis]));
    visit(linear, offset + i * along);
  });
}

}  // namespace

Tensor evaluate_movement(const Node& node, const Operands& in) {
  const Tensor& a = *in[0];
  const Dims& shape = a.type.shape;
  Dims strides = contiguous_strides(shape);
  int64_t base = 0;
  Tensor out = zeros(node.type);
  switch (node.op) {
    case Op::Reshape: strides = contiguous_strides(node.shape()); break;
    case Op::Permute: {
      const Dims from = strides;
      for (size_t i = 0; i < strides.size(); ++i) strides[i] = from[node.as<AxesAttr>().axes[i]];
      break;
    }
    case Op::Broadcast:
      for (size_t i = 0; i < strides.size(); ++i)
        if (shape[i] == 1) strides[i] = 0;
      break;
    case Op::Slice:
      for (size_t i = 0; i < strides.size(); ++i) {
        base += node.as<SliceAttr>().start[i] * strides[i];
        strides[i] *= node.as<SliceAttr>().step[i];
      }
      break;
    case Op::Reverse:
      for (int64_t axis : node.as<AxesAttr>().axes) {
        base += (shape[axis] - 1) * strides[axis];
        strides[axis] = -strides[axis];
      }
      break;
    case Op::Window: {
      const auto& [axes, size, step, dilation] = node.as<WindowAttr>();
      for (size_t i = 0; i < axes.size(); ++i) {
        strides.push_back(strides[axes[i]] * dilation[i]);
        strides[axes[i]] *= step[i];
      }
      break;
    }
    case Op::Pad: {
      pick(out, *in[1], Dims(out.type.shape.size(), 0), 0);
      const Dims to = contiguous_strides(node.shape());
      for (size_t i = 0; i < to.size(); ++i) base += node.as<PadAttr>().low[i] * to[i];
      put(out, a, base);
      return out;
    }
    case Op::Concat: {
      const int64_t axis = node.as<AxisAttr>().axis, along = contiguous_strides(node.shape())[axis];
      for (const Tensor* part : in) {
        put(out, *part, base);
        base += part->type.shape[axis] * along;
      }
      return out;
    }
    default: throw InternalError("reference: no such movement");
  }
  pick(out, a, strides, base);
  return out;
}

Tensor evaluate_indexed(const Node& node, const Operands& in, Precision precision) {
  if (node.op == Op::Gather) {
    Tensor out = zeros(node.type);
    with_values(out, *in[0], [&](auto& to, const auto& from) {
      const auto& [axis, failure] = node.as<AxisAttr>();
      by_index(*in[1], in[0]->type.shape, axis, failure,
               [&](int64_t linear, int64_t offset) { to[linear] = from[offset]; });
    });
    return out;
  }
  const auto& attr = node.as<ScatterAttr>();
  Tensor out = *in[0];
  with_values(out, *in[2], [&](auto& to, const auto& from) {
    by_index(*in[1], out.type.shape, attr.axis, attr.failure, [&](int64_t linear, int64_t offset) {
      if (attr.kind == ScatterKind::Last) to[offset] = from[linear];
      else to[offset] = sum(to[offset], from[linear]);
    });
  });
  for (double& x : out.f) x = kept(precision, node.dtype(), x);
  for (int64_t& x : out.i) x = wrap_to(node.dtype(), x);
  return out;
}

}  // namespace trainc::reference
