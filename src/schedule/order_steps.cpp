#include "schedule/order_steps.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "plan/live.h"
#include "support/error.h"

namespace trainc::schedule {

using plan::MemorySpace;
using plan::Plan;
using plan::Step;
using plan::StepKind;

double StepCosts::seconds(const Step& s) const {
  if (s.kind == StepKind::Start || s.kind == StepKind::Wait) return 0;
  const double computing = static_cast<double>(s.flops) / flops_per_second;
  return std::max(computing, static_cast<double>(s.bytes) / bytes_per_second) + seconds_a_step;
}

namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

/// A plan's steps by number, as `steps` has them: what must run before what, and the memory that each touches.
class StepDag {
 public:
  StepDag(const Plan& plan, const StepCosts& costs) : plan_(plan), costs_(costs) {
    const int count = size();
    cells_of_buffers();
    before.resize(count), after.resize(count), cells_.resize(count);
    for (int s = 0; s < count; ++s) find_needs(s);
    for (int s = 0; s < count; ++s)
      for (int p : before[s]) after[p].push_back(s);
    lowest_to_end();
  }
  int size() const { return static_cast<int>(plan_.steps.size()); }
  const Step& step(int s) const { return plan_.steps[s]; }
  StepKind kind(int s) const { return step(s).kind; }
  double seconds(int s) const { return costs_.seconds(step(s)); }

  std::vector<std::vector<int>> before, after;
  std::vector<double> to_end;    // the least time from the begin of a step to the plan's end, with all that must follow
  std::vector<bool> to_a_start;  // some Start must follow it, or it is one

  /// A run of the steps, one by one.
  struct Run {
    double clock = 0, link = 0;  // when the next step may begin; when what was started so far is over
    int64_t live = 0, most = 0;  // bytes of cells
    std::vector<double> over;    // by token
    std::vector<int> left;       // of a cell: steps that have yet to touch it
    std::vector<bool> there;     // a cell's memory is in use
  };
  Run begin() const {
    Run r;
    r.over.resize(static_cast<size_t>(size()));
    r.left = touches_;
    r.there.resize(bytes_.size());
    return r;
  }
  /// Bytes in use while `s` runs.
  int64_t live_during(const Run& r, int s) const {
    int64_t live = r.live;
    for (int c : cells_[s]) live += r.there[c] ? 0 : bytes_[c];
    return live;
  }
  void run(Run& r, int s) const {
    r.live = live_during(r, s);
    r.most = std::max(r.most, r.live);
    for (int c : cells_[s]) {
      r.there[c] = true;
      if (--r.left[c] == 0) r.live -= bytes_[c];
    }
    if (kind(s) == StepKind::Start) r.over[step(s).token] = r.link = std::max(r.link, r.clock) + step(s).seconds;
    else if (kind(s) == StepKind::Wait) r.clock = std::max(r.clock, r.over[step(s).token]);
    else r.clock += seconds(s);
  }
  Estimate estimate(const std::vector<int>& order) const {
    Run r = begin();
    for (int s : order) run(r, s);
    return {std::max(r.clock, r.link), r.most};
  }
  /// What a caller and the plan hold all the time.
  int64_t resident() const {
    int64_t bytes = plan_.saved_bytes + static_cast<int64_t>(plan_.constants.size());
    for (const plan::Buffer& b : plan_.buffers)
      bytes += b.space == MemorySpace::Input || b.space == MemorySpace::Output ? b.bytes : 0;
    return bytes;
  }

 private:
  /// A cell is memory: a buffer with all that lie over one another.
  void cells_of_buffers() {
    const int count = static_cast<int>(plan_.buffers.size());
    cell_.resize(count), bytes_.resize(count), below_.resize(count);
    for (int b = 0; b < count; ++b) {
      int lowest = b;
      for (int steps = 0; plan_.buffers[lowest].over >= 0; lowest = plan_.buffers[lowest].over)
        require(++steps <= count, "plan: buffers lie over each other in a circle");
      cell_[b] = lowest;
    }
    const auto ours = [&](int b) {
      const MemorySpace space = plan_.buffers[b].space;
      return space == MemorySpace::Temp || space == MemorySpace::Extern ||
             (space == MemorySpace::Saved && plan_.buffers[b].index < 0);
    };
    for (int b = 0; b < count; ++b)
      if (ours(b)) bytes_[cell_[b]] = std::max(bytes_[cell_[b]], plan::aligned(plan_.buffers[b].bytes));
    for (int b = 0; b < count; ++b)
      if (!ours(b)) bytes_[cell_[b]] = 0;  // a slot that a temporary becomes is there anyway
    for (const plan::ViewOf& v : plan::views(plan_)) below_[v.view].insert(cell_[v.buffer]);
    touches_.resize(count), last_write_.resize(count, -1), reads_since_.resize(count);
  }

  /// Steps come in an order that runs: what a step needs are those before it that it has memory in common with, where
  /// one of the two writes.
  void find_needs(int s) {
    const Step& step = plan_.steps[s];
    std::set<int> needs, reads, writes;
    for (int b : step.reads) {
      reads.insert(cell_[b]);
      reads.insert(below_[b].begin(), below_[b].end());
    }
    for (int b : step.writes) writes.insert(cell_[b]);
    for (int c : reads)
      if (last_write_[c] >= 0) needs.insert(last_write_[c]);
    for (int c : writes) {
      if (last_write_[c] >= 0) needs.insert(last_write_[c]);
      needs.insert(reads_since_[c].begin(), reads_since_[c].end());
    }
    if (step.kind == StepKind::Wait) needs.insert(start_of(step.token));
    // Those who exchange something with other processes meet in the order of their Starts, whatever plans these have.
    if (step.kind == StepKind::Start) {
      const auto [last, first] = last_start_.emplace(step.target, s);
      if (!first) needs.insert(std::exchange(last->second, s));
    }
    // The framework's calls may do anything, and draws come in the program's order.
    if (step.kind == StepKind::Extern || step.kind == StepKind::Random) {
      if (last_call_ >= 0) needs.insert(last_call_);
      last_call_ = s;
    }
    before[s].assign(needs.begin(), needs.end());
    for (int c : reads) reads_since_[c].push_back(s);
    for (int c : writes) last_write_[c] = s, reads_since_[c].clear();
    reads.insert(writes.begin(), writes.end());
    for (int c : reads) ++touches_[c];
    cells_[s].assign(reads.begin(), reads.end());
  }

  int start_of(int token) const {
    for (int s = 0; s < size(); ++s)
      if (kind(s) == StepKind::Start && step(s).token == token) return s;
    require(false, "plan: a token that nobody starts");
    return -1;
  }

  void lowest_to_end() {
    to_end.resize(size()), to_a_start.resize(size());
    for (int s = size(); s-- > 0;) {
      to_a_start[s] = kind(s) == StepKind::Start;
      for (int next : after[s]) {
        to_end[s] = std::max(to_end[s], to_end[next]);
        to_a_start[s] = to_a_start[s] || to_a_start[next];
      }
      to_end[s] += kind(s) == StepKind::Start ? step(s).seconds : seconds(s);
    }
  }

  const Plan& plan_;
  const StepCosts& costs_;
  std::vector<int> cell_;                // by buffer
  std::vector<std::set<int>> below_;     // by buffer: cells that a view may lie in
  std::vector<int64_t> bytes_;           // by cell; 0: held by the caller
  std::vector<int> touches_;             // by cell: steps
  std::vector<std::vector<int>> cells_;  // by step
  std::vector<int> last_write_;          // by cell, up to the step being looked at; then who read it since
  std::vector<std::vector<int>> reads_since_;
  int last_call_ = -1;
  std::map<std::string, int> last_start_;  // by what is started
};

/// Of the steps that are ready, in turn: a Start, so that more is in flight; a kernel, or a Wait for what is over; and
/// where there is nothing else to do, the Wait that is over first. What would take more than `limit` bytes waits, as
/// long as anything fits. `hurry`: what leads to a Start comes before other kernels, that with the longest way to the
/// end first; all else keeps the plan's order.
std::vector<int> list_scheduled(const StepDag& dag, int64_t limit, bool hurry) {
  std::vector<size_t> missing;
  std::set<int> ready;
  for (int s = 0; s < dag.size(); ++s) {
    missing.push_back(dag.before[s].size());
    if (missing[s] == 0) ready.insert(s);
  }
  StepDag::Run run = dag.begin();
  const auto over = [&](int wait) { return run.over[dag.step(wait).token]; };
  using Rank = std::tuple<int, double, int>;
  const auto rank = [&](int s) -> Rank {
    if (dag.kind(s) == StepKind::Wait && over(s) > run.clock) return {3, over(s), s};
    const bool leads = hurry && dag.to_a_start[s];
    return {dag.kind(s) == StepKind::Start ? 0 : leads ? 1 : 2, leads ? -dag.to_end[s] : 0, s};
  };
  std::vector<int> order;
  while (!ready.empty()) {
    std::optional<Rank> first;
    for (int s : ready) {
      const bool fits = dag.kind(s) == StepKind::Wait || dag.live_during(run, s) <= limit;
      if (const Rank r = rank(s); fits && (!first || r < *first)) first = r;
    }
    const int next = first ? std::get<2>(*first) : *ready.begin();  // where nothing fits: as the plan has it
    ready.erase(next);
    dag.run(run, next);
    order.push_back(next);
    for (int s : dag.after[next])
      if (--missing[s] == 0) ready.insert(s);
  }
  return order;
}

/// Each Start up to what it needs, each Wait down to what needs it: where that costs neither time nor more than `limit`
/// bytes.
void spread(const StepDag& dag, std::vector<int>& order, int64_t limit) {
  Estimate now = dag.estimate(order);
  const auto among = [](const std::vector<int>& list, int s) { return std::ranges::find(list, s) != list.end(); };
  const auto move = [&](int from, int to) {
    if (from == to) return;
    std::vector<int> moved = order;
    const int s = moved[from];
    moved.erase(moved.begin() + from);
    moved.insert(moved.begin() + to, s);
    const Estimate e = dag.estimate(moved);
    if (e.seconds > now.seconds * (1 + 1e-12) || e.bytes > std::max(now.bytes, limit)) return;
    order = std::move(moved), now = e;
  };
  const int count = static_cast<int>(order.size());
  const std::vector<int> starts = order;
  for (int s : starts) {
    if (dag.kind(s) != StepKind::Start) continue;
    const int from = static_cast<int>(std::find(order.begin(), order.end(), s) - order.begin());
    int to = from;
    while (to > 0 && !among(dag.before[s], order[to - 1])) --to;
    while (to < from && dag.kind(order[to]) == StepKind::Start) ++to;  // behind those that are as early
    move(from, to);
  }
  for (auto s = starts.rbegin(); s != starts.rend(); ++s) {
    if (dag.kind(*s) != StepKind::Wait) continue;
    const int from = static_cast<int>(std::find(order.begin(), order.end(), *s) - order.begin());
    int to = from;
    while (to + 1 < count && !among(dag.after[*s], order[to + 1])) ++to;
    move(from, to);
  }
}

std::vector<int> best_order(const StepDag& dag) {
  std::vector<int> given(dag.size());
  std::iota(given.begin(), given.end(), 0);
  const Estimate present = dag.estimate(given);
  const double held = static_cast<double>(std::max<int64_t>(1, dag.resident() + present.bytes));
  // A share of time pays for as large a share of memory.
  const auto price = [&](const Estimate& e) {
    const double time = present.seconds > 0 ? e.seconds / present.seconds : 1;
    return time + static_cast<double>(std::max(e.bytes, present.bytes) - present.bytes) / held;
  };
  std::vector<int> best = given;
  spread(dag, best, present.bytes);
  double least = price(dag.estimate(best));
  const auto consider = [&](std::vector<int> order, int64_t limit) {
    spread(dag, order, limit);
    const double cost = price(dag.estimate(order));
    if (cost < least * (1 - 1e-9)) best = std::move(order), least = cost;
  };
  const int64_t step = static_cast<int64_t>(held / cost::kMemoryStep);
  std::vector<int64_t> more_bytes;
  for (const int64_t steps : cost::kMemorySteps) more_bytes.push_back(steps * step);
  more_bytes.push_back(kUnlimited - present.bytes);
  for (const int64_t more : more_bytes)
    for (const bool hurry : {false, true})
      consider(list_scheduled(dag, present.bytes + more, hurry), present.bytes + more);
  return best;
}

}  // namespace

Estimate estimate(const Plan& plan, const std::vector<int>& order, const StepCosts& costs) {
  return StepDag(plan, costs).estimate(order);
}

Plan order_steps(Plan plan, const StepCosts& costs) {
  if (std::ranges::none_of(plan.steps, [](const Step& s) { return s.kind == StepKind::Start; })) return plan;
  const std::vector<int> order = best_order(StepDag(plan, costs));
  std::vector<Step> steps;
  for (int s : order) steps.push_back(std::move(plan.steps[s]));
  plan.steps = std::move(steps);
  return plan;
}

}  // namespace trainc::schedule
