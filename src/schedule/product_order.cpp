#include "schedule/product_order.h"

#include <algorithm>
#include <unordered_map>

#include "cost/blocking.h"
#include "graph/build.h"
#include "schedule/schedule.h"

namespace trainc::schedule {
namespace {

/// Whether one of `operand`'s axes, [batch, rows, k], is several axes of the permuted result that do not follow each
/// other in its own memory: it would be read in runs.
bool reads_in_runs(const Node* operand, const Node* permute) {
  const Dims& shape = permute->shape();
  const Dims strides = contiguous_strides(permute->in(0)->shape());
  const Dims& order = permute->as<AxesAttr>().axes;
  size_t at = 0;
  for (int64_t extent : operand->shape()) {
    int64_t size = 1, last = -1;  // last: the stride of the axis before, within this one
    for (; at < shape.size() && size < extent; ++at) {
      if (shape[at] == 1) continue;
      const int64_t stride = strides[static_cast<size_t>(order[at])];
      // The batch is looked at entry by entry: its axes lie as they like.
      if (&extent != &operand->shape()[0] && last >= 0 && last != stride * shape[at]) return true;
      last = stride, size *= shape[at];
    }
    if (size != extent) return false;  // an axis is cut: nothing is known of it
  }
  return false;
}

}  // namespace

std::vector<const Node*> down_to_product(const Node* permute) {
  if (permute->op != Op::Permute || permute->type.numel() == 0) return {};
  const int64_t columns = permute->shape().back();
  if (permute->as<AxesAttr>().axes.back() != permute->type.rank() - 1 || columns < cost::kShortestRun) return {};
  std::vector<const Node*> found{permute->in(0)};
  while (found.back()->op != Op::Contract) {
    const Node* next = scaled_tensor(found.back());
    if (!next) return {};
    found.push_back(next);
  }
  const Dims& product = found.back()->shape();
  return product[2] == columns && product[1] > 1 ? found : std::vector<const Node*>();
}

const Node* product_of(const Node* permute) {
  const std::vector<const Node*> found = down_to_product(permute);
  return found.empty() ? nullptr : found.back();
}

bool is_written_in_order(const Node* n) { return is_copy(n) && product_of(n->in(0)); }

const Node* made_as(const Node* n) { return is_written_in_order(n) ? n->in(0)->in(0) : n; }

std::unordered_set<const Node*> permutes_to_write(const Graph& graph) {
  const std::vector<const Node*> live = graph.live();
  std::unordered_map<const Node*, int> uses;
  for (const Node* n : live)
    for (const Node* i : n->inputs) ++uses[i];
  for (const Output& o : graph.outputs) ++uses[o.value];
  const auto moved_alone = [&](const Node* permute) {
    const std::vector<const Node*> moved = down_to_product(permute);
    return !moved.empty() && std::ranges::all_of(moved, [&](const Node* n) { return uses[n] == 1; });
  };
  std::unordered_set<const Node*> found;
  for (const Node* n : live) {
    if (n->op != Op::Contract) continue;
    for (const Node* operand : n->inputs) {
      const Node* permute = operand;
      while (permute->op == Op::Reshape || permute->op == Op::Cast) permute = permute->in(0);
      if (moved_alone(permute) && reads_in_runs(operand, permute)) found.insert(permute);
    }
  }
  return found;
}

}  // namespace trainc::schedule
