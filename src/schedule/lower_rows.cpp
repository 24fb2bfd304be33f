// Row groups: for each row, one walk over its columns a level of sums. Elementwise groups are rows without sums.
#include <algorithm>

#include "schedule/domain.h"
#include "schedule/kernels.h"

namespace trainc::schedule {
namespace {

using loop::block;
using loop::integer;
using loop::LoopKind;

constexpr int64_t kScratchRow = 256 << 10;  // bytes of a row worth keeping rather than computing again
constexpr int64_t kSharedRows = 40 << 10;   // of all kept rows, on a device: Shared memory, less what sums are combined in

class Rows {
 public:
  Rows(const Schedule& schedule, const Group& group, const Machine& machine)
      : schedule_(schedule), group_(group), machine_(machine), e_(schedule, kernel_), name_(kernel_name(group)) {}

  LoweredKernel run() {
    kernel_.nest.name = name_;
    find_levels();
    declare_arguments();
    e_.own.insert(group_.values.begin(), group_.values.end());
    e_.own_value = [this](const Node* n, Index& index) { return own_value(n, index); };
    choose_loops();
    build();
    return std::move(kernel_);
  }

 private:
  bool full(const Node* n) const { return !is_sum(n) && n->type.numel() == group_.rows * group_.columns; }
  bool row(const Node* n) const { return group_.columns > 1 && !full(n); }

  /// All arguments before any scratch row: a nest has them in that order.
  void declare_arguments() {
    for (const Node* n : group_.values) {
      if (schedule_.stored.count(n)) e_.argument(n, true);
      for (const Read& r : reads_of(n, schedule_.values, group_.rows, group_.columns))
        if (!level_.count(r.value) && r.value->type.numel() > 0) e_.argument(r.value);
    }
  }

  // Level of a full value: the walk in which it can be made; of a row value: the first walk that may read it.
  void find_levels() {
    for (const Node* n : group_.values) {
      int level = 0;
      for (const Read& r : reads_of(n, schedule_.values, group_.rows, group_.columns))
        if (auto it = level_.find(r.value); it != level_.end() && r.value != n) level = std::max(level, it->second);
      if (is_sum(n)) ++level;
      level_[n] = level;
      last_level_ = std::max(last_level_, level);
    }
    std::unordered_map<const Node*, int> used_at;  // the last walk in which a full value is read
    for (auto it = group_.values.rbegin(); it != group_.values.rend(); ++it) {
      const Node* n = *it;
      if (row(n) && !is_sum(n)) continue;
      const bool made_once = schedule_.stored.count(n) || is_sum(n);
      int at = is_sum(n) ? level_[n] - 1 : level_[n];
      if (!made_once && used_at.count(n) && used_at[n] > level_[n]) {
        if (worth_keeping(n)) kept_.insert(n), kept_bytes_ += group_.columns * size_of(n->dtype());
        else at = used_at[n];
      }
      for (const Read& r : reads_of(n, schedule_.values, group_.rows, group_.columns))
        if (level_.count(r.value) && r.value != n) used_at[r.value] = std::max(used_at[r.value], at);
    }
  }

  bool worth_keeping(const Node* n) const {
    const int64_t bytes = group_.columns * size_of(n->dtype());
    if (machine_.gpu ? kept_bytes_ + bytes > kSharedRows : bytes > kScratchRow) return false;
    int64_t cost = 0;
    auto visit = [&](auto&& self, const Node* x) -> void {
      cost += op_cost(x->op);
      for (const Node* i : x->inputs)
        if (!schedule_.values.count(i) && cost < 100) self(self, i);
    };
    visit(visit, n);
    return cost >= 4;
  }

  void choose_loops() {
    const int64_t all = group_.rows * group_.columns;
    std::set<int64_t> points;
    for (const Node* n : group_.values) points.merge(split_points(n, schedule_, group_.rows, group_.columns));
    std::vector<int64_t> firm;
    if (group_.columns > 1) firm.push_back(group_.columns);
    std::vector<int64_t> factors = factor(all, firm, points);
    if (group_.columns > 1) {
      int64_t product = 1;
      size_t k = 0;
      while (product < group_.rows) product *= factors[k++];
      outer_.assign(factors.begin(), factors.begin() + static_cast<std::ptrdiff_t>(k));
      inner_.assign(factors.begin() + static_cast<std::ptrdiff_t>(k), factors.end());
      if (inner_.empty()) inner_ = {group_.columns};
    } else {
      outer_.assign(factors.begin(), factors.end() - 1);
      inner_ = {factors.back()};
      if (inner_[0] > 2 * kChunk) {  // a long run: pieces, the last one shorter
        chunked_ = true;
        outer_.push_back((inner_[0] + kChunk - 1) / kChunk);
      }
    }
  }

  void build() {
    loop::LoopNest& nest = kernel_.nest;
    OuterLoops loops(nest, outer_, machine_);
    std::vector<Expr> outer = loops.variables();
    Expr run_start;  // of a chunk
    std::vector<int64_t> outer_factors = outer_;
    if (chunked_) {
      run_start = outer.back() * kChunk;
      outer.pop_back();
      outer_factors.pop_back();
    }
    row_ = position_of(outer, outer_factors);
    std::vector<Stmt> body;
    e_.out = &body;
    bind_rows(0, {});
    const int walks = last_level_ + 1;
    for (walk_ = 0; walk_ < walks; ++walk_) {
      std::vector<const Node*> stores, sums;
      for (const Node* n : group_.values) {
        if (is_sum(n) ? level_[n] == walk_ + 1 : (full(n) && level_[n] == walk_ && (schedule_.stored.count(n) || kept_.count(n))))
          (is_sum(n) ? sums : stores).push_back(n);
      }
      std::unordered_map<const Node*, Expr> results;
      if (!stores.empty() || !sums.empty()) walk_columns(stores, sums, run_start, body, results);
      e_.out = &body;
      bind_rows(walk_ + 1, results);
    }
    nest.body = loops.close(block(std::move(body)));
  }

  void walk_columns(const std::vector<const Node*>& stores, const std::vector<const Node*>& sums, const Expr& run_start, std::vector<Stmt>& body,
                    std::unordered_map<const Node*, Expr>& results) {
    loop::LoopNest& nest = kernel_.nest;
    std::vector<int> vars;
    std::vector<Expr> inner;
    for (size_t k = 0; k < inner_.size(); ++k) {
      const bool last = k + 1 == inner_.size();
      vars.push_back(nest.add_var((last ? "j" : "c") + std::to_string(nest.vars.size()), last && chunked_ ? -1 : inner_[k]));
      inner.push_back(nest.var(vars.back()));
    }
    Expr extent = integer(inner_.back());
    if (chunked_) {
      inner.back() = run_start + inner.back();
      extent = inner_.back() % kChunk == 0 ? integer(kChunk) : loop::apply(Op::Min, {integer(kChunk), integer(inner_.back()) - run_start});
    }
    column_ = position_of(inner, inner_);
    Index index = Index::at_position({group_.rows * group_.columns}, row_ * columns_per_row() + column_);
    std::vector<int> locals;
    for (const Node* n : sums) {
      const DType dtype = arithmetic_dtype(n->dtype());
      locals.push_back(nest.add_local("s" + std::to_string(nest.locals.size()), dtype));
      body.push_back(loop::let(locals.back(), neutral(n->as<ReduceAttr>().kind, dtype)));
    }
    std::vector<Stmt> inside;
    e_.out = &inside;
    const auto rows_bound = e_.bound;
    for (const Node* n : stores) {
      Index at = Index::at_position(n->shape(), index.position);
      Expr v = e_.value(n, at);
      if (schedule_.stored.count(n)) inside.push_back(e_.store(n, index.position, v));
      else inside.push_back(loop::store(scratch(n), column_, v->dtype == n->dtype() ? v : loop::cast(v, n->dtype())));
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      const Node* x = sums[i]->in(0);
      inside.push_back(loop::reduce(locals[i], sums[i]->as<ReduceAttr>().kind, e_.value(x, Index::at_position(x->shape(), index.position))));
    }
    e_.bound = rows_bound;
    const int width = loop::lanes_for(inside, lanes(machine_.level, inner_.back()), inner_.back());
    Stmt stmt = loop::for_loop(LoopKind::Vector, vars.back(), extent, block(std::move(inside)), width);
    for (size_t k = inner_.size() - 1; k-- > 0;) stmt = loop::for_loop(LoopKind::Serial, vars[k], integer(inner_[k]), stmt);
    body.push_back(stmt);
    for (size_t i = 0; i < sums.size(); ++i) results[sums[i]] = arithmetic(sums[i]->dtype(), nest.local(locals[i]));
  }

  int64_t columns_per_row() const {
    int64_t n = 1;
    for (int64_t f : inner_) n *= f;
    return n;
  }

  /// Binds the row values that are known from walk `level` on, and stores those that are wanted outside.
  void bind_rows(int level, const std::unordered_map<const Node*, Expr>& sums) {
    for (const Node* n : group_.values) {
      if (!row(n) && !is_sum(n)) continue;
      if (level_[n] != level) continue;
      Expr v = is_sum(n) ? sums.at(n) : e_.definition(n, Index::at_position(n->shape(), row_));
      e_.bind(n, v);
      if (schedule_.stored.count(n)) e_.out->push_back(e_.store(n, row_, e_.bound[n]));
    }
  }

  /// A full value of this group, where it is used: bound already, in memory since an earlier walk, or computed now.
  Expr own_value(const Node* n, Index& index) {
    if (full(n) && level_[n] < walk_) {
      Expr e;
      if (schedule_.stored.count(n)) e = kernel_.nest.load(e_.argument(n), index.linear());
      else if (kept_.count(n)) e = kernel_.nest.load(scratch(n), column_);
      if (e) return e_.bind(n, arithmetic_dtype(n->dtype()) == n->dtype() ? e : loop::cast(e, DType::F32));
    }
    require(!row(n), "a row value is used before it is known");
    return e_.bind(n, e_.definition(n, index));
  }

  int scratch(const Node* n) {
    auto [it, fresh] = scratch_.emplace(n, -1);
    if (fresh) it->second = kernel_.nest.add_buffer({"row" + std::to_string(scratch_.size()), n->dtype(), columns_per_row(), loop::Space::Scratch, true});
    return it->second;
  }

  const Schedule& schedule_;
  const Group& group_;
  const Machine& machine_;
  LoweredKernel kernel_;
  Expressions e_;
  std::string name_;
  std::unordered_map<const Node*, int> level_, scratch_;
  std::unordered_set<const Node*> kept_;  // full values kept in scratch from the walk that makes them on
  int64_t kept_bytes_ = 0;
  int last_level_ = 0, walk_ = 0;
  std::vector<int64_t> outer_, inner_;
  bool chunked_ = false;
  Expr row_, column_;
};

}  // namespace

LoweredKernel lower_rows(const Schedule& schedule, const Group& group, const Machine& machine) {
  return Rows(schedule, group, machine).run();
}

}  // namespace trainc::schedule
