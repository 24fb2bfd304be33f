#include "schedule/guards.h"

#include <algorithm>
#include <optional>

namespace trainc::schedule {
namespace {

/// When something is wanted: never (nothing so far), always, or by a flag.
class Wanted {
 public:
  explicit Wanted(const Graph& graph) {
    for (const Output& o : graph.outputs)
      if (o.value) add(o.value, {});
    for (const Node* effect : graph.effects) add(effect, {});
    const std::vector<const Node*> live = graph.live();
    for (auto n = live.rbegin(); n != live.rend(); ++n) visit(*n);
  }
  Guard of(const Node* n) const {
    const auto it = by_.find(n);
    return it == by_.end() ? Guard{} : it->second;
  }

 private:
  void add(const Node* n, const Guard& by) {
    const auto [it, first] = by_.emplace(n, by);
    if (!first && !(it->second == by)) it->second = {};
  }
  void visit(const Node* n) {
    const Guard by = of(n);
    const Node* flag = flag_of(n);
    for (size_t i = 0; i < n->inputs.size(); ++i) {
      const bool index = (n->op == Op::Gather || n->op == Op::Scatter) && i == 1;
      if (index || n->op == Op::Extern) add(n->in(i), {});
      else if (flag && i > 0 && !by.flag) add(n->in(i), {flag, i == 1});
      else add(n->in(i), by);
    }
  }

  std::unordered_map<const Node*, Guard> by_;
};

}  // namespace

const Node* flag_of(const Node* select) {
  if (select->op != Op::Select) return nullptr;
  const Node* flag = select->in(0);
  while (flag->op == Op::Broadcast || flag->op == Op::Reshape) flag = flag->in(0);
  return is_copy(flag) && flag->type.numel() == 1 ? flag : nullptr;
}

std::vector<Guard> find_guards(const Graph& graph, const Schedule& schedule,
                               const std::unordered_map<const Node*, const Node*>& over) {
  const Wanted wanted(graph);
  // A value that is stored where the other branch of its selection lies.
  const auto chosen = [&](const Node* n) -> Guard {
    const auto it = over.find(n);
    const Node* flag = flag_of(n);
    if (it == over.end() || !flag || it->second->op == Op::Input) return {};  // a caller need not give an input away
    for (size_t other : {2, 1})
      if (base_of(n->in(other)) == it->second && base_of(n->in(3 - other)) != it->second) return {flag, other == 2};
    return {};
  };
  std::vector<Guard> guards;
  for (size_t g = 0; g < schedule.groups.size(); ++g) {
    const Group& group = schedule.groups[g];
    std::optional<Guard> all;
    for (const Node* n : group.values) {
      if (!schedule.stored.count(n)) continue;
      Guard by = wanted.of(n);
      if (const Guard in_place = chosen(n); in_place.flag) by = in_place;
      if (!all) all = by;
      else if (!(*all == by)) all = Guard{};
    }
    Guard guard = all.value_or(Guard{});
    const bool draws = group.kind == GroupKind::Random || group.kind == GroupKind::Extern;
    const auto made = guard.flag ? schedule.group_of.find(guard.flag) : schedule.group_of.end();
    if (draws || made == schedule.group_of.end() || made->second >= static_cast<int>(g) ||
        !schedule.stored.count(guard.flag))
      guard = {};
    guards.push_back(guard);
  }
  return guards;
}

}  // namespace trainc::schedule
