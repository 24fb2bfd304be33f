// Groups stay a graph without circles, and every merge that leaves it one is allowed: compared with a search through
// all paths.
#include "schedule/group_dag.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace trainc::schedule {
namespace {

/// The plainest graph of groups: edges between roots.
struct Plain {
  std::vector<std::set<int>> before;
  std::vector<int> root;

  /// Whether a path leads from one of `inside` (which also needs `extra`) through others back to one of them.
  bool circular(const std::set<int>& inside, const std::set<int>& extra) const {
    std::set<int> seen, stack(extra);
    for (int g : inside) stack.insert(before[g].begin(), before[g].end());
    for (int g : inside) stack.erase(g);
    while (!stack.empty()) {
      const int g = *stack.begin();
      stack.erase(stack.begin());
      if (inside.count(g)) return true;
      if (!seen.insert(g).second) continue;
      stack.insert(before[g].begin(), before[g].end());
    }
    return false;
  }
  void merge(int to, int from) {
    before[to].insert(before[from].begin(), before[from].end());
    before[from].clear();
    for (std::set<int>& b : before)
      if (b.erase(from)) b.insert(to);
    before[to].erase(to);
    for (int& r : root)
      if (r == from) r = to;
  }
};

TEST(GroupDag, SaysWhatASearchThroughAllPathsSays) {
  int64_t allowed = 0, refused = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    std::mt19937_64 rng(seed);
    const auto below = [&](size_t n) { return static_cast<size_t>(rng() % n); };
    GroupDag dag;
    Plain plain;
    std::set<int> roots;
    const size_t reads = 1 + below(3);
    const auto some = [&](size_t most) {
      std::vector<int> groups;
      for (size_t i = below(most + 1); i-- > 0 && !roots.empty();)
        groups.push_back(*std::next(roots.begin(), static_cast<std::ptrdiff_t>(below(roots.size()))));
      return groups;
    };
    for (int step = 0; step < 80; ++step) {
      if (roots.size() < 3 || below(2)) {
        const std::vector<int> before = some(reads);
        const int g = dag.add(before);
        ASSERT_EQ(g, static_cast<int>(plain.before.size()));
        plain.before.emplace_back(before.begin(), before.end());
        plain.root.push_back(g);
        roots.insert(g);
        continue;
      }
      std::vector<int> inside = some(4), extra = below(2) ? some(3) : std::vector<int>{};
      if (inside.empty()) continue;
      const std::set<int> as_set(inside.begin(), inside.end());
      inside.assign(as_set.begin(), as_set.end());
      const bool circular = plain.circular(as_set, {extra.begin(), extra.end()});
      ASSERT_EQ(dag.circular(inside, extra), circular) << "seed " << seed << " step " << step;
      (circular ? refused : allowed) += 1;
      if (circular) continue;

      if (inside.size() == 1) {
        dag.follow(inside[0], extra);
        for (int e : extra)
          if (e != inside[0]) plain.before[inside[0]].insert(e);
      } else if (extra.empty()) {
        dag.merge(inside);
        for (size_t i = 1; i < inside.size(); ++i) plain.merge(inside[0], inside[i]), roots.erase(inside[i]);
      }
      for (size_t g = 0; g < plain.root.size(); ++g) ASSERT_EQ(dag.find(static_cast<int>(g)), plain.root[g]);
    }
  }
  EXPECT_GT(allowed, 1000);
  EXPECT_GT(refused, 300);
}

}  // namespace
}  // namespace trainc::schedule
