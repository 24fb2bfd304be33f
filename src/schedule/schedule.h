// Which values exist in memory, and which kernel makes them.
// Takes: an optimised graph. Gives: a Schedule: groups in an order that runs. Includes: graph, cost, support.
//
// Glossary
//   value    a node that a kernel computes by name: it is stored, or kept within its kernel. All other nodes are
//            inlined into the expressions of the values that use them (and so computed again in each).
//   group    the values that one kernel makes.
//   full     a value (of a row group) with one element an iteration; `row`: one element a row.
//   aligned  a use that reads exactly the element (or row) of the iteration it stands in.
#pragma once
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cost/operations.h"
#include "graph/graph.h"
#include "schedule/padding.h"
#include "schedule/vendor_epilogue.h"
#include "support/remark.h"

namespace trainc::schedule {

enum class GroupKind : uint8_t {
  // Elementwise values and sums over trailing axes, on a domain of rows x columns. Rows are independent; within a row
  // the columns are looped over once for each level of sums that need one another.
  Rows,
  Columns,  // sums over other axes: outer dimensions kept, the rest folded
  // One contraction, and elementwise values aligned with it as its epilogue, or a copy of such in another order of the
  // axes (product_order.h), which is written there.
  Contract,
  MatmulChain,  // contractions that make a matrix, what is done to its rows, contractions that read it: matmul_chain.h
  Scan,
  Scatter,
  Concat,
  Random,
  Extern,
};
/// What a group passes over of the rows that padding fills (padding.h): nothing; whole rows, where it writes zeros; or,
/// of a contraction's sums over the rows, their terms.
enum class Passes : uint8_t { Nothing, Rows, Terms };
struct Group {
  GroupKind kind = GroupKind::Rows;
  std::vector<const Node*> values;  // in topological order
  // Rows, MatmulChain: values have rows * columns or rows elements; columns 1: elementwise only
  int64_t rows = 0, columns = 1;
  // MatmulChain: each contraction that reads the matrix, with its epilogue
  std::vector<std::vector<const Node*>> consumers;
  Passes passes = Passes::Nothing;
};
struct Schedule {
  std::vector<Group> groups;  // in an order that runs
  std::unordered_set<const Node*> values;
  std::unordered_map<const Node*, int> group_of;
  std::unordered_set<const Node*> stored;  // values that need memory
  // masks, and inputs that are masks, that lie in memory as bits (bits.h)
  std::unordered_set<const Node*> bits;
  // by contraction of the vendor's library: what it does with the sums
  std::unordered_map<const Node*, VendorEpilogue> vendor_epilogues;
  PaddedRows padded;  // where some group passes over rows

  int64_t bytes(const Node* n) const { return bits.count(n) ? bytes_of_bits(n->type.numel()) : n->type.bytes(); }
};

/// An input that the caller gives away, and a value that is to take its memory.
using GivenAway = std::vector<std::pair<const Node*, const Node*>>;

/// Needs: a verified graph after `prepare`. Gives: every output's base, every extern operand, contraction, sum and draw
/// is a value. `fuse_chains`: whether groups may become matmul chains, which only CPU kernels can be. `remarks`: gets
/// one for each two groups that were to be one and are not. `given_away`: where that can be, the value is made after
/// all others that read the input. `prepare` was told of the same library.
Schedule make_schedule(const Graph&, bool fuse_chains, Remarks* remarks = nullptr, const GivenAway& given_away = {},
                       const VendorLibrary& = {});

/// The node whose memory holds `n` in the same row-major order: reshapes stripped.
const Node* base_of(const Node* n);
/// Whether a call begins an operation that goes on beside the kernels (an all-reduce): those of this namespace do. Each
/// result is of its operand's type, and takes that one's memory where nobody reads the operand any more.
bool is_started(const Node* call);
/// Whether it is a loop (support/while_operation.h), which is started too, and looks at shapes.
bool is_loop(const Node* call);

// --- how a value is reached from another (shared with lowering)
enum class Access : uint8_t { Full, Row, Other };
struct Read {
  const Node* value;
  Access access;
};
/// The values and inputs that computing `value` reads, each with how, for a row group of rows x columns (columns 1:
/// elementwise).
std::vector<Read> reads_of(const Node* value, const std::unordered_set<const Node*>& values, int64_t rows,
                           int64_t columns);
/// True for a slice of everything: it stands where a value is wanted in this order, in memory of its own.
bool is_copy(const Node*);
/// Such a slice: made by itself, for a Builder and the rules would leave it out.
const Node* copied(Graph&, const Node*, std::string_view origin = {});
/// True for a Reduce that folds something: over axes of size 1 alone it is no more than a reshape.
bool is_sum(const Node*);
/// True for a sum over trailing axes (axes of size 1 aside).
bool is_trailing_reduce(const Node*);
/// Whether `axes` are the leading ones of `shape` (axes of size 1 aside).
bool are_leading(const Dims& shape, const Dims& axes);
/// True where broadcasting repeats each element of the input over whole rows of `columns` elements.
bool broadcasts_rows(const Node* broadcast, int64_t columns);
using cost::op_cost;

}  // namespace trainc::schedule
