#include "lower/expressions.h"

#include <algorithm>

namespace trainc::lower {

using loop::apply;
using loop::integer;
using loop::real;

DType arithmetic_dtype(DType d) { return d == DType::BF16 || d == DType::F16 ? DType::F32 : d; }

Expr arithmetic(DType to, Expr e) {
  if (to == DType::BF16 || to == DType::F16) return loop::cast(loop::cast(std::move(e), to), DType::F32);
  return e;
}

int Expressions::argument(const Node* base, bool written) {
  auto [it, fresh] = buffers_.emplace(base, -1);
  if (fresh) {
    std::string name = (base->op == Op::Input ? "in" : "v") + std::to_string(kernel_.arguments.size());
    it->second = kernel_.nest.add_buffer(
        {name, base->dtype(), 0, loop::Space::Argument, written, -1, schedule_.bits.contains(base)});
    kernel_.arguments.push_back(base);
  }
  if (written) kernel_.nest.buffers[it->second].written = true;
  return it->second;
}

Expr Expressions::keep(const char* name, Expr e) {
  if (!out || e->kind == loop::ExprKind::Local || e->kind == loop::ExprKind::Int || e->kind == loop::ExprKind::Float)
    return e;
  int local = kernel_.nest.add_local(name + std::to_string(kernel_.nest.locals.size()), e->dtype);
  out->push_back(loop::let(local, e));
  return kernel_.nest.local(local);
}

Expr Expressions::bind(const Node* n, Expr e) { return bound[n] = keep("x", std::move(e)); }

Stmt Expressions::store(const Node* n, Expr position, Expr e) {
  return loop::store(argument(n, true), std::move(position), e->dtype == n->dtype() ? e : loop::cast(e, n->dtype()));
}

Expr Expressions::load(const Node* n, Index& index) {
  Expr at;
  if (n->op == Op::Input && !n->as<InputAttr>().strides.empty()) {
    const Dims& strides = n->as<InputAttr>().strides;
    const auto& axes = index.coordinates();
    at = integer(0);
    for (size_t k = 0; k < strides.size(); ++k)
      if (n->shape()[k] != 1) at = at + axes[k] * strides[k];
  } else {
    at = index.linear();
  }
  Expr e = kernel_.nest.load(argument(n), at, guard_);
  return arithmetic_dtype(n->dtype()) == n->dtype() ? e : loop::cast(e, DType::F32);
}

Expr Expressions::value(const Node* n, Index index) {
  if (auto it = bound.find(n); it != bound.end()) return it->second;
  if (n->type.numel() == 0) {  // nobody makes it, and no element of it is ever asked for
    const DType dtype = arithmetic_dtype(n->dtype());
    return is_float(dtype) ? real(0, dtype) : integer(0, dtype);
  }
  if (own.count(n)) return own_value(n, index);
  if (schedule_.values.count(n) || n->op == Op::Input) return load(n, index);
  return definition(n, std::move(index));
}

Expr Expressions::definition(const Node* n, Index index) {
  const DType dtype = arithmetic_dtype(n->dtype());
  switch (n->op) {
    case Op::Constant: return is_float(dtype) ? real(float_of(n), dtype) : integer(int_of(n), dtype);
    case Op::Iota: {
      Expr e = index.coordinates().at(n->as<AxisAttr>().axis);
      return dtype == DType::I64 ? e : loop::cast(e, dtype);
    }
    case Op::Reshape: return value(n->in(0), Index::at_position(n->in(0)->shape(), index.linear()));
    case Op::Permute: {
      const Dims& order = n->as<AxesAttr>().axes;
      std::vector<Expr> axes(order.size());
      for (size_t k = 0; k < order.size(); ++k) axes[order[k]] = index.coordinates()[k];
      return value(n->in(0), Index::at_axes(n->in(0)->shape(), std::move(axes)));
    }
    case Op::Broadcast: {
      const Dims& in = n->in(0)->shape();
      if (n->in(0)->type.numel() == 1)
        return value(n->in(0), Index::at_axes(in, std::vector<Expr>(in.size(), integer(0))));
      if (in == n->shape()) return value(n->in(0), std::move(index));
      if (bound.count(n->in(0))) return bound.at(n->in(0));
      std::vector<Expr> axes;
      for (size_t k = 0; k < in.size(); ++k) axes.push_back(in[k] == 1 ? integer(0) : index.coordinates()[k]);
      return value(n->in(0), Index::at_axes(in, std::move(axes)));
    }
    case Op::Slice: {
      const SliceAttr& attr = n->as<SliceAttr>();
      if (n->in(0)->shape() == n->shape()) return value(n->in(0), std::move(index));
      std::vector<Expr> axes;
      for (size_t k = 0; k < attr.start.size(); ++k)
        axes.push_back(index.coordinates()[k] * attr.step[k] + integer(attr.start[k]));
      return value(n->in(0), Index::at_axes(n->in(0)->shape(), std::move(axes)));
    }
    case Op::Window: {
      const auto& [windowed, size, step, dilation] = n->as<WindowAttr>();
      const std::vector<Expr>& at = index.coordinates();
      const size_t rank = n->in(0)->shape().size();
      std::vector<Expr> axes(at.begin(), at.begin() + static_cast<std::ptrdiff_t>(rank));
      for (size_t i = 0; i < windowed.size(); ++i)
        axes[windowed[i]] = at[windowed[i]] * step[i] + at[rank + i] * dilation[i];
      return value(n->in(0), Index::at_axes(n->in(0)->shape(), std::move(axes)));
    }
    case Op::Reverse: {
      std::vector<Expr> axes = index.coordinates();
      for (int64_t axis : n->as<AxesAttr>().axes) axes[axis] = integer(n->shape()[axis] - 1) - axes[axis];
      return value(n->in(0), Index::at_axes(n->shape(), std::move(axes)));
    }
    case Op::Pad: {
      const PadAttr& attr = n->as<PadAttr>();
      const Dims& in = n->in(0)->shape();
      Expr outside = value(n->in(1), Index::at_axes({}, {}));
      if (n->in(0)->type.numel() == 0) return outside;
      std::vector<Expr> axes;
      Expr inside;
      for (size_t k = 0; k < in.size(); ++k) {
        Expr at = index.coordinates()[k] - integer(attr.low[k]);
        auto require_that = [&](Expr c) { inside = inside ? apply(Op::And, {inside, c}) : c; };
        if (attr.low[k] > 0) require_that(apply(Op::Le, {integer(0), at}));
        if (attr.high[k] > 0) require_that(apply(Op::Lt, {at, integer(in[k])}));
        axes.push_back(at);
      }
      if (!inside) return value(n->in(0), Index::at_axes(in, std::move(axes)));
      inside = keep("inside", inside);
      Expr before = guard_;
      auto bound_before = bound;  // what is computed under the guard holds only there
      guard_ = guard_ ? apply(Op::And, {guard_, inside}) : inside;
      Expr e = value(n->in(0), Index::at_axes(in, std::move(axes)));
      guard_ = before;
      bound = std::move(bound_before);
      return apply(Op::Select, {inside, e, outside});
    }
    case Op::Concat: {
      const int64_t axis = n->as<AxisAttr>().axis;
      Expr e;
      int64_t end = n->shape()[axis];
      // from the last piece: select(at < end of piece i, piece i, later ones)
      for (size_t i = n->inputs.size(); i-- > 0;) {
        const Node* piece = n->in(i);
        const int64_t start = end - piece->shape()[axis];
        if (piece->type.numel() == 0) {
          end = start;
          continue;
        }
        std::vector<Expr> axes = index.coordinates();
        Expr at = axes[axis];
        axes[axis] = at - integer(start);
        Expr here = apply(Op::And, {apply(Op::Le, {integer(start), at}), apply(Op::Lt, {at, integer(end)})});
        here = keep("here", here);
        Expr before = guard_;
        auto bound_before = bound;
        guard_ = guard_ ? apply(Op::And, {guard_, here}) : here;
        Expr v = value(piece, Index::at_axes(piece->shape(), std::move(axes)));
        guard_ = before;
        bound = std::move(bound_before);
        e = e ? apply(Op::Select, {here, v, e}) : v;
        end = start;
      }
      require(e != nullptr, "concat of nothing");
      return e;
    }
    case Op::Gather: return gather(n, index);
    case Op::Reduce:  // over axes of size 1: nothing to add
      require(n->in(0)->type.numel() == n->type.numel(), "a sum is inlined");
      return value(n->in(0), Index::at_position(n->in(0)->shape(), index.linear()));
    default: break;
  }
  require(is_elementwise(n->op), std::string("no expression for ") + std::string(name_of(n->op)));
  return elementwise(n, index);
}

Expr Expressions::elementwise(const Node* n, Index& index) {
  std::vector<Expr> args;
  for (const Node* i : n->inputs) {
    Index at = index;
    if (n->inputs.size() > 1 && !index.axes.empty()) at.linear(), index.position = at.position;
    args.push_back(value(i, std::move(at)));
  }
  if (n->op == Op::Cast) {
    const DType to = n->dtype();
    Expr e = args[0]->dtype == arithmetic_dtype(to) ? args[0] : loop::cast(args[0], arithmetic_dtype(to));
    return arithmetic(to, e);
  }
  if (n->op == Op::Bitcast) {
    const Expr e = loop::bitcast(loop::cast(args[0], n->in(0)->dtype()), n->dtype());
    return loop::cast(e, arithmetic_dtype(n->dtype()));
  }
  // Two identical operands are one computation.
  if (args.size() == 2 && n->in(0) == n->in(1)) args[0] = args[1] = keep("t", args[0]);
  return arithmetic(n->dtype(), apply(n->op, std::move(args)));
}

Expr Expressions::checked_index(const Node* n, Index index, int64_t size, Failure failure) {
  Expr at = keep("at", value(n, std::move(index)));
  Expr ok = apply(Op::And, {apply(Op::Le, {integer(0), at}), apply(Op::Lt, {at, integer(size)})});
  if (guard_) ok = apply(Op::Or, {apply(Op::Not, {guard_}), ok});
  out->push_back(loop::check(ok, static_cast<int>(failure)));
  return keep("at", apply(Op::Max, {integer(0), apply(Op::Min, {at, integer(std::max<int64_t>(size - 1, 0))})}));
}

Expr Expressions::gather(const Node* n, Index& index) {
  const auto& [axis, failure] = n->as<AxisAttr>();
  const Node* table = n->in(0);
  require(out != nullptr, "a gather inside a contraction's operand");
  const int64_t extent = table->shape()[axis];
  Expr at = checked_index(n->in(1), index, extent, failure);
  if (extent == 0)
    return is_float(table->dtype()) ? real(0, arithmetic_dtype(table->dtype())) : integer(0, table->dtype());
  std::vector<Expr> axes = index.coordinates();
  axes[axis] = at;
  return value(table, Index::at_axes(table->shape(), std::move(axes)));
}

}  // namespace trainc::lower
