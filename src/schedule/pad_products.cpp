#include "schedule/pad_products.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>

#include "graph/build.h"
#include "schedule/cut.h"
#include "schedule/schedule.h"
#include "schedule/vendor_operands.h"
#include "support/division.h"

namespace trainc::schedule {
namespace {

/// How many elements more make rows of `length` begin at such multiples.
int64_t missing(int64_t length, DType dtype) {
  const int64_t unit = cost::kVendorRows / size_of(dtype);
  return ceil_div(length, unit) * unit - length;
}

/// The axis of `to` that is `axis` of `from`, by a reshape: none where it is put together with another, or cut.
std::optional<int64_t> reshaped_axis(const Dims& from, const Dims& to, int64_t axis) {
  int64_t before = 1;
  for (int64_t k = 0; k < axis; ++k) before *= from[k];
  int64_t here = 1;
  for (size_t k = 0; k < to.size(); here *= to[k++])
    if (here == before && to[k] == from[axis]) return k;
  return std::nullopt;
}

/// An axis of an operand in what lies under its movements.
struct Place {
  const Node* source;
  int64_t axis;
};
std::optional<Place> below(const Node* n, int64_t axis) {
  const Node* source = vendor_source(n);
  while (n != source) {
    if (n->op == Op::Permute) axis = n->as<AxesAttr>().axes[axis];
    else if (n->op == Op::Reshape) {
      const std::optional<int64_t> at = reshaped_axis(n->shape(), n->in(0)->shape(), axis);
      if (!at) return std::nullopt;
      axis = *at;
    } else if (n->op != Op::Cast) return std::nullopt;
    n = n->in(0);
  }
  return Place{source, axis};
}

class Padding {
 public:
  Padding(const Graph& from, int64_t vendor_flops, int64_t worth) : from_(from), live_(from.live()), worth_(worth) {
    for (const Node* n : live_)
      if (for_vendor(n, vendor_flops) && n->shape()[0] == 1) plan(n);
  }
  bool any() const { return !seeds_.empty(); }

  Graph run() {
    Graph to;
    to.input_count = from_.input_count;
    for (const Node* n : live_) {
      std::vector<const Node*> inputs;
      for (const Node* i : n->inputs) inputs.push_back(made_.at(i));
      const auto& origins = from_.origins(n);
      Builder b{to, origins.empty() ? std::string() : origins[0]};
      const std::optional<Longer> longer = lengthened(b, n, inputs);
      const Node* made = longer && longer->computed
                             ? b.slice(longer->node, Dims(n->shape().size(), 0), n->shape(), Dims(n->shape().size(), 1))
                             : same_value(b, n, inputs);
      for (const std::string& origin : origins) {
        to.add_origin(made, origin);
        if (longer) to.add_origin(longer->node, origin);
      }
      made_[n] = made;
      if (longer) longer_[n] = *longer;
      if (const auto seed = seeds_.find(n); seed != seeds_.end()) longer_[n] = with_zeros(b, n, seed->second, longer);
    }
    for (const Output& o : from_.outputs) to.outputs.push_back({o.value ? made_.at(o.value) : nullptr, o.strides});
    for (const Node* effect : from_.effects) to.effects.push_back(made_.at(effect));
    return to;
  }

 private:
  struct Seed { int64_t axis, more; };
  /// A node with more behind one of its axes: zeros behind what stands there otherwise, too, or (`computed`) anything
  /// behind what exists there alone.
  struct Longer {
    const Node* node;
    int64_t axis;
    bool computed;
  };

  /// What a contraction's operands are to be longer in.
  void plan(const Node* c) {
    const Node *lhs = c->in(0), *rhs = c->in(1);
    const DType dtype = vendor_source(lhs)->dtype();
    if (vendor_source(rhs)->dtype() != dtype || !is_float(dtype)) return;
    if (const int64_t more = missing(c->shape()[2], dtype)) seed(c, rhs, 1, more);  // the rows of the result
    for (const Node* operand : {lhs, rhs})
      for (int64_t axis : {1, 2}) {
        const std::optional<Place> at = below(operand, axis);
        if (!at || at->axis + 1 != at->source->type.rank() || operand->shape()[3 - axis] == 1) continue;
        const int64_t more = missing(operand->shape()[axis], dtype);
        if (!more || !seed(c, operand, axis, more) || axis == 1) continue;
        seed(c, operand == lhs ? rhs : lhs, 2, more);  // k is as long in both
      }
  }

  bool seed(const Node* c, const Node* operand, int64_t axis, int64_t more) {
    const std::optional<Place> at = below(operand, axis);
    if (!at || flops_of(c) < worth_ * at->source->type.bytes()) return false;
    const auto [it, fresh] = seeds_.try_emplace(at->source, Seed{at->axis, more});
    return fresh || it->second.axis == at->axis;
  }

  const Longer* longer(const Node* n) const {
    const auto it = longer_.find(n);
    return it == longer_.end() ? nullptr : &it->second;
  }

  static Dims with_axis(Dims shape, int64_t axis, int64_t extent) {
    shape[axis] = extent;
    return shape;
  }

  /// What a product reads: zeros behind what is there, or in the place of what was computed there.
  Longer with_zeros(Builder& b, const Node* n, const Seed& seed, const std::optional<Longer>& longer) const {
    const bool is_there =
        longer && longer->axis == seed.axis && longer->node->shape()[seed.axis] == n->shape()[seed.axis] + seed.more;
    if (is_there) return {longer->computed ? masked(b, n, *longer, 0) : longer->node, seed.axis, false};
    Dims high(n->shape().size(), 0);
    high[seed.axis] = seed.more;
    return {b.pad(made_.at(n), b.constant(n->dtype(), 0), Dims(high.size(), 0), high), seed.axis, false};
  }

  /// `x` with a number in the place of what stands behind `n`.
  static const Node* masked(Builder& b, const Node* n, const Longer& x, double number) {
    const Dims& shape = x.node->shape();
    const Node* end = b.broadcast(b.constant_int(DType::I64, n->shape()[x.axis]), shape);
    return b.select(b.binary(Op::Lt, b.iota(DType::I64, shape, x.axis), end), x.node,
                    b.full(n->dtype(), shape, number));
  }

  /// `n` from longer inputs, where it can be.
  std::optional<Longer> lengthened(Builder& b, const Node* n, const std::vector<const Node*>& inputs) const {
    if (n->op == Op::Contract) return contraction(b, n, inputs);
    if (is_elementwise(n->op)) return elementwise(b, n);
    const Longer* x = n->inputs.empty() ? nullptr : longer(n->in(0));
    if (!x) return std::nullopt;
    const int64_t length = x->node->shape()[x->axis];
    switch (n->op) {
      case Op::Permute: {
        const Dims& order = n->as<AxesAttr>().axes;
        const int64_t axis = std::ranges::find(order, x->axis) - order.begin();
        return Longer{b.permute(x->node, order), axis, x->computed};
      }
      case Op::Reshape: {
        const std::optional<int64_t> axis = reshaped_axis(n->in(0)->shape(), n->shape(), x->axis);
        if (!axis) return std::nullopt;
        return Longer{b.reshape(x->node, with_axis(n->shape(), *axis, length)), *axis, x->computed};
      }
      case Op::Reduce: {
        const ReduceAttr& attr = n->as<ReduceAttr>();
        const int64_t last = n->in(0)->type.rank() - 1;
        if (attr.kind != ReduceKind::Sum || x->axis != last || std::ranges::find(attr.axes, last) != attr.axes.end())
          return std::nullopt;
        return Longer{b.reduce(attr.kind, x->node, attr.axes), n->type.rank() - 1, true};
      }
      default: return std::nullopt;
    }
  }

  /// Of longer operands: so that what a product wrote is read, and what a product reads is written, by one kernel.
  std::optional<Longer> elementwise(Builder& b, const Node* n) const {
    const Longer* first = nullptr;
    for (const Node* i : n->inputs)
      if (const Longer* x = longer(i); x && (!first || x->computed)) first = x;
    if (!first) return std::nullopt;
    std::vector<const Node*> operands;
    for (const Node* i : n->inputs) {
      operands.push_back(as_long_as(b, *first, i));
      if (!operands.back()) return std::nullopt;
    }
    const bool computed = n->op != Op::Cast || first->computed;
    return Longer{b.graph.make(n->op, n->attrs, operands, {n->dtype(), first->node->shape()}), first->axis, computed};
  }

  static bool is_input(const Node* n) {
    while (n->op == Op::Reshape || n->op == Op::Cast) n = n->in(0);
    return n->op == Op::Input;
  }
  /// A tangent, which most backwards do without.
  const Node* zeros_behind(Builder& b, const Node* n, const Longer& x) const {
    Dims high(n->shape().size(), 0);
    high[x.axis] = x.node->shape()[x.axis] - n->shape()[x.axis];
    return b.pad(made_.at(n), b.constant(n->dtype(), 0), Dims(high.size(), 0), high);
  }

  /// An operand beside `x`; nullptr where there is none so long.
  const Node* as_long_as(Builder& b, const Longer& x, const Node* n) const {
    const Dims& shape = x.node->shape();
    if (const Longer* own = longer(n)) return own->axis == x.axis && own->node->shape() == shape ? own->node : nullptr;
    if (n->op == Op::Iota) return b.iota(n->dtype(), shape, n->as<AxisAttr>().axis);
    if (is_elementwise(n->op)) {  // of what has no product's rows: a comparison with labels
      const auto [at, fresh] = beside_.try_emplace({n, x.axis, shape[x.axis]}, nullptr);
      if (!fresh) return at->second;
      std::vector<const Node*> operands;
      for (const Node* i : n->inputs) {
        operands.push_back(as_long_as(b, x, i));
        if (!operands.back()) return nullptr;
      }
      return beside_[{n, x.axis, shape[x.axis]}] = b.graph.make(n->op, n->attrs, operands, {n->dtype(), shape});
    }
    if (n->op != Op::Broadcast) return is_input(n) ? zeros_behind(b, n, x) : nullptr;
    const Node* from = n->in(0);
    const int64_t missing_axes = n->type.rank() - from->type.rank(), axis = x.axis - missing_axes;
    if (axis < 0 || from->shape()[axis] == 1) return b.broadcast(made_.at(from), shape);
    // A bias: as narrow as it lies in memory, else the library could not add it.
    const Node* source = vendor_source(from);
    const int64_t columns = n->shape()[x.axis];
    const auto is_vector = [&](const Node* v) { return v->type.numel() == columns && v->shape().back() == columns; };
    if (x.axis + 1 != n->type.rank() || !is_vector(from) || !is_vector(source)) return nullptr;
    Dims high(source->shape().size(), 0);
    high.back() = shape[x.axis] - columns;
    const Node* padded = b.pad(made_.at(source), b.constant(source->dtype(), 0), Dims(high.size(), 0), high);
    padded = b.reshape(b.cast(padded, from->dtype()), with_axis(from->shape(), from->type.rank() - 1, shape[x.axis]));
    return b.broadcast(padded, shape);
  }

  std::optional<Longer> contraction(Builder& b, const Node* n, const std::vector<const Node*>& inputs) const {
    const Longer *l = longer(n->in(0)), *r = longer(n->in(1));
    if (r && r->axis == 1) return Longer{b.contract(inputs[0], r->node), 2, true};
    if (l && l->axis == 1) return Longer{b.contract(l->node, inputs[1]), 1, true};
    return std::nullopt;
  }

  /// The node as it was; a contraction over k with zeros behind where both operands have them.
  const Node* same_value(Builder& b, const Node* n, const std::vector<const Node*>& inputs) const {
    if (n->op == Op::Contract) {
      const Longer *l = longer(n->in(0)), *r = longer(n->in(1));
      const auto zeros_behind_k = [](const Longer* x) { return x && x->axis == 2 && !x->computed; };
      if (zeros_behind_k(l) && zeros_behind_k(r)) return b.contract(l->node, r->node);
    }
    if (n->op == Op::Reduce)
      if (const Node* sum = over_longer_rows(b, n)) return sum;
    return b.graph.make(n->op, n->attrs, inputs, n->type);
  }

  /// A sum (or maximum) over rows that are longer by now, in the loop over these: nullptr for others.
  const Node* over_longer_rows(Builder& b, const Node* n) const {
    const Longer* x = longer(n->in(0));
    const ReduceAttr& attr = n->as<ReduceAttr>();
    if (!x || !is_float(n->in(0)->dtype()) || std::ranges::find(attr.axes, x->axis) == attr.axes.end()) return nullptr;
    if (!x->computed) return attr.kind == ReduceKind::Sum ? b.reduce(attr.kind, x->node, attr.axes) : nullptr;
    const double infinity = std::numeric_limits<double>::infinity();
    switch (attr.kind) {
      case ReduceKind::Sum: return b.reduce(attr.kind, masked(b, n->in(0), *x, 0), attr.axes);
      case ReduceKind::Max: return b.reduce(attr.kind, masked(b, n->in(0), *x, -infinity), attr.axes);
      case ReduceKind::Min: return b.reduce(attr.kind, masked(b, n->in(0), *x, infinity), attr.axes);
      default: return nullptr;
    }
  }

  const Graph& from_;
  const std::vector<const Node*> live_;
  const int64_t worth_;
  std::unordered_map<const Node*, Seed> seeds_;
  std::unordered_map<const Node*, const Node*> made_;
  std::unordered_map<const Node*, Longer> longer_;
  // by node, axis and length; nullptr: it cannot be so long
  mutable std::map<std::tuple<const Node*, int64_t, int64_t>, const Node*> beside_;
};

}  // namespace

std::optional<Graph> pad_products(const Graph& graph, int64_t vendor_flops, int64_t worth) {
  Padding padding(graph, vendor_flops, worth);
  if (!padding.any()) return std::nullopt;
  return padding.run();
}

}  // namespace trainc::schedule
