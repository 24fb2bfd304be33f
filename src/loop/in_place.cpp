#include "loop/in_place.h"
#include "loop/substitute.h"
#include "support/division.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>

namespace trainc::loop {
namespace {

/// constant + sum of coefficient * variable
struct Linear {
  std::map<int, int64_t> of;
  int64_t constant = 0;
};

class Check {
 public:
  Check(const LoopNest& nest, int written, int read) : nest_(nest), written_(written), read_(read) {}

  std::string run() {
    const Buffer &to = nest_.buffers[static_cast<size_t>(written_)], &from = nest_.buffers[static_cast<size_t>(read_)];
    if (nest_.threads > 0) return "the nest is for a device";
    if (written_ == read_ || to.space != Space::Argument || from.space != Space::Argument || !to.written ||
        from.written)
      return "not an argument that is written over another that is not";
    if (to.dtype != from.dtype || to.bits || from.bits) return "they differ in dtype, or one of them is bits";
    for (size_t i = 0; i < nest_.buffers.size(); ++i)
      if (nest_.buffers[i].over == read_ && static_cast<int>(i) != written_) return "something else lies over it";
    statement(*nest_.body);
    for (const Access& s : stores_)
      for (const Access& l : loads_) pair(l, s);
    return why_;
  }

 private:
  /// `var // divisor` or `var % divisor`, which count as variables of their own: together they say what `var` is.
  struct Digit {
    int var;
    int64_t divisor;
    bool quotient;
    bool operator==(const Digit&) const = default;
  };
  int variable(const Digit& d) {
    auto it = std::find(digits_.begin(), digits_.end(), d);
    if (it == digits_.end()) it = digits_.insert(it, d);
    return static_cast<int>(nest_.vars.size()) + static_cast<int>(it - digits_.begin());
  }

  bool add_to(Linear& sum, const Expr& e, int64_t factor) {
    if (e->kind == ExprKind::Int) return sum.constant += factor * e->int_value, true;
    if (e->kind == ExprKind::Var) return sum.of[e->id] += factor, true;
    if (e->kind != ExprKind::Apply || e->dtype != DType::I64) return false;
    switch (e->op) {
      case Op::Add: return add_to(sum, e->args[0], factor) && add_to(sum, e->args[1], factor);
      case Op::Sub: return add_to(sum, e->args[0], factor) && add_to(sum, e->args[1], -factor);
      case Op::Neg: return add_to(sum, e->args[0], -factor);
      case Op::Mul:
        if (e->args[1]->kind == ExprKind::Int) return add_to(sum, e->args[0], factor * e->args[1]->int_value);
        if (e->args[0]->kind == ExprKind::Int) return add_to(sum, e->args[1], factor * e->args[0]->int_value);
        return false;
      case Op::FloorDiv:
      case Op::Mod:
        if (e->args[0]->kind != ExprKind::Var || e->args[1]->kind != ExprKind::Int || e->args[1]->int_value <= 0)
          return false;
        return sum.of[variable({e->args[0]->id, e->args[1]->int_value, e->op == Op::FloorDiv})] += factor, true;
      default: return false;
    }
  }

  struct Access {
    Linear at;
    bool linear = false;
    std::vector<const StmtNode*> loops;  // outermost first
    int place = 0;                       // in the order of the text
  };

  void refuse(const std::string& why) {
    if (why_.empty()) why_ = why;
  }

  Access access(const Expr& index) {
    Access a{{}, false, loops_, place_};
    a.linear = add_to(a.at, index, 1);
    return a;
  }

  void expression(const Expr& e) {
    if (!e) return;
    if (e->kind == ExprKind::Load && e->id == read_) loads_.push_back(access(e->args[0]));
    // where it is read, nothing may be missing either
    if (e->kind == ExprKind::Load && e->id == written_) stores_.push_back(access(e->args[0]));
    for (const Expr& a : e->args) expression(a);
  }

  void statement(const StmtNode& s) {
    ++place_;
    expression(s.extent);
    expression(s.index);
    expression(s.value);
    expression(s.second);
    if (s.kind == StmtKind::Store && s.buffer == written_) stores_.push_back(access(s.index));
    if (s.kind == StmtKind::Transpose && (s.source == read_ || s.buffer == written_))
      refuse("one of them is transposed");
    if ((s.kind == StmtKind::Copy || s.kind == StmtKind::CopyAsync) && (s.source == read_ || s.buffer == written_))
      refuse("one of them is copied");
    if (s.kind == StmtKind::For) loops_.push_back(&s);
    for (const Stmt& inner : s.body) statement(*inner);
    if (s.kind == StmtKind::For) loops_.pop_back();
  }

  /// The number of iterations of a loop at most.
  std::optional<int64_t> most(const StmtNode& loop) const {
    if (const int64_t extent = nest_.vars[static_cast<size_t>(loop.var)].extent; extent >= 0) return extent;
    if (const Range r = range_of(loop.extent); r.known) return std::max<int64_t>(r.high, 0);
    if (loop.extent->kind == ExprKind::Apply && loop.extent->op == Op::Min)
      for (const Expr& e : loop.extent->args)
        if (e->kind == ExprKind::Int) return e->int_value;
    return std::nullopt;
  }

  /// Sums of variables that `e` is never above, where it is above 0.
  void bounds(const Expr& e, int64_t factor, const Linear& plus, std::vector<Linear>& found) {
    Linear all = plus;
    if (add_to(all, e, factor)) {
      found.push_back(std::move(all));
    } else if (e->kind == ExprKind::Apply && factor > 0 && e->op == Op::Min) {
      for (const Expr& a : e->args) bounds(a, factor, plus, found);
    } else if (e->kind == ExprKind::Apply && factor > 0 && e->op == Op::Max && e->args[0]->kind == ExprKind::Int &&
               e->args[0]->int_value == 0) {
      bounds(e->args[1], factor, plus, found);
    } else if (e->kind == ExprKind::Apply && (e->op == Op::Add || e->op == Op::Sub)) {
      Linear with = plus;
      if (add_to(with, e->args[1], e->op == Op::Sub ? -factor : factor)) bounds(e->args[0], factor, with, found);
    }
  }
  /// Where `inner` ends before `outer`'s next iteration goes on (at most `step` iterations, and no more than total -
  /// step * outer): the total of both; else none.
  std::optional<int64_t> total_of(const StmtNode& inner, int outer, int64_t step) {
    std::vector<Linear> upper;
    bounds(inner.extent, 1, {}, upper);
    bool ends = false;
    std::optional<int64_t> total;
    for (const Linear& u : upper) {
      const bool constant = std::all_of(u.of.begin(), u.of.end(), [](const auto& v) { return v.second == 0; });
      ends = ends || (constant && u.constant <= step);
      const auto it = u.of.find(outer);
      if (it == u.of.end() || it->second != -step) continue;
      if (std::all_of(u.of.begin(), u.of.end(), [&](const auto& v) { return v.first == outer || v.second == 0; }))
        total = std::min(total.value_or(u.constant), u.constant);
    }
    return ends ? total : std::nullopt;
  }
  /// The variable that has one value within `loop`, which is there to ask for it (`for last in cast(k == 3)`); -1:
  /// none.
  static int asked_for(const StmtNode& loop) {
    const Expr& e = loop.extent;
    if (e->kind != ExprKind::Apply || e->op != Op::Cast) return -1;
    const Expr& test = e->args[0];
    const bool equal = test->kind == ExprKind::Apply && test->op == Op::Eq && test->args[0]->kind == ExprKind::Var &&
                       test->args[1]->kind == ExprKind::Int;
    return equal ? test->args[0]->id : -1;
  }

  struct Span { int64_t low, high; };
  /// What `a` reaches by its constant and the loops from `from` on.
  std::optional<Span> span(const Access& a, size_t from) const {
    Span s{a.at.constant, a.at.constant};
    for (size_t i = from; i < a.loops.size(); ++i) {
      const auto it = a.at.of.find(a.loops[i]->var);
      if (it == a.at.of.end() || it->second == 0) continue;
      const auto count = most(*a.loops[i]);
      if (!count) return std::nullopt;
      const int64_t reach = it->second * std::max<int64_t>(*count - 1, 0);
      (reach < 0 ? s.low : s.high) += reach;
    }
    return s;
  }

  void pair(const Access& load, const Access& store) {
    if (!load.linear || !store.linear) return refuse("an index is no sum of variables");
    if (load.place > store.place) return refuse("it is read after it was overwritten");
    size_t shared = 0;
    while (shared < load.loops.size() && shared < store.loops.size() && load.loops[shared] == store.loops[shared])
      ++shared;
    for (size_t i = shared; i < store.loops.size(); ++i)
      if (store.loops[i]->loop == LoopKind::Parallel) return refuse("it is read beside the parallel loop");
    const auto a = span(load, shared), b = span(store, shared);
    if (!a || !b) return refuse("a loop without a known end");
    const int64_t width = std::max(a->high, b->high) - std::min(a->low, b->low) + 1;
    std::vector<int> once;  // variables with one value where both are touched
    for (size_t i = 0; i < shared; ++i) once.push_back(asked_for(*load.loops[i]));
    const auto coefficient = [](const Access& x, int var) {
      const auto it = x.at.of.find(var);
      return it == x.at.of.end() ? 0 : it->second;
    };
    struct Loop {
      const StmtNode* loop;
      int var;
      int64_t coefficient, count;
    };
    std::vector<Loop> loops;
    const auto check_loop = [&](const StmtNode* loop, int var, std::optional<int64_t> count) {
      if (count && *count <= 1) return;
      if (coefficient(load, var) != coefficient(store, var)) refuse("their strides differ");
      loops.push_back({loop, var, coefficient(load, var), count.value_or(-1)});
    };
    std::vector<bool> known(digits_.size());
    for (size_t i = 0; i < shared; ++i) {
      const int var = load.loops[i]->var;
      if (std::find(once.begin(), once.end(), var) != once.end()) continue;
      const auto count = most(*load.loops[i]);
      int64_t divisor = 0;
      for (size_t d = 0; d < digits_.size(); ++d) {
        const int digit = static_cast<int>(nest_.vars.size() + d);
        if (digits_[d].var != var || (!load.at.of.count(digit) && !store.at.of.count(digit))) continue;
        if ((divisor && divisor != digits_[d].divisor) || coefficient(load, var) || coefficient(store, var))
          return refuse("an index is no sum of variables");
        divisor = digits_[d].divisor;
        known[d] = true;
      }
      if (!divisor) {
        check_loop(load.loops[i], var, count);
        continue;
      }
      check_loop(load.loops[i], variable({var, divisor, true}),
                 count ? std::optional(ceil_div(*count, divisor)) : std::nullopt);
      check_loop(load.loops[i], variable({var, divisor, false}), divisor);
    }
    for (size_t d = 0; d < known.size(); ++d) {
      const int digit = static_cast<int>(nest_.vars.size() + d);
      if (!known[d] && (load.at.of.count(digit) || store.at.of.count(digit)))
        return refuse("an index is no sum of variables");
    }
    if (!why_.empty()) return;
    // Blocks of tiles, the last of them shorter: all tiles, one after the other.
    for (size_t i = 0; i < loops.size(); ++i)
      for (size_t j = i + 1; j < loops.size(); ++j) {
        if (loops[j].coefficient <= 0 || loops[i].coefficient % loops[j].coefficient != 0) continue;
        const auto total = total_of(*loops[j].loop, loops[i].var, loops[i].coefficient / loops[j].coefficient);
        if (!total) continue;
        loops[j].count = *total;
        loops.erase(loops.begin() + static_cast<std::ptrdiff_t>(i--));
        break;
      }
    std::vector<std::pair<int64_t, int64_t>> steps;  // (coefficient, iterations)
    for (const Loop& l : loops) steps.emplace_back(l.coefficient, l.count);
    std::sort(steps.begin(), steps.end());
    int64_t taken = width;  // elements from the first to the last of what the inner loops touch
    for (size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].first < taken) return refuse("two iterations touch one element");
      if (i + 1 == steps.size()) break;
      if (steps[i].second < 0) return refuse("a loop without a known end");
      taken += steps[i].first * (steps[i].second - 1);
    }
  }

  const LoopNest& nest_;
  const int written_, read_;
  std::vector<Digit> digits_;
  std::vector<const StmtNode*> loops_;
  std::vector<Access> loads_, stores_;
  int place_ = 0;
  std::string why_;
};

}  // namespace

bool is_copy(const LoopNest& nest) {
  if (nest.threads > 0 || nest.buffers.size() != 2 || nest.buffers[0].dtype != nest.buffers[1].dtype) return false;
  if (std::ranges::any_of(nest.buffers, [](const Buffer& b) { return b.space != Space::Argument || b.bits; }))
    return false;
  const std::function<bool(const StmtNode&)> copies = [&](const StmtNode& s) {
    if (s.kind == StmtKind::Store) {
      const Expr& from = s.value;
      return from->kind == ExprKind::Load && from->id != s.buffer && from->args.size() == 1 &&
             same(from->args[0], s.index);
    }
    return (s.kind == StmtKind::Block || s.kind == StmtKind::For) &&
           std::ranges::all_of(s.body, [&](const Stmt& inner) { return copies(*inner); });
  };
  return copies(*nest.body);
}

std::string refuse_in_place(const LoopNest& nest, int written, int read) { return Check(nest, written, read).run(); }

}  // namespace trainc::loop
