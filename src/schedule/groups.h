// Groups while they are formed: what each holds, what must run before what, and why two are not one. Inside schedule
// only.
//
// One class, because all that forms groups asks and changes the same; a file an idea: groups.cpp (what a group is, and
// when two may be one), place.cpp (values into groups, one after another), find_chains.cpp (matmul chains).
#pragma once
#include <unordered_map>
#include <vector>

#include "graph/remarks.h"
#include "schedule/group_dag.h"
#include "schedule/group_order.h"
#include "schedule/matmul_chain.h"
#include "schedule/schedule.h"
#include "schedule/values.h"

namespace trainc::schedule {

// Why something is not done, for a remark; nullptr: nothing speaks against it.
using Refusal = const char*;
constexpr Refusal kTooLarge = "the kernel would hold too much work",
                  kTooMany = "a device's kernel would make too many tensors at once",
                  kUnaligned = "it reads other elements than the one at its place",
                  kCircle = "another kernel must run between them",
                  kOtherSize = "they have different numbers of elements";

class Groups {
 public:
  /// `fuse_chains`: for a CPU, whose kernels may be matmul chains.
  Groups(const NodeRemarks& remarks, const Values& values, const DrawnBefore& drawn_before, bool fuse_chains)
      : remarks_(remarks), values_(values), drawn_before_(drawn_before), fuse_chains_(fuse_chains) {}

  /// Puts a value into a group of something that it reads, or into one of its own. Needs: what it reads has been
  /// placed.
  void place(const Node* n);
  /// Sums over the same axes of values of the same shape, that read something in common, in one loop over memory.
  void merge_columns();
  /// Makes matmul chains: each contraction that makes a matrix takes in what works on the same matrix, then the
  /// contractions that read it. One that nothing reads so is left as it was.
  void find_chains();
  /// Says of each two groups that are not one in the end why they first were not.
  void remark() const;

  /// Groups by number; those that were merged into others are empty.
  const std::vector<Group>& all() const { return groups_; }
  int find(int g) const { return dag_.find(g); }  // the group that g is now
  int group(const Node* n) const;                 // of a value; -1: none
  const std::vector<Read>& read_by(const Node* n) const { return reads_.at(n); }
  /// The groups that run before `n` is made.
  std::vector<int> before(const Node* n) const;

 private:
  // --- groups.cpp
  /// What a group's code is made of.
  struct Work {
    int64_t operations = 0;  // each value's once
    int64_t sums = 0;        // each of which ends a loop over the columns
    Work operator+(const Work& other) const { return {operations + other.operations, sums + other.sums}; }
  };
  int new_group(GroupKind, const Node*, int64_t rows = 0, int64_t columns = 1);
  Work work_of(const Node*) const;
  /// Whether that much work over rows of so many columns is code for one kernel. Values that are not kept from one
  /// loop over the columns to the next are computed again in each.
  bool fits(const Work&, int64_t columns) const;
  /// Whether rows of so many elements in all are made of these groups, and of `more` values, by a device's threads.
  bool few(std::initializer_list<int> groups, int64_t elements, int64_t more = 0) const;
  /// Whether `n` reads of group g, if anything, the element (or row) at its own place alone.
  bool aligned(const Node* n, int g, int64_t rows, int64_t columns) const;
  /// Makes groups one: that of the lowest number.
  int join(std::vector<int> groups);
  /// Notes that `n` was not put into group g, which reads or makes something that `n` uses. A later merge may still
  /// bring the two together.
  void not_fused(const Node* n, int g, Refusal why);

  // --- form_groups.cpp
  void place_in_rows(const Node* n);
  /// Sums of an operand of the library's product, and their rounding: with the product, where nothing must run between.
  bool place_with_product(const Node* n);
  /// Why `n` cannot be made in group g. It can (and g then has the domain for it) with the same domain, all its reads
  /// of g aligned, and no way from g out and back to n.
  Refusal refuse_join(const Node* n, int g, bool sum, int64_t own_rows, int64_t own_columns);
  /// Unites two row groups of one domain, or says why not.
  Refusal unite(int a, int b);

  // --- find_chains.cpp
  void find_neighbours();
  /// Groups that read what `inside` makes, or make what it reads.
  std::vector<int> neighbours(const std::vector<int>& inside) const;
  /// What may work on the matrix: neighbours, and what a contraction reads in one operand together with what `inside`
  /// makes.
  std::vector<int> candidates(const std::vector<int>& inside, const Matrix&) const;
  bool reads(int reader, const std::vector<int>& read) const;
  bool reads_any(const std::vector<int>& readers, int read) const;
  /// Why group `extra` cannot be a part of the matmul chain `inside`.
  Refusal refuse_more(std::vector<int> inside, int extra, int64_t columns) const;
  /// Whether sums are taken over the rows of what contraction g makes, and another contraction reads what they go into:
  /// what might have become a matmul chain. Of groups that many others read only some are looked at: it is for a
  /// remark.
  bool begins_chain(int g) const;
  void no_chain(int g, Refusal why, const Node* consumer = nullptr) const;
  /// Whether group x computes elements or rows of the matrix, and each of x and `inside` reads what the other makes at
  /// its own element or row alone.
  bool works_on(int x, const std::vector<int>& inside, const Matrix&);
  /// Whether a value of a row goes into the matrix's elements: nothing else keeps a product from being the next one's
  /// operand as it is packed.
  bool works_on_rows(const std::vector<int>& inside, const Matrix&) const;
  /// Why group x cannot be a consumer: it must be a contraction that has the matrix of `inside` as one whole operand,
  /// and that reads nothing else of `inside`.
  Refusal refuse_consumer(int x, const std::vector<int>& inside, const Matrix&);

  struct Domain { int64_t rows, columns; };
  struct NotFused {
    const Node *n, *other;
    Refusal why;
  };
  const NodeRemarks& remarks_;
  const Values& values_;
  const DrawnBefore& drawn_before_;
  const bool fuse_chains_;
  std::vector<Group> groups_;
  std::vector<Work> work_;
  GroupDag dag_;
  std::unordered_map<const Node*, int> group_of_;
  std::unordered_map<const Node*, std::vector<Read>> reads_;
  // of each group: those that read what it makes, or make what it reads
  std::vector<std::vector<int>> neighbours_;
  std::vector<NotFused> not_fused_;  // values, and one of another group, as they were refused to be one kernel
};

}  // namespace trainc::schedule
