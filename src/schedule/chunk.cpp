#include "schedule/chunk.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "cost/chunking.h"
#include "graph/build.h"
#include "graph/remarks.h"
#include "schedule/cut.h"
#include "schedule/hidden_rows.h"
#include "schedule/matmul_chain.h"
#include "schedule/row_order.h"
#include "support/division.h"

namespace trainc::schedule {
namespace {

using Nodes = std::unordered_set<const Node*>;
using Users = std::unordered_map<const Node*, std::vector<const Node*>>;

struct Refused {
  const char* why;
  const Node* at;      // what stands in the way; may be null
  std::string detail;  // as a remark's
};
[[noreturn]] void refuse(const char* why, const Node* at = nullptr, std::string detail = {}) {
  throw Refused{why, at, std::move(detail)};
}

constexpr const char* kNotSummed = "no sum over its rows";  // no loss at all

bool is_zero(const Node* n) {
  while (n->op == Op::Reshape || n->op == Op::Broadcast) n = n->in(0);
  return n->op == Op::Constant && is_float(n->dtype()) && float_of(n) == 0;
}

/// For each node that a tangent reaches, the one that it is proportional to: none where it is another function of them.
std::unordered_map<const Node*, const Node*> proportional(const std::vector<const Node*>& live, int64_t primals) {
  std::unordered_map<const Node*, const Node*> to;
  for (const Node* n : live) {
    const InputAttr* const input = n->op == Op::Input ? &n->as<InputAttr>() : nullptr;
    if (input && (input->index >= primals || input->late)) {
      to[n] = !input->late && n->type.numel() == 1 && is_float(n->dtype()) ? n : nullptr;
      continue;
    }
    std::vector<size_t> reached;
    for (size_t i = 0; i < n->inputs.size(); ++i)
      if (to.count(n->in(i))) reached.push_back(i);
    if (reached.empty()) continue;
    const Node* const tangent = to.at(n->in(reached[0]));
    const auto only = [&](size_t which) { return reached.size() == 1 && reached[0] == which; };
    // Of each of the inputs from `first` on; those that no tangent reaches are zeros.
    const auto each = [&](size_t first) {
      for (size_t i = 0; i < n->inputs.size(); ++i)
        if (i < first ? to.count(n->in(i)) : to.count(n->in(i)) ? to.at(n->in(i)) != tangent : !is_zero(n->in(i)))
          return false;
      return true;
    };
    bool so = false;
    switch (n->op) {
      case Op::Neg:
      case Op::Reshape:
      case Op::Permute:
      case Op::Broadcast:
      case Op::Slice:
      case Op::Reverse: so = true; break;
      // f16 would lose to zero what a large tangent saves from it.
      case Op::Cast: so = is_float(n->dtype()) && n->dtype() != DType::F16; break;
      case Op::Mul:
      case Op::Contract: so = reached.size() == 1; break;
      case Op::Div:
      case Op::Gather: so = only(0); break;
      case Op::Add:
      case Op::Sub:
      case Op::Concat:
      case Op::Pad: so = each(0); break;
      case Op::Select: so = each(1); break;
      case Op::Reduce: so = n->as<ReduceAttr>().kind == ReduceKind::Sum; break;
      default: break;
    }
    to[n] = so ? tangent : nullptr;
  }
  return to;
}

/// What is around one contraction that makes logits.
struct Region {
  enum class Kind : uint8_t {
    Full,  // an element of it for each of the matrix
    Row,   // one a row
  };
  enum class ExitKind : uint8_t {
    Rows,        // a Row that others read
    Lhs,         // a contraction that has the matrix as its lhs: its rows are the matrix's
    Transposed,  // a contraction whose k runs over the rows
    Columns,     // a sum over the rows
  };
  struct Exit {
    const Node* node;
    ExitKind kind;
    int which = 0;  // Lhs, Transposed: the operand that is the matrix
  };

  const Node* logits = nullptr;
  int64_t rows = 0, columns = 0;
  std::unordered_map<const Node*, Kind> kind;
  Nodes views;  // the matrix permuted: what contractions read
  Nodes after;  // what the logits reach, they among it
  std::vector<Exit> exits;

  int64_t elements() const { return rows * columns; }
  bool has(const Node* n, Kind k) const {
    const auto it = kind.find(n);
    return it != kind.end() && it->second == k;
  }
};

/// True for a sum over exactly the axes that make the rows, which are the first ones.
bool sums_over_rows(const Node* n, int64_t rows) {
  const Dims& axes = n->as<ReduceAttr>().axes;
  int64_t folded = 1;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] != static_cast<int64_t>(i)) return false;
    folded *= n->in(0)->shape()[i];
  }
  return n->as<ReduceAttr>().kind == ReduceKind::Sum && folded == rows;
}

/// Which nodes are the matrix and its rows, and where they are left; throws Refused.
Region region_of(const std::vector<const Node*>& live, const Users& users, const Nodes& outputs, const Node* logits) {
  using Kind = Region::Kind;
  Region r;
  r.logits = logits, r.rows = logits->shape()[1], r.columns = logits->shape()[2];
  r.kind[logits] = Kind::Full;
  r.after.insert(logits);
  const Matrix matrix{1, r.rows, r.columns};
  for (const Node* n : live) {
    if (n == logits ||
        std::none_of(n->inputs.begin(), n->inputs.end(), [&](const Node* i) { return r.after.count(i); }))
      continue;
    r.after.insert(n);
    bool full = false, view = false, row = false, other = false;
    for (const Node* i : n->inputs) {
      const bool f = r.has(i, Kind::Full), v = r.views.count(i), w = r.has(i, Kind::Row);
      full = full || f, view = view || v, row = row || w;
      other = other || (r.after.count(i) && !f && !v && !w);
    }
    if (!full && !view && !row) continue;
    const int64_t numel = n->type.numel();
    if (n->op == Op::Contract && (full || view)) {
      const auto of_it = [&](int which) { return r.has(n->in(which), Kind::Full) || r.views.count(n->in(which)); };
      const int which = of_it(0) ? 0 : 1;
      if (r.after.count(n->in(1 - which))) refuse("a contraction of the matrix with what is made of it", n);
      const std::optional<BlockOperand> block = block_operand(n, which, matrix);
      if (!block || !r.has(block->node, Kind::Full) || (!block->transposed && which != 0))
        refuse("a contraction reads the matrix in another order", n);
      if (n->dtype() != DType::F32 && n->dtype() != DType::F64) refuse("a contraction gives less than f32", n);
      r.exits.push_back({n, block->transposed ? Region::ExitKind::Transposed : Region::ExitKind::Lhs, which});
    } else if (view) {
      if (n->op != Op::Permute && n->op != Op::Reshape) refuse("it is read permuted", n);
      r.views.insert(n);
    } else if (full) {
      if (other) refuse("the matrix is put together with what needs all of it", n);
      if ((is_elementwise(n->op) || n->op == Op::Reshape || n->op == Op::Broadcast) && numel == r.elements())
        r.kind[n] = Kind::Full;
      else if (n->op == Op::Permute) r.views.insert(n);
      else if (n->op == Op::Reduce && is_trailing_reduce(n) && numel == r.rows) r.kind[n] = Kind::Row;
      else if (n->op == Op::Reduce && sums_over_rows(n, r.rows)) r.exits.push_back({n, Region::ExitKind::Columns});
      else if (n->op == Op::Gather && r.has(n->in(0), Kind::Full) && n->as<AxisAttr>().axis == n->type.rank() - 1 &&
               n->in(0)->shape().back() == r.columns && numel == r.rows && !r.after.count(n->in(1)))
        r.kind[n] = Kind::Row;
      else refuse("an operation reads the matrix neither by elements nor by rows", n, std::string(name_of(n->op)));
    } else if (!other) {
      if ((is_elementwise(n->op) || n->op == Op::Reshape) && numel == r.rows) r.kind[n] = Kind::Row;
      else if (n->op == Op::Broadcast && numel == r.elements() && broadcasts_rows(n, r.columns)) r.kind[n] = Kind::Full;
    }
  }
  bool summed = false;
  std::vector<Region::Exit> rows;
  for (const Node* n : live) {
    const auto it = r.kind.find(n);
    if (r.views.count(n) || (it != r.kind.end() && it->second == Kind::Full)) {
      if (outputs.count(n)) refuse("the matrix is a result", n);
      continue;
    }
    if (it == r.kind.end()) continue;
    summed = summed || n->op == Op::Reduce;
    const auto used = users.find(n);
    const bool left =
        outputs.count(n) || (used != users.end() && std::any_of(used->second.begin(), used->second.end(),
                                                                [&](const Node* u) { return !r.kind.count(u); }));
    if (left) rows.push_back({n, Region::ExitKind::Rows});
  }
  if (!summed) refuse(kNotSummed);
  // In a chunk the rows come first: what is picked from the logits is read before their gradient is written over them.
  r.exits.insert(r.exits.begin(), rows.begin(), rows.end());
  return r;
}

class Rewriter {
 public:
  /// `shown`: where rows that it does not show are to be passed over, beside chunks of `rows` in parts of `finest`.
  Rewriter(const Graph& from, const std::vector<const Node*>& live, Region region,
           std::unordered_map<const Node*, const Node*> proportional, int64_t rows,
           const std::optional<ShownRows>& shown, int64_t finest)
      : from_(from),
        live_(live),
        region_(std::move(region)),
        proportional_(std::move(proportional)),
        step_(rows),
        shown_(shown),
        finest_(finest) {}

  Graph run() {
    for (const Region::Exit& l : region_.exits)
      if (const auto it = proportional_.find(l.node); it != proportional_.end() && !it->second)
        refuse("a gradient is not proportional to one tangent", l.node);
    for (const Region::Exit& l : region_.exits) leaves_.insert(l.node);
    to_.input_count = from_.input_count;
    for (const Node* n : live_)
      if (leaves_.count(n) || (!region_.kind.count(n) && !region_.views.count(n))) bring(n);
    for (const Output& o : from_.outputs) to_.outputs.push_back({o.value ? made_.at(o.value) : nullptr, o.strides});
    for (const Node* effect : from_.effects) to_.effects.push_back(made_.at(effect));
    return std::move(to_);
  }

 private:
  /// What is looked for below a node is found by recursion: a program may be deeper than the stack.
  struct DepthGuard {
    explicit DepthGuard(int& depth) : depth(depth) {
      if (++depth > cost::kDeepestChunk) --depth, refuse("what is around it is too deep");
    }
    ~DepthGuard() { --depth; }
    int& depth;
  };

  // --- nodes as they are
  const Node* bring(const Node* n) {
    if (const auto it = made_.find(n); it != made_.end()) return it->second;
    const DepthGuard deeper(depth_);
    if (region_.after.count(n) && building_) refuse("a chunk needs something of all rows", n);
    if (leaves_.count(n)) {
      build();
      return made_.at(n);
    }
    require(!region_.kind.count(n) && !region_.views.count(n), "chunk_rows: the matrix is wanted as a whole");
    std::vector<const Node*> inputs;
    for (const Node* i : n->inputs) inputs.push_back(bring(i));
    return made_[n] = copy(n, inputs, n->type);
  }
  const Node* copy(const Node* n, std::vector<const Node*> inputs, Type type) {
    const Node* made = to_.make(n->op, n->attrs, std::move(inputs), std::move(type));
    for (const std::string& origin : from_.origins(n)) to_.add_origin(made, origin);
    return made;
  }

  /// `n` where the tangent is 1.
  const Node* unit(const Node* n) {
    if (!proportional_.count(n)) return bring(n);
    if (const auto it = unit_.find(n); it != unit_.end()) return it->second;
    const DepthGuard deeper(depth_);
    if (region_.after.count(n)) refuse("a gradient needs something of all rows", n);
    const Node* made = nullptr;
    if (n->op == Op::Input) {
      if (n->type.numel() != 1) refuse("a tangent is no number", n);
      made = b_.full(n->dtype(), n->shape(), 1);
    } else {
      if (n->type.numel() > region_.rows || (!is_elementwise(n->op) && !is_movement(n->op) && n->op != Op::Reduce))
        refuse("what it is multiplied by is dear", n);
      std::vector<const Node*> inputs;
      for (const Node* i : n->inputs) inputs.push_back(unit(i));
      made = copy(n, inputs, n->type);
    }
    return unit_[n] = made;
  }

  // --- a chunk
  /// The rows of a chunk of `n`, which has `width` elements a row; in memory of their own, so that all chunks' kernels
  /// are the same.
  const Node* rows_of(const Node* n, int64_t width) {
    if (part_)
      return b_.gather(b_.reshape(n, {region_.rows, width}),
                       b_.broadcast(b_.reshape(part_->index, {count_, 1}), {count_, width}), 0);
    const Node* part = b_.slice_axis(b_.reshape(n, {region_.rows, width}), 0, first_, count_);
    return copied(to_, part, b_.origin);
  }

  const Node* full(const Node* n) {
    if (const auto it = full_.find(n); it != full_.end()) return it->second;
    return full_[n] = make_full(n);
  }
  const Node* make_full(const Node* n) {
    const DepthGuard deeper(depth_);
    const Dims shape{count_, region_.columns};
    if (n == region_.logits)
      return b_.reshape(copy(n, {operand(n, 0, false), bring(n->in(1))}, {n->dtype(), {1, count_, region_.columns}}),
                        shape);
    if (n->type.numel() != region_.elements()) refuse("an operand of another size", n);
    if (is_elementwise(n->op)) {
      std::vector<const Node*> inputs;
      for (const Node* i : n->inputs) inputs.push_back(full(i));
      return copy(n, inputs, {n->dtype(), shape});
    }
    if (n->op == Op::Reshape) return full(n->in(0));
    if (n->op == Op::Iota && n->as<AxisAttr>().axis == n->type.rank() - 1 && n->shape().back() == region_.columns)
      return b_.iota(n->dtype(), shape, 1);
    if (n->op == Op::Broadcast) {
      const Node* in = n->in(0);
      if (in->type.numel() == region_.elements()) return full(in);
      if (in->type.numel() == 1) return b_.broadcast(b_.reshape(unit(in), {1, 1}), shape);
      if (in->type.numel() == region_.rows && broadcasts_rows(n, region_.columns)) return b_.broadcast(row(in), shape);
      if (in->type.numel() == region_.columns && repeats_columns(n))
        return b_.broadcast(b_.reshape(unit(in), {1, region_.columns}), shape);
    }
    refuse("the matrix is put together with another tensor of its size", n, std::string(name_of(n->op)));
  }
  /// Whether the input of the broadcast `n` is one row, the same for all.
  bool repeats_columns(const Node* n) const {
    int64_t rows = 1;
    for (size_t i = 0; i < n->shape().size(); ++i) {
      if (rows == region_.rows ? n->in(0)->shape()[i] != n->shape()[i] : n->in(0)->shape()[i] != 1) return false;
      if (rows != region_.rows) rows *= n->shape()[i];
    }
    return rows == region_.rows;
  }

  const Node* row(const Node* n) {
    if (const auto it = row_.find(n); it != row_.end()) return it->second;
    return row_[n] = make_row(n);
  }
  const Node* make_row(const Node* n) {
    const DepthGuard deeper(depth_);
    const Dims shape{count_, 1};
    if (n->type.numel() != region_.rows) refuse("an operand of another size", n);
    if (is_elementwise(n->op)) {
      std::vector<const Node*> inputs;
      for (const Node* i : n->inputs) inputs.push_back(row(i));
      return copy(n, inputs, {n->dtype(), shape});
    }
    if (n->op == Op::Reshape) return row(n->in(0));
    if (n->op == Op::Broadcast && n->in(0)->type.numel() == 1)
      return b_.broadcast(b_.reshape(unit(n->in(0)), {1, 1}), shape);
    if (n->op == Op::Broadcast && n->in(0)->type.numel() == region_.rows) return row(n->in(0));
    if (n->op == Op::Reduce && n->in(0)->type.numel() == region_.elements() && is_trailing_reduce(n))
      return b_.reshape(b_.reduce(n->as<ReduceAttr>().kind, full(n->in(0)), {1}), shape);
    if (region_.has(n, Region::Kind::Row)) return pick(n->in(0), row(n->in(1)), n->as<AxisAttr>().failure);
    return rows_of(unit(n), 1);
  }

  /// One element a row of the Full `n`, at `index`. Taken from the logits themselves, not from what is made of them and
  /// of sums over their rows: then nothing waits for it to be overwritten.
  const Node* pick(const Node* n, const Node* index, Failure failure) {
    const DepthGuard deeper(depth_);
    if (needs_rows(n)) {
      if (is_elementwise(n->op)) {
        std::vector<const Node*> inputs;
        for (const Node* i : n->inputs) inputs.push_back(pick(i, index, failure));
        return copy(n, inputs, {n->dtype(), {count_, 1}});
      }
      if (n->op == Op::Reshape) return pick(n->in(0), index, failure);
      if (n->op == Op::Broadcast && n->in(0)->type.numel() == region_.elements()) return pick(n->in(0), index, failure);
      if (n->op == Op::Broadcast && n->in(0)->type.numel() == region_.rows) return row(n->in(0));
    }
    if (n->op == Op::Broadcast && n->in(0)->type.numel() == 1)
      return b_.broadcast(b_.reshape(unit(n->in(0)), {1, 1}), {count_, 1});
    return b_.gather(full(n), index, 1, failure);
  }
  bool needs_rows(const Node* n) {
    if (const auto it = needs_rows_.find(n); it != needs_rows_.end()) return it->second;
    const DepthGuard deeper(depth_);
    bool needs =
        n->op == Op::Broadcast && n->in(0)->type.numel() == region_.rows && broadcasts_rows(n, region_.columns);
    if (!needs && n != region_.logits && n->type.numel() == region_.elements())
      for (const Node* i : n->inputs) needs = needs || needs_rows(i);
    return needs_rows_[n] = needs;
  }

  /// Operand `which` of `n` for the chunk: the matrix, or what goes with it row by row.
  const Node* operand(const Node* n, int which, bool transposed) {
    const Dims& all = n->in(which)->shape();
    const int64_t width = all[transposed ? 1 : 2];
    const std::optional<BlockOperand> block = block_operand(n, which, {1, region_.rows, width});
    if (!block || block->transposed != transposed) refuse("an operand whose rows do not lie one after the other", n);
    const bool matrix = region_.has(block->node, Region::Kind::Full) && n != region_.logits;
    if (!matrix && proportional_.count(block->node)) refuse("a contraction of two gradients", n);
    const Node* part = matrix ? full(block->node) : rows_of(bring(block->node), width);
    part = b_.reshape(b_.cast(part, n->in(which)->dtype()), {1, count_, width});
    return transposed ? b_.permute(part, {0, 2, 1}) : part;
  }

  const Node* leave(const Region::Exit& l) {
    const Node* n = l.node;
    switch (l.kind) {
      case Region::ExitKind::Rows: return row(n);
      case Region::ExitKind::Lhs:
        return copy(n, {operand(n, 0, false), unit(n->in(1))}, {n->dtype(), {1, count_, n->shape()[2]}});
      case Region::ExitKind::Transposed: return copy(n, {operand(n, 0, true), operand(n, 1, true)}, n->type);
      case Region::ExitKind::Columns: return b_.reshape(b_.reduce(ReduceKind::Sum, full(n->in(0)), {0}), n->shape());
    }
    refuse("");
  }

  /// What is made from here on is for `n`.
  void name(const Node* n) { b_.origin = from_.origins(n).empty() ? "" : from_.origins(n)[0]; }

  static bool added_up(const Region::Exit& e) {
    return e.kind == Region::ExitKind::Transposed || e.kind == Region::ExitKind::Columns;
  }

  /// What leaves the chunk that is at hand, beside what left those before it.
  void leave_all(std::vector<std::vector<const Node*>>& parts) {
    full_.clear(), row_.clear();
    for (size_t i = 0; i < parts.size(); ++i) {
      name(region_.exits[i].node);
      const Node* part = leave(region_.exits[i]);
      const bool added = added_up(region_.exits[i]);
      const auto chosen = [&](const Node* x, const Node* other) {
        const Dims ones(x->shape().size(), 1);
        return b_.select(b_.broadcast(b_.reshape(part_->runs, ones), x->shape()), x, other);
      };
      if (added && !parts[i].empty()) {
        const Node* before = parts[i].back();
        const Node* sum = b_.add(before, part);
        parts[i].back() = part_ ? chosen(sum, before) : sum;
      } else if (added && part_) {
        // Where the part is not computed its flag is 0: zeros that no other sum begins with, for they are memory of its
        // own.
        const Dims ones(part->shape().size(), 1);
        const Node* zeros = b_.broadcast(b_.reshape(b_.cast(part_->runs, part->dtype()), ones), part->shape());
        parts[i].push_back(chosen(part, zeros));
      } else {
        parts[i].push_back(part_ ? chosen(part, b_.full(part->dtype(), part->shape(), 0)) : part);
      }
    }
  }

  /// Rows that were computed in another order, each where it belongs; 0 where it was not computed.
  const Node* put_back(std::vector<const Node*> parts, const RowOrder& order) {
    const int64_t width = parts[0]->type.numel() / order.parts[0].rows;
    for (size_t k = 0; k < parts.size(); ++k) parts[k] = b_.reshape(parts[k], {order.parts[k].rows, width});
    parts.push_back(b_.full(parts[0]->dtype(), {1, width}, 0));
    return b_.gather(b_.concat(parts, 0),
                     b_.broadcast(b_.reshape(order.place, {region_.rows, 1}), {region_.rows, width}), 0);
  }

  /// All chunks, one after the other, and what comes of them.
  void build() {
    std::vector<std::vector<const Node*>> parts(region_.exits.size());
    RowOrder order;
    if (shown_) {
      name(shown_->mask);
      const Node* mask = b_.reshape(unit(shown_->mask), {region_.rows});
      order = order_rows(b_, shown_->shown ? mask : b_.unary(Op::Not, mask), step_, finest_);
    }
    building_ = true;
    if (!order.parts.empty()) {
      for (const RowOrder::Part& p : order.parts) {
        part_ = &p, count_ = p.rows;
        leave_all(parts);
      }
      part_ = nullptr;
    } else {
      for (first_ = 0; first_ < region_.rows; first_ += count_) {
        count_ = std::min(step_, region_.rows - first_);
        leave_all(parts);
      }
    }
    building_ = false;
    for (size_t i = 0; i < parts.size(); ++i) {
      const Node* n = region_.exits[i].node;
      name(n);
      const bool rows = !added_up(region_.exits[i]);
      const Node* whole = rows && !order.parts.empty() ? put_back(parts[i], order)
                          : parts[i].size() == 1
                              ? parts[i][0]
                              : b_.concat(parts[i], region_.exits[i].kind == Region::ExitKind::Rows ? 0 : 1);
      whole = b_.reshape(whole, n->shape());
      if (const auto it = proportional_.find(n); it != proportional_.end())
        whole = b_.mul(whole, b_.broadcast(b_.cast(b_.reshape(bring(it->second), {}), n->dtype()), n->shape()));
      made_[n] = whole;
    }
  }

  const Graph& from_;
  const std::vector<const Node*>& live_;
  const Region region_;
  const std::unordered_map<const Node*, const Node*> proportional_;
  const int64_t step_;
  const std::optional<ShownRows> shown_;
  const int64_t finest_;
  const RowOrder::Part* part_ = nullptr;  // the part at hand, where rows are in another order
  Graph to_;
  Builder b_{to_, {}};
  Nodes leaves_;
  bool building_ = false;
  std::unordered_map<const Node*, const Node*> made_, unit_, full_, row_;
  std::unordered_map<const Node*, bool> needs_rows_;
  int64_t first_ = 0, count_ = 0;  // the rows of the chunk
  int depth_ = 0;                  // of recursion: DepthGuard
};

/// Bytes that are not in memory at once any more, at the end of the forward.
int64_t saved_bytes(const Region& r, const Users& users, const Nodes& outputs, const Chunks& chunks, int64_t rows) {
  // A result is there beside the gradient of the logits in any case, where one plan makes both. Other gradients (a tied
  // weight's, which waits for the embedding's) are only there so early because of the chunks.
  const auto results = [&](const Node* n) {
    for (;;) {
      if (outputs.count(n)) return true;
      const auto used = users.find(n);
      if (used == users.end() || used->second.size() != 1 ||
          !(is_movement(used->second[0]->op) || used->second[0]->op == Op::Cast))
        return false;
      n = used->second[0];
    }
  };
  int64_t element = 8, kept = 0;
  for (const auto& [n, kind] : r.kind)
    if (kind == Region::Kind::Full && is_float(n->dtype())) element = std::min<int64_t>(element, size_of(n->dtype()));
  for (const Region::Exit& l : r.exits)
    if (l.kind != Region::ExitKind::Rows && !(chunks.one_plan && results(l.node))) kept += l.node->type.bytes();
  return (r.rows - rows) * r.columns * element - kept;
}

/// The rows that labels show, where passing over the others is worth it.
std::optional<ShownRows> worth_skipping(const Region& r, const Chunks& chunks) {
  int64_t flops = flops_of(r.logits);
  std::vector<const Node*> zeros;
  for (const Region::Exit& e : r.exits) {
    const Node* n = e.node;
    if (n->op == Op::Contract) {
      flops += flops_of(n);
      n = block_operand(n, e.which, {1, r.rows, r.columns})->node;
    } else if (e.kind == Region::ExitKind::Columns) {
      n = n->in(0);
    }
    zeros.push_back(n);
  }
  if (flops < chunks.skip_flops) return std::nullopt;
  return shown_rows(zeros, r.rows, r.columns, r.after);
}

/// Whether sums are taken over the rows of `logits`: whatever else reads them, a loss does.
bool rows_are_summed(const Users& users, const Node* logits) {
  std::vector<const Node*> stack{logits};
  Nodes seen;
  while (!stack.empty()) {
    const Node* n = stack.back();
    stack.pop_back();
    const auto used = users.find(n);
    if (used == users.end()) continue;
    for (const Node* u : used->second) {
      if (u->op == Op::Reduce && is_trailing_reduce(u) && u->type.numel() == logits->shape()[1]) return true;
      const bool same = (is_elementwise(u->op) || u->op == Op::Reshape) && u->type.numel() == logits->type.numel();
      if (same && seen.insert(u).second) stack.push_back(u);
    }
  }
  return false;
}

/// Whether a contraction makes a chunk whose rows were chosen already.
bool is_chunk(const Node* logits) {
  const Node* n = logits->in(0);
  while (n->op == Op::Reshape || n->op == Op::Cast) n = n->in(0);
  if (n->op != Op::Gather) return false;
  const Node* index = n->in(1);
  while (index->op == Op::Reshape || index->op == Op::Broadcast) index = index->in(0);
  return is_copy(index);
}

/// `joint` with the first matrix in chunks that can be; nothing where none can.
std::optional<Graph> chunk_first(const Graph& joint, int64_t primals, const Chunks& chunks, Remarks* to) {
  const NodeRemarks remarks(joint, "schedule", to);
  const std::vector<const Node*> live = joint.live();
  Users users;
  Nodes outputs;
  for (const Node* n : live)
    for (const Node* i : n->inputs) users[i].push_back(n);
  for (const Output& o : joint.outputs)
    if (o.value) outputs.insert(o.value);
  outputs.insert(joint.effects.begin(), joint.effects.end());
  for (const Node* n : live) {
    if (n->op != Op::Contract || n->shape()[0] != 1 || n->shape()[2] < 2) continue;
    const int64_t all = n->shape()[1], count = ceil_div(all, chunks.rows), rows = ceil_div(all, count);
    const int64_t finest = std::max<int64_t>(1, chunks.rows / cost::kPartsOfChunk);
    const bool may_save = count > 1 && n->type.bytes() >= chunks.worth;
    const bool may_skip = flops_of(n) >= chunks.skip_flops / cost::kContractionsOfHead && all > finest &&
                          !is_chunk(n) && rows_are_summed(users, n);
    if (!may_save && !may_skip) continue;
    try {
      Region region = region_of(live, users, outputs, n);
      const std::optional<ShownRows> shown = may_skip ? worth_skipping(region, chunks) : std::nullopt;
      if (const int64_t bytes = may_save ? saved_bytes(region, users, outputs, chunks, rows) : 0;
          !shown && bytes < chunks.worth)
        refuse("it would save too little", nullptr, std::to_string(bytes) + " bytes");
      return Rewriter(joint, live, std::move(region), proportional(live, primals), rows, shown, finest).run();
    } catch (const Refused& r) {
      if (remarks && may_save && r.why != kNotSummed && rows_are_summed(users, n))
        remarks.missed(missed::kChunkRows, r.why, n, r.at, n->type.bytes(), r.detail);
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Graph> chunk_rows(const Graph& joint, int64_t primals, const Chunks& chunks, Remarks* remarks) {
  Remarks last;  // of the graph as it is in the end: what is looked at again is refused again
  std::optional<Graph> cut, more = chunk_first(joint, primals, chunks, &last);
  // chunks are not cut again: they have too few rows
  for (; more; more = chunk_first(*cut, primals, chunks, &last)) cut = std::move(more), last.take();
  if (remarks) remarks->add(last.take());
  return cut;
}

}  // namespace trainc::schedule
