#include "schedule/group_dag.h"

#include <algorithm>

#include "support/error.h"

namespace trainc::schedule {

int GroupDag::add(const std::vector<int>& before) {
  const int g = size();
  parent_.push_back(g);
  before_.push_back(before);
  place_.push_back(static_cast<int>(order_.size()));
  order_.push_back(g);
  seen_.push_back(0);
  return g;
}

int GroupDag::find(int g) const {
  while (parent_[g] != g) g = parent_[g] = parent_[parent_[g]];
  return g;
}

bool GroupDag::between(const std::vector<int>& inside, const std::vector<int>& before, std::vector<int>* found) const {
  ++search_;
  int first = place_[find(inside.front())];
  for (int g : inside) first = std::min(first, place_[find(g)]);
  // Marked as seen from the start, so that arriving there is not taken for a way through: reads within `inside` are
  // none.
  std::vector<int> members, stack;
  for (int g : inside) members.push_back(find(g));
  const auto is_member = [&](int g) { return std::find(members.begin(), members.end(), g) != members.end(); };
  const auto visit = [&](int g) {
    g = find(g);
    // what runs before all of `inside` needs none of it
    if (place_[g] <= first || seen_[g] == search_ || is_member(g)) return;
    seen_[g] = search_;
    stack.push_back(g);
  };
  for (int m : members)
    if (place_[m] > first)
      for (int g : before_[m]) visit(g);
  for (int g : before) visit(g);
  while (!stack.empty()) {
    const int g = stack.back();
    stack.pop_back();
    if (found) found->push_back(g);
    for (int p : before_[g]) {
      if (is_member(find(p))) return false;
      visit(p);
    }
  }
  return true;
}

bool GroupDag::circular(const std::vector<int>& inside, const std::vector<int>& before) const {
  return !between(inside, before, nullptr);
}

void GroupDag::settle(const std::vector<int>& inside, const std::vector<int>& before) {
  std::vector<int> needed;
  require(between(inside, before, &needed), "groups depend on each other in a circle");
  int first = place_[inside.front()], last = first;
  for (int g : inside) first = std::min(first, place_[g]), last = std::max(last, place_[g]);
  for (int g : needed) last = std::max(last, place_[g]);
  // Between the first and the last place: what is needed, as it was; the new group; the rest, as it was (none of that
  // is needed by what is needed).
  std::sort(needed.begin(), needed.end(), [&](int a, int b) { return place_[a] < place_[b]; });
  std::vector<int> now = needed;
  now.push_back(inside.front());
  for (int at = first; at <= last; ++at) {
    const int g = order_[at];
    if (g < 0 || std::find(inside.begin(), inside.end(), g) != inside.end() || seen_[g] == search_) continue;
    now.push_back(g);
  }
  now.resize(static_cast<size_t>(last - first + 1), -1);
  for (int at = first; at <= last; ++at) {
    order_[at] = now[static_cast<size_t>(at - first)];
    if (order_[at] >= 0) place_[order_[at]] = at;
  }
}

void GroupDag::follow(int g, const std::vector<int>& before) {
  g = find(g);
  bool later = false;  // than g now runs
  for (int b : before) later = later || place_[find(b)] > place_[g];
  if (later) settle({g}, before);
  for (int b : before)
    if (b = find(b); b != g) before_[g].push_back(b);
}

void GroupDag::merge(const std::vector<int>& inside) {
  std::vector<int> roots;
  for (int g : inside)
    if (g = find(g); std::find(roots.begin(), roots.end(), g) == roots.end()) roots.push_back(g);
  if (roots.size() < 2) return;
  settle(roots, {});
  std::vector<int>& before = before_[roots[0]];
  for (size_t i = 1; i < roots.size(); ++i) {
    const int from = roots[i];
    parent_[from] = roots[0];
    before.insert(before.end(), before_[from].begin(), before_[from].end());
    before_[from] = {};
  }
}

}  // namespace trainc::schedule
