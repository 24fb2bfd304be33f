// Matmul chains: one task takes the rows of an entry of the batch, or a part of them, a block at a time:
//
//   parallel task (batch, blocks)
//     pack the rhs of every producer and consumer   <- stays in cache
//     for block of rows
//       producers: their block of the matrix, into scratch
//       for row of the block
//         the loops of a row group over its columns; what consumers read goes into scratch, over what is read no more
//       consumers: their rows
//       transposed consumers: what this block adds to their sums; the last block stores them
//
// No sum depends on how rows are cut into blocks, but for those of transposed consumers: there each block is a block of
// k.
#include <algorithm>
#include <numeric>

#include "cost/blocking.h"
#include "cost/matmul_chain.h"
#include "loop/substitute.h"
#include "lower/causal_mask.h"
#include "lower/contract.h"
#include "lower/contraction_ahead.h"
#include "lower/kernels.h"
#include "lower/row_loops.h"
#include "schedule/matmul_chain.h"
#include "support/division.h"

namespace trainc::lower {

using loop::block;
using loop::integer;
using loop::LoopKind;
using schedule::block_operand;
using schedule::BlockOperand;
using schedule::matrix_of;

namespace {

class MatmulChain {
 public:
  MatmulChain(const Schedule& schedule, const Group& group, const LoweringOptions& options, const NodeRemarks& remarks)
      : schedule_(schedule),
        group_(group),
        options_(options),
        remarks_(remarks),
        matrix_(matrix_in(group)),
        e_(schedule, kernel_),
        loops_(schedule, rows_in(group), group.rows, group.columns, options, e_) {}

  LoweredKernel run() {
    nest().name = kernel_name(group_);
    for (const Node* c : producers()) loops_.add_input(c);
    for (const Consumer& c : consumers_) loops_.add_output(c.operand.node);
    loops_.find_levels();
    share_buffers();
    choose_blocks();
    find_masked();
    declare_arguments();
    e_.own.insert(group_.values.begin(), group_.values.end());
    for (const Consumer& c : consumers_) e_.own.insert(c.operand.node);
    global_row_ = nest().add_var("first", matrix_.batch * matrix_.rows);
    make_buffers();
    make_parts();
    build();
    return std::move(kernel_);
  }

 private:
  struct Consumer {
    std::vector<const Node*> values;  // the contraction, then its epilogue
    BlockOperand operand;
    int which;
  };
  /// A block of rows in scratch: what producers wrote there, and what consumers read of it, over the former where no
  /// loop reads that any more. Either may be none.
  struct ScratchBlock {
    const Node *input, *output;
    int buffer;
  };
  struct Part {
    std::unique_ptr<ContractExpressions> expressions;
    std::unique_ptr<lower::ContractionPart> part;
    const Node* contract;
    bool transposed;
  };

  loop::LoopNest& nest() { return kernel_.nest; }

  // --- what is in the group
  static bool in_consumers(const Group& group, const Node* n) {
    return std::any_of(group.consumers.begin(), group.consumers.end(),
                       [&](const auto& s) { return std::find(s.begin(), s.end(), n) != s.end(); });
  }
  std::vector<const Node*> producers() const {
    std::vector<const Node*> found;
    for (const Node* n : group_.values)
      if (n->op == Op::Contract && !in_consumers(group_, n)) found.push_back(n);
    return found;
  }
  static Matrix matrix_in(const Group& group) {
    for (const Node* n : group.values)
      if (n->op == Op::Contract && !in_consumers(group, n)) return *matrix_of(n);
    throw InternalError("a matmul chain without a producer");
  }
  /// Fills consumers_: the values of the rows are those, and the expressions that consumers read.
  std::vector<const Node*> rows_in(const Group& group) {
    std::vector<const Node*> values;
    for (const Node* n : group.values)
      if (n->op != Op::Contract && !in_consumers(group, n)) values.push_back(n);
    for (const auto& consumer : group.consumers) {
      int operands = 0;
      for (int which : {0, 1}) {
        const std::optional<BlockOperand> operand = block_operand(consumer[0], which, matrix_);
        if (!operand || !reads_group(group, consumer, operand->node)) continue;
        consumers_.push_back({consumer, *operand, which});
        ++operands;
        const bool given = operand->node->op == Op::Contract;
        if (!given && std::find(values.begin(), values.end(), operand->node) == values.end())
          values.push_back(operand->node);
      }
      require(operands == 1, "a consumer of a matmul chain reads the matrix in a way that was not foreseen");
    }
    std::sort(values.begin(), values.end(), [](const Node* a, const Node* b) { return a->id < b->id; });
    return values;
  }
  bool reads_group(const Group& group, const std::vector<const Node*>& consumer, const Node* n) const {
    const auto inside = [&](const Node* v) {
      return std::find(group.values.begin(), group.values.end(), v) != group.values.end() &&
             std::find(consumer.begin(), consumer.end(), v) == consumer.end();
    };
    if (schedule_.values.count(n)) return inside(n);
    for (const Read& r : reads_of(n, schedule_.values, group.rows, group.columns))
      if (inside(r.value)) return true;
    return false;
  }

  // --- blocks in scratch
  void share_buffers() {
    for (const Node* c : producers()) blocks_in_scratch_.push_back({c, nullptr, -1});
    std::vector<const Node*> wanted;
    for (const Consumer& c : consumers_)
      if (c.operand.node->op != Op::Contract && std::find(wanted.begin(), wanted.end(), c.operand.node) == wanted.end())
        wanted.push_back(c.operand.node);
    std::sort(wanted.begin(), wanted.end(),
              [&](const Node* a, const Node* b) { return loops_.made_in(a) < loops_.made_in(b); });
    for (const Node* w : wanted) {
      const auto free = [&](const ScratchBlock& s) {
        const bool consumed = std::any_of(consumers_.begin(), consumers_.end(),
                                          [&](const Consumer& c) { return c.operand.node == s.input; });
        return s.input && !s.output && !consumed && s.input->dtype() == w->dtype() &&
               loops_.last_read(s.input) <= loops_.made_in(w);
      };
      auto slot = std::find_if(blocks_in_scratch_.begin(), blocks_in_scratch_.end(), free);
      if (slot == blocks_in_scratch_.end()) blocks_in_scratch_.push_back({nullptr, w, -1});
      else slot->output = w;
    }
  }

  void choose_blocks() {
    // Room for a tile that begins within the row, and no power of two: such rows fall on the same cache sets.
    pitch_ = round_up(matrix_.columns, cost::kRowsOfTiles) + cost::kRowTail;
    if (pitch_ % cost::kSetsPitch == 0) pitch_ += cost::kRowsOfTiles;
    int64_t row_bytes = 0;
    for (const ScratchBlock& s : blocks_in_scratch_)
      row_bytes += pitch_ * size_of((s.input ? s.input : s.output)->dtype());
    transposed_ =
        std::any_of(consumers_.begin(), consumers_.end(), [](const Consumer& c) { return c.operand.transposed; });
    const int64_t wanted_tasks = cost::kTasksOfCore * std::max(cost::kLeastCores, options_.target.caches.cores);
    int64_t most = std::min(cost::kMostRows, options_.target.caches.l2 / cost::kBlockOfL2 / row_bytes);
    if (!transposed_)
      most = std::min(most, std::max(cost::kLeastRows, ceil_div(matrix_.batch * matrix_.rows, wanted_tasks)));
    most = std::max(cost::kFewestRows, most);
    // Equal blocks, of whole tiles.
    block_rows_ = std::min(matrix_.rows, round_up(ceil_div(matrix_.rows, ceil_div(matrix_.rows, most)),
                                                  most >= cost::kRowsOfTiles ? cost::kRowsOfTiles : cost::kFewestRows));
    if (block_rows_ % 2) ++block_rows_;  // k of transposed consumers comes in pairs
    blocks_ = ceil_div(matrix_.rows, block_rows_);
    chunks_ = transposed_ ? 1 : std::min(blocks_, std::max<int64_t>(1, ceil_div(wanted_tasks, matrix_.batch)));
    chunk_blocks_ = ceil_div(blocks_, chunks_);
    chunks_ = ceil_div(blocks_, chunk_blocks_);
  }

  /// Columns that a causal mask hides from a block of rows are passed over, unless somebody wants them in memory.
  void find_masked() {
    std::vector<const Node*> values, wanted;
    for (const Node* n : group_.values) {
      if (in_consumers(group_, n)) continue;
      values.push_back(n);
      if (schedule_.stored.count(n) && n->type.numel() == group_.rows * group_.columns)
        return none_masked("the matrix is wanted in memory", n);
    }
    for (const Consumer& c : consumers_) {
      if (c.operand.node->op == Op::Contract) return;
      wanted.push_back(c.operand.node);
    }
    if (loops_.factors().inner.size() != 1) return none_masked("its columns are several nested loops", wanted[0]);
    masked_above_ = masked_above(matrix_, values, wanted);
    if (!masked_above_) none_masked("not proven to hide with zeros all that lies above the diagonal", wanted[0]);
  }
  /// For a remark, where there is a mask.
  void none_masked(const char* why, const Node* of) const {
    if (!remarks_) return;
    std::vector<const Node*> wanted;
    for (const Consumer& c : consumers_) wanted.push_back(c.operand.node);
    if (const Node* mask = mask_in(wanted))
      remarks_.missed(missed::kSkipMasked, why, mask, of,
                      matrix_.batch * matrix_.rows * matrix_.columns * size_of(of->dtype()));
  }

  /// How many columns the rows of block `at` see, in whole vectors; nullptr: all.
  Expr columns_of(const Expr& at) const {
    if (!masked_above_) return nullptr;
    const Expr seen = loop::floor_div(at * block_rows_ + integer(block_rows_ + *masked_above_ + cost::kRowsOfTiles - 1),
                                      cost::kRowsOfTiles) *
                      cost::kRowsOfTiles;
    return loop::apply(Op::Min, {integer(matrix_.columns), seen});
  }

  void declare_arguments() {
    const auto inside = [&](const Node* n) {
      return std::find(group_.values.begin(), group_.values.end(), n) != group_.values.end();
    };
    loops_.declare_arguments();
    for (const Node* n : group_.values) {
      if (schedule_.stored.count(n)) e_.argument(n, true);
      for (const Read& r : reads_of(n, schedule_.values, n->type.numel(), 1))
        if (!inside(r.value) && r.value->type.numel() > 0) e_.argument(r.value);
    }
  }

  void make_buffers() {
    for (ScratchBlock& s : blocks_in_scratch_) {
      const DType dtype = (s.input ? s.input : s.output)->dtype();
      s.buffer = nest().add_buffer({"block" + std::to_string(&s - blocks_in_scratch_.data()), dtype,
                                    block_rows_ * pitch_, loop::Space::Scratch, true});
    }
  }
  int buffer_of(const Node* n) const {
    for (const ScratchBlock& s : blocks_in_scratch_)
      if (s.input == n || s.output == n) return s.buffer;
    throw InternalError("a value of a matmul chain has no block");
  }

  // --- contractions
  void make_parts() {
    batch_ = first_ = integer(0);
    // An operand in a block: its position in the matrix says where.
    e_.own_value = [this](const Node* n, Index& index) {
      const Expr row = loop::floor_div(index.linear(), matrix_.columns) - nest().var(global_row_);
      const Expr x = nest().load(buffer_of(n), row * pitch_ + loop::mod(index.linear(), matrix_.columns));
      return arithmetic_dtype(n->dtype()) == n->dtype() ? x : loop::cast(x, DType::F32);
    };
    for (const Node* c : producers()) {
      Part& p = new_part(c, false);
      lower::ContractionSpec& spec = p.expressions->spec;
      spec.epilogue = [this, c, x = p.expressions.get()](Expr b, Expr m, Expr n, Expr sum) {
        aligned_values();
        return x->epilogue(schedule_, {c}, b, first_ + m, n, sum, [&](const Expr& v) {
          return loop::store(buffer_of(c), m * pitch_ + n, v->dtype == c->dtype() ? v : loop::cast(v, c->dtype()));
        });
      };
      if (c->dtype() == DType::F32 && !schedule_.stored.count(c))
        p.expressions->spec.sums_block = {buffer_of(c), pitch_, 1};
      finish(p, true);
    }
    for (const Consumer& c : consumers_) {
      Part& p = new_part(c.values[0], c.operand.transposed);
      p.expressions->spec.epilogue = [this, &c, x = p.expressions.get(), transposed = p.transposed](Expr b, Expr m,
                                                                                                    Expr n, Expr sum) {
        aligned_values();
        return x->epilogue(schedule_, c.values, b, transposed ? m : first_ + m, n, sum);
      };
      // The blocks' rows, and the columns that they see, come in such numbers.
      const int64_t columns = masked_above_ ? std::gcd(cost::kRowsOfTiles, matrix_.columns) : matrix_.columns;
      const int64_t granule = p.transposed ? columns : std::gcd(block_rows_, matrix_.rows);
      const Expr read = p.expressions->spec.lhs(integer(0), integer(0), integer(0));
      if (c.which == 0 && read->kind == loop::ExprKind::Load)
        p.expressions->spec.lhs_block = {buffer_of(c.operand.node), pitch_, granule};
      finish(p, !p.transposed);
    }
  }
  Part& new_part(const Node* c, bool transposed) {
    parts_.push_back({std::make_unique<ContractExpressions>(e_, c, options_), nullptr, c, transposed});
    return parts_.back();
  }
  /// `by_rows`: m is a block of rows. Both operands may be blocks.
  void finish(Part& p, bool by_rows) {
    lower::ContractionSpec& spec = p.expressions->spec;
    nest().flops += 2 * spec.batch * spec.m * spec.n * spec.k;
    spec.lhs_run = spec.rhs_run = 0;
    const auto lhs = spec.lhs, rhs = spec.rhs;
    const auto in_block = [this](const Expr& e) {
      return substitute(e, {{global_row_, batch_ * matrix_.rows + first_}});
    };
    spec.lhs = [=, this](Expr b, Expr row, Expr k) { return in_block(lhs(b, by_rows ? first_ + row : row, k)); };
    spec.rhs = [=](Expr b, Expr row, Expr k) { return in_block(rhs(b, row, k)); };
    if (by_rows) spec.m = block_rows_;
    spec.fixed_blocking = next_of(options_.fixed_blockings);
    p.part = std::make_unique<lower::ContractionPart>(nest(), spec, by_rows ? 0 : block_rows_, options_.target);
  }
  void aligned_values() {
    e_.own_value = [this](const Node* v, Index& index) { return e_.bind(v, e_.definition(v, index)); };
  }

  // --- the nest
  void build() {
    const int64_t tasks = matrix_.batch * chunks_;
    nest().parallel_extent = tasks;
    const int task = nest().add_var("task", tasks);
    batch_ = loop::floor_div(nest().var(task), chunks_);
    std::vector<Stmt> body;
    for (Part& p : parts_)
      if (!p.transposed) body.push_back(p.part->pack_rhs(batch_));
    const Expr first_block = loop::mod(nest().var(task), chunks_) * chunk_blocks_;
    const Expr blocks = blocks_ % chunk_blocks_ == 0
                            ? integer(chunk_blocks_)
                            : loop::apply(Op::Min, {integer(chunk_blocks_), integer(blocks_) - first_block});
    const int at = nest().add_var("block", chunk_blocks_);
    body.push_back(loop::for_loop(LoopKind::Serial, at, blocks, one_block(first_block + nest().var(at))));
    nest().body = loop::for_loop(LoopKind::Parallel, task, integer(tasks), block(std::move(body)));
  }

  Stmt one_block(const Expr& at) {
    first_ = at * block_rows_;
    const bool whole = matrix_.rows % block_rows_ == 0;
    const Expr rows =
        whole ? integer(block_rows_) : loop::apply(Op::Min, {integer(block_rows_), integer(matrix_.rows) - first_});
    const Expr rows_here = whole ? nullptr : rows;
    std::vector<Stmt> body;
    Expr columns = columns_of(at), before = columns_of(at - integer(1));
    if (columns) {
      // Sums that transposed consumers keep are made whole with the last block.
      if (transposed_)
        columns = loop::apply(Op::Select,
                              {loop::apply(Op::Eq, {at, integer(blocks_ - 1)}), integer(matrix_.columns), columns});
      const int local = nest().add_local("columns", DType::I64);
      body.push_back(loop::let(local, columns));
      columns = nest().local(local);
    }
    for (Part& p : parts_)
      if (!in_consumers(group_, p.contract)) body.push_back(p.part->multiply(batch_, {rows_here, columns, nullptr}));
    body.push_back(loop_over_rows(at, rows, columns));
    for (Part& p : parts_)
      if (in_consumers(group_, p.contract) && !p.transposed)
        body.push_back(p.part->multiply(batch_, {rows_here, nullptr, columns}));
    for (const Consumer& c : consumers_)
      for (Part& p : parts_) {
        if (!p.transposed || p.contract != c.values[0]) continue;
        // The matrix's columns are the rows of the operand that it is.
        if (c.which == 0)
          body.push_back(p.part->add_k_block(batch_, at, {columns, nullptr, nullptr}, {before, nullptr, nullptr}));
        else body.push_back(p.part->add_k_block(batch_, at, {nullptr, columns, nullptr}, {nullptr, before, nullptr}));
      }
    return block(std::move(body));
  }

  Stmt loop_over_rows(const Expr& at, const Expr& rows, const Expr& columns) {
    const int b = nest().add_var("b", matrix_.batch), m = nest().add_var("m", matrix_.rows),
              r = nest().add_var("row", block_rows_);
    for (const ScratchBlock& s : blocks_in_scratch_)
      for (const Node* n : {s.input, s.output})
        if (n) loops_.put_in_block(n, s.buffer, nest().var(r) * pitch_);
    std::vector<Stmt> row =
        loops_.row(nest().var(b) * matrix_.rows + nest().var(m), {loops_.factors().inner, nullptr, columns});
    if (row.empty()) return block({});
    Stmt here = substitute(block(std::move(row)), {{b, batch_}, {m, first_ + nest().var(r)}});
    std::vector<Stmt> body = look_ahead(at, nest().var(r));
    body.push_back(std::move(here));
    return loop::for_loop(LoopKind::Serial, r, rows, block(std::move(body)));
  }

  // --- looking ahead
  /// What is asked for with row `r` of block `at`: that row of the next block, and the row that the next entry of the
  /// batch has there of what a task packs whole. Rows of heads are some lines each, far apart: no hardware sees them
  /// coming, and packing would wait for each.
  std::vector<Stmt> look_ahead(const Expr& at, const Expr& r) {
    std::vector<Stmt> asked;
    const auto within = [](const Expr& e, int64_t extent) { return loop::apply(Op::Min, {e, integer(extent - 1)}); };
    const Expr is_last = loop::apply(Op::Eq, {at, integer(blocks_ - 1)});
    const Expr next_entry = within(batch_ + integer(1), matrix_.batch);
    const Expr batch = loop::apply(Op::Select, {is_last, next_entry, batch_});
    const Expr next = loop::apply(Op::Select, {is_last, r, first_ + integer(block_rows_) + r});
    const Expr row = within(next, matrix_.rows) - first_;
    for (Part& p : parts_) {
      if (p.transposed) continue;
      const lower::ContractionSpec& spec = p.expressions->spec;
      const bool produces = !in_consumers(group_, p.contract);
      const int64_t depth = spec.k, width = spec.n;
      if (produces && spec.lhs_k_contiguous) ask(asked, depth, [&](const Expr& k) { return spec.lhs(batch, row, k); });
      if (chunks_ > 1 || spec.rhs_k_contiguous != produces) continue;
      const Expr other = within(first_ + r, produces ? width : depth);
      if (produces) ask(asked, depth, [&](const Expr& k) { return spec.rhs(next_entry, other, k); });
      else ask(asked, width, [&](const Expr& n) { return spec.rhs(next_entry, n, other); });
    }
    return asked;
  }
  /// The lines of `length` neighbours of an operand.
  void ask(std::vector<Stmt>& asked, int64_t length, const std::function<Expr(const Expr&)>& element) {
    const BlockAhead row{1, length, true, [&](const Expr&, const Expr& k) { return element(k); }};
    const int64_t slots = ceil_div(length, cost::kLinesAhead * cost::kCacheLine / size_of(DType::F32));
    for (int64_t slot = 0; slot < slots; ++slot)
      for (Stmt& s : prefetch_share(nest(), row, integer(slot), slots)) asked.push_back(std::move(s));
  }

  const Schedule& schedule_;
  const Group& group_;
  const LoweringOptions& options_;
  const NodeRemarks& remarks_;
  const Matrix matrix_;
  LoweredKernel kernel_;
  Expressions e_;
  std::vector<Consumer> consumers_;
  RowLoops loops_;
  std::vector<ScratchBlock> blocks_in_scratch_;
  std::vector<Part> parts_;
  int64_t pitch_ = 0;  // elements from a row of a block to the next
  int64_t block_rows_ = 0, blocks_ = 0, chunks_ = 0, chunk_blocks_ = 0;
  bool transposed_ = false;
  std::optional<int64_t> masked_above_;  // columns further beyond the row than this are masked
  int global_row_ = -1;                  // a variable: the row of all batches' rows that the block starts at
  Expr batch_, first_;                   // of the block that is written
};

}  // namespace

LoweredKernel lower_matmul_chain(const Schedule& schedule, const Group& group, const LoweringOptions& options,
                                 const NodeRemarks& remarks) {
  return MatmulChain(schedule, group, options, remarks).run();
}

}  // namespace trainc::lower
