// What the vendor's library does with the sums of a product before it rounds them, once, to what it writes. Inside
// schedule only, but for Schedule.
//
// It adds a vector to each row (cuBLASLt's bias), or a matrix laid out as the result (its beta of 1), and rounds; and
// as it reads an operand, it sums it over k (the gradient of a bias, where the product is the gradient of the weight).
// All of it must be what the graph says: what was rounded on the way is not added to, and what is added has the dtype
// of what is written. So a sum of two products in bf16 stays a kernel (the first one was rounded), and so does GELU,
// which the library computes of sums that are not rounded yet.
#pragma once
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "graph/graph.h"
#include "schedule/vendor_library.h"

namespace trainc::schedule {

struct VendorEpilogue {
  const Node* result;            // what the library writes: the contraction, or what becomes of it
  const Node* bias = nullptr;    // in memory: a vector, added to each row
  const Node* addend = nullptr;  // in memory: a matrix as large and laid out as the result
  // the sums of an operand over k, as they are stored: a Reduce, or its rounding
  const Node* sums = nullptr;
  bool of_lhs = false;

  /// The Reduce of `sums`.
  const Node* reduce() const;
};

/// Finds the epilogues of contractions, given a graph's nodes one by one, operands first.
class VendorEpilogues {
 public:
  /// `uses`: by how many operations, and as how many outputs, a node is read. `refused`: VendorLibrary's.
  VendorEpilogues(const std::unordered_map<const Node*, int>& uses, const std::set<ProductShape>& refused)
      : uses_(uses), refused_(refused) {}
  /// A contraction of the library's.
  void begin(const Node* contract);
  /// Any other node: what follows a contraction that nothing else reads becomes part of its epilogue.
  void extend(const Node*);
  /// A sum of a value over its leading axes that is one of an operand of an earlier contraction.
  void sum(const Node* reduce);
  /// By contraction, as long as it can be. `made`: nodes that are values whatever becomes of them, so that no epilogue
  /// goes on behind one.
  std::unordered_map<const Node*, VendorEpilogue> found(const std::unordered_set<const Node*>& made) const;

 private:
  struct Chain {
    const Node* contract;
    std::vector<VendorEpilogue> stages;  // each one operation longer than the last
    bool rounded = false;
    const Node *reduce = nullptr, *sums = nullptr;  // the latter: what follows the former, up to a rounding
    bool of_lhs = false;
  };
  Chain* chain_of(const Node* read);
  bool add(Chain&, const Node* sum, const Node* other) const;
  void take_sums(const Chain&, VendorEpilogue&) const;

  const std::unordered_map<const Node*, int>& uses_;
  const std::set<ProductShape>& refused_;
  std::vector<Chain> chains_;
  std::unordered_map<const Node*, size_t> ending_at_;  // of a node: the chain that it ends, reshapes behind it included
  std::unordered_map<const Node*, size_t> sums_at_;    // the same of a chain's sums
};

/// The sums (Reduce) that the library is likely to make on the way, of a graph before `prepare`.
std::unordered_set<const Node*> sums_of_operands(const Graph&, const VendorLibrary&);

}  // namespace trainc::schedule
