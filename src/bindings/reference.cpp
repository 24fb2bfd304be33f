// The oracle, and the graph at two points of its way, for tests.
#include "reference/reference.h"

#include <nanobind/ndarray.h>

#include "bindings/bindings.h"
#include "bindings/front_end.h"
#include "graph/text.h"
#include "passes/pipeline.h"
#include "support/error.h"
#include "support/float_environment.h"

namespace trainc::bindings {
namespace {

using reference::Tensor;
/// What a graph means is no matter of the calling thread's floating-point environment.
struct Exactly : FloatEnvironment {
  Exactly() : FloatEnvironment(/*flushes_denormals=*/false) {}
};
template <class T> using Array = nb::ndarray<T, nb::numpy, nb::c_contig, nb::device::cpu>;

template <class T> std::vector<T> elements(nb::handle array, const char* dtype) {
  const nb::object plain = nb::module_::import_("numpy").attr("ascontiguousarray")(array, nb::arg("dtype") = dtype);
  const auto view = nb::cast<Array<T>>(plain);
  return {view.data(), view.data() + view.size()};
}

Tensor to_tensor(const Type& type, nb::handle array) {
  Tensor t{type, {}, {}};
  if (is_float(type.dtype)) t.f = elements<double>(array, "float64");
  else t.i = elements<int64_t>(array, "int64");
  const size_t size = t.f.size() + t.i.size();
  require(static_cast<int64_t>(size) == type.numel(),
          "evaluate: an array of " + std::to_string(size) + " elements for " + to_string(type));
  return t;
}

template <class T> nb::object numpy(const std::vector<T>& values, const Dims& shape) {
  auto* copy = new std::vector<T>(values);
  const nb::capsule owner(copy, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  const std::vector<size_t> dims(shape.begin(), shape.end());
  return nb::cast(nb::ndarray<nb::numpy, T>(copy->data(), dims.size(), dims.data(), owner));
}

nb::object to_numpy(const Tensor& t) {
  if (is_float(t.type.dtype)) return numpy(t.f, t.type.shape);
  const nb::object ints = numpy(t.i, t.type.shape);
  return t.type.dtype == DType::Bool ? ints.attr("astype")("bool") : ints;
}

nb::list evaluate(const std::string& json, const nb::list& inputs, const std::string& precision, const nb::list& masks,
                  const nb::object& call) {
  if (precision != "truth" && precision != "rounded")
    throw UserError("evaluate: precision is \"truth\" or \"rounded\"");
  const Exactly environment;
  const Program program = import_graph(json, mask_generator());
  const Graph& graph = program.graph;
  require(static_cast<int64_t>(nb::len(inputs)) == graph.input_count,
          "evaluate: the graph takes " + std::to_string(graph.input_count) + " inputs");
  std::vector<Tensor> tensors(graph.input_count);
  for (const Node& n : graph.nodes())
    if (n.op == Op::Input) tensors[n.as<InputAttr>().index] = to_tensor(n.type, inputs[n.as<InputAttr>().index]);
  reference::Options options;
  options.precision = precision == "truth" ? reference::Precision::Truth : reference::Precision::Rounded;
  options.random = [&](const Node* n) {
    const int64_t draw = n->as<RandomAttr>().draw;
    require(draw >= 0 && draw < static_cast<int64_t>(nb::len(masks)),
            "evaluate: no mask for draw " + std::to_string(draw));
    return to_tensor(n->type, masks[draw]);
  };
  options.call = [&](const Node* n, const std::vector<Tensor>& in) {
    require(!call.is_none(), "evaluate: the graph has an extern node; pass call=");
    const auto& attr = n->as<ExternAttr>();
    nb::list arrays;
    for (const Tensor& t : in) arrays.append(to_numpy(t));
    std::vector<Tensor> results;
    for (nb::handle array : call(attr.target, attr.arguments, arrays)) {
      require(results.size() < attr.results.size(), "evaluate: more results than " + attr.target + " has");
      const Type& type = attr.results[results.size()];
      results.push_back(array.is_none() ? Tensor{type, {}, {}} : to_tensor(type, array));
    }
    return results;
  };
  nb::list out;
  const std::vector<Tensor> values = reference::evaluate(graph, tensors, options);
  for (size_t i = 0; i < values.size(); ++i)
    out.append(graph.outputs[i].value ? to_numpy(values[i]) : nb::object(nb::none()));
  return out;
}

}  // namespace

void bind_reference(nb::module_& m) {
  m.def(
      "supported_operations", &supported_operations, nb::arg("front") = "aten",
      "Operations that are compiled; any other of ATen's runs in the framework, any other of StableHLO's is refused.");
  m.def("refused_operations", &refused_operations, nb::arg("json"),
        "(place in the body of main, why) of each operation of a StableHLO graph that is not compiled.");
  m.def(
      "import_text",
      [](const std::string& json) {
        const Exactly environment;
        return print(import_graph(json, mask_generator()).graph);
      },
      nb::arg("json"));
  m.def(
      "optimized_text",
      [](const std::string& json) {
        const Exactly environment;
        Pipeline pipeline("optimized_text");
        return print(optimize(std::move(import_graph(json, mask_generator()).graph), pipeline));
      },
      nb::arg("json"));
  m.def("evaluate", &evaluate, nb::arg("json"), nb::arg("inputs"), nb::arg("precision") = "truth",
        nb::arg("masks") = nb::list(), nb::arg("call") = nb::none(),
        "What the graph means: the plainest evaluator, in fp64 (\"truth\") or rounded after each operation "
        "(\"rounded\").");
}

}  // namespace trainc::bindings
