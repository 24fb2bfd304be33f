// Groups as a graph without circles: which must run after which, with a topological order that is kept up through every
// merge. Inside schedule only.
//
// A kernel runs as a whole. So two groups may become one only if no path leads from one of them through a third group
// to the other: that group would have to run after the merged one and before it. What a path consists of are groups,
// not values: a group that none of the values in question is read by may still lie on one, through another value that
// it makes (so it is not enough to compare values' places in the program).
#pragma once
#include <vector>

namespace trainc::schedule {

class GroupDag {
 public:
  /// A new group, the next number from 0 on, that runs after `before`.
  int add(const std::vector<int>& before);
  /// The group that g has been merged into.
  int find(int g) const;
  int size() const { return static_cast<int>(parent_.size()); }

  /// Whether the groups `inside`, made one that also runs after `before`, would have to run before itself.
  bool circular(const std::vector<int>& inside, const std::vector<int>& before = {}) const;
  /// g also runs after `before`. Needs: !circular({g}, before).
  void follow(int g, const std::vector<int>& before);
  /// The groups `inside` become one, the first of them. Needs: !circular(inside).
  void merge(const std::vector<int>& inside);

 private:
  /// Groups outside `inside` that run between the first of `inside` and the last, and that `inside` or one of `before`
  /// needs; unless one of them needs `inside`: then false.
  bool between(const std::vector<int>& inside, const std::vector<int>& before, std::vector<int>* found) const;
  /// Moves `inside`, which becomes one group, in the order: behind those of `before` that stood later than its first
  /// member.
  void settle(const std::vector<int>& inside, const std::vector<int>& before);

  mutable std::vector<int> parent_;
  std::vector<std::vector<int>> before_;  // may name groups that have been merged, and the group itself
  std::vector<int> place_;                // of a group in `order_`
  std::vector<int> order_;                // a topological order; -1: a group that has been merged was here
  mutable std::vector<int> seen_;         // the search in which a group was seen last
  mutable int search_ = 0;
};

}  // namespace trainc::schedule
