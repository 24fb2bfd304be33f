// Gives Temp buffers their offsets: greedy by size. Buffers are placed one by one, the larger first, each into the tightest gap
// between those that live at the same time. The order decides how near the peak comes to its lower bound (the most bytes live
// at any one step), so several orders are tried and the lowest peak is kept; one that meets the bound ends the search.
#include <algorithm>
#include <functional>
#include <numeric>

#include "plan/live.h"
#include "plan/plan.h"
#include "support/error.h"

namespace trainc::plan {
namespace {

struct Item {
  int buffer;
  LiveRange live;
  int64_t size;        // rounded up to the alignment
  int64_t offset = -1; // not placed yet
};

/// The most bytes that live at one step: no layout can have a lower peak.
int64_t most_live(const std::vector<Item>& items, size_t steps) {
  std::vector<int64_t> change(steps + 1, 0);
  for (const Item& i : items) {
    change[i.live.first] += i.size;
    change[i.live.last + 1] -= i.size;
  }
  int64_t now = 0, most = 0;
  for (int64_t c : change) most = std::max(most, now += c);
  return most;
}

/// Start of the smallest gap that holds `size` between the `taken` (offset, end) ranges; behind them all where there is none.
int64_t tightest_gap(std::vector<std::pair<int64_t, int64_t>>& taken, int64_t size) {
  std::sort(taken.begin(), taken.end());
  int64_t best = -1, best_room = 0, end = 0;
  for (auto [from, to] : taken) {
    const int64_t room = from - end;
    if (room >= size && (best < 0 || room < best_room)) best = end, best_room = room;
    end = std::max(end, to);
  }
  return best >= 0 ? best : end;
}

/// Places `items` in their order; gives the peak.
int64_t place(std::vector<Item>& items) {
  int64_t peak = 0;
  std::vector<std::pair<int64_t, int64_t>> taken;
  for (size_t i = 0; i < items.size(); ++i) {
    taken.clear();
    for (size_t j = 0; j < i; ++j)
      if (items[j].live.meets(items[i].live)) taken.emplace_back(items[j].offset, items[j].offset + items[j].size);
    items[i].offset = tightest_gap(taken, items[i].size);
    peak = std::max(peak, items[i].offset + items[i].size);
  }
  return peak;
}

}  // namespace

std::vector<LiveRange> live_ranges(const Plan& plan) {
  std::vector<LiveRange> live(plan.buffers.size());
  for (int s = 0; s < static_cast<int>(plan.steps.size()); ++s) {
    const auto touch = [&](const std::vector<int>& buffers) {
      for (int b : buffers) {
        require(b >= 0 && b < static_cast<int>(live.size()), "plan: step " + plan.steps[s].name + " names a buffer that is not there");
        if (live[b].first < 0) live[b].first = s;
        live[b].last = s;
      }
    };
    touch(plan.steps[s].reads);
    touch(plan.steps[s].writes);
  }
  return live;
}

void plan_memory(Plan& plan) {
  const std::vector<LiveRange> live = live_ranges(plan);
  std::vector<Item> items;
  for (int b = 0; b < static_cast<int>(plan.buffers.size()); ++b) {
    Buffer& buffer = plan.buffers[b];
    if (buffer.home != Home::Temp) continue;
    buffer.offset = 0;  // stays so where nothing is stored
    if (buffer.bytes > 0 && live[b].first >= 0) items.push_back({b, live[b], aligned(buffer.bytes)});
  }
  const int64_t bound = most_live(items, plan.steps.size());

  using Before = std::function<bool(const Item&, const Item&)>;
  const auto span = [](const Item& i) { return static_cast<int64_t>(i.live.last - i.live.first + 1); };
  const Before orders[] = {
      [](const Item& a, const Item& b) { return a.size > b.size; },
      [&](const Item& a, const Item& b) { return a.size * span(a) > b.size * span(b); },
      [&](const Item& a, const Item& b) { return span(a) != span(b) ? span(a) > span(b) : a.size > b.size; },
      [](const Item& a, const Item& b) { return a.live.first < b.live.first; },
      [](const Item& a, const Item& b) { return a.live.last > b.live.last; },
  };
  plan.temp_bytes = 0;
  bool placed = false;
  for (const Before& before : orders) {
    std::vector<Item> candidate = items;
    std::stable_sort(candidate.begin(), candidate.end(), before);  // stable: two runs give one layout
    const int64_t peak = place(candidate);
    if (placed && peak >= plan.temp_bytes) continue;
    for (const Item& i : candidate) plan.buffers[i.buffer].offset = i.offset;
    plan.temp_bytes = peak;
    placed = true;
    if (peak == bound) break;
  }
}

}  // namespace trainc::plan
