#include "schedule/groups.h"

#include <algorithm>
#include <set>

#include "cost/fusion.h"

namespace trainc::schedule {

void Groups::find_chains() {
  find_neighbours();
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    if (find(g) != g || groups_[g].kind != GroupKind::Contract) continue;
    const OrRefused<Matrix> matrix = matrix_of(groups_[g].values[0]);
    if (!matrix) {
      if (remarks_ && begins_chain(g)) no_chain(g, matrix.why());
      continue;
    }
    std::vector<int> inside{g}, consumers;
    for (bool grown = true; grown;) {
      grown = false;
      for (int x : candidates(inside, *matrix))
        if (works_on(x, inside, *matrix) && !refuse_more(inside, x, matrix->columns)) inside.push_back(x), grown = true;
    }
    const std::vector<int> producing = inside;
    if (!works_on_rows(producing, *matrix)) {
      if (remarks_ && begins_chain(g)) no_chain(g, "no value of a row goes into a value of its elements");
      continue;
    }
    bool reported = !remarks_;
    for (int x : neighbours(inside)) {
      Refusal why = refuse_consumer(x, producing, *matrix);
      if (!why && (reads(x, consumers) || reads_any(inside, x))) why = "one end of the chain reads another";
      if (!why) why = refuse_more(inside, x, matrix->columns);
      if (!why) inside.push_back(x), consumers.push_back(x);
      else if (remarks_ && groups_[x].kind == GroupKind::Contract && reads(x, producing))
        no_chain(g, why, groups_[x].values[0]), reported = true;
    }
    if (consumers.empty()) {
      if (!reported && begins_chain(g)) no_chain(g, "what is done to its rows reads more than its own elements");
      continue;
    }
    std::sort(consumers.begin(), consumers.end());
    std::vector<std::vector<const Node*>> consumer_values;
    for (int x : consumers) consumer_values.push_back(groups_[x].values);
    const int made = join(inside);
    for (int x : inside)
      if (x != made) neighbours_[made].insert(neighbours_[made].end(), neighbours_[x].begin(), neighbours_[x].end());
    Group& chain = groups_[made];
    chain.kind = GroupKind::MatmulChain, chain.rows = matrix->batch * matrix->rows, chain.columns = matrix->columns;
    chain.consumers = std::move(consumer_values);
  }
}

std::vector<int> Groups::neighbours(const std::vector<int>& inside) const {
  std::set<int> found;
  for (int g : inside)
    for (int near : neighbours_[g])
      if (near = find(near); std::find(inside.begin(), inside.end(), near) == inside.end()) found.insert(near);
  return {found.begin(), found.end()};
}

void Groups::find_neighbours() {
  neighbours_.assign(groups_.size(), {});
  for (const auto& [n, reads] : reads_)
    for (const Read& r : reads)
      if (int p = group(r.value), g = group(n); p >= 0 && p != g)
        neighbours_[p].push_back(g), neighbours_[g].push_back(p);
}

std::vector<int> Groups::candidates(const std::vector<int>& inside, const Matrix& matrix) const {
  const std::vector<int> near = neighbours(inside);
  std::set<int> found(near.begin(), near.end());
  for (int x : near)
    for (int which : {0, 1}) {
      const Node* c = groups_[x].values[0];
      if (c->op != Op::Contract) continue;
      const std::optional<BlockOperand> block = block_operand(c, which, matrix);
      if (!block || values_.nodes.count(block->node)) continue;
      std::vector<int> read;
      for (const Read& r : reads_of(block->node, values_.nodes, matrix.batch * matrix.rows, matrix.columns))
        if (int p = group(r.value); p >= 0 && r.access == Access::Full) read.push_back(p);
      const auto is_inside = [&](int p) { return std::find(inside.begin(), inside.end(), p) != inside.end(); };
      if (std::any_of(read.begin(), read.end(), is_inside))
        std::copy_if(read.begin(), read.end(), std::inserter(found, found.end()), [&](int p) { return !is_inside(p); });
    }
  return {found.begin(), found.end()};
}

bool Groups::reads(int reader, const std::vector<int>& read) const {
  for (const Node* n : groups_[reader].values)
    for (const Read& r : reads_.at(n))
      if (group(r.value) != reader && std::find(read.begin(), read.end(), group(r.value)) != read.end()) return true;
  return false;
}

bool Groups::reads_any(const std::vector<int>& readers, int read) const {
  return std::any_of(readers.begin(), readers.end(), [&](int g) { return reads(g, {read}); });
}

Refusal Groups::refuse_more(std::vector<int> inside, int extra, int64_t columns) const {
  if (inside.size() == cost::kMostChained) return kTooLarge;
  inside.push_back(extra);
  Work work;
  for (int g : inside) work = work + work_[g];
  if (!fits(work, columns)) return kTooLarge;
  return dag_.circular(inside) ? kCircle : nullptr;
}

bool Groups::begins_chain(int g) const {
  const auto near = [&](int of) {
    return std::vector(
        neighbours_[of].begin(),
        neighbours_[of].begin() + static_cast<std::ptrdiff_t>(std::min(cost::kMostNeighbours, neighbours_[of].size())));
  };
  const int64_t columns = groups_[g].values[0]->shape()[2];
  for (int x : near(g)) {
    x = find(x);
    const Group& rows = groups_[x];
    if (rows.kind != GroupKind::Rows || rows.columns != columns ||
        rows.rows * columns != groups_[g].values[0]->type.numel() || !reads(x, {g}))
      continue;
    if (std::none_of(rows.values.begin(), rows.values.end(), is_sum)) continue;
    for (int y : near(x))
      if (y = find(y); y != g && groups_[y].kind == GroupKind::Contract && reads(y, {x, g})) return true;
  }
  return false;
}

void Groups::no_chain(int g, Refusal why, const Node* consumer) const {
  const Node* producer = groups_[g].values[0];
  remarks_.missed(missed::kMatmulChain, why, producer, consumer, producer->type.bytes());
}

bool Groups::works_on(int x, const std::vector<int>& inside, const Matrix& matrix) {
  const int64_t rows = matrix.batch * matrix.rows, columns = matrix.columns;
  const Group& g = groups_[x];
  if (g.kind == GroupKind::Contract) {
    if (const OrRefused<Matrix> own = matrix_of(g.values[0]); !own || !(*own == matrix)) return false;
  } else if (g.kind != GroupKind::Rows || g.rows * g.columns != rows * columns ||
             (g.columns != columns && g.columns != 1)) {
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

bool Groups::works_on_rows(const std::vector<int>& inside, const Matrix& matrix) const {
  for (int g : inside)
    for (const Node* n : groups_[g].values)
      if (n->op != Op::Contract)
        for (const Read& r : reads_of(n, values_.nodes, matrix.batch * matrix.rows, matrix.columns))
          if (r.access == Access::Row) return true;
  return false;
}

Refusal Groups::refuse_consumer(int x, const std::vector<int>& inside, const Matrix& matrix) {
  if (groups_[x].kind != GroupKind::Contract) return "it is no contraction";
  const auto is_inside = [&](const Node* n) {
    return std::find(inside.begin(), inside.end(), group(n)) != inside.end();
  };
  const Node* c = groups_[x].values[0];
  for (const Node* n : groups_[x].values)
    if (n != c)
      for (const Read& r : reads_.at(n))
        if (is_inside(r.value)) return "the next contraction's epilogue reads the matrix or its rows";
  int operands = 0;
  for (int which : {0, 1}) {
    const Node* operand = c->in(which);
    std::vector<Read> reads = {{base_of(operand), Access::Full}};
    if (!values_.nodes.count(base_of(operand))) reads = reads_of(operand, values_.nodes, operand->type.numel(), 1);
    if (std::none_of(reads.begin(), reads.end(), [&](const Read& r) { return is_inside(r.value); })) continue;
    const std::optional<BlockOperand> block = block_operand(c, which, matrix);
    if (!block) return "the next contraction reads the matrix in another order";
    if (operands++) return "the next contraction reads it in both operands";
    if (const Refusal why = refuse_wide_consumer(c, block->transposed, matrix)) return why;
    if (values_.nodes.count(block->node)) continue;
    // An expression that is made for the contraction alone: elementwise, over the matrix.
    const int64_t rows = matrix.batch * matrix.rows;
    if (!is_elementwise(block->node->op)) return "the next contraction reads more than elements of the matrix";
    for (const Read& r : reads_of(block->node, values_.nodes, rows, matrix.columns)) {
      const int64_t elements = r.access == Access::Row ? rows : rows * matrix.columns;
      if (is_inside(r.value) && (r.access == Access::Other || r.value->type.numel() != elements))
        return "the next contraction reads more than elements of the matrix";
    }
  }
  return operands == 1 ? nullptr : "the next contraction does not read the matrix";
}

}  // namespace trainc::schedule
