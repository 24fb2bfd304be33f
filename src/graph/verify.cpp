// What is checked of a node:
//   (1) the number of inputs and the kind of attributes are the row's;
//   (2) no dimension is negative; axes exist, ascend where they are a set, and come once;
//   (3) shape and dtype follow from the inputs and the attributes as the row's meaning says;
//   (4) the dtype has the operation: no arithmetic on bool, no sqrt of integers, no `and` of floats;
//   (5) a constant is a scalar, and a value of its dtype.
// What is checked of a graph: every node; outputs are its nodes, and their strides fit their rank; input indices are
// below input_count, and each is declared one way.
#include "graph/verify.h"

#include <bit>
#include <cmath>
#include <map>
#include <utility>

#include "graph/attrs.h"
#include "support/rounding.h"

namespace trainc {
namespace {

struct Check {
  const Node& node;

  [[noreturn]] void fail(const std::string& what) const {
    std::string text(name_of(node.op));
    for (const Node* in : node.inputs) text += (in == node.inputs[0] ? " (" : ", ") + to_string(in->type);
    text += std::string(node.inputs.empty() ? "" : ")") + " : " + to_string(node.type);
    throw InternalError(text + ": " + what);
  }
  void need(bool ok, const char* what) const {
    if (!ok) fail(what);
  }
  const Type& in(size_t i) const { return node.inputs[i]->type; }
  const Type& out() const { return node.type; }

  void same_dtype(size_t from = 0) const {
    for (size_t i = from; i < node.inputs.size(); ++i)
      need(in(i).dtype == out().dtype, "operands and result differ in dtype");
  }
  void same_shape() const {
    for (size_t i = 0; i < node.inputs.size(); ++i)
      need(in(i).shape == out().shape, "operands and result differ in shape");
  }
  void is_axis(int64_t axis) const { need(axis >= 0 && axis < in(0).rank(), "no such axis"); }
  void is_set(const Dims& axes) const {
    for (size_t i = 0; i < axes.size(); ++i) {
      is_axis(axes[i]);
      need(i == 0 || axes[i] > axes[i - 1], "axes do not ascend");
    }
  }

  void constant() const;
  void elementwise() const;
  void reduce() const;
  void contract() const;
  void permute() const;
  void broadcast() const;
  void slice() const;
  void pad() const;
  void window() const;
  void concat() const;
  void gather() const;
  void scatter() const;
  void all() const;
};

void Check::constant() const {
  need(out().shape.empty(), "a constant is a scalar");
  const uint64_t bits = node.as<ConstantAttr>().bits;
  if (is_float(out().dtype)) {
    const double value = std::bit_cast<double>(bits);
    need(std::isnan(value) || round_to(out().dtype, value) == value, "the value is none of the dtype");
  } else {
    need(wrap_to(out().dtype, static_cast<int64_t>(bits)) == static_cast<int64_t>(bits),
         "the value is none of the dtype");
  }
}

void Check::elementwise() const {
  same_shape();
  const DType d = in(0).dtype;
  const auto numeric = [&] { need(d != DType::Bool, "bool has no arithmetic"); };
  switch (node.op) {
    case Op::Neg:
    case Op::Abs:
    case Op::Sign:
    case Op::Floor:
    case Op::Ceil:
    case Op::Round:
    case Op::Trunc:
    case Op::Add:
    case Op::Sub:
    case Op::Mul:
    case Op::Div:
    case Op::FloorDiv:
    case Op::Mod:
    case Op::Pow: numeric(); return same_dtype();
    case Op::Sqrt:
    case Op::Rsqrt:
    case Op::Exp:
    case Op::Expm1:
    case Op::Log:
    case Op::Log1p:
    case Op::Sin:
    case Op::Cos:
    case Op::Tanh:
    case Op::Erf:
    case Op::Erfc: need(is_float(d), "needs a float dtype"); return same_dtype();
    case Op::Not:
    case Op::And:
    case Op::Or:
    case Op::Xor: need(!is_float(d), "needs bool or an integer dtype"); return same_dtype();
    case Op::Max:
    case Op::Min: return same_dtype();
    case Op::IsNan: need(out().dtype == DType::Bool, "gives bool"); return;
    case Op::Lt:
    case Op::Le:
    case Op::Eq:
    case Op::Ne:
      need(in(1).dtype == d, "operands differ in dtype");
      return need(out().dtype == DType::Bool, "gives bool");
    case Op::Select: need(d == DType::Bool, "the condition is bool"); return same_dtype(1);
    case Op::Cast: return;
    case Op::Bitcast:
      numeric();
      need(out().dtype != DType::Bool, "bool is no pattern of bits");
      return need(size_of(d) == size_of(out().dtype), "the dtypes differ in width");
    case Op::Shl:
    case Op::Shr:
    case Op::Sar: numeric(), need(!is_float(d), "needs an integer dtype"); return same_dtype();
    default: fail("not elementwise");
  }
}

void Check::reduce() const {
  const auto& [kind, axes] = node.as<ReduceAttr>();
  is_set(axes);
  Dims kept;
  for (int64_t i = 0, next = 0; i < in(0).rank(); ++i) {
    if (next < static_cast<int64_t>(axes.size()) && axes[next] == i) ++next;
    else kept.push_back(in(0).shape[i]);
  }
  need(out().shape == kept, "the shape is not the input's without the axes");
  if (kind == ReduceKind::ArgMax || kind == ReduceKind::ArgMin) {
    need(axes.size() == 1, "takes one axis");
    need(out().dtype == DType::I64, "gives i64");
  } else {
    same_dtype();
    need(out().dtype != DType::Bool || kind == ReduceKind::Max || kind == ReduceKind::Min, "bool has no arithmetic");
  }
  if (kind != ReduceKind::Sum && kind != ReduceKind::Prod)
    need(in(0).numel() > 0 || out().numel() == 0, "nothing to choose from: a reduced axis is empty");
}

void Check::contract() const {
  same_dtype();
  need(is_float(out().dtype) || out().dtype != DType::Bool, "bool has no arithmetic");
  need(in(0).rank() == 3 && in(1).rank() == 3 && out().rank() == 3, "all three are rank 3");
  const Dims &l = in(0).shape, &r = in(1).shape;
  need(l[0] == r[0], "batches differ");
  need(l[2] == r[2], "the summed axes differ in size");
  need(out().shape == Dims{l[0], l[1], r[1]}, "the shape is not [b, m, n]");
}

void Check::permute() const {
  same_dtype();
  const Dims& order = node.as<AxesAttr>().axes;
  need(static_cast<int64_t>(order.size()) == in(0).rank() && in(0).rank() == out().rank(),
       "one axis of the order for each axis");
  std::vector<bool> seen(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    is_axis(order[i]);
    need(!seen[order[i]], "an axis comes twice");
    seen[order[i]] = true;
    need(out().shape[i] == in(0).shape[order[i]], "the shape is not the permuted one");
  }
}

void Check::broadcast() const {
  same_dtype();
  need(in(0).rank() == out().rank(), "ranks differ");
  for (int64_t i = 0; i < out().rank(); ++i)
    need(in(0).shape[i] == out().shape[i] || in(0).shape[i] == 1, "an axis that is not 1 changes size");
}

void Check::slice() const {
  same_dtype();
  const auto& [start, step] = node.as<SliceAttr>();
  const size_t rank = in(0).shape.size();
  need(out().shape.size() == rank && start.size() == rank && step.size() == rank,
       "start, step and shape have one number an axis");
  for (size_t i = 0; i < rank; ++i) {
    need(start[i] >= 0 && step[i] >= 1, "start is below 0 or step below 1");
    const int64_t extent = out().shape[i];
    need(extent == 0 ? start[i] <= in(0).shape[i] : start[i] + (extent - 1) * step[i] < in(0).shape[i],
         "runs out of the input");
  }
}

void Check::pad() const {
  same_dtype();
  need(in(1).shape.empty(), "the padding value is a scalar");
  const auto& [low, high] = node.as<PadAttr>();
  const size_t rank = in(0).shape.size();
  need(out().shape.size() == rank && low.size() == rank && high.size() == rank,
       "low, high and shape have one number an axis");
  for (size_t i = 0; i < rank; ++i) {
    need(low[i] >= 0 && high[i] >= 0, "low or high is negative");
    need(out().shape[i] == low[i] + in(0).shape[i] + high[i], "the shape is not the padded one");
  }
}

void Check::window() const {
  same_dtype();
  const auto& [axes, size, step, dilation] = node.as<WindowAttr>();
  is_set(axes);
  const size_t rank = in(0).shape.size();
  need(size.size() == axes.size() && step.size() == axes.size() && dilation.size() == axes.size(),
       "size, step and dilation have one number for each of the axes");
  need(out().shape.size() == rank + axes.size(), "the shape is not the input's with an axis more for each of the axes");
  size_t next = 0;
  for (size_t i = 0; i < rank; ++i) {
    if (next == axes.size() || axes[next] != static_cast<int64_t>(i)) {
      need(out().shape[i] == in(0).shape[i], "an axis without windows changes size");
      continue;
    }
    need(size[next] >= 1 && step[next] >= 1 && dilation[next] >= 1, "size, step or dilation is below 1");
    need(out().shape[rank + next] == size[next], "a last axis is not as large as the window");
    const int64_t windows = out().shape[i];
    need(windows == 0 || (windows - 1) * step[next] + (size[next] - 1) * dilation[next] < in(0).shape[i],
         "runs out of the input");
    ++next;
  }
}

void Check::concat() const {
  need(!node.inputs.empty(), "of nothing");
  same_dtype();
  const int64_t axis = node.as<AxisAttr>().axis;
  is_axis(axis);
  Dims shape = in(0).shape;
  shape[axis] = 0;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    Dims other = in(i).shape;
    need(other.size() == shape.size(), "ranks differ");
    const int64_t size = std::exchange(other[axis], shape[axis]);
    need(other == shape, "another axis than the joined one differs in size");
    shape[axis] += size;
  }
  need(out().shape == shape, "the shape is not the joined one");
}

void Check::gather() const {
  need(in(0).dtype == out().dtype, "operand and result differ in dtype");
  need(in(1).dtype == DType::I64, "the index is i64");
  need(in(0).rank() == in(1).rank(), "ranks differ");
  need(out().shape == in(1).shape, "the shape is not the index's");
  const auto& [axis, failure] = node.as<AxisAttr>();
  need(failure != Failure::None, "an index out of bounds raises nothing");
  is_axis(axis);
  for (int64_t i = 0; i < out().rank(); ++i)
    need(i == axis || out().shape[i] <= in(0).shape[i], "the index is larger than the operand on another axis");
}

void Check::scatter() const {
  need(in(0) == out(), "the result has the type of init");
  need(in(2).dtype == out().dtype, "src and init differ in dtype");
  need(in(1).dtype == DType::I64, "the index is i64");
  need(in(1).shape == in(2).shape, "index and src differ in shape");
  need(in(0).rank() == in(1).rank(), "ranks differ");
  const auto& [axis, kind, failure] = node.as<ScatterAttr>();
  need(failure != Failure::None, "an index out of bounds raises nothing");
  is_axis(axis);
  need(kind != ScatterKind::Sum || out().dtype != DType::Bool, "bool has no arithmetic");
  for (int64_t i = 0; i < out().rank(); ++i)
    need(i == axis || in(1).shape[i] <= in(0).shape[i], "the index is larger than init on another axis");
}

void Check::all() const {
  const int arity = arity_of(node.op);
  need(arity < 0 || static_cast<int>(node.inputs.size()) == arity, "wrong number of inputs");
  need(node.attrs.index() == attrs_of(node.op).index(), "wrong kind of attributes");
  for (int64_t d : out().shape) need(d >= 0, "a dimension is negative");
  if (is_elementwise(node.op)) return elementwise();
  switch (node.op) {
    case Op::Input: {
      const auto& [index, strides, late] = node.as<InputAttr>();
      need(index >= 0, "the index is negative");
      return need(strides.empty() || strides.size() == out().shape.size(), "one stride an axis");
    }
    case Op::Constant: return constant();
    case Op::Iota:
      need(!is_float(out().dtype) && out().dtype != DType::Bool, "needs an integer dtype");
      return need(node.as<AxisAttr>().axis >= 0 && node.as<AxisAttr>().axis < out().rank(), "no such axis");
    case Op::Random: {
      need(out().dtype == DType::Bool, "gives bool");
      const auto& [draw, p, threads, vector] = node.as<RandomAttr>();
      if (threads == 0) return need(vector == 0, "the host's generator deals nothing out");
      need(threads > 0 && threads % 256 == 0, "Philox is dealt out to blocks of 256 threads");
      return need((vector == 1 || vector == 2 || vector == 4 || vector == 8) && out().numel() % vector == 0,
                  "1, 2, 4 or 8 neighbours, without a rest");
    }
    case Op::Reduce: return reduce();
    case Op::Scan:
      same_dtype();
      same_shape();
      need(out().dtype != DType::Bool, "bool has no arithmetic");
      return is_axis(node.as<AxisAttr>().axis);
    case Op::Contract: return contract();
    case Op::Reshape: same_dtype(); return need(in(0).numel() == out().numel(), "the number of elements changes");
    case Op::Permute: return permute();
    case Op::Broadcast: return broadcast();
    case Op::Slice: return slice();
    case Op::Pad: return pad();
    case Op::Window: return window();
    case Op::Concat: return concat();
    case Op::Reverse:
      same_dtype();
      same_shape();
      return is_set(node.as<AxesAttr>().axes);
    case Op::Gather: return gather();
    case Op::Scatter: return scatter();
    case Op::Extern:
      need(!node.as<ExternAttr>().results.empty(), "an extern has a result");
      for (int64_t i : node.as<ExternAttr>().aliases)
        need(i >= 0 && i < static_cast<int64_t>(node.inputs.size()),
             "a result is a view of an input that is not there");
      return need(node.as<ExternAttr>().results[0] == out(), "the type is not that of the first result");
    case Op::Result: {
      need(node.inputs[0]->op == Op::Extern, "the input is no extern");
      const auto& results = node.inputs[0]->as<ExternAttr>().results;
      const int64_t index = node.as<ResultAttr>().index;
      need(index >= 0 && index < static_cast<int64_t>(results.size()), "no such result");
      return need(results[index] == out(), "the type is not that of the result");
    }
    default: fail("no check for this operation");
  }
}

}  // namespace

void verify(const Node& node) { Check{node}.all(); }

void verify(const Graph& graph) {
  std::map<std::pair<int64_t, bool>, const Node*> inputs;
  for (const Node& node : graph.nodes()) {
    verify(node);
    if (node.op != Op::Input) continue;
    const auto& [index, strides, late] = node.as<InputAttr>();
    require(index < graph.input_count,
            "input " + std::to_string(index) + " of a graph with " + std::to_string(graph.input_count));
    require(inputs.emplace(std::pair(index, late), &node).second,
            "input " + std::to_string(index) + " is declared in two ways");
  }
  for (const Output& output : graph.outputs) {
    if (!output.value) continue;
    const int64_t id = output.value->id;
    require(id < static_cast<int64_t>(graph.nodes().size()) && &graph.nodes()[id] == output.value,
            "an output is no node of the graph");
    require(output.strides.empty() || output.strides.size() == output.value->shape().size(),
            "an output needs one stride an axis");
  }
  for (const Node* effect : graph.effects) {
    const int64_t id = effect ? effect->id : -1;
    require(id >= 0 && id < static_cast<int64_t>(graph.nodes().size()) && &graph.nodes()[id] == effect,
            "an effect is no node of the graph");
    require(draws(effect), "an effect draws no random numbers");
  }
}

}  // namespace trainc
