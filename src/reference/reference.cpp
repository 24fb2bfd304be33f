#include "reference/reference.h"

#include <unordered_map>

#include "reference/kernels.h"
#include "support/rounding.h"

namespace trainc::reference {

Tensor zeros(const Type& type) {
  Tensor t{type, {}, {}};
  if (is_float(type.dtype)) t.f.assign(type.numel(), 0.0);
  else t.i.assign(type.numel(), 0);
  return t;
}

double kept(Precision precision, DType dtype, double value) {
  return precision == Precision::Truth ? value : round_to(dtype, value);
}

namespace {

void check(const Tensor& t, const Type& type, const char* what) {
  const size_t n = type.numel();
  require(
      t.type == type && t.f.size() == (is_float(type.dtype) ? n : 0) && t.i.size() == (is_float(type.dtype) ? 0 : n),
      std::string("reference: ") + what + " is not " + to_string(type) + " but " + to_string(t.type));
}

class Evaluation {
 public:
  Evaluation(const Graph& graph, const std::vector<Tensor>& inputs, const Options& options)
      : graph_(graph), inputs_(inputs), options_(options) {}

  std::vector<Tensor> run() {
    const std::vector<const Node*> nodes = graph_.live();
    std::unordered_map<const Node*, size_t> last_use;
    for (size_t i = 0; i < nodes.size(); ++i)
      for (const Node* in : nodes[i]->inputs) last_use[in] = i;
    for (const Output& output : graph_.outputs)
      if (output.value) last_use[output.value] = nodes.size();
    for (size_t i = 0; i < nodes.size(); ++i) {
      values_[nodes[i]] = evaluate(*nodes[i]);
      for (const Node* in : nodes[i]->inputs)
        if (last_use[in] == i) values_.erase(in);
    }
    std::vector<Tensor> results;
    for (const Output& output : graph_.outputs) results.push_back(output.value ? values_.at(output.value) : Tensor{});
    return results;
  }

 private:
  const Graph& graph_;
  const std::vector<Tensor>& inputs_;
  const Options& options_;
  std::unordered_map<const Node*, Tensor> values_;
  std::unordered_map<const Node*, std::vector<Tensor>> extern_results_;

  Tensor evaluate(const Node& node) {
    Operands in;
    for (const Node* operand : node.inputs) in.push_back(&values_.at(operand));
    switch (class_of(node.op)) {
      case OpClass::Elementwise: return evaluate_elementwise(node, in, options_.precision);
      case OpClass::Reduction:
      case OpClass::Contraction: return evaluate_reduction(node, in, options_.precision);
      case OpClass::Movement: return evaluate_movement(node, in);
      case OpClass::Indexed: return evaluate_indexed(node, in, options_.precision);
      case OpClass::Leaf: return leaf(node);
      case OpClass::Extern: return outside(node, in);
    }
    throw InternalError("reference: an operation of no class");
  }

  Tensor leaf(const Node& node) {
    switch (node.op) {
      case Op::Input: {
        const size_t index = node.as<InputAttr>().index;
        require(index < inputs_.size(), "reference: input " + std::to_string(index) + " is not given");
        check(inputs_[index], node.type, "an input");
        return inputs_[index];
      }
      case Op::Constant: {
        Tensor t = zeros(node.type);
        if (is_float(node.dtype())) t.f[0] = float_of(&node);
        else t.i[0] = int_of(&node);
        return t;
      }
      case Op::Iota: {
        Tensor t = zeros(node.type);
        Dims strides(node.shape().size(), 0);
        strides[node.as<AxisAttr>().axis] = 1;
        walk(node.shape(), strides, 0, [&](int64_t linear, int64_t i) { t.i[linear] = wrap_to(node.dtype(), i); });
        return t;
      }
      case Op::Random: {
        require(static_cast<bool>(options_.random), "reference: the graph draws random numbers and nobody gives them");
        Tensor t = options_.random(&node);
        check(t, node.type, "a random mask");
        return t;
      }
      default: throw InternalError("reference: no such leaf");
    }
  }

  Tensor outside(const Node& node, const Operands& in) {
    if (node.op == Op::Result) return extern_results_.at(node.inputs[0]).at(node.as<ResultAttr>().index);
    require(static_cast<bool>(options_.call),
            "reference: the graph calls " + node.as<ExternAttr>().target + " and nobody answers");
    std::vector<Tensor> arguments;
    for (const Tensor* t : in) arguments.push_back(*t);
    std::vector<Tensor>& results = extern_results_[&node] = options_.call(&node, arguments);
    const std::vector<Type>& types = node.as<ExternAttr>().results;
    require(results.size() == types.size(),
            "reference: " + node.as<ExternAttr>().target + " gave another number of results");
    for (size_t i = 0; i < types.size(); ++i) check(results[i], types[i], "an extern's result");
    return results[0];
  }
};

}  // namespace

std::vector<Tensor> evaluate(const Graph& graph, const std::vector<Tensor>& inputs, const Options& options) {
  return Evaluation(graph, inputs, options).run();
}

}  // namespace trainc::reference
