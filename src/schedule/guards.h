// Which kernels may be passed over, because a bool of the run says that nobody wants what they make.
#pragma once
#include <unordered_map>
#include <vector>

#include "schedule/schedule.h"

namespace trainc::schedule {

/// A bool that is one for all elements, and of which value.
struct Guard {
  const Node* flag = nullptr;  // null: none
  bool value = true;
  bool operator==(const Guard&) const = default;
};

/// The bool by which `select` chooses, for all of its elements: where it is a copy (is_copy), which is how who writes a
/// graph says that only the branch that is chosen is to be computed. Null: no select, or none of that kind.
const Node* flag_of(const Node* select);

/// One a group: what all that it stores is wanted for. A value is wanted where what is made of it is; what a selection
/// by a flag takes from one branch, where it takes that branch. A value that is stored `over` the other branch of its
/// own selection need not be made where that branch is chosen: it lies there already. Kernels that run read what was
/// not made, and choose the other branch: so nothing is wanted under a flag that is an index, or that the framework
/// reads. Where a flag is made too late, or never stored, there is no guard.
std::vector<Guard> find_guards(const Graph&, const Schedule&, const std::unordered_map<const Node*, const Node*>& over);

}  // namespace trainc::schedule
