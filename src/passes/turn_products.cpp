#include "passes/turn_products.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "passes/rewrite.h"
#include "passes/values.h"

namespace trainc {
namespace {

using N = const Node*;

/// How a permuted view of a product is made of the product with exchanged operands.
struct Turned {
  N product;
  Dims shape;  // what the exchanged result [B, N, M] is reshaped to
  Dims order;  // and how that is permuted then
};

/// The number of axes from `from` on whose product is `size`, with the axes of size 1 that follow; -1: there is none.
int64_t axes_of(const Dims& shape, int64_t from, int64_t size) {
  int64_t at = from, product = 1;
  for (; at < static_cast<int64_t>(shape.size()) && (product < size || shape[at] == 1); ++at) product *= shape[at];
  return product == size ? at - from : -1;
}

/// Whether an operand of a contraction is made of windows: a convolution, whose kernels and calls know its rows as
/// places.
bool reads_windows(N operand) {
  while (is_movement(operand->op) || operand->op == Op::Cast) {
    if (operand->op == Op::Window) return true;
    operand = operand->in(0);
  }
  return false;
}

class Turning {
 public:
  explicit Turning(const Graph& graph) {
    for (N n : graph.live())
      for (N in : n->inputs) ++uses_[in];
    for (const Output& out : graph.outputs)
      if (out.value) ++uses_[out.value];
    for (N effect : graph.effects) ++uses_[effect];
  }

  std::optional<Turned> of(N permute) const {
    if (permute->op != Op::Permute || permute->type.numel() == 0) return std::nullopt;
    N at = permute->in(0);
    const Dims shape = at->shape();
    for (bool reshaped = false; at->op != Op::Contract; at = scaled_tensor(at)) {
      if (!scaled_tensor(at) || uses_.at(at) != 1 || (reshaped && at->op == Op::Reshape)) return std::nullopt;
      reshaped |= at->op == Op::Reshape;
    }
    if (uses_.at(at) != 1 || reads_windows(at->in(0)) || reads_windows(at->in(1))) return std::nullopt;
    const int64_t batch = axes_of(shape, 0, at->shape()[0]);
    const int64_t rows = batch < 0 ? -1 : axes_of(shape, batch, at->shape()[1]);
    const int64_t columns = rows < 0 ? -1 : axes_of(shape, batch + rows, at->shape()[2]);
    if (columns < 0) return std::nullopt;  // an axis counts rows and columns

    // What is innermost after the permute is innermost of the rows, too, or the exchange makes no neighbours. Axes of
    // size 1 lie anywhere: they decide nothing.
    const Dims& order = permute->as<AxesAttr>().axes;
    const auto counts = [&](int64_t axis) { return shape[axis] > 1; };
    const auto innermost = std::find_if(order.rbegin(), order.rend(), counts);
    int64_t last = batch + rows - 1;
    while (last >= batch && !counts(last)) --last;
    if (innermost == order.rend() || last < batch || *innermost != last) return std::nullopt;

    Dims exchanged;  // the axes of `shape` in the order of the exchanged result
    const int64_t rank = static_cast<int64_t>(shape.size());
    for (int64_t axis = 0; axis < batch; ++axis) exchanged.push_back(axis);
    for (int64_t axis = batch + rows; axis < rank; ++axis) exchanged.push_back(axis);
    for (int64_t axis = batch; axis < batch + rows; ++axis) exchanged.push_back(axis);
    Turned turned{at, {}, {}};
    for (int64_t axis : exchanged) turned.shape.push_back(shape[axis]);
    for (int64_t axis : order)
      turned.order.push_back(std::find(exchanged.begin(), exchanged.end(), axis) - exchanged.begin());
    return turned;
  }

 private:
  std::unordered_map<N, int64_t> uses_;
};

/// `n` permuted; a reshape where nothing but axes of size 1 moves.
N permuted(Builder& b, N n, const Dims& order) {
  Dims shape, moving;
  for (int64_t axis : order) {
    shape.push_back(n->shape()[axis]);
    if (shape.back() != 1) moving.push_back(axis);
  }
  return std::is_sorted(moving.begin(), moving.end()) ? b.reshape(n, shape) : b.permute(n, order);
}

/// Casts and scaling between `from` and the product, over `n`.
N scaled_alike(Builder& b, N from, N product, N n) {
  if (from == product) return n;
  const N tensor = scaled_tensor(from);
  n = scaled_alike(b, tensor, product, n);
  if (from->op == Op::Reshape) return n;
  if (from->op == Op::Cast) return b.cast(n, from->dtype());
  const bool first = from->in(0) == tensor;
  const N number = b.full(from->dtype(), n->shape(), float_of(uniform_constant(from->in(first ? 1 : 0))));
  return b.binary(from->op, first ? n : number, first ? number : n);
}

}  // namespace

Graph turn_products(const Graph& graph) {
  const Turning turning(graph);
  std::unordered_map<N, N> operands[2];  // of a product in the old graph: what stands for them in the new one
  return rewrite(graph, [&](Builder& b, N from, const std::vector<N>& inputs) -> N {
    if (from->op == Op::Contract) operands[0][from] = inputs[0], operands[1][from] = inputs[1];
    const std::optional<Turned> turned = turning.of(from);
    if (!turned) return with_inputs(b, from, inputs);
    N n = b.contract(operands[1].at(turned->product), operands[0].at(turned->product));
    for (const std::string& origin : graph.origins(turned->product)) b.graph.add_origin(n, origin);
    n = scaled_alike(b, from->in(0), turned->product, n);
    return permuted(b, b.reshape(n, turned->shape), turned->order);
  });
}

}  // namespace trainc
