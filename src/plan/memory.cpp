// Gives Temp buffers their offsets: greedy by size. Buffers are placed one by one, the larger first, each into the
// tightest gap between those that live at the same time: in the handle's arena where it has one, else in this plan's
// own. The order decides how near the peak comes to its lower bound (the most bytes live at any one step), so several
// orders are tried and the lowest peak is kept; one that meets the bound ends the search. Buffers that lie over one
// another are one item.
#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <set>

#include "plan/live.h"
#include "plan/plan.h"
#include "support/error.h"

namespace trainc::plan {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

struct Item {
  int buffer;  // the lowest of those that lie over one another
  LiveRange live;
  int64_t size;         // rounded up to the alignment
  int64_t offset = -1;  // not placed yet
  bool saved = false;   // in the handle's arena
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

/// Start of the smallest gap that holds `size` between the `taken` (offset, end) ranges; where there is none, behind
/// them all, or -1 where that ends beyond `limit`.
int64_t tightest_gap(std::vector<std::pair<int64_t, int64_t>>& taken, int64_t size, int64_t limit) {
  std::sort(taken.begin(), taken.end());
  int64_t best = -1, best_room = 0, end = 0;
  const auto gap = [&](int64_t until) {
    const int64_t room = until - end;
    if (room >= size && (best < 0 || room < best_room)) best = end, best_room = room;
  };
  for (auto [from, to] : taken) {
    gap(from);
    end = std::max(end, to);
  }
  if (limit < kUnlimited) gap(limit);
  return best >= 0 || limit < kUnlimited ? best : end;
}

/// Places `items` in their order, in the arena of `saved_bytes` around its `slots` where they fit; gives the peak of
/// the plan's own.
int64_t place(std::vector<Item>& items, const std::vector<Item>& slots, int64_t saved_bytes) {
  int64_t peak = 0;
  std::vector<std::pair<int64_t, int64_t>> taken;
  const auto take = [&](const Item& i) { taken.emplace_back(i.offset, i.offset + i.size); };
  for (size_t i = 0; i < items.size(); ++i) {
    Item& item = items[i];
    if (item.size <= saved_bytes) {
      taken.clear();
      for (const Item& slot : slots)
        if (slot.live.meets(item.live)) take(slot);
      for (size_t j = 0; j < i; ++j)
        if (items[j].saved && items[j].live.meets(item.live)) take(items[j]);
      item.offset = tightest_gap(taken, item.size, saved_bytes);
      item.saved = item.offset >= 0;
      if (item.saved) continue;
    }
    taken.clear();
    for (size_t j = 0; j < i; ++j)
      if (!items[j].saved && items[j].live.meets(item.live)) take(items[j]);
    item.offset = tightest_gap(taken, item.size, kUnlimited);
    peak = std::max(peak, item.offset + item.size);
  }
  return peak;
}

/// The buffer whose memory `b` has.
int below(const Plan& plan, int b) {
  for (size_t steps = 0; plan.buffers[b].over >= 0; b = plan.buffers[b].over)
    require(plan.buffers[b].over < static_cast<int>(plan.buffers.size()) && ++steps <= plan.buffers.size(),
            "plan: buffers lie over each other in a circle");
  return b;
}

/// Where each buffer is named by a step.
std::vector<LiveRange> touched_ranges(const Plan& plan) {
  std::vector<LiveRange> live(plan.buffers.size());
  for (int s = 0; s < static_cast<int>(plan.steps.size()); ++s) {
    const auto touch = [&](const std::vector<int>& buffers) {
      for (int b : buffers) {
        require(b >= 0 && b < static_cast<int>(live.size()),
                "plan: step " + plan.steps[s].name + " names a buffer that is not there");
        if (live[b].first < 0) live[b].first = s;
        live[b].last = s;
      }
    };
    touch(plan.steps[s].reads);
    touch(plan.steps[s].writes);
  }
  return live;
}

}  // namespace

std::vector<ViewOf> views(const Plan& plan) {
  const std::vector<LiveRange> live = touched_ranges(plan);
  std::vector<ViewOf> all;
  std::vector<std::set<int>> below(plan.buffers.size());  // what a view may lie in
  for (const Step& s : plan.steps)
    for (int view : s.writes) {
      if (s.aliases.empty() || plan.buffers[view].space != MemorySpace::Extern) continue;
      for (int b : s.aliases) {
        below[view].insert(b);
        below[view].insert(below[b].begin(), below[b].end());
      }
      for (int b : below[view]) all.push_back({b, view, live[view]});
    }
  return all;
}

std::vector<LiveRange> live_ranges(const Plan& plan) {
  std::vector<LiveRange> live = touched_ranges(plan);
  for (const ViewOf& v : views(plan)) live[v.buffer].last = std::max(live[v.buffer].last, v.live.last);
  return live;
}

std::vector<LiveRange> memory_ranges(const Plan& plan) {
  std::vector<LiveRange> live = live_ranges(plan);
  std::vector<bool> written(plan.buffers.size());
  for (const Step& s : plan.steps)
    for (int b : s.writes) written[b] = true;
  const int last = static_cast<int>(plan.steps.size());
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    if (plan.buffers[b].space != MemorySpace::Saved || plan.buffers[b].index < 0) continue;
    if (!written[b]) live[b].first = 0;
    if (written[b] || !plan.overwrites_saved) live[b].last = last;
    else live[b].last = std::max(live[b].last, 0);
  }
  return live;
}

void plan_memory(Plan& plan) {
  const int count = static_cast<int>(plan.buffers.size());
  std::vector<LiveRange> live = memory_ranges(plan);
  std::vector<int64_t> bytes(count);
  for (int b = 0; b < count; ++b) {
    Buffer& buffer = plan.buffers[b];
    if (buffer.space == MemorySpace::Saved && buffer.index < 0) buffer.space = MemorySpace::Temp;
    const int lowest = below(plan, b);
    bytes[lowest] = std::max(bytes[lowest], aligned(buffer.bytes));
    if (live[b].first < 0) continue;
    LiveRange& range = live[lowest];
    range =
        range.first < 0 ? live[b] : LiveRange{std::min(range.first, live[b].first), std::max(range.last, live[b].last)};
  }
  // Who fills the handle's arena, or is its last reader, may use what is free of it; to others, slots that they never
  // name may matter.
  bool fills = false;
  for (const Step& s : plan.steps)
    for (int b : s.writes) fills = fills || (plan.buffers[b].space == MemorySpace::Saved && plan.buffers[b].index >= 0);
  const int64_t room = fills || plan.overwrites_saved ? plan.saved_bytes : 0;
  std::vector<Item> items, slots;
  // What a slot lies over is in the slot.
  for (int b = 0; b < count; ++b) {
    if (plan.buffers[b].space != MemorySpace::Saved || plan.buffers[b].over < 0) continue;
    Buffer& lowest = plan.buffers[below(plan, b)];
    if (lowest.space == MemorySpace::Temp)
      lowest.space = MemorySpace::Saved, lowest.index = -1, lowest.offset = plan.buffers[b].offset;
  }
  for (int b = 0; b < count; ++b) {
    Buffer& buffer = plan.buffers[b];
    const bool slot = buffer.space == MemorySpace::Saved;
    if (buffer.over >= 0 || (buffer.space != MemorySpace::Temp && !slot)) continue;
    if (!slot) buffer.offset = 0;  // stays so where nothing is stored
    if (bytes[b] > 0 && live[b].first >= 0)
      (slot ? slots : items).push_back({b, live[b], bytes[b], slot ? buffer.offset : -1, slot});
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
    const int64_t peak = place(candidate, slots, room);
    if (placed && peak >= plan.temp_bytes) continue;
    for (const Item& i : candidate) {
      Buffer& buffer = plan.buffers[i.buffer];
      buffer.offset = i.offset;
      buffer.space = i.saved ? MemorySpace::Saved : MemorySpace::Temp;
      buffer.index = i.saved ? -1 : 0;
    }
    plan.temp_bytes = peak;
    placed = true;
    if (peak == 0 || (room == 0 && peak == bound)) break;
  }
  for (int b = 0; b < count; ++b) {
    const MemorySpace space = plan.buffers[b].space;
    if (plan.buffers[b].over < 0 || space == MemorySpace::Output ||
        (space == MemorySpace::Saved && plan.buffers[b].index >= 0))
      continue;
    const Buffer& lowest = plan.buffers[below(plan, b)];
    plan.buffers[b].offset = lowest.offset;
    plan.buffers[b].space = lowest.space;
    plan.buffers[b].index = lowest.space == MemorySpace::Saved ? -1 : 0;
  }
}

int64_t scratch_bytes(const Plan& plan) {
  int64_t most = 0;
  for (const Kernel& k : plan.kernels) most = std::max(most, k.scratch_bytes);
  return most;
}

}  // namespace trainc::plan
