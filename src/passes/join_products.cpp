#include "passes/join_products.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "cost/joining.h"
#include "passes/rewrite.h"
#include "passes/values.h"

namespace trainc {
namespace {

using N = const Node*;

/// What `n` reshapes: the same elements in the same order.
N below_reshapes(N n) {
  while (n->op == Op::Reshape) n = n->in(0);
  return n;
}

bool is_cast(N n, DType from, DType to) { return n->op == Op::Cast && n->in(0)->dtype() == from && n->dtype() == to; }

/// What lies in memory of an operand: without reshapes, and bf16 as it is, not the f32 that it is multiplied as.
N stored(N n) {
  n = below_reshapes(n);
  return is_cast(n, DType::BF16, DType::F32) ? below_reshapes(n->in(0)) : n;
}

/// What a piece of a concatenation holds, for who multiplies or sums it: without reshapes, and without a zero that is
/// added (autograd's, where it unbinds a tensor), for sums begin with +0.0 and so know no sign of a zero.
N held(N piece) {
  for (;;) {
    piece = below_reshapes(piece);
    if (piece->op != Op::Add || !is_float(piece->dtype())) return piece;
    if (is_uniform_zero(piece->in(1))) piece = piece->in(0);
    else if (is_uniform_zero(piece->in(0))) piece = piece->in(1);
    else return piece;
  }
}

/// A term's share of an operand that is put together: the elements of `base` in their order are [k, width] where
/// `k_first`, else [width, k]. `number`: the scalar that all of them are, in either order.
struct Part {
  N base, number;
  int64_t k, width;
  bool k_first;
};

/// An operand [1, width, k] of a contraction, seen through an exchange of its two axes.
Part part_of(N operand) {
  const int64_t width = operand->shape()[1], k = operand->shape()[2];
  if (N number = uniform_constant(operand)) return {operand, number, k, width, true};
  if (k == 1 || width == 1) return {stored(operand), nullptr, k, width, true};
  N n = operand;
  Dims longer;                      // its two axes
  const auto has_two = [&](N of) {  // and no other split of the same elements
    longer.clear();
    for (int64_t axis = 0; axis < of->type.rank(); ++axis)
      if (of->shape()[axis] != 1) longer.push_back(axis);
    return longer.size() == 2 && of->shape()[longer[0]] == width && of->shape()[longer[1]] == k;
  };
  while (n->op == Op::Reshape && has_two(n->in(0))) n = n->in(0);
  bool k_first = false;
  if (n->op == Op::Permute && has_two(n)) {
    const Dims& order = n->as<AxesAttr>().axes;
    if (order[longer[0]] > order[longer[1]]) n = n->in(0), k_first = true;
  }
  return {stored(n), nullptr, k, width, k_first};
}

/// What may become a part of a larger one: a contraction, of two operands, or a sum over leading axes, of one.
struct Term {
  N leaf, source;  // as it is added; the contraction or the sum that this reshapes
  std::vector<Part> operands;
};

bool alike(const Term& a, const Term& b) {
  if (a.source->op != b.source->op || a.source->type != b.source->type || a.leaf->shape() != b.leaf->shape())
    return false;
  for (size_t i = 0; i < a.operands.size(); ++i) {
    const Part &x = a.operands[i], &y = b.operands[i];
    if (x.base->dtype() != y.base->dtype() || x.width != y.width) return false;
  }
  return true;
}

/// Neighbouring parts of an operand: `count` pieces of the concatenation `whole` from piece `first` on, or one part
/// that lies in none (nullptr).
struct Run {
  N whole;
  size_t first, count;
};

/// Terms that become one, in the order of their k; where the parts of each operand are.
struct Joined {
  std::vector<Term> terms;
  std::vector<std::vector<Run>> runs;
  N there = nullptr;  // this very sum, which the graph has
};

class Joining {
 public:
  Joining(const Graph& graph, double roots) : roots_(roots) {
    const std::vector<N> live = graph.live();
    for (N n : live)
      for (N in : n->inputs) ++uses_[in];
    for (const Output& out : graph.outputs)
      if (out.value) ++uses_[out.value];
    for (N effect : graph.effects) ++uses_[effect];
    std::unordered_set<N> inner;
    for (N n : live) {
      if (n->op == Op::Concat && n->type.numel() > 0) find_pieces(n);
      if (n->op == Op::Reduce && sums_leading_axes(n)) sums_[stored(n->in(0))].push_back(n);
      if (n->op != Op::Add) continue;
      for (N in : n->inputs)
        if (is_inner(in)) inner.insert(in);
    }
    // products first: what is put together for them serves sums as well
    for (const Op op : {Op::Contract, Op::Reduce})
      for (N n : live)
        if (n->op == Op::Add && is_float(n->dtype()) && !inner.count(n)) join_terms(n, op);
  }

  /// What becomes of the summands of `n`, which is a sum; nullptr: it stays as it is.
  const std::vector<Joined>* of(N n) const {
    const auto it = joined_.find(n);
    return it == joined_.end() ? nullptr : &it->second;
  }

  /// What a sum adds up, from left to right.
  std::vector<N> summands(N sum) const {
    std::vector<N> found, stack{sum};
    while (!stack.empty()) {
      N n = stack.back();
      stack.pop_back();
      if (n == sum || is_inner(n)) stack.insert(stack.end(), {n->in(1), n->in(0)});
      else found.push_back(n);
    }
    return found;
  }

 private:
  struct Place {
    N whole;
    size_t piece;
  };

  bool is_inner(N n) const { return n->op == Op::Add && uses_.at(n) == 1; }

  /// Notes where the pieces of a concatenation are, if they lie in it one after the other.
  void find_pieces(N whole) {
    for (int64_t axis = 0; axis < whole->as<AxisAttr>().axis; ++axis)
      if (whole->shape()[axis] != 1) return;
    for (size_t i = 0; i < whole->inputs.size(); ++i) places_[held(whole->in(i))].push_back({whole, i});
  }

  std::optional<Term> term_of(N leaf, Op op) const {
    N n = leaf;
    // What autocast rounds each term to is no matter: their sum is rounded less often then.
    const auto passes = [](N x) {
      return x->op == Op::Reshape || is_cast(x, DType::BF16, DType::F32) || is_cast(x, DType::F32, DType::BF16);
    };
    while (passes(n) && uses_.at(n) == 1) n = n->in(0);
    if (n->op != op || uses_.at(n) != 1 || n->type.numel() == 0 || n->dtype() != leaf->dtype()) return std::nullopt;
    if (op == Op::Contract) {
      if (n->shape()[0] != 1 || n->in(0)->shape()[2] < 1 || double(n->in(0)->shape()[2]) > cost::kJoinedDepth)
        return std::nullopt;
      return Term{leaf, n, {part_of(n->in(0)), part_of(n->in(1))}};
    }
    if (!sums_leading_axes(n)) return std::nullopt;
    const int64_t width = n->type.numel();
    return Term{leaf, n, {{stored(n->in(0)), nullptr, n->in(0)->type.numel() / width, width, true}}};
  }

  static bool sums_leading_axes(N n) {
    const auto& [kind, axes] = n->as<ReduceAttr>();
    if (kind != ReduceKind::Sum || n->in(0)->type.numel() == 0) return false;
    for (size_t i = 0; i < axes.size(); ++i)
      if (axes[i] != static_cast<int64_t>(i)) return false;
    return true;
  }

  void join_terms(N sum, Op op) {
    std::vector<std::vector<Term>> kinds;
    for (N leaf : summands(sum)) {
      std::optional<Term> term = term_of(leaf, op);
      if (!term) continue;
      auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const auto& k) { return alike(k[0], *term); });
      if (kind == kinds.end()) kind = kinds.insert(kinds.end(), std::vector<Term>());
      kind->push_back(std::move(*term));
    }
    for (std::vector<Term>& terms : kinds) {
      int64_t k = 0;
      for (const Term& term : terms) k += term.operands[0].k;
      // sums over leading axes have an order of their own, in which length is no matter
      // and a sum of products of bf16 errs far less than each of them that is rounded by itself
      const bool narrow = terms[0].operands[0].base->dtype() == DType::BF16;
      const double roots = narrow ? std::numeric_limits<double>::infinity() : roots_;
      const double deepest = op == Op::Reduce ? double(k) : std::min(cost::kJoinedDepth, roots * std::sqrt(double(k)));
      Joined next;
      int64_t so_far = 0;
      for (Term& term : terms) {
        const int64_t more = term.operands[0].k;
        if (double(so_far + more) > deepest) join(sum, std::move(next)), next = {}, so_far = 0;
        so_far += more;
        next.terms.push_back(std::move(term));
      }
      join(sum, std::move(next));
    }
  }

  void join(N sum, Joined joined) {
    if (joined.terms.size() < 2) return;
    // As they are added, or the other way round: the gradients of a recurrence's steps come last step first.
    Joined turned{{joined.terms.rbegin(), joined.terms.rend()}, {}};
    for (Joined* j : {&joined, &turned})
      for (size_t operand = 0; operand < j->terms[0].operands.size(); ++operand)
        j->runs.push_back(runs_of(j->terms, operand, sum));
    const auto pieces = [](const Joined& j) {
      size_t n = 0;
      for (const auto& runs : j.runs) n += runs.size();
      return n;
    };
    if (pieces(turned) < pieces(joined)) std::swap(joined, turned);
    int64_t copied = 0;  // elements
    for (size_t operand = 0; operand < joined.runs.size(); ++operand)
      for (const Term& term : joined.terms)
        if (joined.runs[operand].size() > 1) copied += term.operands[operand].k * term.operands[operand].width;
    const int64_t sums = static_cast<int64_t>(joined.terms.size() - 1) * sum->type.numel();
    if (joined.terms[0].source->op == Op::Reduce) {
      if (copied > 0 && !put_together_.count(bases(joined.terms, 0))) {
        std::swap(joined, turned);
        if (!put_together_.count(bases(joined.terms, 0))) return;
      }
      const Run& run = joined.runs[0][0];
      if (joined.runs[0].size() == 1 && run.whole && run.count == run.whole->inputs.size())
        for (N n : sums_[run.whole])
          if (n->type.dtype == sum->type.dtype && n->type.numel() == joined.terms[0].operands[0].width)
            joined.there = n;
    } else if (copied >= sums) {
      return;
    }
    for (size_t operand = 0; operand < joined.runs.size(); ++operand)
      put_together_.insert(bases(joined.terms, operand));
    joined_[sum].push_back(std::move(joined));
  }

  static std::vector<N> bases(const std::vector<Term>& terms, size_t operand) {
    std::vector<N> found;
    for (const Term& term : terms) found.push_back(term.operands[operand].base);
    return found;
  }

  std::vector<Run> runs_of(const std::vector<Term>& terms, size_t operand, N sum) const {
    const auto part = [&](size_t i) -> const Part& { return terms[i].operands[operand]; };
    std::vector<Run> runs;
    for (size_t i = 0; i < terms.size(); i += runs.back().count) {
      Run best{nullptr, 0, 1};
      const auto places = places_.find(part(i).base);
      if (places != places_.end() && part(i).k_first)
        for (const Place& at : places->second) {
          size_t count = 0;
          while (i + count < terms.size() && at.piece + count < at.whole->inputs.size() && part(i + count).k_first &&
                 held(at.whole->in(at.piece + count)) == part(i + count).base)
            ++count;
          // A part of what is put together later may depend on this sum.
          const bool made = at.whole->id < sum->id || count == at.whole->inputs.size();
          if (made && count > best.count) best = {at.whole, at.piece, count};
        }
      runs.push_back(best);
    }
    return runs;
  }

  const double roots_;
  std::unordered_map<N, int64_t> uses_;
  std::unordered_map<N, std::vector<N>> sums_;        // over leading axes, by what is summed
  std::unordered_map<N, std::vector<Place>> places_;  // of what pieces of concatenations reshape
  std::set<std::vector<N>> put_together_;             // bases of what is put together for products
  std::unordered_map<N, std::vector<Joined>> joined_;
};

/// Writes what `Joining` found into the new graph.
class Writer {
 public:
  Writer(Builder& b, const std::unordered_map<N, N>& made) : b_(b), made_(made) {}

  N sum(const std::vector<N>& summands, const std::vector<Joined>& joined) {
    std::unordered_map<N, const Joined*> in;
    for (const Joined& j : joined)
      for (const Term& term : j.terms) in[term.leaf] = &j;
    std::unordered_set<const Joined*> added;
    N sum = nullptr;
    for (N leaf : summands) {
      const auto it = in.find(leaf);
      if (it != in.end() && !added.insert(it->second).second) continue;
      N n = it == in.end() ? made_.at(leaf) : one(*it->second);
      sum = sum ? b_.add(sum, n) : n;
    }
    return sum;
  }

 private:
  N one(const Joined& joined) {
    const Term& first = joined.terms[0];
    N n = nullptr;
    if (joined.there) {
      n = again(joined.there);
    } else if (first.source->op == Op::Contract) {
      n = b_.graph.make(Op::Contract, first.source->attrs, {operand(joined, 0), operand(joined, 1)}, first.source->type,
                        b_.origin);
    } else {
      N rows = b_.cast(put_together(joined, 0, true), first.source->in(0)->dtype());
      n = b_.reduce(ReduceKind::Sum, rows, {0});
    }
    return b_.reshape(n, first.leaf->shape());
  }

  /// [1, width, k]
  N operand(const Joined& joined, size_t which) {
    const auto by_rows = [&](const Term& t) { return !t.operands[which].k_first; };
    const bool k_first = std::none_of(joined.terms.begin(), joined.terms.end(), by_rows);
    const DType multiplied = joined.terms[0].source->in(static_cast<int>(which))->dtype();
    N n = b_.cast(put_together(joined, which, k_first), multiplied);
    const Dims& shape = n->shape();
    n = b_.reshape(n, {1, shape[0], shape[1]});
    if (!k_first) return n;
    return shape[1] == 1 ? b_.reshape(n, {1, 1, shape[0]}) : b_.permute(n, {0, 2, 1});
  }

  /// [k, width], or [width, k].
  N put_together(const Joined& joined, size_t which, bool k_first) {
    std::vector<N> parts;
    size_t i = 0;
    for (const Run& run : joined.runs[which]) {
      const Part& part = joined.terms[i].operands[which];
      if (run.whole && k_first) {
        parts.push_back(stretch(run, part.width));
      } else {
        for (size_t j = i; j < i + run.count; ++j) parts.push_back(alone(joined.terms[j].operands[which], k_first));
      }
      i += run.count;
    }
    return parts.size() == 1 ? parts[0] : b_.concat(parts, k_first ? 0 : 1);
  }

  N alone(const Part& part, bool k_first) {
    const Dims shape = k_first ? Dims{part.k, part.width} : Dims{part.width, part.k};
    if (part.number) return b_.broadcast(made_.at(part.number), shape);
    if (part.k_first == k_first) return b_.reshape(made_.at(part.base), shape);
    return b_.permute(b_.reshape(made_.at(part.base), {part.k, part.width}), {1, 0});
  }

  /// The pieces of a run, as rows of `width`.
  N stretch(const Run& run, int64_t width) {
    const std::vector<N>& pieces = run.whole->inputs;
    const bool all = run.count == pieces.size();
    const int64_t numel = run.whole->type.numel();
    if (all) return b_.reshape(again(run.whole), {numel / width, width});
    int64_t before = 0, elements = 0;  // pieces that stand before the run may be no whole rows
    for (size_t i = 0; i < run.first + run.count; ++i) (i < run.first ? before : elements) += pieces[i]->type.numel();
    if (before % width == 0 && numel % width == 0)
      return b_.slice_axis(b_.reshape(again(run.whole), {numel / width, width}), 0, before / width, elements / width);
    return b_.reshape(b_.slice_axis(b_.reshape(again(run.whole), {numel}), 0, before, elements),
                      {elements / width, width});
  }

  /// What stands for `n`; where the rewriting has not come to it yet, the node that it will find then.
  N again(N n) {
    if (const auto it = made_.find(n); it != made_.end()) return it->second;
    std::vector<N> inputs;
    for (N in : n->inputs) inputs.push_back(again(in));
    return with_inputs(b_, n, inputs);
  }

  Builder& b_;
  const std::unordered_map<N, N>& made_;
};

}  // namespace

Graph join_products(const Graph& graph, double roots) {
  const Joining joining(graph, roots);
  std::unordered_map<N, N> made;
  return rewrite(graph, [&](Builder& b, N from, const std::vector<N>& inputs) -> N {
    const std::vector<Joined>* joined = joining.of(from);
    N n = joined ? Writer(b, made).sum(joining.summands(from), *joined) : with_inputs(b, from, inputs);
    if (joined)
      for (const Joined& j : *joined)
        for (const Term& term : j.terms)
          for (const std::string& origin : graph.origins(term.source)) b.graph.add_origin(n, origin);
    return made[from] = n;
  });
}

}  // namespace trainc
