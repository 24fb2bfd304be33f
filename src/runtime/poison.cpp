#include "runtime/poison.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "plan/live.h"

namespace trainc::runtime {
namespace {

bool has(const std::vector<int>& list, int b) { return std::find(list.begin(), list.end(), b) != list.end(); }

}  // namespace

Poison::Poison(const plan::Plan& plan) : plan_(plan), first_(plan.steps.size()), last_(plan.steps.size()) {
  const std::vector<plan::LiveRange> touched = plan::live_ranges(plan), live = plan::memory_ranges(plan);
  std::set<int> covered;  // by a buffer that takes their memory over, with what is in it
  for (const plan::Buffer& b : plan.buffers)
    if (b.over >= 0) covered.insert(b.over);
  for (int b = 0; b < static_cast<int>(plan.buffers.size()); ++b) {
    const plan::MemorySpace space = plan.buffers[b].space;
    if (space == plan::MemorySpace::Output && plan.buffers[b].over < 0) results_.push_back(b);
    if ((space != plan::MemorySpace::Temp && space != plan::MemorySpace::Saved) || touched[b].first < 0) continue;
    const plan::Step& made = plan.steps[touched[b].first];
    if (plan.buffers[b].over < 0 && has(made.writes, b) && !has(made.reads, b)) first_[touched[b].first].push_back(b);
    if (live[b].last < static_cast<int>(plan.steps.size()) && !covered.contains(b)) last_[live[b].last].push_back(b);
  }
}

void Poison::begin(const std::vector<void*>& pointers, void* arena) const {
  poison(arena, plan_.temp_bytes);
  fill(results_, pointers);
}

void Poison::fill(const std::vector<int>& buffers, const std::vector<void*>& pointers) const {
  for (int b : buffers) {
    const plan::Buffer& buffer = plan_.buffers[b];
    if (!pointers[b]) continue;
    // A large negative number of any size is no index, which a gather finds.
    std::memset(pointers[b], is_float(buffer.dtype) ? 0xff : 0xa5, static_cast<size_t>(buffer.bytes));
  }
}

void poison(void* memory, int64_t bytes) {
  if (memory) std::memset(memory, 0xff, static_cast<size_t>(bytes));
}

}  // namespace trainc::runtime
