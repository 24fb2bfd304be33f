#include "compiler/codegen.h"

#include <fmt/format.h>

#include <cctype>

#include "cost/loops.h"
#include "lower/expressions.h"
#include "lower/kernels.h"
#include "lower/map_device.h"

namespace trainc::compiler {

using loop::block;
using loop::integer;
using loop::LoopKind;

LoweredForeach lower_foreach(Program program, const std::vector<int64_t>& in_place, const std::string& name,
                             const CompileOptions& options) {
  Pipeline pipeline(name, options.disabled_passes);
  std::vector<const Node*> inputs(static_cast<size_t>(program.graph.input_count));
  Graph unread;  // inputs that the formula does not read still have their place among the arguments, and may be written
  for (const Node& n : program.graph.nodes())
    if (n.op == Op::Input)
      inputs.at(static_cast<size_t>(n.as<InputAttr>().index)) = unread.make(n.op, n.attrs, {}, n.type);
  const Graph graph = optimize(std::move(program.graph), pipeline);
  require(graph.outputs.size() == in_place.size(), "foreach: one output an updated input is wanted");
  plan::Foreach result;
  result.name = name;
  result.cpu = options.target.cpu;
  result.device = options.target.device;
  result.chunk = cost::kForeachPiece;

  schedule::Schedule nothing_stored;
  lower::LoweredKernel kernel;
  loop::LoopNest& nest = kernel.nest;
  nest.name = name;
  lower::Expressions e(nothing_stored, kernel);
  for (const Node& n : graph.nodes())
    if (n.op == Op::Input) inputs.at(static_cast<size_t>(n.as<InputAttr>().index)) = &n;
  for (size_t i = 0; i < inputs.size(); ++i) {
    require(inputs[i],
            fmt::format("foreach: {} of {} is no tensor", input_name(program, static_cast<int64_t>(i)), name));
    e.argument(inputs[i]);
    result.inputs.push_back({.scalar = inputs[i]->type.rank() == 0, .dtype = inputs[i]->dtype()});
  }
  const int count = nest.add_buffer({"numel", DType::I64, 1, loop::Space::Argument, false});
  for (int64_t i : in_place) nest.buffers.at(i).written = result.inputs.at(i).written = true;

  const int c = nest.add_var("c"), j = nest.add_var("j");
  const loop::Expr start = nest.var(c) * result.chunk;
  const loop::Expr extent = loop::apply(Op::Min, {integer(result.chunk), nest.load(count, integer(0)) - start});
  const loop::Expr position = start + nest.var(j);
  std::vector<loop::Stmt> scalars, body;
  // Everything is read before anything is written: outputs lie over inputs.
  for (const Node* n : inputs) {
    const bool scalar = n->type.rank() == 0;
    e.out = scalar ? &scalars : &body;
    e.bind(n, e.value(n, loop::Index::at_position(n->shape(), scalar ? integer(0) : position)));
  }
  e.out = &body;
  for (const Node* n : graph.live()) {
    if (is_elementwise(n->op)) e.bind(n, e.definition(n, loop::Index::at_position(n->shape(), position)));
    for (const std::string& origin : graph.origins(n))
      if (result.origins.size() < 8) result.origins.push_back(origin);
  }
  std::vector<loop::Stmt> stores;
  for (size_t i = 0; i < in_place.size(); ++i) {
    const Node* v = graph.outputs[i].value;
    loop::Expr x = e.value(v, loop::Index::at_position(v->shape(), position));
    const DType to = inputs[in_place[i]]->dtype();
    stores.push_back(loop::store(static_cast<int>(in_place[i]), position, x->dtype == to ? x : loop::cast(x, to)));
  }
  body.insert(body.end(), stores.begin(), stores.end());
  scalars.push_back(loop::for_loop(LoopKind::Vector, j, extent, block(std::move(body)), options.target.f32_lanes));
  nest.body = loop::for_loop(LoopKind::Parallel, c, integer(1), block(std::move(scalars)));
  loop::verify(nest);
  if (options.target.launches_blocks) {
    nest = lower::map_to_device(nest, options.target);
    // a name of C++: "AdamW step" is none
    for (char& c : nest.name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
    loop::verify(nest);
  }
  result.kernel = without_code(nest);
  return {std::move(result), std::move(nest)};
}

plan::Foreach compile_foreach(Program program, const std::vector<int64_t>& in_place, const std::string& name,
                              const CompileOptions& options, Entry entry) {
  LoweredForeach lowered = lower_foreach(std::move(program), in_place, name, options);
  lowered.foreach.kernel = std::move(code_of({lowered.nest}, options, {.threads = 1}, entry).kernels[0]);
  dump_kernel(name, lowered.nest, lowered.foreach.kernel, options.target, entry);
  return std::move(lowered.foreach);
}

}  // namespace trainc::compiler
