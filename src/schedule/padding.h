// Rows of hidden states that padding fills: found by what a mask makes of them. Inside schedule and compiler.
//
// A row (sample b, token t) is hidden where attention's mask hides it as a key from every query: weights there are
// exactly 0. Nothing is known of attention, layers or padding: it is read off the graph which elements of which nodes
// are 0 in hidden rows, and which nobody's results depend on there. Which rows are hidden is found when the plan runs,
// from the mask's values.
#pragma once
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "graph/graph.h"

namespace trainc::schedule {

struct Group;
struct Schedule;

/// Which row an element belongs to, by its position p in row-major order: sample p / batch % samples, token p / token %
/// tokens. (So a reshape changes nothing.)
struct RowMap {
  int64_t batch = 0, token = 0;
  bool operator==(const RowMap&) const = default;
};
using RowMaps = std::vector<RowMap>;
/// Of a node, the maps by which no output depends on its elements in hidden rows, as long as they are finite; and those
/// of them by which they may be 0: nothing divides by them.
struct Unread { RowMaps finite, zeros; };

/// The rows that are hidden, as nodes of the graph; nullptr: not made.
struct PaddedRows {
  int64_t samples = 0, tokens = 0;
  const Node* shown = nullptr;  // bool [rows]
  const Node* order = nullptr;  // i64 [rows]: shown rows first, in their order, then the hidden ones in theirs
  const Node* count = nullptr;  // i64 [1]: how many are shown
  int64_t rows() const { return samples * tokens; }
};

/// What holds of a graph's nodes in hidden rows.
///   zero     the element is exactly 0
///   unread   no output depends on the element
/// A product of 0 and another number counts as 0, though it is NaN where that one is infinite or NaN
/// (docs/numerics.md). Rows of the first token are shown always (a classifier reads them), and all rows of a sample
/// of which some query sees no key, for its softmax may then have weights on all of them.
class PaddingProof {
 public:
  /// None where no mask is found, or no contraction could pass over rows. `last_outputs`: what holds of the graph's
  /// last outputs, of the mask of a graph that this one is a part of, with the samples and tokens of `of`.
  static std::optional<PaddingProof> find(const Graph&, const std::vector<Unread>& last_outputs = {},
                                          const PaddedRows& of = {});

  int64_t samples() const { return samples_; }
  int64_t tokens() const { return tokens_; }
  /// Whether the graph has no other mask. Only then is it known that a part of the graph has the same.
  bool only_one() const { return only_one_; }
  Unread unread(const Node* n) const;
  /// Whether `n`, whose elements lie row after row, may be 0 in hidden rows.
  bool may_be_zero(const Node* n) const;
  /// Whether a contraction sums over the rows, and adds nothing in hidden ones.
  bool sums_over_rows(const Node* contract) const;
  /// Operations of contractions that may pass over rows.
  int64_t flops() const;
  /// Makes the nodes that say which rows are hidden, live in `graph`, which is the one that was looked at.
  PaddedRows make(Graph& graph) const;

 private:
  friend class PaddingFinder;
  /// The map of elements of which `token` lie in a row of one token, row after row.
  RowMap map_of(int64_t token) const { return {samples_ == 1 ? 0 : token * tokens_, token}; }
  enum class Says : uint8_t {
    Bias,
    Shown,
    Hidden
  };  // what the mask holds: a large negative number where hidden, or a bool
  const Node* mask_ = nullptr;  // [samples, heads or 1, queries or 1, tokens]
  Says says_ = Says::Bias;
  bool only_one_ = true;
  int64_t samples_ = 0, tokens_ = 0, flops_ = 0;
  std::unordered_map<const Node*, RowMaps> zero_;
  std::unordered_map<const Node*, Unread> unread_;
  // c in exp(x - c), made of x: where x becomes 0 it is what x makes it, but it is not 0 by itself.
  std::unordered_set<const Node*> follow_;
};

/// Has those groups pass over hidden rows that may: whose stored values may all be 0 there, and that `rows` do not
/// depend on.
void pass_over_padding(Schedule&, const PaddingProof&, const PaddedRows& rows);

}  // namespace trainc::schedule
