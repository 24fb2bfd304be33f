#include "schedule/values.h"

#include <algorithm>

#include "cost/fusion.h"
#include "cost/updates.h"
#include "schedule/guards.h"
#include "schedule/schedule.h"
#include "schedule/vendor_operands.h"

namespace trainc::schedule {
namespace {

/// Costs nothing where it is read, and halves what is stored: what it widens is kept instead.
bool widening(const Node* n) {
  return n->op == Op::Cast && n->dtype() == DType::F32 && n->in(0)->dtype() == DType::BF16;
}

/// Whether an element is at another place of its row-major order than what it is read from.
bool reorders(const Node* n) {
  if (n->op == Op::Gather) return true;
  return is_movement(n->op) && n->op != Op::Reshape && !is_copy(n);
}

/// Whether a reshape does more than to put in axes of size 1, or take them out.
bool cuts_anew(const Node* reshape) {
  const auto without_ones = [](Dims shape) { return std::erase(shape, 1), shape; };
  return reshape->op == Op::Reshape && without_ones(reshape->shape()) != without_ones(reshape->in(0)->shape());
}

/// Index arithmetic without a condition. A whole slice is none: `prepare` wrote it for a copy.
bool plain_movement(const Node* n) {
  switch (n->op) {
    case Op::Reshape:
    case Op::Permute:
    case Op::Broadcast:
    case Op::Window:
    case Op::Reverse: return true;
    case Op::Slice: return !is_copy(n);
    default: return false;
  }
}

class ValueChooser {
 public:
  ValueChooser(const Graph& graph, const std::vector<const Node*>& live, const VendorLibrary& library)
      : graph_(graph), live_(live), library_(library) {}

  Values run() {
    count_uses();
    force_values();
    choose();
    return std::move(values_);
  }

 private:
  void count_uses() {
    for (const Node* n : live_)
      for (const Node* i : n->inputs) ++uses_[i];
    for (const Output& o : graph_.outputs)
      if (o.value) ++uses_[o.value];
    for (auto n = live_.rbegin(); n != live_.rend(); ++n)
      if (widening(*n)) uses_[(*n)->in(0)] += uses_[*n] - 1;
  }

  /// Values whatever they cost: what somebody wants in memory.
  void force_values() {
    VendorEpilogues epilogues(uses_, library_.refused);
    for (const Output& o : graph_.outputs)
      if (o.value && o.value->op != Op::Input) forced_.insert(base_of(o.value));
    forced_.insert(graph_.also_wanted.begin(), graph_.also_wanted.end());
    for (const Node* n : live_)
      if (n->op == Op::Concat)
        for (const Node* i : n->inputs) put_together_.insert(base_of(i));
    for (const Node* n : live_) {
      if (n->op == Op::Extern)
        for (const Node* i : n->inputs) forced_.insert(base_of(i));
      if (adds_contractions(n)) forced_.insert(n);
      if (chooses_sum(n)) {
        forced_.insert(n);
        for (const Node* other : {base_of(n->in(1)), base_of(n->in(2))})
          if (class_of(other->op) != OpClass::Leaf) forced_.insert(other);
      }
      if (n->op == Op::Gather) {
        force_base(n->in(0), cost::kCheapAgain);
        if (picks(n)) forced_.insert(n);
      }
      if (n->op == Op::Scatter || n->op == Op::Scan)
        for (const Node* i : n->inputs) force_base(i, cost::kCheapAgain);
      if (puts_few(n))
        for (const Node* i : {base_of(n->in(1)), base_of(n->in(2))})
          if (computed_of(i, base_of(n->in(0)))) forced_.insert(i);
      if (n->op == Op::Window) force_base(n->in(0), 0);  // windows read an element many times: it is in memory
      if (for_vendor(n, library_.least_flops)) {
        values_.vendor.insert(n);
        epilogues.begin(n);
        for (const Node* i : n->inputs) forced_.insert(vendor_source(i));
      } else if (n->op == Op::Contract) {
        for (const Node* i : n->inputs) force_operand(i);
      }
      if (!values_.vendor.empty()) epilogues.extend(n);
      if (n->op == Op::Broadcast && n->type.numel() > n->in(0)->type.numel()) force_base(n->in(0), cost::kCheapAgain);
    }
    values_.vendor_epilogues = epilogues.found(forced_);
    for (const auto& [contract, epilogue] : values_.vendor_epilogues) {
      if (epilogue.result != contract) values_.vendor_results[epilogue.result] = contract;
      forced_.insert(epilogue.result);
      if (epilogue.bias) forced_.insert(epilogue.bias);
      if (!epilogue.sums) continue;
      forced_.insert(epilogue.sums);
      for (const Node* n : {epilogue.sums, epilogue.reduce()}) values_.vendor_sums[n] = contract;
    }
  }

  void choose() {
    for (const Node* n : live_) {
      if (operands_.count(n) && uses_[n] > 1 && is_elementwise(n->op) && reads_several(n)) forced_.insert(n);
      int64_t cost = op_cost(n->op);
      // Checks and selections by position are statements: a contraction's operand is one expression, and has no room
      // for them.
      bool statements = n->op == Op::Gather || n->op == Op::Pad || n->op == Op::Concat;
      int64_t size = class_of(n->op) == OpClass::Leaf
                         ? 0
                         : std::max<int64_t>(cost, n->op == Op::Concat ? static_cast<int64_t>(n->inputs.size()) : 1);
      Reorderings reordered{0, reorders(n)};
      for (const Node* i : n->inputs) {
        if (values_.nodes.count(i)) continue;
        cost += cost_[i], size += values_.work[i], statements = statements || statements_.count(i);
        reordered.reshaped = std::max(reordered.reshaped, reorderings_[i].reshaped),
        reordered.since = reordered.since || reorderings_[i].since;
      }
      if (reordered.since && cuts_anew(n)) ++reordered.reshaped, reordered.since = false;
      const bool long_ = cost > cost::kMostInlined || size > cost::kLargestExpression ||
                         (reorders(n) && reordered.reshaped >= cost::kMostReorderings);
      bool value = false;
      switch (class_of(n->op)) {
        case OpClass::Leaf: value = n->op == Op::Random; break;
        case OpClass::Elementwise:
          if (widening(n)) {
            value = forced_.count(n);
            break;
          }
          value = forced_.count(n) || long_ || (cost > cost::kCheapAgain && uses_[n] > 1) || inline_limit(n) < cost ||
                  (statements && operands_.count(n));
          break;
        case OpClass::Movement:
          value = n->op != Op::Reshape &&
                  (forced_.count(n) || is_copy(n) || (n->op == Op::Concat && uses_[n] > 1) || long_);
          break;
        case OpClass::Indexed: value = n->op == Op::Scatter || forced_.count(n) || long_; break;
        case OpClass::Reduction:
        case OpClass::Contraction:
        case OpClass::Extern: value = true; break;
      }
      // A reshape is no value itself: what it reshapes is.
      if (forced_.count(n) && !value && n->op != Op::Input && n->op != Op::Reshape) value = true;
      if (value) values_.nodes.insert(n);
      else if (statements) statements_.insert(n);
      cost_[n] = std::min<int64_t>(cost, 1 << 20);
      values_.work[n] = std::min<int64_t>(size, 1 << 20);
      reorderings_[n] = reordered;
    }
  }

  /// Whether little is gathered out of a contraction's large result (logits, at the labels; a bias may be added to
  /// them). It is a value then: read at once, for it is to be overwritten.
  static bool picks(const Node* gather) {
    const Node* n = gather->in(0);
    for (;;) {
      const bool two = is_elementwise(n->op) && n->inputs.size() == 2;
      if (n->op == Op::Reshape || n->op == Op::Cast) n = n->in(0);
      else if (two && n->in(1)->op == Op::Broadcast) n = n->in(0);
      else if (two && n->in(0)->op == Op::Broadcast) n = n->in(1);
      else break;
    }
    return n->op == Op::Contract && gather->type.numel() * cost::kPicked <= n->type.numel();
  }

  /// Whether few elements take the place of others, which might lie where those do. What is put there, and where, is
  /// made before then: a kernel that read the tensor beside would have to write another one.
  static bool puts_few(const Node* n) {
    return n->op == Op::Scatter && n->as<ScatterAttr>().kind == ScatterKind::Last &&
           n->in(2)->type.numel() <= n->type.numel() / cost::kFewOf;
  }
  /// Whether `n`, inlined, might read `tensor`.
  static bool computed_of(const Node* n, const Node* tensor) {
    std::unordered_set<const Node*> seen;
    std::vector<const Node*> stack{n};
    while (!stack.empty()) {
      const Node* at = stack.back();
      stack.pop_back();
      if (at == tensor) return true;
      if (!seen.insert(at).second || !(is_elementwise(at->op) || is_movement(at->op) || at->op == Op::Gather)) continue;
      stack.insert(stack.end(), at->inputs.begin(), at->inputs.end());
    }
    return false;
  }

  /// Whether `n` adds contractions up: each is added to the sum so far as it is made (in place), or all would be kept
  /// for the last.
  bool adds_contractions(const Node* n) {
    if (n->op != Op::Add) return false;
    const auto summand = [&](const Node* i) { return i->op == Op::Contract || sums_of_contractions_.count(i); };
    if (!summand(base_of(n->in(0))) || !summand(base_of(n->in(1)))) return false;
    sums_of_contractions_.insert(n);
    return true;
  }

  /// Whether `n` chooses, by a flag, between a sum of contractions and the sum so far. Both are values, so that it is
  /// written in place of the latter, and passed over where that one is chosen (guards.h). What is put together with
  /// others is chosen as that is done.
  bool chooses_sum(const Node* n) {
    if (!flag_of(n) || put_together_.count(n)) return false;
    const Node* sum = base_of(n->in(1));
    if (sum->op != Op::Contract && !sums_of_contractions_.count(sum)) return false;
    sums_of_contractions_.insert(n);
    return true;
  }

  /// Whether `n`, inlined, would keep more memory in use than it takes itself: two or more tensors of its size.
  bool reads_several(const Node* n) const {
    std::unordered_set<const Node*> tensors, seen;
    std::vector<const Node*> stack{n};
    while (!stack.empty() && tensors.size() < 2) {
      const Node* at = stack.back();
      stack.pop_back();
      if (!seen.insert(at).second || at->op == Op::Broadcast) continue;
      if (at != n && (values_.nodes.count(at) || at->op == Op::Input)) {
        if (at->type.bytes() >= n->type.bytes()) tensors.insert(base_of(at));
        continue;
      }
      stack.insert(stack.end(), at->inputs.begin(), at->inputs.end());
    }
    return tensors.size() >= 2;
  }

  /// What lies under plain movements of `n` must be cheap, or be a value.
  void force_base(const Node* n, int64_t limit) {
    while (plain_movement(n) || widening(n)) n = n->in(0);
    if (is_elementwise(n->op)) {
      auto [it, first] = inline_limit_.emplace(n, limit);
      if (!first) it->second = std::min(it->second, limit);
    } else if (is_movement(n->op)) {
      forced_.insert(n);
    }
  }
  void force_operand(const Node* n) {
    while (plain_movement(n) || widening(n) || (n->op == Op::Cast && is_movement(n->in(0)->op) && !narrows(n)))
      n = n->in(0);
    operands_.insert(n);
    if (n->op == Op::Gather) forced_.insert(n);
    else force_base(n, cost::kCheapOperand);
  }

  /// Whether a cast makes what is computed smaller: then its result is what lies in memory, not what it was made of.
  static bool narrows(const Node* cast) {
    const Node* n = cast->in(0);
    while (plain_movement(n)) n = n->in(0);
    return is_elementwise(n->op) && size_of(cast->dtype()) < size_of(n->dtype());
  }

  int64_t inline_limit(const Node* n) const {
    auto it = inline_limit_.find(n);
    return it == inline_limit_.end() ? cost::kMostInlined : it->second;
  }

  const Graph& graph_;
  const std::vector<const Node*>& live_;
  const VendorLibrary& library_;
  std::unordered_map<const Node*, int> uses_;
  struct Reorderings {
    int64_t reshaped = 0;  // reshapes of what has been reordered, one over another
    bool since = false;    // reordered again after the last of them
  };
  std::unordered_map<const Node*, Reorderings> reorderings_;  // in the expression that makes a node
  std::unordered_map<const Node*, int64_t> cost_;             // of the expression that makes a node: its work
  std::unordered_set<const Node*> forced_, operands_, statements_, sums_of_contractions_, put_together_;
  std::unordered_map<const Node*, int64_t> inline_limit_;  // an elementwise node may be inlined up to this cost
  Values values_;
};

}  // namespace

Values choose_values(const Graph& graph, const std::vector<const Node*>& live, const VendorLibrary& library) {
  return ValueChooser(graph, live, library).run();
}

}  // namespace trainc::schedule
