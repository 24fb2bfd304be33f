#include "passes/drop_undefined_inputs.h"

#include <algorithm>

#include "passes/rewrite.h"
#include "passes/values.h"

namespace trainc {
namespace {

using Inputs = std::vector<const Node*>;  // nullptr: zero, and made of undefined arguments alone

/// What an operation with a zero among its inputs comes to: nullptr is zero again. `ok` is false where the zero has to
/// be written out.
struct Outcome {
  bool ok;
  const Node* value;
};

Outcome through_zero(Builder& b, const Node* from, const Inputs& in) {
  const Outcome zero{true, nullptr}, write_out{false, nullptr};
  const bool all_zero = std::none_of(in.begin(), in.end(), [](const Node* n) { return n; });
  const auto zero_or_constant_zero = [&](size_t i) { return !in[i] || is_uniform_zero(from->in(i)); };
  switch (from->op) {
    case Op::Neg:
    case Op::Cast:
    case Op::Reshape:
    case Op::Permute:
    case Op::Broadcast:
    case Op::Slice:
    case Op::Window:
    case Op::Reverse:
    case Op::Scan:
    case Op::Mul:
    case Op::Contract: return zero;
    case Op::Reduce: return from->as<ReduceAttr>().kind == ReduceKind::Sum ? zero : write_out;
    case Op::Div:
    case Op::Gather: return in[1] && !in[0] ? zero : write_out;
    case Op::Add: return all_zero ? zero : Outcome{true, in[0] ? in[0] : in[1]};
    case Op::Sub:
      if (all_zero) return zero;
      return {true, in[0] ? in[0] : b.unary(Op::Neg, in[1])};
    case Op::Select: return in[0] && !in[1] && !in[2] ? zero : write_out;
    case Op::Concat: return all_zero ? zero : write_out;
    case Op::Pad: return !in[0] && zero_or_constant_zero(1) ? zero : write_out;
    case Op::Scatter:
      if (!in[1] || in[2]) return write_out;
      if (zero_or_constant_zero(0)) return zero;
      return from->as<ScatterAttr>().kind == ScatterKind::Sum ? Outcome{true, in[0]} : write_out;
    default: return write_out;
  }
}

}  // namespace

Graph drop_undefined_inputs(const Graph& graph, const std::vector<int64_t>& undefined) {
  // by id; depends: on an undefined one
  std::vector<bool> is_output(graph.nodes().size()), zero(graph.nodes().size()), depends(graph.nodes().size());
  for (const Output& output : graph.outputs)
    if (output.value) is_output[output.value->id] = true;
  const auto written_out = [](Builder& b, const Type& type) { return b.full(type.dtype, type.shape, 0); };

  return remove_dead(rewrite(graph, [&](Builder& b, const Node* from, const Inputs& made) -> const Node* {
    const auto give_zero = [&]() -> const Node* {  // an output needs a value; its users still see the zero
      zero[from->id] = depends[from->id] = true;
      return is_output[from->id] ? written_out(b, from->type) : nullptr;
    };
    if (from->op == Op::Input &&
        std::find(undefined.begin(), undefined.end(), from->as<InputAttr>().index) != undefined.end())
      return give_zero();
    Inputs in = made;
    bool some = false;
    for (size_t i = 0; i < in.size(); ++i)
      if (zero[from->in(i)->id]) {
        in[i] = nullptr;
        some = true;
      }
    for (const Node* i : from->inputs) depends[from->id] = depends[from->id] || depends[i->id];
    // Both sides of a division may be zero because of an undefined argument: then it is no zero.
    if (some && !(from->op == Op::Div && depends[from->in(1)->id])) {
      const Outcome outcome = through_zero(b, from, in);
      if (outcome.ok) return outcome.value ? outcome.value : give_zero();
    }
    for (size_t i = 0; i < in.size(); ++i)
      if (!in[i]) in[i] = written_out(b, from->in(i)->type);
    return with_inputs(b, from, in);
  }));
}

}  // namespace trainc
