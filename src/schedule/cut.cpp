#include "schedule/cut.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include "cost/cutting.h"
#include "plan/live.h"
#include "schedule/bits.h"
#include "schedule/matmul_chain.h"
#include "schedule/product_order.h"
#include "schedule/vendor_operands.h"

namespace trainc::schedule {
namespace {

constexpr int64_t kInfinite = std::numeric_limits<int64_t>::max() / 4;

/// Maximum flow by Dinic's algorithm; afterwards, the vertices from which the sink can still be reached.
class FlowNetwork {
 public:
  explicit FlowNetwork(int vertices) : edges_of_(vertices), level_(vertices), next_(vertices) {}

  void edge(int from, int to, int64_t capacity) {
    edges_of_[from].push_back(static_cast<int>(edges_.size()));
    edges_.push_back({to, capacity});
    edges_of_[to].push_back(static_cast<int>(edges_.size()));
    edges_.push_back({from, 0});
  }

  int64_t run(int source, int sink) {
    int64_t total = 0;
    while (layer(source, sink)) {
      std::fill(next_.begin(), next_.end(), 0);
      while (int64_t pushed = push(source, sink)) total += pushed;
      if (total >= kInfinite) break;
    }
    return total;
  }

  /// The cut nearest the sink: vertices that still reach it through free capacity.
  std::vector<bool> reaches(int sink) const {
    std::vector<bool> seen(edges_of_.size());
    std::vector<int> stack{sink};
    seen[sink] = true;
    while (!stack.empty()) {
      int v = stack.back();
      stack.pop_back();
      for (int e : edges_of_[v]) {  // the twin e ^ 1 leads into v
        int from = edges_[e].to;
        if (edges_[e ^ 1].capacity > 0 && !seen[from]) seen[from] = true, stack.push_back(from);
      }
    }
    return seen;
  }

 private:
  struct Edge {
    int to;
    int64_t capacity;
  };

  bool layer(int source, int sink) {
    std::fill(level_.begin(), level_.end(), -1);
    std::queue<int> queue;
    queue.push(source);
    level_[source] = 0;
    while (!queue.empty()) {
      int v = queue.front();
      queue.pop();
      for (int e : edges_of_[v])
        if (edges_[e].capacity > 0 && level_[edges_[e].to] < 0)
          level_[edges_[e].to] = level_[v] + 1, queue.push(edges_[e].to);
    }
    return level_[sink] >= 0;
  }

  /// As much as one path takes that goes down the levels; 0 where there is none. A path may be as long as the program:
  /// no recursion.
  int64_t push(int source, int sink) {
    std::vector<int> path;  // edges
    for (int v = source; v != sink;) {
      size_t& i = next_[v];
      const auto leads_down = [&](const Edge& e) { return e.capacity > 0 && level_[e.to] == level_[v] + 1; };
      while (i < edges_of_[v].size() && !leads_down(edges_[edges_of_[v][i]])) ++i;
      if (i < edges_of_[v].size()) {
        path.push_back(edges_of_[v][i]);
        v = edges_[path.back()].to;
      } else if (path.empty()) {
        return 0;
      } else {  // a dead end: the vertex before tries its next edge
        v = edges_[path.back() ^ 1].to;
        path.pop_back();
        ++next_[v];
      }
    }
    int64_t pushed = kInfinite;
    for (int e : path) pushed = std::min(pushed, edges_[e].capacity);
    for (int e : path) edges_[e].capacity -= pushed, edges_[e ^ 1].capacity += pushed;
    return pushed;
  }

  std::vector<Edge> edges_;
  std::vector<std::vector<int>> edges_of_;
  std::vector<int> level_;
  std::vector<size_t> next_;
};

bool may_recompute(const Node* n) {
  switch (class_of(n->op)) {
    case OpClass::Leaf: return n->op != Op::Random;
    case OpClass::Elementwise:
    case OpClass::Movement: return true;
    case OpClass::Reduction:
    case OpClass::Contraction:
    case OpClass::Extern: return false;
    case OpClass::Indexed:
      return n->op == Op::Gather && n->in(0)->op == Op::Input && n->type.bytes() <= cost::kGatheredAgain;
  }
  return false;
}

/// One cheap operation on one tensor and constants: as easily done again as loaded.
bool scales(const Node* n) {
  if (!is_elementwise(n->op) || op_cost(n->op) > 1) return false;
  int tensors = 0;
  for (const Node* i : n->inputs) {
    while (i->op == Op::Reshape || i->op == Op::Broadcast) i = i->in(0);
    tensors += i->op != Op::Constant;
  }
  return tensors <= 1;
}

/// Whether what is summed comes from memory again for the values that are made with the sum: the sum's loop, which must
/// end first, runs across rows, or along rows that no cache holds until then.
bool comes_back_to_memory(const Node* sum) {
  const Dims& shape = sum->in(0)->shape();
  int64_t last = static_cast<int64_t>(shape.size()) - 1;
  while (last > 0 && shape[static_cast<size_t>(last)] == 1) --last;
  const Dims& axes = sum->as<ReduceAttr>().axes;
  const bool along_rows = std::find(axes.begin(), axes.end(), last) != axes.end();
  const int64_t bytes = sum->in(0)->type.bytes();
  return (along_rows ? bytes / std::max<int64_t>(1, sum->type.numel()) : bytes) >= cost::kLongRow;
}

/// An elementwise value that is made with such a sum (a softmax over a vocabulary, BatchNorm). What was summed is in
/// memory for it anyway, so that is saved instead: this value would be a second tensor of its size.
bool of_another_loop(const Node* n) {
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> stack{n};
  while (!stack.empty() && seen.size() < cost::kNearLoop) {
    const Node* at = stack.back();
    stack.pop_back();
    if (!seen.insert(at).second) continue;
    if (at->op == Op::Reduce && at->in(0)->type.numel() == n->type.numel() && comes_back_to_memory(at)) return true;
    if (is_elementwise(at->op) || is_movement(at->op)) stack.insert(stack.end(), at->inputs.begin(), at->inputs.end());
  }
  return false;
}

/// Primals in a narrower dtype, as the vendor's library multiplies them.
std::unordered_set<const Node*> narrow_primals(const std::vector<const Node*>& live, int64_t vendor_flops) {
  std::unordered_set<const Node*> found;
  for (const Node* n : live) {
    if (!for_vendor(n, vendor_flops)) continue;
    for (const Node* operand : n->inputs) {
      const Node* source = vendor_source(operand);
      const Node* cast = source->op == Op::Pad ? source->in(0) : source;  // pad_products.h
      if (cast->op != Op::Cast || size_of(cast->dtype()) >= size_of(cast->in(0)->dtype())) continue;
      const Node* below = cast->in(0);
      while (is_movement(below->op) && below->inputs.size() == 1) below = below->in(0);
      if (below->op == Op::Input) found.insert(source);
    }
  }
  return found;
}

bool is_constant(const Node* n) {
  while (n->op == Op::Reshape || n->op == Op::Broadcast) n = n->in(0);
  return n->op == Op::Constant;
}

/// The input that `n` is, or shows a part of in another shape; null of anything else.
const Node* input_below(const Node* n) {
  while (is_movement(n->op) && n->op != Op::Concat) n = n->in(0);
  return n->op == Op::Input ? n : nullptr;
}

/// Primals that the backward gets as they were, in a copy, where it computes a value of the forward again: small ones,
/// but those that are multiplied, and those of values that the user's checkpointing makes again, which read what he
/// holds by then.
std::unordered_set<const Node*> primals_to_copy(const Graph& joint, const std::vector<const Node*>& early,
                                                const std::vector<const Node*>& must_recompute, int64_t most) {
  std::unordered_set<const Node*> found;
  const std::unordered_set<int64_t> multiplied = multiplied_inputs(joint);
  for (const Node* n : early)
    if (n->op == Op::Input && n->type.bytes() <= most && !multiplied.contains(n->as<InputAttr>().index))
      found.insert(n);
  for (const Node* n : must_recompute)
    for (const Node* i : n->inputs) found.erase(input_below(i));
  return found;
}

/// Copies nodes of one graph into another; the caller has set the nodes at which it stops.
struct Copier {
  const Graph& from;
  Graph& to;
  std::unordered_map<const Node*, const Node*> made;

  const Node* operator()(const Node* root) {
    std::vector<const Node*> stack{root};
    while (!stack.empty()) {
      const Node* n = stack.back();
      if (made.count(n)) {
        stack.pop_back();
        continue;
      }
      bool ready = true;
      for (const Node* i : n->inputs)
        if (!made.count(i)) stack.push_back(i), ready = false;
      if (!ready) continue;
      stack.pop_back();
      std::vector<const Node*> inputs;
      for (const Node* i : n->inputs) inputs.push_back(made.at(i));
      const Node* copy = to.make(n->op, n->attrs, std::move(inputs), n->type);
      for (const std::string& origin : from.origins(n)) to.add_origin(copy, origin);
      made[n] = copy;
    }
    return made.at(root);
  }
};

/// Whether elementwise operations and movements make `n` of values `in` the arena (and at least one of them).
bool made_of(const Node* n, const std::unordered_set<const Node*>& in) {
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> stack{n};
  bool any = false;
  while (!stack.empty()) {
    const Node* at = stack.back();
    stack.pop_back();
    if (!seen.insert(at).second) continue;
    if (in.count(at)) {
      any = true;
      continue;
    }
    if (at->op == Op::Constant || at->op == Op::Iota) continue;
    if (!is_elementwise(at->op) && !is_movement(at->op)) return false;
    stack.insert(stack.end(), at->inputs.begin(), at->inputs.end());
  }
  return any;
}

}  // namespace

std::unordered_set<int64_t> multiplied_inputs(const Graph& graph) {
  std::unordered_set<int64_t> found;
  for (const Node* n : graph.live()) {
    if (n->op != Op::Contract) continue;
    for (const Node* operand : n->inputs) {
      while ((is_movement(operand->op) && operand->op != Op::Concat) || operand->op == Op::Cast || scales(operand)) {
        const Node* below = operand->in(0);  // of two, one is a constant
        operand = operand->inputs.size() == 2 && operand->op != Op::Pad && is_constant(below) ? operand->in(1) : below;
      }
      if (operand->op == Op::Input) found.insert(operand->as<InputAttr>().index);
    }
  }
  return found;
}

int64_t flops_of(const Node* contraction) { return 2 * contraction->type.numel() * contraction->in(0)->shape().back(); }

Cut cut_joint(const Graph& joint, int64_t primals, int64_t forward_outputs,
              const std::vector<const Node*>& must_recompute, int64_t deferred_bytes, bool fuse_chains, bool bits,
              double price, int64_t late_draws_from, int64_t vendor_flops, int64_t copied_bytes) {
  const std::vector<const Node*> live = joint.live();
  std::unordered_set<const Node*> of_tangents;  // depend on a tangent, a late primal, or a draw of the backward
  for (const Node* n : live) {
    bool depends = n->op == Op::Input && (n->as<InputAttr>().index >= primals || n->as<InputAttr>().late);
    for (const Node* i : n->inputs) depends = depends || of_tangents.count(i);
    if (depends && draws(n)) late_draws_from = std::min(late_draws_from, draw_of(n));
    if (depends) of_tangents.insert(n);
  }
  // Draws keep their order: behind one that the backward makes, all are the backward's.
  for (const Node* n : live) {
    bool late = draws(n) && draw_of(n) >= late_draws_from;
    for (const Node* i : n->inputs) late = late || of_tangents.count(i);
    if (late) of_tangents.insert(n);
  }

  std::unordered_map<const Node*, int64_t> forward_output_of;
  for (int64_t i = 0; i < forward_outputs; ++i)
    if (const Node* v = joint.outputs.at(i).value) {
      require(!of_tangents.count(v), "a forward output depends on a tangent");
      // A moved copy is not: what it was moved from serves the backward as well, and the copy may wait until somebody
      // reads it. Nor is an input: the caller may be given a view of it, of another shape, in that output's place.
      const Node* base = base_of(v);
      if (joint.outputs[i].strides.empty() && !is_movement(base->op) && base->op != Op::Input)
        forward_output_of.emplace(base, i);
    }

  // What the backward uses of values that no tangent reaches.
  std::unordered_set<const Node*> wanted;
  for (const Node* n : live)
    if (of_tangents.count(n))
      for (const Node* i : n->inputs)
        if (!of_tangents.count(i)) wanted.insert(i);
  for (size_t i = forward_outputs; i < joint.outputs.size(); ++i)
    if (const Node* v = joint.outputs[i].value; v && !of_tangents.count(v)) wanted.insert(v);

  std::unordered_map<const Node*, int> number;
  std::vector<const Node*> early;  // what the forward may compute
  for (const Node* n : live)
    if (!of_tangents.count(n)) number.emplace(n, static_cast<int>(number.size())), early.push_back(n);
  const std::unordered_set<const Node*> to_copy = primals_to_copy(joint, early, must_recompute, copied_bytes);
  const auto reads_a_primal = [&](const Node* n) { return to_copy.count(input_below(n)) > 0; };  // as the caller has it
  const std::unordered_set<const Node*> of_chains =
      fuse_chains ? chain_producers(early) : std::unordered_set<const Node*>{};
  const std::unordered_set<const Node*> as_bits = bits ? masks_as_bits(joint) : std::unordered_set<const Node*>{};
  const std::unordered_set<const Node*> once =
      price > 0 ? std::unordered_set<const Node*>{} : narrow_primals(early, vendor_flops);
  // What a product's kernel writes as it is read, and what nobody reads as the product has it.
  std::unordered_set<const Node*> in_order, products;
  if (fuse_chains) in_order = permutes_to_write(joint);
  for (const Node* permute : in_order)
    for (const Node* n : down_to_product(permute)) products.insert(n);
  const int source = 2 * static_cast<int>(number.size()), sink = source + 1;
  FlowNetwork net(sink + 1);
  const std::unordered_set<const Node*> never_kept(must_recompute.begin(), must_recompute.end());
  for (const auto& [n, i] : number) {
    const bool held = n->op == Op::Input;  // the caller keeps it alive anyway
    const bool free = n->op == Op::Constant || n->op == Op::Iota;
    // Computed again, whatever it costs; but a draw or a call done again would give something else.
    const bool checkpointed = never_kept.count(n) && n->op != Op::Random && class_of(n->op) != OpClass::Extern;
    const bool moved = is_movement(n->op) && !in_order.count(n);
    // an arena slot is that at least
    int64_t bytes = (as_bits.count(n) ? bytes_of_bits(n->type.numel()) : n->type.bytes()) + plan::kAlignment;
    if (held) bytes = to_copy.count(n) ? bytes : 0;
    else if (free || checkpointed || n->op == Op::Extern) bytes = kInfinite;
    else if (forward_output_of.count(base_of(n))) bytes = 1;
    // Same bytes either way: keep what was moved, not the moved copy (it would need a kernel, but where a product's
    // writes it), and rather the start of a cheap chain.
    else if (moved && (n->op == Op::Reshape || n->op == Op::Permute || n->op == Op::Broadcast)) bytes = kInfinite;
    else if (moved || scales(n) || products.count(n)) bytes += bytes / cost::kMovedCopy;
    else if (is_elementwise(n->op) && of_another_loop(n)) bytes += bytes / cost::kOfAnotherLoop;
    net.edge(2 * i, 2 * i + 1, bytes);
    if (!free && !checkpointed && (once.count(n) || (!may_recompute(n) && !of_chains.count(n)))) {
      const double share = static_cast<double>(i) / static_cast<double>(number.size());
      const bool for_a_price = price > 0 && n->op == Op::Contract;
      net.edge(source, 2 * i,
               for_a_price ? static_cast<int64_t>(std::min(
                                 1e15, price * static_cast<double>(flops_of(n)) * (1 + share / cost::kLatestSurcharge)))
                           : kInfinite);
    }
    if (held) net.edge(source, 2 * i, kInfinite);
    if (wanted.count(n) && !reads_a_primal(n)) net.edge(2 * i + 1, sink, kInfinite);
    for (const Node* input : n->inputs) net.edge(2 * number.at(input) + 1, 2 * i, kInfinite);
  }
  require(net.run(source, sink) < kInfinite,
          "no cut between forward and backward: a checkpointed value cannot be computed again");
  const std::vector<bool> late = net.reaches(sink);

  Cut cut;
  std::vector<const Node*> kept;  // in the order of the graph: in == early, out == late
  for (const Node* n : live)
    if (auto it = number.find(n); it != number.end() && !late[2 * it->second] && late[2 * it->second + 1])
      kept.push_back(n);

  // Beside a loss, an output that the backward wants lies in the arena, and the caller gets a copy of it if he ever
  // looks.
  const bool loss = std::any_of(joint.outputs.begin(), joint.outputs.begin() + forward_outputs, [](const Output& o) {
    return o.value && is_float(o.value->dtype()) && o.value->type.numel() == 1;
  });
  std::unordered_set<const Node*> moved_to_arena;
  std::vector<const Node*> reshaped;  // kept, but what lies in the arena is their base
  for (size_t i = 0; loss && i < kept.size(); ++i) {
    const Node *n = kept[i], *base = base_of(n);
    if (base->op == Op::Input || base->type.bytes() < deferred_bytes ||
        !(forward_output_of.erase(base) || moved_to_arena.count(base)))
      continue;
    const bool there = !moved_to_arena.insert(base).second;
    if (n != base) reshaped.push_back(n);
    if (there) kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(i--));
    else kept[i] = base;
  }

  // `again`: what the forward has computed and the backward computes again; `bwd`: all else of the backward, which has
  // the primals as the caller holds them.
  Copier fwd{joint, cut.forward, {}}, bwd{joint, cut.backward, {}}, again{joint, cut.backward, {}};
  Copier later{joint, cut.deferred, {}};
  cut.forward.input_count = primals;
  std::unordered_set<const Node*> in_arena, saved_outputs;
  for (const Node* n : kept) {
    if (n->op == Op::Input) continue;
    if (forward_output_of.count(base_of(n))) saved_outputs.insert(base_of(n));
    else in_arena.insert(n);
  }
  std::vector<bool> deferred(forward_outputs);
  std::unordered_set<const Node*> of_forward(in_arena);
  for (int64_t i = 0; i < forward_outputs; ++i) {
    const Output& o = joint.outputs[i];
    deferred[i] = o.value && o.value->type.bytes() >= deferred_bytes && !saved_outputs.count(base_of(o.value)) &&
                  made_of(o.value, in_arena);
    if (deferred[i]) cut.deferred_outputs.push_back(i);
    else if (o.value) of_forward.insert(o.value);
  }
  for (const Node* effect : joint.effects)
    if (!of_tangents.count(effect)) of_forward.insert(effect);
  // In the order of the joint graph, as the backward below: what belongs together (a chunk of the logits) is made
  // together.
  for (auto n = live.rbegin(); n != live.rend(); ++n)
    if (of_forward.count(*n)) of_forward.insert((*n)->inputs.begin(), (*n)->inputs.end());
  for (const Node* n : live)
    if (of_forward.count(n)) fwd(n);
  for (int64_t i = 0; i < forward_outputs; ++i) {
    const Output& o = joint.outputs[i];
    cut.forward.outputs.push_back({o.value && !deferred[i] ? fwd(o.value) : nullptr, o.strides});
  }
  for (const Node* effect : joint.effects)
    if (!of_tangents.count(effect)) cut.forward.effects.push_back(fwd(effect));
  // Results that the caller sees share autograd's version check with him: they are saved as they are, like primals.
  std::vector<const Node*> arena;
  std::unordered_map<int64_t, const Node*> held_at;  // by the primal's place
  const auto hold = [&](const Node* primal) {
    const InputAttr& given = primal->as<InputAttr>();
    if (held_at.emplace(given.index, nullptr).second) {
      const InputAttr attr{static_cast<int64_t>(cut.saved_inputs.size()), given.strides};
      held_at[given.index] = cut.backward.make(Op::Input, attr, {}, primal->type);
      cut.saved_inputs.push_back(given.index);
    }
    return bwd.made[primal] = held_at[given.index];
  };
  std::unordered_set<const Node*> read;
  for (const Node* n : wanted)
    if (reads_a_primal(n)) read.insert(input_below(n));
  for (const Node* n : live)
    if (read.count(n) || (n->op == Op::Input && n->as<InputAttr>().late)) hold(n);
  for (const Node* n : kept) {
    if (to_copy.count(n)) {
      arena.push_back(n);
    } else if (n->op == Op::Input) {
      again.made[n] = hold(n);
    } else if (auto it = forward_output_of.find(base_of(n)); it != forward_output_of.end()) {
      cut.saved_inputs.push_back(primals + it->second);
      const Type& as_output = joint.outputs[it->second].value->type;
      const Node* held =
          cut.backward.make(Op::Input, InputAttr{static_cast<int64_t>(cut.saved_inputs.size()) - 1, {}}, {}, as_output);
      again.made[n] = as_output == n->type ? held : cut.backward.make(Op::Reshape, NoAttr{}, {held}, n->type);
    } else {
      arena.push_back(n);
    }
  }
  const int64_t held = static_cast<int64_t>(cut.saved_inputs.size());
  const int64_t tangents = joint.input_count - primals;
  for (const Node* n : live)
    if (n->op == Op::Input && n->as<InputAttr>().index >= primals)
      bwd.made[n] = cut.backward.make(
          Op::Input, InputAttr{held + n->as<InputAttr>().index - primals, n->as<InputAttr>().strides}, {}, n->type);
  for (const Node* n : arena) {
    later.made[n] = cut.deferred.make(Op::Input, InputAttr{static_cast<int64_t>(cut.saved.size()), {}}, {}, n->type);
    again.made[n] = cut.backward.make(
        Op::Input, InputAttr{held + tangents + static_cast<int64_t>(cut.saved.size()), {}}, {}, n->type);
    cut.saved.push_back(n->type);
    cut.saved_nodes.push_back(n);
    cut.saved_as_bits.push_back(as_bits.contains(n));
    const Node* value = fwd(n);
    if (n->op == Op::Input) {
      const SliceAttr whole{Dims(n->shape().size(), 0), Dims(n->shape().size(), 1)};
      value = cut.forward.make(Op::Slice, whole, {value}, n->type);
    }
    cut.forward.outputs.push_back({value, {}});
  }
  for (const Node* n : reshaped)
    again.made[n] = cut.backward.make(Op::Reshape, NoAttr{}, {again.made.at(base_of(n))}, n->type);
  cut.backward.input_count = held + tangents + static_cast<int64_t>(cut.saved.size());
  cut.deferred.input_count = static_cast<int64_t>(cut.saved.size());
  for (int64_t i : cut.deferred_outputs)
    cut.deferred.outputs.push_back({later(joint.outputs[i].value), joint.outputs[i].strides});
  // In the order of the joint graph, what is computed again right before its first use: the gradient of a weight is
  // made beside the gradient that it comes from, which need not be kept then.
  const auto in_backward = [&](const Node* n) {
    return of_tangents.count(n) || reads_a_primal(n) ? bwd(n) : bwd.made[n] = again(n);
  };
  for (const Node* n : live) {
    if (!of_tangents.count(n)) continue;
    for (const Node* i : n->inputs) in_backward(i);
    bwd(n);
  }
  for (const Node* effect : joint.effects)
    if (of_tangents.count(effect)) cut.backward.effects.push_back(bwd(effect));
  for (size_t i = forward_outputs; i < joint.outputs.size(); ++i) {
    const Output& o = joint.outputs[i];
    cut.backward.outputs.push_back({o.value ? in_backward(o.value) : nullptr, o.strides});
  }
  return cut;
}

}  // namespace trainc::schedule
