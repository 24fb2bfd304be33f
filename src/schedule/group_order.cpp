#include "schedule/group_order.h"

#include <algorithm>
#include <set>
#include <unordered_set>

#include "schedule/groups.h"
#include "schedule/guards.h"
#include "support/error.h"

namespace trainc::schedule {

DrawnBefore order_draws(std::vector<const Node*>& live) {
  DrawnBefore drawn_before;
  std::vector<std::pair<int64_t, const Node*>> draws;
  for (const Node* n : live) {
    if (n->op == Op::Random) draws.push_back({n->as<RandomAttr>().draw, n});
    if (n->op == Op::Extern && n->as<ExternAttr>().random) draws.push_back({n->as<ExternAttr>().draw, n});
  }
  std::sort(draws.begin(), draws.end());
  bool ordered = true;
  for (size_t i = 1; i < draws.size(); ++i) {
    drawn_before[draws[i].second] = draws[i - 1].second;
    ordered = ordered && draws[i - 1].second->id < draws[i].second->id;
  }
  if (ordered) return drawn_before;
  std::vector<const Node*> order, stack;
  std::unordered_set<const Node*> done, begun;
  for (const Node* root : live) {
    stack.push_back(root);
    while (!stack.empty()) {
      const Node* n = stack.back();
      const bool again = !begun.insert(n).second;
      if (again) {
        stack.pop_back();
        if (done.insert(n).second) order.push_back(n);
        continue;
      }
      const auto wait_for = [&](const Node* i) {
        require(!begun.count(i) || done.count(i), "a draw needs the result of a later one");
        if (!done.count(i)) stack.push_back(i);
      };
      for (const Node* i : n->inputs) wait_for(i);
      if (auto it = drawn_before.find(n); it != drawn_before.end()) wait_for(it->second);
    }
  }
  live = std::move(order);
  return drawn_before;
}

namespace {

/// List scheduling: of the groups whose reads are made, first those that need no more memory afterwards than before
/// (what they are the last to read outweighs what they leave; results for the caller weigh nothing), then the next of
/// `roots`, behind what it reads.
std::vector<int> in_little_memory(const Groups& groups, const Graph& graph, const std::vector<int>& roots,
                                  const std::unordered_map<int, std::unordered_set<int>>& before) {
  std::unordered_set<const Node*> callers;
  for (const Output& o : graph.outputs)
    if (o.value) callers.insert(base_of(o.value));
  struct PendingGroup {
    std::vector<int> before, after;
    std::vector<const Node*> reads;  // values of other groups
    size_t missing = 0;              // groups before it that are not done
    int64_t place = 0;               // in `roots`
    bool done = false;
  };
  std::unordered_map<int, PendingGroup> work;
  std::unordered_map<const Node*, int64_t> readers;  // groups that have yet to read a value of another group
  for (size_t i = 0; i < roots.size(); ++i) {
    PendingGroup& w = work[roots[i]];
    w.place = static_cast<int64_t>(i);
    if (auto it = before.find(roots[i]); it != before.end()) w.before.assign(it->second.begin(), it->second.end());
    w.missing = w.before.size();
    std::unordered_set<const Node*> seen;
    for (const Node* n : groups.all()[roots[i]].values)
      for (const Read& r : groups.read_by(n))
        if (int p = groups.group(r.value); p >= 0 && p != roots[i] && seen.insert(r.value).second)
          w.reads.push_back(r.value), ++readers[r.value];
  }
  for (int g : roots) {
    std::sort(work[g].before.begin(), work[g].before.end(),
              [&](int a, int b) { return work[a].place < work[b].place; });
    for (int p : work[g].before) work[p].after.push_back(g);
  }

  const auto growth = [&](int g) {
    int64_t bytes = 0;
    for (const Node* n : groups.all()[g].values)
      if (readers.count(n) && !callers.count(n)) bytes += n->type.bytes();
    for (const Node* n : work[g].reads)
      if (readers[n] == 1 && !callers.count(n)) bytes -= n->type.bytes();
    return bytes;
  };
  std::vector<int> order;
  std::set<std::pair<int64_t, int>> ready;  // (place in `roots`, group)
  const auto run = [&](int g) {
    PendingGroup& w = work[g];
    w.done = true;
    order.push_back(g);
    ready.erase({w.place, g});
    for (const Node* n : w.reads) --readers[n];
    for (int next : w.after)
      if (--work[next].missing == 0) ready.insert({work[next].place, next});
  };
  const auto run_what_frees = [&] {
    for (bool found = true; found;) {
      found = false;
      int best = -1;
      int64_t least = 1;
      for (auto [place, g] : ready)
        if (int64_t bytes = growth(g); bytes < least && !work[g].reads.empty()) least = bytes, best = g;
      if (best >= 0) run(best), found = true;
    }
  };
  for (int g : roots)
    if (work[g].missing == 0) ready.insert({work[g].place, g});
  std::unordered_set<int> begun;
  const auto run_with_reads = [&](int root) {
    // a group, and how many of those before it have been looked at
    std::vector<std::pair<int, size_t>> stack{{root, 0}};
    while (!stack.empty()) {
      auto& [g, next] = stack.back();
      if (next == 0) require(work[g].done || begun.insert(g).second, "groups depend on each other in a circle");
      while (next < work[g].before.size() && work[work[g].before[next]].done) ++next;
      if (next < work[g].before.size()) {
        stack.push_back({work[g].before[next++], 0});
        continue;
      }
      if (!work[g].done) run(g), run_what_frees();
      stack.pop_back();
    }
  };
  for (int g : roots)
    if (!work[g].done) run_with_reads(g);
  return order;
}

using Before = std::unordered_map<int, std::unordered_set<int>>;

/// Whether `g` runs after `other` whatever the order.
bool needs(const Before& before, int g, int other) {
  std::vector<int> stack{g};
  std::unordered_set<int> seen{g};
  while (!stack.empty()) {
    const int at = stack.back();
    stack.pop_back();
    if (at == other) return true;
    if (const auto it = before.find(at); it != before.end())
      for (int p : it->second)
        if (seen.insert(p).second) stack.push_back(p);
  }
  return false;
}

/// Puts each value that takes an input's memory behind the groups that read that input.
void behind_readers(const Groups& groups, const std::vector<int>& roots, const GivenAway& given_away, Before& before) {
  std::unordered_map<const Node*, std::vector<int>> readers;
  for (int g : roots)
    for (const Node* n : groups.all()[g].values)
      for (const Read& r : groups.read_by(n))
        if (r.value->op == Op::Input && (readers[r.value].empty() || readers[r.value].back() != g))
          readers[r.value].push_back(g);
  for (const auto& [input, value] : given_away) {
    const int writer = groups.group(value);
    const std::vector<int>& its = readers[input];
    if (writer < 0 ||
        std::any_of(its.begin(), its.end(), [&](int g) { return g != writer && needs(before, g, writer); }))
      continue;
    for (int g : its)
      if (g != writer) before[writer].insert(g);
  }
}

/// The groups that make flags, or what kernels ask for beside their operands, and those that these need.
std::unordered_set<int> of_flags(const Groups& groups, const Graph& graph, const Before& before) {
  std::vector<int> stack;
  for (const Node* n : graph.live())
    if (const Node* flag = flag_of(n)) stack.push_back(groups.group(flag));
  for (const Node* n : graph.also_wanted) stack.push_back(groups.group(n));
  std::unordered_set<int> found;
  while (!stack.empty()) {
    const int g = stack.back();
    stack.pop_back();
    if (g < 0 || !found.insert(g).second) continue;
    if (const auto it = before.find(g); it != before.end())
      stack.insert(stack.end(), it->second.begin(), it->second.end());
  }
  return found;
}

}  // namespace

std::vector<int> order_groups(const Groups& groups, const Graph& graph, const GivenAway& given_away) {
  std::vector<int> roots;
  for (int g = 0; g < static_cast<int>(groups.all().size()); ++g)
    if (groups.find(g) == g) roots.push_back(g);
  Before before;
  for (int g : roots)
    for (const Node* n : groups.all()[g].values)
      for (int p : groups.before(n))
        if (p != g) before[g].insert(p);
  behind_readers(groups, roots, given_away, before);
  auto last_id = [&](int g) {
    int64_t id = 0;
    for (const Node* n : groups.all()[g].values) id = std::max(id, n->id);
    return id;
  };
  // A flag is made before all that it may keep from being made, though that does not read it.
  const std::unordered_set<int> early = of_flags(groups, graph, before);
  std::sort(roots.begin(), roots.end(), [&](int a, int b) {
    return early.count(a) != early.count(b) ? early.count(a) > early.count(b) : last_id(a) < last_id(b);
  });
  return in_little_memory(groups, graph, roots, before);
}

}  // namespace trainc::schedule
