#include "schedule/padding.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "cost/padding.h"
#include "graph/build.h"
#include "schedule/product_order.h"
#include "schedule/schedule.h"

namespace trainc::schedule {
namespace {

bool among(const RowMaps& maps, const RowMap& m) { return std::find(maps.begin(), maps.end(), m) != maps.end(); }

/// Maps, or all that there are.
struct Maps {
  RowMaps some;
  bool all = false;
  bool has(const RowMap& m) const { return all || among(some, m); }
  bool none() const { return !all && some.empty(); }
  void add(const RowMap& m) {
    if (!has(m)) some.push_back(m);
  }
};
Maps both(const Maps& a, const Maps& b) {
  if (a.all) return b;
  if (b.all) return a;
  Maps m;
  for (const RowMap& x : a.some)
    if (b.has(x)) m.add(x);
  return m;
}
Maps either(Maps a, const Maps& b) {
  a.all = a.all || b.all;
  for (const RowMap& m : b.some) a.add(m);
  return a;
}

const Node* under_movements(const Node* n) {
  while (n->op == Op::Broadcast || n->op == Op::Reshape) n = n->in(0);
  return n;
}
bool is_number(const Node* n) { return n->op == Op::Constant && is_float(n->dtype()); }
bool is_positive_number(const Node* n) { return is_number(under_movements(n)) && float_of(under_movements(n)) > 0; }
/// The large negative number that hides what it is added to, or stands in the place of.
bool hides(const Node* n) { return is_number(under_movements(n)) && float_of(under_movements(n)) <= cost::kHides; }

/// Where a zero operand is an infinity or NaN of the result.
bool is_risky(const Node* n, size_t operand) {
  switch (n->op) {
    case Op::Div:
    case Op::FloorDiv:
    case Op::Mod: return operand == 1;
    case Op::Log:
    case Op::Rsqrt:
    case Op::Pow: return true;
    default: return false;
  }
}
/// Whether it is a positive number where an operand is 0, and the operand elsewhere.
bool replaces_zeros(const Node* n) {
  if (n->op != Op::Select || n->in(0)->op != Op::Eq || !is_positive_number(n->in(1))) return false;
  const Node *a = n->in(0)->in(0), *b = under_movements(n->in(0)->in(1));
  return a == n->in(2) && is_number(b) && float_of(b) == 0;
}
/// Whether the result is not 0, whatever becomes 0 below.
bool hides_zeros(const Node* n) {
  return n->op == Op::Exp || replaces_zeros(n) ||
         ((n->op == Op::Add || n->op == Op::Max) && (is_positive_number(n->in(0)) || is_positive_number(n->in(1))));
}

}  // namespace

class PaddingFinder {
 public:
  PaddingFinder(const Graph& graph, PaddingProof& found) : graph_(graph), live_(graph.live()), p_(found) {}

  /// Takes the first mask that there is.
  bool find_mask() {
    for (const Node* n : live_) {
      if (n->shape().size() != 4 || n->shape()[2] != n->shape()[3] || n->shape()[3] < 2) continue;
      if (n->op == Op::Add)
        for (const size_t i : {0, 1})
          if (is_scores(n->in(i))) take_mask(n, n->in(1 - i), PaddingProof::Says::Bias);
      if (n->op == Op::Select && is_float(n->dtype())) {
        if (is_scores(n->in(1)) && hides(n->in(2))) take_mask(n, n->in(0), PaddingProof::Says::Shown);
        if (is_scores(n->in(2)) && hides(n->in(1))) take_mask(n, n->in(0), PaddingProof::Says::Hidden);
      }
    }
    return p_.mask_;
  }

  void run(const std::vector<Unread>& last_outputs) {
    for (const Node* n : live_) find_facts(n);
    for (size_t i = 0; i < graph_.outputs.size(); ++i) {
      if (!graph_.outputs[i].value) continue;
      const size_t before = graph_.outputs.size() - last_outputs.size();
      Unread unread;
      if (i >= before) unread = last_outputs[i - before];
      wanted_[graph_.outputs[i].value].use({unread.finite}, {unread.zeros});
    }
    for (const Node* effect : graph_.effects) wanted_[effect].use({}, {});
    find_below_exp();
    for (auto n = live_.rbegin(); n != live_.rend(); ++n)
      for (size_t i = 0; i < (*n)->inputs.size(); ++i) use(*n, i);
    for (const Node* n : live_) {
      if (!facts_[n].zero.none()) p_.zero_[n] = facts_[n].zero.all ? RowMaps{rows_of(n)} : facts_[n].zero.some;
      const Wanted& w = wanted_[n];
      if (!w.used || w.unread.some.empty()) continue;
      // What is masked stays so: other zeros rest on it.
      p_.unread_[n] = {w.unread.some, facts_[n].masked.none() ? w.fill.some : RowMaps{}};
    }
    for (const Node* n : live_)
      if (n->op == Op::Contract && (p_.may_be_zero(n) || p_.sums_over_rows(n)))
        p_.flops_ += 2 * n->type.numel() * n->in(0)->shape()[2];
  }

 private:
  struct Facts {
    Maps zero, masked;  // masked: at most cost::kHides
    bool nonnegative = false, positive = false;
  };
  /// What is wanted of a node: the maps whose hidden elements nothing depends on, and of these, where they may be 0.
  struct Wanted {
    bool used = false;
    Maps unread{{}, true}, fill{{}, true};
    void use(const Maps& unread_there, const Maps& fill_there) {
      used = true;
      unread = both(unread, unread_there), fill = both(fill, fill_there);
    }
  };

  // --- the mask
  /// A product, scaled by numbers that leave its size what it is: what is added to it hides it whatever it is.
  static bool is_scores(const Node* n) {
    double scale = 1;
    for (; n->op != Op::Contract; n = n->in(0)) {
      if (n->op == Op::Reshape || n->op == Op::Cast) continue;
      if ((n->op != Op::Mul && n->op != Op::Div) || !is_number(under_movements(n->in(1)))) return false;
      const double number = float_of(under_movements(n->in(1)));
      scale = n->op == Op::Mul ? scale * number : scale / number;
      if (!(scale >= cost::kLeastScale && scale <= cost::kMostScale)) return false;
    }
    return true;
  }
  void take_mask(const Node* scores, const Node* mask, PaddingProof::Says says) {
    const int64_t samples = scores->shape()[0], tokens = scores->shape()[3];
    while (mask->op == Op::Broadcast && mask->in(0)->shape()[0] == samples && mask->in(0)->shape()[3] == tokens)
      mask = mask->in(0);
    if (mask->shape()[0] != samples || mask->shape()[3] != tokens) return;
    if (says == PaddingProof::Says::Bias && mask->shape()[1] != 1) return;  // a bias of heads: no mask
    if (p_.mask_) {
      p_.only_one_ = p_.only_one_ && p_.mask_ == mask && p_.says_ == says;
      return;
    }
    p_.mask_ = mask, p_.says_ = says, p_.samples_ = samples, p_.tokens_ = tokens;
  }

  // --- maps
  RowMap rows_of(const Node* n) const {
    const int64_t rows = p_.samples_ * p_.tokens_, numel = n->type.numel();
    return p_.map_of(rows > 0 && numel % rows == 0 ? numel / rows : 0);
  }
  /// The stride in `to` of what lies at `stride` in `from`, `extent` long, where axis a becomes axis_of[a] (-1: none).
  static std::optional<int64_t> carried(int64_t stride, int64_t extent, const Dims& from, const Dims& to,
                                        const std::vector<int>& axis_of) {
    const Dims in = contiguous_strides(from), out = contiguous_strides(to);
    for (size_t a = 0; a < from.size(); ++a) {
      if (from[a] == 1 || in[a] > stride || stride % in[a] != 0 || (in[a] * from[a]) % (stride * extent) != 0) continue;
      if (axis_of[a] < 0 || to[static_cast<size_t>(axis_of[a])] != from[a]) return std::nullopt;
      return out[static_cast<size_t>(axis_of[a])] * (stride / in[a]);
    }
    return std::nullopt;
  }
  Maps carry(const Maps& maps, const Dims& from, const Dims& to, const std::vector<int>& axis_of) const {
    Maps m;
    m.all = maps.all;
    for (const RowMap& x : maps.some) {
      const auto token = carried(x.token, p_.tokens_, from, to, axis_of);
      const auto batch =
          p_.samples_ == 1 ? std::optional<int64_t>(0) : carried(x.batch, p_.samples_, from, to, axis_of);
      if (token && batch) m.add({*batch, *token});
    }
    return m;
  }
  static std::vector<int> straight(size_t axes) {
    std::vector<int> axis_of(axes);
    for (size_t a = 0; a < axes; ++a) axis_of[a] = static_cast<int>(a);
    return axis_of;
  }
  static std::vector<int> inverse(const std::vector<int>& axis_of, size_t axes) {
    std::vector<int> back(axes, -1);
    for (size_t a = 0; a < axis_of.size(); ++a)
      if (axis_of[a] >= 0) back[static_cast<size_t>(axis_of[a])] = static_cast<int>(a);
    return back;
  }
  /// Where the axes of an operand are in the result; none: the operation moves elements otherwise.
  static std::optional<std::vector<int>> axes_of(const Node* n, size_t operand) {
    const size_t axes = n->in(operand)->shape().size();
    switch (n->op) {
      case Op::Permute: {
        const Dims& order = n->as<AxesAttr>().axes;
        std::vector<int> axis_of(axes);
        for (size_t k = 0; k < order.size(); ++k) axis_of[static_cast<size_t>(order[k])] = static_cast<int>(k);
        return axis_of;
      }
      case Op::Slice:
        for (const int64_t step : n->as<SliceAttr>().step)
          if (step != 1) return std::nullopt;
        return straight(axes);
      case Op::Pad:
        if (operand == 1) return std::nullopt;
        return straight(axes);
      case Op::Broadcast:
      case Op::Concat: return straight(axes);
      case Op::Reduce: {
        const Dims& folded = n->as<ReduceAttr>().axes;
        std::vector<int> axis_of(axes, -1);
        int next = 0;
        for (size_t a = 0; a < axes; ++a)
          if (std::find(folded.begin(), folded.end(), static_cast<int64_t>(a)) == folded.end()) axis_of[a] = next++;
        return axis_of;
      }
      case Op::Contract: return operand == 0 ? std::vector<int>{0, 1, -1} : std::vector<int>{0, 2, -1};
      default: return std::nullopt;
    }
  }
  Maps into_result(const Maps& maps, const Node* n, size_t operand) const {
    if (is_elementwise(n->op) || n->op == Op::Reshape) return maps;
    const auto axes = axes_of(n, operand);
    return axes ? carry(maps, n->in(operand)->shape(), n->shape(), *axes) : Maps{};
  }
  Maps into_operand(const Maps& maps, const Node* n, size_t operand) const {
    if (is_elementwise(n->op) || n->op == Op::Reshape) return maps;
    const auto axes = axes_of(n, operand);
    if (!axes) return {};
    return carry(maps, n->shape(), n->in(operand)->shape(), inverse(*axes, n->shape().size()));
  }
  /// The axis that is all tokens in `whole` and the first token alone in `part`, as a map of `whole`; none: there is
  /// none.
  std::optional<RowMap> first_token(const Dims& whole, const Dims& part, const Dims& start) const {
    std::optional<RowMap> found;
    for (size_t a = 0; a < whole.size(); ++a) {
      if (whole[a] == part[a]) continue;
      if (whole[a] != p_.tokens_ || part[a] != 1 || start[a] != 0 || found) return std::nullopt;
      int64_t before = 1;
      for (size_t k = 0; k < a; ++k) before *= whole[k];
      if (before != p_.samples_) return std::nullopt;
      found = p_.map_of(contiguous_strides(whole)[a]);
    }
    return found;
  }

  // --- from the operands: what is zero, what is hidden
  void find_facts(const Node* n) {
    Facts f;
    const auto in = [&](size_t i) -> const Facts& { return facts_.at(n->in(i)); };
    const auto zero = [&](size_t i) { return into_result(in(i).zero, n, i); };
    switch (n->op) {
      case Op::Constant:
        if (!is_float(n->dtype())) break;
        f.zero.all = float_of(n) == 0, f.nonnegative = float_of(n) >= 0, f.positive = float_of(n) > 0;
        break;
      case Op::Neg:
      case Op::Sqrt:
      case Op::Tanh:
      case Op::Erf:
      case Op::Sin:
      case Op::Abs:
        f.zero = zero(0), f.nonnegative = n->op == Op::Abs || (n->op == Op::Sqrt && in(0).nonnegative);
        f.positive = n->op == Op::Sqrt && in(0).positive;
        break;
      case Op::Cast:
        f.zero = zero(0), f.nonnegative = in(0).nonnegative;
        if (n->dtype() != DType::F16) f.positive = in(0).positive, f.masked = in(0).masked;
        if (!is_float(n->dtype()) || !is_float(n->in(0)->dtype())) f.masked = {}, f.positive = false;
        break;
      case Op::Mul:
        f.zero = either(zero(0), zero(1));
        f.nonnegative = n->in(0) == n->in(1) || (in(0).nonnegative && in(1).nonnegative);
        break;
      case Op::Div: f.zero = zero(0), f.nonnegative = in(0).nonnegative && in(1).nonnegative; break;
      case Op::Add:
        f.zero = both(zero(0), zero(1));
        // Scores alone: a second mask may hide from a query all that the first one shows, and the maximum with it.
        for (const size_t i : {0, 1})
          if (is_scores(n->in(1 - i))) f.masked = either(f.masked, in(i).masked);
        f.nonnegative = in(0).nonnegative && in(1).nonnegative;
        f.positive = f.nonnegative && (in(0).positive || in(1).positive);
        break;
      case Op::Sub:
        f.zero = both(zero(0), zero(1));
        for (const RowMap& m : in(0).masked.some)
          if (same_for_tokens(n->in(1), m)) f.masked.add(m);
        break;
      case Op::Max:
        f.positive = in(0).positive || in(1).positive, f.nonnegative = in(0).nonnegative || in(1).nonnegative;
        break;
      case Op::Exp: f.zero = in(0).masked, f.nonnegative = true; break;
      case Op::Select:
        f.zero = both(in(1).zero, in(2).zero);
        f.nonnegative = in(1).nonnegative && in(2).nonnegative, f.positive = in(1).positive && in(2).positive;
        f.positive = f.positive || (replaces_zeros(n) && in(2).nonnegative);
        f.masked = both(in(1).masked, in(2).masked);
        // Of scores alone, as with sums: what the mask shows may be hidden by another one already.
        if (selects_by_mask(n) && is_scores(n->in(p_.says_ == PaddingProof::Says::Shown ? 1 : 2)))
          f.masked.add(mask_in(n));
        break;
      case Op::Reduce:
        if (n->as<ReduceAttr>().kind != ReduceKind::Sum) break;
        f.zero = zero(0), f.nonnegative = in(0).nonnegative;
        f.positive = in(0).positive || is_sum_of_softmax(n);
        break;
      case Op::Reshape:
      case Op::Permute:
      case Op::Broadcast:
      case Op::Slice: f = in(0), f.zero = zero(0), f.masked = into_result(in(0).masked, n, 0); break;
      case Op::Pad:
        if (!facts_.at(n->in(1)).zero.all) break;
        f.zero = zero(0), f.nonnegative = in(0).nonnegative;
        if (const auto m = first_token(n->shape(), n->in(0)->shape(), n->as<PadAttr>().low)) f.zero.add(*m);
        break;
      case Op::Concat: {
        f.zero = zero(0);
        for (size_t i = 1; i < n->inputs.size(); ++i) f.zero = both(f.zero, zero(i));
        break;
      }
      case Op::Contract: f.zero = either(zero(0), zero(1)); break;
      default: break;
    }
    if (n == p_.mask_ && p_.says_ == PaddingProof::Says::Bias) f.masked.add(mask_in(n));
    if (!is_float(n->dtype())) f = {};
    facts_[n] = std::move(f);
  }
  /// The rows of the mask's keys in a node of four axes.
  RowMap mask_in(const Node* n) const { return {p_.samples_ == 1 ? 0 : contiguous_strides(n->shape())[0], 1}; }
  bool of_mask(const Node* n) const {
    while (n->op == Op::Broadcast && n != p_.mask_) n = n->in(0);
    return n == p_.mask_;
  }
  /// Whether the mask, a bool, puts a number that hides in the place of scores.
  bool selects_by_mask(const Node* n) const {
    return p_.says_ != PaddingProof::Says::Bias && of_mask(n->in(0)) &&
           hides(n->in(p_.says_ == PaddingProof::Says::Shown ? 2 : 1));
  }
  /// Whether `n` is one number for all tokens of a sample, by the map.
  bool same_for_tokens(const Node* n, const RowMap& m) const {
    while (n->op == Op::Reshape) n = n->in(0);
    if (n->op != Op::Broadcast) return false;
    const Dims strides = contiguous_strides(n->shape());
    for (size_t a = 0; a < strides.size(); ++a)
      if (n->shape()[a] == p_.tokens_ && strides[a] == m.token) return n->in(0)->shape()[a] == 1;
    return false;
  }
  /// Whether `n` has the same numbers in all rows, by the map.
  static bool same_for_rows(const Node* n, const RowMap& m) {
    while (n->op == Op::Reshape || n->op == Op::Cast) n = n->in(0);
    if (n->op != Op::Broadcast) return false;
    const Dims strides = contiguous_strides(n->shape());
    for (size_t a = 0; a < strides.size(); ++a)
      if (strides[a] >= m.token && n->in(0)->shape()[a] != 1) return false;
    return true;
  }
  /// The sum of a softmax: of exp(x - max(x)), over the axes of the maximum: one of its terms is 1.
  static bool is_sum_of_softmax(const Node* sum) {
    const Node* exp = sum->in(0);
    if (exp->op != Op::Exp || exp->in(0)->op != Op::Sub) return false;
    const Node* max = under_movements(exp->in(0)->in(1));
    return is_maximum(max, exp->in(0)->in(0)) && max->as<ReduceAttr>().axes == sum->as<ReduceAttr>().axes;
  }
  static bool is_maximum(const Node* max, const Node* x) {
    return max->op == Op::Reduce && max->as<ReduceAttr>().kind == ReduceKind::Max && max->in(0) == x;
  }
  /// The nodes between what is subtracted from x and that x, where it is made of it: its maximum, the logarithm of a
  /// sum of its exp. Empty where it is not.
  static std::vector<const Node*> made_of_own(const Node* sub) {
    const Node* x = under_movements(sub->in(0));
    std::vector<const Node*> found{sub->in(1)};
    for (size_t k = 0; k < found.size() && k < cost::kNodesToOwn; ++k) {
      if (found[k] == x) return std::erase(found, x), found;
      if (found[k]->op == Op::Contract) continue;
      for (const Node* in : found[k]->inputs)
        if (std::find(found.begin(), found.end(), in) == found.end()) found.push_back(in);
    }
    return {};
  }

  /// The sums and differences that exp is taken of, scaled, moved and added up as they may be; none below one that
  /// subtracts what is made of its own x, for then exp(x - c) is what it is for any x.
  void find_below_exp() {
    std::vector<const Node*> stack;
    std::unordered_set<const Node*> seen;
    for (const Node* n : live_)
      if (n->op == Op::Exp || n->op == Op::Expm1) stack.push_back(n->in(0));
    while (!stack.empty()) {
      const Node* n = stack.back();
      stack.pop_back();
      if (!seen.insert(n).second) continue;
      if (n->op == Op::Add || n->op == Op::Sub) below_exp_.insert(n);
      else if (!scales_or_moves(n->op)) continue;
      if (n->op == Op::Sub)
        if (const std::vector<const Node*> made = made_of_own(n); !made.empty()) {
          own_.insert(n), p_.follow_.insert(made.begin(), made.end());
          continue;
        }
      stack.insert(stack.end(), n->inputs.begin(), n->inputs.end());
    }
  }
  static bool scales_or_moves(Op op) {
    switch (op) {
      case Op::Neg:
      case Op::Abs:
      case Op::Cast:
      case Op::Mul:
      case Op::Div:
      case Op::Max:
      case Op::Min:
      case Op::Select:
      case Op::Reduce:
      case Op::Reshape:
      case Op::Permute:
      case Op::Broadcast:
      case Op::Slice:
      case Op::Pad:
      case Op::Concat: return true;
      default: return false;
    }
  }
  /// Of the maps by which operand `i` of a sum or difference below exp may be 0, those by which exp stays what a number
  /// can hold. exp(0 - c) overflows where c is not of what is 0 now (a maximum that the forward saved), exp(x - 0)
  /// where x is not; one number for all rows (a bias) is taken to be small, where it is not seen to be large.
  Maps bounded(const Node* n, size_t i, const Maps& fill) const {
    if (own_.count(n)) return fill;
    const Node* number = under_movements(n->in(1 - i));
    if (is_number(number) && !(std::abs(float_of(number)) <= cost::kSmallInExp)) return {};
    Maps m;
    for (const RowMap& x : fill.some)
      if (same_for_rows(n->in(1 - i), x)) m.add(x);
    return m;
  }

  // --- from the results: what is wanted of the operands
  void use(const Node* n, size_t i) {
    const Node* x = n->in(i);
    Wanted& to = wanted_[x];
    const Wanted& w = wanted_[n];
    if (!w.used) return;
    if (n->op == Op::Slice)
      if (const auto m = first_token(x->shape(), n->shape(), n->as<SliceAttr>().start)) return to.use({{*m}}, {{*m}});
    if (!is_elementwise(n->op) && n->op != Op::Reshape && !axes_of(n, i)) return to.use({}, {});
    Maps unread = into_operand(w.unread, n, i), fill = into_operand(w.fill, n, i);
    if (is_risky(n, i)) {
      // a divisor that is 0 nowhere stays itself
      if (!facts_.at(x).positive) unread = {};
      return to.use(unread, {});
    }
    // Of what may be below 0, where other terms of it are not 0.
    if ((n->op == Op::Sqrt || n->op == Op::Log1p) && !facts_.at(x).nonnegative) return to.use({}, {});
    if (hides_zeros(n)) fill = unread;
    if (below_exp_.count(n)) fill = bounded(n, i, fill);
    Maps more;  // where the other operand makes it of no account
    if (n->op == Op::Mul) more = facts_.at(n->in(1 - i)).zero;
    if (n->op == Op::Add) more = facts_.at(n->in(1 - i)).masked;
    if (n->op == Op::Select && i > 0 && selects_by_mask(n) && hides(n->in(3 - i))) more.add(mask_in(n));
    if (n->op == Op::Contract) {
      const Dims &other = n->in(1 - i)->shape(), &here = x->shape();
      more = carry(facts_.at(n->in(1 - i)).zero, other, here, {0, -1, 2});
    }
    to.use(either(unread, more), either(fill, more));
  }

  const Graph& graph_;
  const std::vector<const Node*> live_;
  PaddingProof& p_;
  std::unordered_map<const Node*, Facts> facts_;
  std::unordered_map<const Node*, Wanted> wanted_;
  std::unordered_set<const Node*> below_exp_;
  std::unordered_set<const Node*> own_;  // of these, differences of x and what is made of it
};

std::optional<PaddingProof> PaddingProof::find(const Graph& graph, const std::vector<Unread>& last_outputs,
                                               const PaddedRows& of) {
  PaddingProof p;
  PaddingFinder finder(graph, p);
  if (!finder.find_mask()) return std::nullopt;
  const bool same = p.only_one_ && of.samples == p.samples_ && of.tokens == p.tokens_;
  finder.run(same ? last_outputs : std::vector<Unread>());
  if (p.flops_ == 0) return std::nullopt;
  return p;
}

Unread PaddingProof::unread(const Node* n) const {
  const auto it = unread_.find(n);
  return it == unread_.end() ? Unread() : it->second;
}

bool PaddingProof::may_be_zero(const Node* n) const {
  const int64_t rows = samples_ * tokens_;
  if (n->type.numel() == 0 || n->type.numel() % rows != 0) return false;
  const RowMap map = map_of(n->type.numel() / rows);
  const auto zero = zero_.find(n);
  return (zero != zero_.end() && among(zero->second, map)) || (!follow_.count(n) && among(unread(n).zeros, map));
}

bool PaddingProof::sums_over_rows(const Node* contract) const {
  const Dims& lhs = contract->in(0)->shape();
  if (lhs[0] != 1 || lhs[2] != samples_ * tokens_) return false;
  return std::any_of(contract->inputs.begin(), contract->inputs.end(), [&](const Node* n) {
    const auto it = zero_.find(n);
    return it != zero_.end() && among(it->second, map_of(1));
  });
}

int64_t PaddingProof::flops() const { return flops_; }

PaddedRows PaddingProof::make(Graph& graph) const {
  Builder b{graph, ""};
  PaddedRows rows{samples_, tokens_};
  const int64_t all = rows.rows();
  const Dims keys{samples_, tokens_};
  const auto number = [&](int64_t value, const Dims& shape) {
    return b.broadcast(b.reshape(b.constant_int(DType::I64, value), Dims(shape.size(), 1)), shape);
  };
  const Node* mask =
      says_ == Says::Bias ? mask_ : b.cast(says_ == Says::Shown ? mask_ : b.unary(Op::Not, mask_), DType::F32);
  if (mask->dtype() != DType::F32) mask = b.cast(mask, DType::F32);
  const double least = says_ == Says::Bias ? cost::kHides : 0;
  const auto shows = [&](const Node* n) {  // NaN does
    return b.unary(Op::Not, b.binary(Op::Le, n, b.full(DType::F32, n->shape(), least)));
  };
  const Node* key = shows(b.reduce(ReduceKind::Max, mask, {1, 2}));  // to any query
  const Node* sees = b.cast(shows(b.reduce(ReduceKind::Max, mask, {3})), DType::F32);
  const Node* all_see = b.reduce(ReduceKind::Min, sees, {1, 2});  // queries of the sample, some key
  const Node* blind = b.binary(Op::Eq, all_see, b.full(DType::F32, {samples_}, 0));
  const Node* none = b.broadcast(b.reshape(blind, {samples_, 1}), keys);
  const Node* first = b.binary(Op::Eq, b.iota(DType::I64, keys, 1), number(0, keys));
  const Node* shown = b.binary(Op::Or, b.binary(Op::Or, key, none), first);
  rows.shown = copied(graph, b.reshape(shown, {all}));
  // Each shown row behind the shown ones before it, each hidden row behind those and the hidden ones before.
  const Node *upto = b.scan(b.cast(rows.shown, DType::I64), 0), *row = b.iota(DType::I64, {all}, 0);
  rows.count = copied(graph, b.slice_axis(upto, 0, all - 1, 1));
  const Node* hidden_before = b.sub(row, upto);
  const Node* to =
      b.select(rows.shown, b.sub(upto, number(1, {all})), b.add(b.broadcast(rows.count, {all}), hidden_before));
  rows.order = b.scatter(ScatterKind::Last, number(0, {all}), to, row, 0);
  graph.also_wanted = {rows.shown, rows.order, rows.count};
  return rows;
}

void pass_over_padding(Schedule& schedule, const PaddingProof& padding, const PaddedRows& rows) {
  // What the rows are made of is made as it is.
  std::unordered_set<const Node*> below;
  std::vector<const Node*> stack{rows.shown, rows.order, rows.count};
  std::unordered_set<int> made_before;
  while (!stack.empty()) {
    const Node* n = stack.back();
    stack.pop_back();
    if (!below.insert(n).second) continue;
    if (const auto it = schedule.group_of.find(n); it != schedule.group_of.end()) {
      made_before.insert(it->second);
      const Group& group = schedule.groups[static_cast<size_t>(it->second)];
      stack.insert(stack.end(), group.values.begin(), group.values.end());
    }
    stack.insert(stack.end(), n->inputs.begin(), n->inputs.end());
  }
  int last = -1;
  for (const Node* n : {rows.shown, rows.order, rows.count}) last = std::max(last, schedule.group_of.at(n));
  const int64_t all = rows.rows();
  for (size_t g = 0; g < schedule.groups.size(); ++g) {
    Group& group = schedule.groups[g];
    if (made_before.count(static_cast<int>(g)) || static_cast<int>(g) <= last) continue;
    const Node* first = group.values[0];
    int64_t elements = 0;  // of the domain, whose rows are `all` rows, or parts of them
    if (group.kind == GroupKind::Rows) elements = group.rows * group.columns;
    const bool in_rows =
        group.columns > 1 ? group.rows == all : group.rows % all == 0 && group.rows / all >= cost::kLeastWidth;
    if (group.kind == GroupKind::Rows && !in_rows) continue;
    if (group.kind == GroupKind::Contract) {
      if (padding.sums_over_rows(first)) {
        group.passes = Passes::Terms;
        continue;
      }
      if (first->shape()[0] != 1 || first->shape()[1] != all) continue;
      elements = first->type.numel();
    }
    if (elements == 0) continue;
    bool may = false;
    for (const Node* n : group.values) {
      if (!schedule.stored.count(n)) continue;
      const bool of_rows = n->type.numel() == elements || n->type.numel() == all;
      // The rows that are listed are the domain's: of what is written in another order, those that it is made in.
      may = of_rows && padding.may_be_zero(made_as(n)) && is_float(n->dtype());
      if (!may) break;
    }
    if (may) group.passes = Passes::Rows;
  }
  schedule.padded = rows;
}

}  // namespace trainc::schedule
