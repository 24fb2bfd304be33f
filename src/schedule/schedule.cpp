#include "schedule/schedule.h"

#include <algorithm>
#include <cstdint>
#include <set>

#include "cost/walks.h"
#include "graph/remarks.h"
#include "schedule/group_dag.h"
#include "schedule/stream.h"

namespace trainc::schedule {
namespace {

// Work that is cheaper to do again at each use than to keep: a few additions, never a division or worse.
constexpr int64_t kCheap = 3;
// As a contraction's operand, read some times while it is packed.
constexpr int64_t kCheapOperand = 4;
// An expression of this much work becomes a value in any case: code must stay readable and compile quickly.
constexpr int64_t kLongest = 160;
// The same, of what costs nothing to compute, but is index arithmetic: nodes, counted as often as they are used.
constexpr int64_t kLargestExpression = 512;
// Reshapes of what has been turned, one over another: each divides the index that the one above it has made, several times over, so that index arithmetic
// doubles with each that cuts across the axes below (64 bytes of it to 2 MB in eight steps).
constexpr int64_t kMostTurns = 4;
// Work that one kernel may hold (a transcendental counts 16, see op_cost). A split costs a store and a load of what is wanted behind it, which is little beside
// this many operations; but the code generator's time for one function grows with the square of its length. Measured (Zen 5, a chain of h = tanh(h * y + x), 18
// each; time an operation over that of 8 of them): 64 of them 1.2, 128 2, 256 4, 512 10. Layers of a network have up to 300: attention's backward.
constexpr int64_t kLargestKernel = 1000;
// Groups that become one stream: attention's backward has six.
constexpr size_t kLargestStream = 16;
// Sums over columns that may be one walk are looked for among so many that read the same: what shares it is made close together, and all pairs of a long
// program would be too many.
constexpr size_t kNearSums = 64;
// Sums over columns that are one walk.
constexpr size_t kMostSums = 4;

// One element of so many: a label's of a row of logits.
constexpr int64_t kLittle = 64;

/// Costs nothing where it is read, and halves what is stored: what it widens is kept instead.
bool widening(const Node* n) { return n->op == Op::Cast && n->dtype() == DType::F32 && n->in(0)->dtype() == DType::BF16; }

/// Whether an element is at another place of its row-major order than what it is read from.
bool turns(const Node* n) {
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
    case Op::Reshape: case Op::Permute: case Op::Broadcast: case Op::Window: case Op::Reverse: return true;
    case Op::Slice: return !is_copy(n);
    default: return false;
  }
}

// Why something is not done, for a remark; nullptr: nothing speaks against it.
using Refusal = const char*;
constexpr Refusal kTooLarge = "the kernel would hold too much work", kUnaligned = "it reads other elements than the one at its place",
                  kCircle = "another kernel must run between them", kOtherSize = "they have different numbers of elements";

/// Why no value is made in the kernel of such a group that it reads: nullptr for those that take some in.
Refusal closed(GroupKind kind) {
  switch (kind) {
    case GroupKind::Rows: case GroupKind::Contract: return nullptr;
    case GroupKind::Columns: return "a sum over leading axes is whole at its kernel's end alone";
    case GroupKind::Stream: return "a matmul chain takes nothing in";
    case GroupKind::Scan: return "a scan is a kernel of its own";
    case GroupKind::Scatter: return "a scatter is a kernel of its own";
    case GroupKind::Concat: return "a concatenation is a kernel of its own";
    case GroupKind::Random: return "a draw is a step of its own";
    case GroupKind::Extern: return "PyTorch runs what it reads";
  }
  return nullptr;
}

class Scheduler {
 public:
  Scheduler(const Graph& graph, bool streams, Remarks* remarks) : graph_(graph), streams_(streams), remarks_(graph, "schedule", remarks), live_(graph.live()) {}

  Schedule run() {
    count_uses();
    choose_values();
    order_draws();
    for (const Node* n : live_)
      if (out_.values.count(n)) place(n);
    merge_columns();
    if (streams_) find_streams();
    remark_on_groups();
    order();
    find_stored();
    return std::move(out_);
  }

 private:
  // --- which nodes are values
  void count_uses() {
    for (const Node* n : live_)
      for (const Node* i : n->inputs) ++uses_[i];
    for (const Output& o : graph_.outputs)
      if (o.value) ++uses_[o.value];
    for (auto n = live_.rbegin(); n != live_.rend(); ++n)
      if (widening(*n)) uses_[(*n)->in(0)] += uses_[*n] - 1;
  }

  void choose_values() {
    std::unordered_set<const Node*> forced;
    for (const Output& o : graph_.outputs)
      if (o.value && o.value->op != Op::Input) forced.insert(base_of(o.value));
    for (const Node* n : live_) {
      if (n->op == Op::Extern)
        for (const Node* i : n->inputs) forced.insert(base_of(i));
      if (adds_contractions(n)) forced.insert(n);
      if (n->op == Op::Gather) {
        force_base(n->in(0), kCheap, forced);
        if (picks(n)) forced.insert(n);
      }
      if (n->op == Op::Scatter || n->op == Op::Scan)
        for (const Node* i : n->inputs) force_base(i, kCheap, forced);
      if (n->op == Op::Window) force_base(n->in(0), 0, forced);  // windows read an element many times: it is in memory
      if (n->op == Op::Contract)
        for (const Node* i : n->inputs) force_operand(i, forced);
      if (n->op == Op::Broadcast && n->type.numel() > n->in(0)->type.numel()) force_base(n->in(0), kCheap, forced);
    }
    for (const Node* n : live_) {
      if (operands_.count(n) && uses_[n] > 1 && is_elementwise(n->op) && reads_several(n)) forced.insert(n);
      int64_t cost = op_cost(n->op);
      // Checks and selections by position are statements: a contraction's operand is one expression, and has no room for them.
      bool statements = n->op == Op::Gather || n->op == Op::Pad || n->op == Op::Concat;
      int64_t size = class_of(n->op) == OpClass::Leaf ? 0 : std::max<int64_t>(cost, n->op == Op::Concat ? static_cast<int64_t>(n->inputs.size()) : 1);
      Turns turned{0, turns(n)};
      for (const Node* i : n->inputs) {
        if (out_.values.count(i)) continue;
        cost += cost_[i], size += size_[i], statements = statements || statements_.count(i);
        turned.reshaped = std::max(turned.reshaped, turns_[i].reshaped), turned.since = turned.since || turns_[i].since;
      }
      if (turned.since && cuts_anew(n)) ++turned.reshaped, turned.since = false;
      const bool long_ = cost > kLongest || size > kLargestExpression || (turns(n) && turned.reshaped >= kMostTurns);
      bool value = false;
      switch (class_of(n->op)) {
        case OpClass::Leaf: value = n->op == Op::Random; break;
        case OpClass::Elementwise:
          if (widening(n)) { value = forced.count(n); break; }
          value = forced.count(n) || long_ || (cost > kCheap && uses_[n] > 1) || inline_limit(n) < cost || (statements && operands_.count(n));
          break;
        case OpClass::Movement:
          value = n->op != Op::Reshape && (forced.count(n) || is_copy(n) || (n->op == Op::Concat && uses_[n] > 1) || long_);
          break;
        case OpClass::Indexed: value = n->op == Op::Scatter || forced.count(n) || long_; break;
        case OpClass::Reduction:
        case OpClass::Contraction:
        case OpClass::Extern: value = true; break;
      }
      // A reshape is no value itself: what it reshapes is.
      if (forced.count(n) && !value && n->op != Op::Input && n->op != Op::Reshape) value = true;
      if (value) out_.values.insert(n);
      else if (statements) statements_.insert(n);
      cost_[n] = std::min<int64_t>(cost, 1 << 20);
      size_[n] = std::min<int64_t>(size, 1 << 20);
      turns_[n] = turned;
    }
  }

  /// Whether little is gathered out of a contraction's large result (logits, at the labels). It is a value then: read at once, for it is to be overwritten.
  static bool picks(const Node* gather) {
    const Node* n = gather->in(0);
    while (n->op == Op::Reshape || n->op == Op::Cast) n = n->in(0);
    return n->op == Op::Contract && gather->type.numel() * kLittle <= n->type.numel();
  }

  /// Whether `n` adds contractions up: each is added to the sum so far as it is made (in place), or all would be kept for the last.
  bool adds_contractions(const Node* n) {
    if (n->op != Op::Add) return false;
    const auto summand = [&](const Node* i) { return i->op == Op::Contract || sums_of_contractions_.count(i); };
    if (!summand(base_of(n->in(0))) || !summand(base_of(n->in(1)))) return false;
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
      if (at != n && (out_.values.count(at) || at->op == Op::Input)) {
        if (at->type.bytes() >= n->type.bytes()) tensors.insert(base_of(at));
        continue;
      }
      stack.insert(stack.end(), at->inputs.begin(), at->inputs.end());
    }
    return tensors.size() >= 2;
  }

  /// What lies under plain movements of `n` must be cheap, or be a value.
  void force_base(const Node* n, int64_t limit, std::unordered_set<const Node*>& forced) {
    while (plain_movement(n) || widening(n)) n = n->in(0);
    if (is_elementwise(n->op)) {
      auto [it, first] = inline_limit_.emplace(n, limit);
      if (!first) it->second = std::min(it->second, limit);
    } else if (is_movement(n->op)) {
      forced.insert(n);
    }
  }
  void force_operand(const Node* n, std::unordered_set<const Node*>& forced) {
    while (plain_movement(n) || widening(n) || (n->op == Op::Cast && is_movement(n->in(0)->op) && !narrows(n))) n = n->in(0);
    operands_.insert(n);
    if (n->op == Op::Gather) forced.insert(n);
    else force_base(n, kCheapOperand, forced);
  }

  /// Whether a cast makes what is computed smaller: then its result is what lies in memory, not what it was made of.
  static bool narrows(const Node* cast) {
    const Node* n = cast->in(0);
    while (plain_movement(n)) n = n->in(0);
    return is_elementwise(n->op) && size_of(cast->dtype()) < size_of(n->dtype());
  }

  int64_t inline_limit(const Node* n) const {
    auto it = inline_limit_.find(n);
    return it == inline_limit_.end() ? kLongest : it->second;
  }

  // --- groups
  /// Draws run one after the other, in the program's order. Brings `live_` into an order in which that holds as well.
  void order_draws() {
    std::vector<std::pair<int64_t, const Node*>> draws;
    for (const Node* n : live_) {
      if (n->op == Op::Random) draws.push_back({n->as<RandomAttr>().draw, n});
      if (n->op == Op::Extern && n->as<ExternAttr>().random) draws.push_back({n->as<ExternAttr>().draw, n});
    }
    std::sort(draws.begin(), draws.end());
    bool ordered = true;
    for (size_t i = 1; i < draws.size(); ++i) {
      drawn_before_[draws[i].second] = draws[i - 1].second;
      ordered = ordered && draws[i - 1].second->id < draws[i].second->id;
    }
    if (ordered) return;
    std::vector<const Node*> order, stack;
    std::unordered_set<const Node*> done, begun;
    for (const Node* root : live_) {
      stack.push_back(root);
      while (!stack.empty()) {
        const Node* n = stack.back();
        const bool again = !begun.insert(n).second;
        if (again) {
          stack.pop_back();
          if (done.insert(n).second) order.push_back(n);
          continue;
        }
        const auto wait_for = [&](const Node* i) {
          require(!begun.count(i) || done.count(i), "a draw needs the result of a later one");
          if (!done.count(i)) stack.push_back(i);
        };
        for (const Node* i : n->inputs) wait_for(i);
        if (auto it = drawn_before_.find(n); it != drawn_before_.end()) wait_for(it->second);
      }
    }
    live_ = std::move(order);
  }

  int new_group(GroupKind kind, const Node* n, int64_t rows = 0, int64_t columns = 1) {
    groups_.push_back({kind, {n}, rows, columns});
    work_.push_back({kind == GroupKind::Contract ? 0 : size_.at(n), is_sum(n)});  // a product's operands are packed by loops of their own
    return dag_.add(before(n));
  }

  /// What a group's code is made of.
  struct Work {
    int64_t operations = 0;  // each value's once
    int64_t sums = 0;        // each of which ends a walk over the columns
    Work operator+(const Work& other) const { return {operations + other.operations, sums + other.sums}; }
  };
  Work work_of(const Node* n) const { return {size_.at(n), is_sum(n)}; }
  /// Whether that much work over rows of so many columns is code for one kernel. Values that are not kept from walk to walk are computed again in each.
  bool fits(const Work& work, int64_t columns) const {
    const bool again = columns * size_of(DType::F32) > (streams_ ? cost::kScratchRow : cost::kSharedRows / 8);
    return work.operations * (again ? std::max<int64_t>(1, work.sums) : 1) <= kLargestKernel;
  }
  int find(int g) const { return dag_.find(g); }
  /// The groups that run before `n` is made.
  std::vector<int> before(const Node* n) const {
    std::vector<int> groups;
    for (const Read& r : reads_.at(n))
      if (int g = group(r.value); g >= 0) groups.push_back(g);
    if (auto it = drawn_before_.find(n); it != drawn_before_.end()) groups.push_back(group(it->second));
    return groups;
  }
  int group(const Node* n) const {
    auto it = group_of_.find(n);
    return it == group_of_.end() ? -1 : find(it->second);
  }

  void place(const Node* n) {
    reads_[n] = reads_of(n, out_.values, n->type.numel(), 1);
    switch (n->op) {
      case Op::Contract: group_of_[n] = new_group(GroupKind::Contract, n); return;
      case Op::Scan: group_of_[n] = new_group(GroupKind::Scan, n); return;
      case Op::Scatter: group_of_[n] = new_group(GroupKind::Scatter, n); return;
      case Op::Random: group_of_[n] = new_group(GroupKind::Random, n); return;
      case Op::Extern: group_of_[n] = new_group(GroupKind::Extern, n); return;
      case Op::Result: group_of_[n] = group(n->in(0)); groups_[group_of_[n]].values.push_back(n); return;
      case Op::Concat: group_of_[n] = new_group(GroupKind::Concat, n); return;
      case Op::Reduce:
        if (is_sum(n) && !is_trailing_reduce(n)) { group_of_[n] = new_group(GroupKind::Columns, n); return; }
        break;
      default: break;
    }
    place_in_rows(n);
  }

  struct Domain { int64_t rows, columns; };

  void place_in_rows(const Node* n) {
    const bool sum = is_sum(n);
    const int64_t own_rows = n->type.numel();
    const int64_t own_columns = sum && own_rows ? n->in(0)->type.numel() / own_rows : 1;
    if (n->type.numel() == 0) { group_of_[n] = new_group(GroupKind::Rows, n, own_rows, own_columns); return; }
    // Candidates: groups of what it reads, the latest first; they are the nearest in time and memory.
    std::vector<int> candidates;
    for (const Read& r : reads_[n])
      if (int g = group(r.value); g >= 0 && std::find(candidates.begin(), candidates.end(), g) == candidates.end()) candidates.push_back(g);
    std::sort(candidates.rbegin(), candidates.rend());
    // A group that already walks the rows is a better home than a contraction's epilogue: it has the row's sums at hand.
    std::stable_partition(candidates.begin(), candidates.end(), [&](int g) { return groups_[g].kind == GroupKind::Rows; });
    int home = -1;
    for (int g : candidates) {
      if (home < 0) {
        if (const Refusal why = refuse_join(n, g, sum, own_rows, own_columns)) {
          apart(n, g, why);
          continue;
        }
        groups_[g].values.push_back(n);
        work_[g] = work_[g] + work_of(n);
        dag_.follow(g, before(n));
        group_of_[n] = home = g;
      } else if (g != home) {
        if (const Refusal why = unite(home, g)) apart(n, g, why);
        else home = find(home);
      }
    }
    if (home < 0) group_of_[n] = new_group(GroupKind::Rows, n, own_rows, own_columns);
  }

  /// Why `n` cannot be made in group g. It can (and g then has the domain for it) with the same domain, all its reads of g aligned, and no way from g
  /// out and back to n.
  Refusal refuse_join(const Node* n, int g, bool sum, int64_t own_rows, int64_t own_columns) {
    Group& to = groups_[g];
    if (const Refusal why = closed(to.kind)) return why;
    if (to.kind == GroupKind::Contract) {
      if (sum) return "a sum of a contraction's result is no epilogue";
      if (n->type.numel() != to.values[0]->type.numel()) return kOtherSize;
      if (!is_elementwise(n->op)) return "a contraction's epilogue is elementwise";
      if (!fits(work_[g] + work_of(n), 1)) return kTooLarge;
      if (!aligned(n, g, n->type.numel(), 1)) return kUnaligned;
      return dag_.circular({g}, before(n)) ? kCircle : nullptr;
    }
    Domain domain{to.rows, to.columns};
    const int64_t all = to.rows * to.columns;
    if (sum) {
      if (own_rows * own_columns != all) return kOtherSize;
      if (to.columns == 1) domain = {own_rows, own_columns};
      else if (to.columns != own_columns) return "their rows differ in length";
    } else if (n->type.numel() != all && n->type.numel() != to.rows) {
      return kOtherSize;
    }
    if (!fits(work_[g] + work_of(n), domain.columns)) return kTooLarge;
    if (!aligned(n, g, domain.rows, domain.columns)) return kUnaligned;
    if (domain.columns != to.columns)
      for (const Node* v : to.values)
        if (!aligned(v, g, domain.rows, domain.columns)) return kUnaligned;
    if (dag_.circular({g}, before(n))) return kCircle;
    to.rows = domain.rows, to.columns = domain.columns;
    return nullptr;
  }

  bool aligned(const Node* n, int g, int64_t rows, int64_t columns) const {
    const std::vector<Read>& any = reads_.at(n);
    if (std::none_of(any.begin(), any.end(), [&](const Read& r) { return group(r.value) == g; })) return true;
    for (const Read& r : reads_of(n, out_.values, rows, columns)) {
      if (group(r.value) != g) continue;
      if (r.access == Access::Other) return false;
      const int64_t elements = r.access == Access::Row && columns > 1 ? rows : rows * columns;
      if (r.value->type.numel() != elements) return false;
    }
    return true;
  }

  /// Unites two row groups of one domain, or says why not.
  Refusal unite(int a, int b) {
    for (int g : {a, b})
      if (const Refusal why = closed(groups_[g].kind)) return why;
    if (groups_[a].kind != GroupKind::Rows || groups_[b].kind != GroupKind::Rows) return "a contraction's kernel takes in no other kernel";
    if (groups_[a].rows * groups_[a].columns != groups_[b].rows * groups_[b].columns) return kOtherSize;
    if (groups_[a].rows != groups_[b].rows || groups_[a].columns != groups_[b].columns) return "their rows differ in length";
    if (groups_[a].columns == 1) return "they would share nothing but the loop";
    if (!fits(work_[a] + work_[b], groups_[a].columns)) return kTooLarge;
    for (int g : {a, b})
      for (const Node* v : groups_[g].values)
        for (int other : {a, b})
          if (!aligned(v, other, groups_[a].rows, groups_[a].columns)) return kUnaligned;
    if (dag_.circular({a, b})) return kCircle;
    join({a, b});
    return nullptr;
  }
  /// Makes groups one: that of the lowest number.
  int join(std::vector<int> groups) {
    std::sort(groups.begin(), groups.end());
    dag_.merge(groups);
    auto& values = groups_[groups[0]].values;
    for (size_t i = 1; i < groups.size(); ++i) {
      values.insert(values.end(), groups_[groups[i]].values.begin(), groups_[groups[i]].values.end());
      groups_[groups[i]].values.clear();
      work_[groups[0]] = work_[groups[0]] + work_[groups[i]];
    }
    std::sort(values.begin(), values.end(), [](const Node* x, const Node* y) { return x->id < y->id; });
    return groups[0];
  }

  /// Sums over the same axes of values of the same shape, that read something in common, in one walk over memory.
  void merge_columns() {
    std::vector<int> columns;
    for (int g = 0; g < static_cast<int>(groups_.size()); ++g)
      if (find(g) == g && groups_[g].kind == GroupKind::Columns) columns.push_back(g);
    const auto summed = [](const Node* sum, const Read& r) { return r.value->type.numel() == sum->in(0)->type.numel(); };
    std::unordered_map<const Node*, std::vector<int>> readers;  // of a value of the size of what is summed: in ascending order
    for (int g : columns)
      for (const Read& r : reads_[groups_[g].values[0]])
        if (auto& of = readers[r.value]; summed(groups_[g].values[0], r) && (of.empty() || of.back() != g)) of.push_back(g);
    for (int a : columns) {
      if (find(a) != a) continue;
      std::set<int> near;
      for (const Read& r : reads_[groups_[a].values[0]]) {
        const std::vector<int>& of = readers[r.value];
        auto it = std::upper_bound(of.begin(), of.end(), a);
        for (size_t k = 0; k < kNearSums && it != of.end(); ++k, ++it) near.insert(*it);
      }
      for (int b : near) {
        if (find(b) != b) continue;
        const Node *x = groups_[a].values[0], *y = groups_[b].values[0];
        if (x->in(0)->shape() != y->in(0)->shape() || x->as<ReduceAttr>().axes != y->as<ReduceAttr>().axes) {
          apart(y, a, "they sum the same tensor over different axes");
          continue;
        }
        if (groups_[a].values.size() >= kMostSums) {
          apart(y, a, "a kernel makes four sums over leading axes at most");
          continue;
        }
        bool chained = false;  // chained: the second needs the first one's result
        for (const Node* n : groups_[b].values)
          for (const Read& r : reads_[n]) chained = chained || group(r.value) == a;
        for (const Node* n : groups_[a].values)
          for (const Read& r : reads_[n]) chained = chained || group(r.value) == b;
        if (chained) continue;
        if (!fits(work_[a] + work_[b], 1)) apart(y, a, kTooLarge);
        else if (dag_.circular({a, b})) apart(y, a, kCircle);
        else join({a, b});
      }
    }
  }

  // --- streams
  /// Grows each contraction that makes a matrix by what works on the same matrix, then by what reads it; a stream where something does.
  void find_streams() {
    find_neighbours();
    for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
      if (find(g) != g || groups_[g].kind != GroupKind::Contract) continue;
      const OrRefused<Matrix> matrix = matrix_of(groups_[g].values[0]);
      if (!matrix) {
        if (remarks_ && begins_chain(g)) no_chain(g, matrix.why());
        continue;
      }
      std::vector<int> inside{g}, sinks;
      for (bool grown = true; grown;) {
        grown = false;
        for (int x : candidates(inside, *matrix))
          if (works_on(x, inside, *matrix) && !refuse_more(inside, x, matrix->columns)) inside.push_back(x), grown = true;
      }
      const std::vector<int> makers = inside;
      if (!works_on_rows(makers, *matrix)) {
        if (remarks_ && begins_chain(g)) no_chain(g, "no value of a row goes into a value of its elements");
        continue;
      }
      bool told = !remarks_;
      for (int x : neighbours(inside)) {
        Refusal why = refuse_drain(x, makers, *matrix);
        if (!why && (reads(x, sinks) || reads_any(inside, x))) why = "one end of the chain reads another";
        if (!why) why = refuse_more(inside, x, matrix->columns);
        if (!why) inside.push_back(x), sinks.push_back(x);
        else if (remarks_ && groups_[x].kind == GroupKind::Contract && reads(x, makers)) no_chain(g, why, groups_[x].values[0]), told = true;
      }
      if (sinks.empty()) {
        if (!told && begins_chain(g)) no_chain(g, "what is done to its rows reads more than its own elements");
        continue;
      }
      std::sort(sinks.begin(), sinks.end());
      std::vector<std::vector<const Node*>> sink_values;
      for (int x : sinks) sink_values.push_back(groups_[x].values);
      const int made = join(inside);
      for (int x : inside)
        if (x != made) neighbours_[made].insert(neighbours_[made].end(), neighbours_[x].begin(), neighbours_[x].end());
      Group& stream = groups_[made];
      stream.kind = GroupKind::Stream, stream.rows = matrix->batch * matrix->rows, stream.columns = matrix->columns;
      stream.sinks = std::move(sink_values);
    }
  }

  /// Groups that read what `inside` makes, or make what it reads.
  std::vector<int> neighbours(const std::vector<int>& inside) const {
    std::set<int> found;
    for (int g : inside)
      for (int near : neighbours_[g])
        if (near = find(near); std::find(inside.begin(), inside.end(), near) == inside.end()) found.insert(near);
    return {found.begin(), found.end()};
  }
  void find_neighbours() {
    neighbours_.assign(groups_.size(), {});
    for (const auto& [n, reads] : reads_)
      for (const Read& r : reads)
        if (int p = group(r.value), g = group(n); p >= 0 && p != g) neighbours_[p].push_back(g), neighbours_[g].push_back(p);
  }
  /// What may work on the matrix: neighbours, and what a contraction reads in one operand together with what `inside` makes.
  std::vector<int> candidates(const std::vector<int>& inside, const Matrix& matrix) const {
    const std::vector<int> near = neighbours(inside);
    std::set<int> found(near.begin(), near.end());
    for (int x : near)
      for (int which : {0, 1}) {
        const Node* c = groups_[x].values[0];
        if (c->op != Op::Contract) continue;
        const std::optional<BlockOperand> block = block_operand(c, which, matrix);
        if (!block || out_.values.count(block->node)) continue;
        std::vector<int> read;
        for (const Read& r : reads_of(block->node, out_.values, matrix.batch * matrix.rows, matrix.columns))
          if (int p = group(r.value); p >= 0 && r.access == Access::Full) read.push_back(p);
        const auto is_inside = [&](int p) { return std::find(inside.begin(), inside.end(), p) != inside.end(); };
        if (std::any_of(read.begin(), read.end(), is_inside))
          std::copy_if(read.begin(), read.end(), std::inserter(found, found.end()), [&](int p) { return !is_inside(p); });
      }
    return {found.begin(), found.end()};
  }
  bool reads(int reader, const std::vector<int>& read) const {
    for (const Node* n : groups_[reader].values)
      for (const Read& r : reads_.at(n))
        if (group(r.value) != reader && std::find(read.begin(), read.end(), group(r.value)) != read.end()) return true;
    return false;
  }
  bool reads_any(const std::vector<int>& readers, int read) const {
    return std::any_of(readers.begin(), readers.end(), [&](int g) { return reads(g, {read}); });
  }
  /// Why a group more cannot be a part of the stream `inside`.
  Refusal refuse_more(std::vector<int> inside, int extra, int64_t columns) const {
    if (inside.size() == kLargestStream) return kTooLarge;
    inside.push_back(extra);
    Work work;
    for (int g : inside) work = work + work_[g];
    if (!fits(work, columns)) return kTooLarge;
    return dag_.circular(inside) ? kCircle : nullptr;
  }

  /// Whether sums are taken over the rows of what contraction g makes, and another contraction reads what they go into: a chain that might have been
  /// streamed. Of groups that many others read, some are looked at: it is for a remark.
  bool begins_chain(int g) const {
    constexpr size_t kLookedAt = 64;
    const auto near = [&](int of) { return std::vector(neighbours_[of].begin(), neighbours_[of].begin() + static_cast<std::ptrdiff_t>(std::min(kLookedAt, neighbours_[of].size()))); };
    const int64_t columns = groups_[g].values[0]->shape()[2];
    for (int x : near(g)) {
      x = find(x);
      const Group& rows = groups_[x];
      if (rows.kind != GroupKind::Rows || rows.columns != columns || rows.rows * columns != groups_[g].values[0]->type.numel() || !reads(x, {g})) continue;
      if (std::none_of(rows.values.begin(), rows.values.end(), is_sum)) continue;
      for (int y : near(x))
        if (y = find(y); y != g && groups_[y].kind == GroupKind::Contract && reads(y, {x, g})) return true;
    }
    return false;
  }
  void no_chain(int g, Refusal why, const Node* sink = nullptr) const {
    const Node* source = groups_[g].values[0];
    remarks_.missed(missed::kMatmulChain, why, source, sink, source->type.bytes());
  }

  /// Whether group x makes elements or rows of the matrix, and reads what `inside` makes (which reads x so) element by element or row by row.
  bool works_on(int x, const std::vector<int>& inside, const Matrix& matrix) {
    const int64_t rows = matrix.batch * matrix.rows, columns = matrix.columns;
    const Group& g = groups_[x];
    if (g.kind == GroupKind::Contract) {
      if (const OrRefused<Matrix> own = matrix_of(g.values[0]); !own || !(*own == matrix)) return false;
    } else if (g.kind != GroupKind::Rows || g.rows * g.columns != rows * columns || (g.columns != columns && g.columns != 1)) {
      return false;
    }
    std::vector<int> both = inside;
    both.push_back(x);
    for (int reader : both)
      for (const Node* n : groups_[reader].values) {
        if (n->op == Op::Contract) {
          for (const Read& r : reads_.at(n))
            if (std::find(both.begin(), both.end(), group(r.value)) != both.end()) return false;
          continue;
        }
        for (int read : both)
          if ((reader == x || read == x) && !aligned(n, read, rows, columns)) return false;
      }
    return true;
  }

  /// Whether a value of a row goes into the matrix's elements: nothing else keeps a product from being the next one's operand as it is packed.
  bool works_on_rows(const std::vector<int>& inside, const Matrix& matrix) const {
    for (int g : inside)
      for (const Node* n : groups_[g].values)
        if (n->op != Op::Contract)
          for (const Read& r : reads_of(n, out_.values, matrix.batch * matrix.rows, matrix.columns))
            if (r.access == Access::Row) return true;
    return false;
  }

  /// Why group x is no contraction that reads what `inside` makes as a whole operand, and otherwise nothing of it.
  Refusal refuse_drain(int x, const std::vector<int>& inside, const Matrix& matrix) {
    if (groups_[x].kind != GroupKind::Contract) return "it is no contraction";
    const auto is_inside = [&](const Node* n) { return std::find(inside.begin(), inside.end(), group(n)) != inside.end(); };
    const Node* c = groups_[x].values[0];
    for (const Node* n : groups_[x].values)
      if (n != c)
        for (const Read& r : reads_.at(n))
          if (is_inside(r.value)) return "the next contraction's epilogue reads the matrix or its rows";
    int drained = 0;
    for (int which : {0, 1}) {
      const Node* operand = c->in(which);
      std::vector<Read> reads = {{base_of(operand), Access::Full}};
      if (!out_.values.count(base_of(operand))) reads = reads_of(operand, out_.values, operand->type.numel(), 1);
      if (std::none_of(reads.begin(), reads.end(), [&](const Read& r) { return is_inside(r.value); })) continue;
      const std::optional<BlockOperand> block = block_operand(c, which, matrix);
      if (!block) return "the next contraction reads the matrix in another order";
      if (drained++) return "the next contraction reads it in both operands";
      if (const Refusal why = refuse_sink(c, block->turned, matrix)) return why;
      if (out_.values.count(block->node)) continue;
      // An expression that is made for the contraction alone: elementwise, over the matrix.
      const int64_t rows = matrix.batch * matrix.rows;
      if (!is_elementwise(block->node->op)) return "the next contraction reads more than elements of the matrix";
      for (const Read& r : reads_of(block->node, out_.values, rows, matrix.columns)) {
        const int64_t elements = r.access == Access::Row ? rows : rows * matrix.columns;
        if (is_inside(r.value) && (r.access == Access::Other || r.value->type.numel() != elements)) return "the next contraction reads more than elements of the matrix";
      }
    }
    return drained == 1 ? nullptr : "the next contraction does not read the matrix";
  }

  // --- remarks
  /// `n` is not made in group g, which it has to do with: by now. Others may unite the two yet.
  void apart(const Node* n, int g, Refusal why) {
    if (remarks_) apart_.push_back({n, groups_[g].values[0], why});
  }
  /// Says of each two groups that are not one in the end why they first were not.
  void remark_on_groups() {
    std::set<std::pair<int, int>> told;
    for (const auto& [n, other, why] : apart_) {
      const int g = group(n), p = group(other);
      if (g == p || !told.emplace(std::min(g, p), std::max(g, p)).second) continue;
      // What lies in memory between the two.
      const Node* largest = nullptr;
      int64_t bytes = 0;
      for (const Read& r : reads_.at(n))
        if (group(r.value) == p) {
          bytes += r.value->type.bytes();
          if (!largest || r.value->type.bytes() > largest->type.bytes()) largest = r.value;
        }
      // Sums over leading axes have an input in common instead.
      remarks_.missed(missed::kFuse, why, n, largest ? largest : other, largest || n->inputs.empty() ? bytes : n->in(0)->type.bytes());
    }
  }

  /// Groups in an order that runs: a group's reads before it, otherwise as the program had them, but what frees memory as early as it can;
  /// draws keep their order.
  void order() {
    std::vector<int> roots;
    for (int g = 0; g < static_cast<int>(groups_.size()); ++g)
      if (find(g) == g) roots.push_back(g);
    std::unordered_map<int, std::unordered_set<int>> needs;
    for (int g : roots)
      for (const Node* n : groups_[g].values)
        for (int p : before(n))
          if (p != g) needs[g].insert(p);
    auto last_id = [&](int g) {
      int64_t id = 0;
      for (const Node* n : groups_[g].values) id = std::max(id, n->id);
      return id;
    };
    std::sort(roots.begin(), roots.end(), [&](int a, int b) { return last_id(a) < last_id(b); });
    for (int g : in_little_memory(roots, needs)) {
      for (const Node* n : groups_[g].values) out_.group_of[n] = static_cast<int>(out_.groups.size());
      out_.groups.push_back(groups_[g]);
    }
  }

  /// List scheduling: of the groups whose reads are made, first those that need no more memory afterwards than before (what they are the
  /// last to read outweighs what they leave; results for the caller weigh nothing), then the next of `roots`, behind what it reads.
  std::vector<int> in_little_memory(const std::vector<int>& roots, const std::unordered_map<int, std::unordered_set<int>>& before) {
    std::unordered_set<const Node*> callers;
    for (const Output& o : graph_.outputs)
      if (o.value) callers.insert(base_of(o.value));
    struct Waiting {
      std::vector<int> before, after;
      std::vector<const Node*> reads;  // values of other groups
      size_t missing = 0;              // groups before it that are not done
      int64_t place = 0;               // in `roots`
      bool done = false;
    };
    std::unordered_map<int, Waiting> work;
    std::unordered_map<const Node*, int64_t> readers;  // groups that have yet to read a value of another group
    for (size_t i = 0; i < roots.size(); ++i) {
      Waiting& w = work[roots[i]];
      w.place = static_cast<int64_t>(i);
      if (auto it = before.find(roots[i]); it != before.end()) w.before.assign(it->second.begin(), it->second.end());
      w.missing = w.before.size();
      std::unordered_set<const Node*> seen;
      for (const Node* n : groups_[roots[i]].values)
        for (const Read& r : reads_[n])
          if (int p = group(r.value); p >= 0 && p != roots[i] && seen.insert(r.value).second) w.reads.push_back(r.value), ++readers[r.value];
    }
    for (int g : roots) {
      std::sort(work[g].before.begin(), work[g].before.end(), [&](int a, int b) { return work[a].place < work[b].place; });
      for (int p : work[g].before) work[p].after.push_back(g);
    }

    const auto growth = [&](int g) {
      int64_t bytes = 0;
      for (const Node* n : groups_[g].values)
        if (readers.count(n) && !callers.count(n)) bytes += n->type.bytes();
      for (const Node* n : work[g].reads)
        if (readers[n] == 1 && !callers.count(n)) bytes -= n->type.bytes();
      return bytes;
    };
    std::vector<int> order;
    std::set<std::pair<int64_t, int>> ready;  // (place in `roots`, group)
    const auto run = [&](int g) {
      Waiting& w = work[g];
      w.done = true;
      order.push_back(g);
      ready.erase({w.place, g});
      for (const Node* n : w.reads) --readers[n];
      for (int next : w.after)
        if (--work[next].missing == 0) ready.insert({work[next].place, next});
    };
    const auto run_what_frees = [&] {
      for (bool found = true; found;) {
        found = false;
        int best = -1;
        int64_t least = 1;
        for (auto [place, g] : ready)
          if (int64_t bytes = growth(g); bytes < least && !work[g].reads.empty()) least = bytes, best = g;
        if (best >= 0) run(best), found = true;
      }
    };
    for (int g : roots)
      if (work[g].missing == 0) ready.insert({work[g].place, g});
    std::unordered_set<int> begun;
    const auto run_with_reads = [&](int root) {
      std::vector<std::pair<int, size_t>> stack{{root, 0}};  // a group, and how many of those before it have been looked at
      while (!stack.empty()) {
        auto& [g, next] = stack.back();
        if (next == 0) require(work[g].done || begun.insert(g).second, "groups depend on each other in a circle");
        while (next < work[g].before.size() && work[work[g].before[next]].done) ++next;
        if (next < work[g].before.size()) {
          stack.push_back({work[g].before[next++], 0});
          continue;
        }
        if (!work[g].done) run(g), run_what_frees();
        stack.pop_back();
      }
    };
    for (int g : roots)
      if (!work[g].done) run_with_reads(g);
    return order;
  }

  void find_stored() {
    for (const Output& o : graph_.outputs)
      if (o.value) out_.stored.insert(base_of(o.value));
    for (const Group& g : out_.groups)
      for (const Node* n : g.values) {
        if (g.kind != GroupKind::Rows && n->op != Op::Extern && g.kind != GroupKind::Contract && g.kind != GroupKind::Stream) out_.stored.insert(n);
        for (const Read& r : reads_[n])
          if (out_.values.count(r.value) && out_.group_of.at(r.value) != out_.group_of.at(n)) out_.stored.insert(r.value);
      }
    for (const Node* n : live_)
      if (n->op == Op::Extern)
        for (const Node* i : n->inputs) out_.stored.insert(base_of(i));
  }

  const Graph& graph_;
  const bool streams_;
  const NodeRemarks remarks_;
  struct Apart {
    const Node *n, *other;
    Refusal why;
  };
  std::vector<Apart> apart_;  // values, and one of another group, as they were refused to be one kernel
  std::vector<const Node*> live_;
  std::unordered_map<const Node*, int> uses_;
  struct Turns {
    int64_t reshaped = 0;  // reshapes of what has been turned, one over another
    bool since = false;    // turned again after the last of them
  };
  std::unordered_map<const Node*, Turns> turns_;  // in the expression that makes a node
  std::unordered_map<const Node*, int64_t> cost_, size_;  // of the expression that makes a node: its work, its nodes
  std::unordered_set<const Node*> operands_, statements_, sums_of_contractions_;
  std::unordered_map<const Node*, int64_t> inline_limit_;  // an elementwise node may be inlined up to this cost
  std::vector<Group> groups_;
  std::vector<Work> work_;
  std::vector<std::vector<int>> neighbours_;  // of a group that streams may be made of: others that read of it, or it of them
  GroupDag dag_;
  std::unordered_map<const Node*, const Node*> drawn_before_;  // of a draw: the one before it
  std::unordered_map<const Node*, int> group_of_;
  std::unordered_map<const Node*, std::vector<Read>> reads_;
  Schedule out_;
};

}  // namespace

Schedule make_schedule(const Graph& graph, bool streams, Remarks* remarks) { return Scheduler(graph, streams, remarks).run(); }

}  // namespace trainc::schedule
