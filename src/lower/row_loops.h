// What is done to one row of a row group: one loop over its columns for each level of sums. Inside lower only.
//
// Glossary
//   level    of a full value: the loop in which it can be made; of a row value: the first loop that may read it.
//   input    a full value that lies in a block of rows in scratch: others made it before the loops.
//   output   one that the loops put into such a block, for others to read afterwards.
#pragma once
#include "lower/expressions.h"

namespace trainc::lower {

class RowLoops {
 public:
  RowLoops(const Schedule& schedule, std::vector<const Node*> values, int64_t rows, int64_t columns,
           const LoweringOptions& options, Expressions& e)
      : schedule_(schedule), values_(std::move(values)), rows_(rows), columns_(columns), options_(options), e_(e) {}

  /// Full values that lie in a block; outputs are elementwise, and among `values`. Before find_levels().
  void add_input(const Node* n) {
    if (inputs_.insert(n).second) input_order_.push_back(n);
  }
  void add_output(const Node* n) { outputs_.insert(n); }
  void find_levels();
  /// Of an output: the loop that stores it. Of an input: the last loop that reads it, -1 where none does.
  int made_in(const Node* n) const { return level_.at(n); }
  int last_read(const Node* n) const {
    auto it = used_at_.find(n);
    return it == used_at_.end() ? -1 : it->second;
  }
  /// Where an input or output lies: its row from element `start` on. An output may lie over an input that no loop reads
  /// after the one that makes the output.
  void put_in_block(const Node* n, int buffer, Expr start) { blocks_[n] = {buffer, std::move(start)}; }

  /// All arguments before any scratch row: a nest has them in that order.
  void declare_arguments();
  /// The domain as outer factors (rows) and inner ones (columns).
  struct Factors { std::vector<int64_t> outer, inner; };
  /// `width`: of an elementwise group, elements at multiples of which a run is to end; 0: anywhere.
  Factors factors(int64_t width = 0) const;

  // The columns that a loop takes: those of `inner`; of its last factor a run of `extent` from `start` on.
  struct Columns {
    std::vector<int64_t> inner;
    Expr start;   // nullptr: 0
    Expr extent;  // nullptr: all
  };
  std::vector<Stmt> row(const Expr& row, const Columns&);

 private:
  bool full(const Node* n) const { return !is_sum(n) && n->type.numel() == rows_ * columns_; }
  bool row_value(const Node* n) const { return columns_ > 1 && !full(n); }
  bool made_once(const Node* n) const { return schedule_.stored.count(n) || outputs_.count(n) || is_sum(n); }
  bool worth_keeping(const Node*) const;
  void loop_over_columns(const std::vector<const Node*>& stores, const std::vector<const Node*>& sums, const Columns&,
                         std::vector<Stmt>& body, std::unordered_map<const Node*, Expr>& results);
  void bind_rows(int level, const std::unordered_map<const Node*, Expr>& sums);
  Expr own_value(const Node*, Index&);
  Expr load(int buffer, const Expr& at, DType) const;
  int scratch(const Node*);

  struct BlockRow {
    int buffer;
    Expr start;
  };
  const Schedule& schedule_;
  const std::vector<const Node*> values_;  // in topological order
  const int64_t rows_, columns_;
  const LoweringOptions& options_;
  Expressions& e_;
  std::unordered_set<const Node*> inputs_, outputs_;
  std::vector<const Node*> input_order_;  // as they were added: a plan's bytes depend on no address
  std::unordered_map<const Node*, BlockRow> blocks_;
  std::unordered_map<const Node*, int> level_, used_at_, scratch_;
  std::unordered_set<const Node*> kept_;  // full values kept in a scratch row from the loop that makes them on
  int64_t kept_bytes_ = 0;
  int last_level_ = 0;
  int loop_ = 0;  // the level of the loop that is written
  Expr row_, column_;
};

}  // namespace trainc::lower
