#include "lower/row_loops.h"

#include <algorithm>

#include "cost/loops.h"
#include "loop/runs.h"
#include "loop/width.h"
#include "lower/domain.h"
#include "lower/kernels.h"

namespace trainc::lower {

using loop::block;
using loop::integer;
using loop::LoopKind;

void RowLoops::declare_arguments() {
  for (const Node* n : values_) {
    if (schedule_.stored.count(n)) e_.argument(n, true);
    for (const Read& r : reads_of(n, schedule_.values, rows_, columns_))
      if (!level_.count(r.value) && r.value->type.numel() > 0) e_.argument(r.value);
  }
}

void RowLoops::find_levels() {
  for (const Node* n : inputs_) level_[n] = 0;
  for (const Node* n : values_) {
    int level = 0;
    for (const Read& r : reads_of(n, schedule_.values, rows_, columns_))
      if (auto it = level_.find(r.value); it != level_.end() && r.value != n) level = std::max(level, it->second);
    if (is_sum(n)) ++level;
    level_[n] = level;
    last_level_ = std::max(last_level_, level);
  }
  for (auto it = values_.rbegin(); it != values_.rend(); ++it) {
    const Node* n = *it;
    if (row_value(n) && !is_sum(n)) continue;
    int at = is_sum(n) ? level_[n] - 1 : level_[n];
    if (!made_once(n) && used_at_.count(n) && used_at_[n] > level_[n]) {
      if (worth_keeping(n)) kept_.insert(n), kept_bytes_ += columns_ * size_of(n->dtype());
      else at = used_at_[n];
    }
    for (const Read& r : reads_of(n, schedule_.values, rows_, columns_))
      if (level_.count(r.value) && r.value != n)
        used_at_[r.value] = std::max(used_at_.emplace(r.value, at).first->second, at);
  }
}

static_assert(cost::kSharedRows < loop::kSharedBytes, "sums need some of a block's memory, too");

bool RowLoops::worth_keeping(const Node* n) const {
  const int64_t bytes = columns_ * size_of(n->dtype());
  if (options_.target.launches_blocks ? kept_bytes_ + bytes > cost::kSharedRows : bytes > cost::kScratchRow)
    return false;
  int64_t work = 0;
  auto visit = [&](auto&& self, const Node* x) -> void {
    work += op_cost(x->op);
    for (const Node* i : x->inputs)
      if (!schedule_.values.count(i) && work < cost::kCountedWork) self(self, i);
  };
  visit(visit, n);
  return work >= cost::kWorthKeeping;
}

RowLoops::Factors RowLoops::factors(int64_t width) const {
  std::set<int64_t> points;
  for (const Node* n : values_) points.merge(split_points(n, schedule_, rows_, columns_));
  std::vector<int64_t> firm;
  if (columns_ > 1) firm.push_back(columns_);
  if (columns_ == 1 && width > 0) firm.push_back(width);
  const std::vector<int64_t> all = factor(rows_ * columns_, firm, points);
  if (columns_ == 1) return {{all.begin(), all.end() - 1}, {all.back()}};
  int64_t product = 1;
  std::ptrdiff_t k = 0;
  while (product < rows_) product *= all[k++];
  Factors f{{all.begin(), all.begin() + k}, {all.begin() + k, all.end()}};
  if (f.inner.empty()) f.inner = {columns_};
  return f;
}

std::vector<Stmt> RowLoops::row(const Expr& row, const Columns& columns) {
  row_ = row;
  e_.own.insert(values_.begin(), values_.end());
  e_.own.insert(inputs_.begin(), inputs_.end());
  e_.own_value = [this](const Node* n, Index& index) { return own_value(n, index); };
  e_.bound.clear();
  std::vector<Stmt> body;
  e_.out = &body;
  bind_rows(0, {});
  const int loops = last_level_ + 1;
  for (loop_ = 0; loop_ < loops; ++loop_) {
    std::vector<const Node*> stores, sums;
    for (const Node* n : values_) {
      const bool kept = schedule_.stored.count(n) || outputs_.count(n) || kept_.count(n);
      if (is_sum(n) ? level_[n] == loop_ + 1 : (full(n) && level_[n] == loop_ && kept))
        (is_sum(n) ? sums : stores).push_back(n);
    }
    std::unordered_map<const Node*, Expr> results;
    if (!stores.empty() || !sums.empty()) loop_over_columns(stores, sums, columns, body, results);
    e_.out = &body;
    bind_rows(loop_ + 1, results);
  }
  e_.out = nullptr;
  return body;
}

void RowLoops::loop_over_columns(const std::vector<const Node*>& stores, const std::vector<const Node*>& sums,
                                 const Columns& columns, std::vector<Stmt>& body,
                                 std::unordered_map<const Node*, Expr>& results) {
  loop::LoopNest& nest = e_.nest();
  std::vector<int> vars;
  std::vector<Expr> inner;
  for (size_t k = 0; k < columns.inner.size(); ++k) {
    const bool last = k + 1 == columns.inner.size();
    vars.push_back(nest.add_var((last ? "j" : "c") + std::to_string(nest.vars.size()), columns.inner[k]));
    inner.push_back(nest.var(vars.back()));
  }
  const int64_t last = columns.inner.back();
  const Expr extent = columns.extent ? columns.extent : integer(last);
  column_ = position_of(inner, columns.inner);
  int64_t in_row = 1;  // of an elementwise group, a run
  for (int64_t f : columns.inner) in_row *= f;
  const Expr position = row_ * in_row + column_;
  std::vector<Total> totals;
  for (const Node* n : sums) {
    totals.push_back(total_of(n, nest, options_));
    body.push_back(totals.back().start);
  }
  std::vector<Stmt> inside;
  e_.out = &inside;
  const auto rows_bound = e_.bound;
  // Inputs are read before an output is put over them.
  for (const Node* n : stores)
    if (auto to = blocks_.find(n); to != blocks_.end())
      for (const Node* g : input_order_)
        if (blocks_.at(g).buffer == to->second.buffer && last_read(g) == loop_)
          e_.value(g, Index::at_position(g->shape(), position));
  for (const Node* n : stores) {
    const Expr v = e_.value(n, Index::at_position(n->shape(), position));
    const Expr stored = v->dtype == n->dtype() ? v : loop::cast(v, n->dtype());
    if (schedule_.stored.count(n)) inside.push_back(e_.store(n, position, v));
    if (auto place = blocks_.find(n); place != blocks_.end())
      inside.push_back(loop::store(place->second.buffer, place->second.start + column_, stored));
    else if (!schedule_.stored.count(n)) inside.push_back(loop::store(scratch(n), column_, stored));
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    const Node* x = sums[i]->in(0);
    inside.push_back(loop::reduce(totals[i].local, sums[i]->as<ReduceAttr>().kind,
                                  e_.value(x, Index::at_position(x->shape(), position))));
  }
  e_.bound = rows_bound;
  if (columns.start) count_from(nest, columns.start, vars.back(), inside);
  const int width = loop::lanes_for(inside, lanes(options_.target, last), last);
  Stmt stmt = loop::for_loop(LoopKind::Vector, vars.back(), extent, block(std::move(inside)), width);
  for (size_t k = columns.inner.size() - 1; k-- > 0;)
    stmt = loop::for_loop(LoopKind::Serial, vars[k], integer(columns.inner[k]), stmt);
  body.push_back(add_in_runs(nest, stmt, options_.fixed_blockings != nullptr, options_.target.launches_blocks));
  for (size_t i = 0; i < sums.size(); ++i) results[sums[i]] = totals[i].result;
}

/// Binds the row values that are known from loop `level` on, and stores those that are wanted outside.
void RowLoops::bind_rows(int level, const std::unordered_map<const Node*, Expr>& sums) {
  for (const Node* n : values_) {
    if (!row_value(n) && !is_sum(n)) continue;
    if (level_[n] != level) continue;
    Expr v = is_sum(n) ? sums.at(n) : e_.definition(n, Index::at_position(n->shape(), row_));
    e_.bind(n, v);
    if (schedule_.stored.count(n)) e_.out->push_back(e_.store(n, row_, e_.bound[n]));
  }
}

/// A full value of the row, where it is used: bound already, an input, in memory since an earlier loop, or computed
/// now.
Expr RowLoops::own_value(const Node* n, Index& index) {
  const auto place = blocks_.find(n);
  if (inputs_.count(n)) return e_.bind(n, load(place->second.buffer, place->second.start + column_, n->dtype()));
  if (full(n) && level_[n] < loop_) {
    if (place != blocks_.end())
      return e_.bind(n, load(place->second.buffer, place->second.start + column_, n->dtype()));
    if (schedule_.stored.count(n)) return e_.bind(n, load(e_.argument(n), index.linear(), n->dtype()));
    if (kept_.count(n)) return e_.bind(n, load(scratch(n), column_, n->dtype()));
  }
  require(!row_value(n), "a row value is used before it is known");
  return e_.bind(n, e_.definition(n, index));
}

Expr RowLoops::load(int buffer, const Expr& at, DType dtype) const {
  const Expr e = e_.nest().load(buffer, at);
  return arithmetic_dtype(dtype) == dtype ? e : loop::cast(e, DType::F32);
}

int RowLoops::scratch(const Node* n) {
  auto [it, fresh] = scratch_.emplace(n, -1);
  if (fresh)
    it->second = e_.nest().add_buffer(
        {"row" + std::to_string(scratch_.size()), n->dtype(), columns_, loop::Space::Scratch, true});
  return it->second;
}

}  // namespace trainc::lower
