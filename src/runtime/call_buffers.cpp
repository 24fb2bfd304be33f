#include "runtime/call_buffers.h"

#include <fmt/format.h>

#include <cstring>

#include "support/error.h"

namespace trainc::runtime {

std::vector<void*> place_buffers(const plan::Plan& plan, const Call& call, uint8_t* arena) {
  require(static_cast<int64_t>(call.inputs.size()) == plan.input_count,
          fmt::format("plan {}: {} inputs given, it takes {}", plan.name, call.inputs.size(), plan.input_count));
  require(static_cast<int64_t>(call.outputs.size()) == plan.output_count,
          fmt::format("plan {}: {} outputs given, it gives {}", plan.name, call.outputs.size(), plan.output_count));
  std::vector<void*> pointers;
  for (const plan::Buffer& b : plan.buffers) {
    void* p = nullptr;
    switch (b.space) {
      case plan::MemorySpace::Input: p = call.inputs[b.index]; break;
      case plan::MemorySpace::Output: p = call.outputs[b.index]; break;
      case plan::MemorySpace::Saved: p = call.saved ? static_cast<uint8_t*>(call.saved) + b.offset : nullptr; break;
      case plan::MemorySpace::Temp: p = arena ? arena + b.offset : nullptr; break;
      case plan::MemorySpace::Constant: p = const_cast<uint8_t*>(plan.constants.data()) + b.offset; break;
      case plan::MemorySpace::Extern:
      case plan::MemorySpace::Draw: break;
    }
    pointers.push_back(p);
  }
  return pointers;
}

namespace {

bool holds(const void* memory, int64_t size, const void* data, int64_t bytes) {
  const auto *from = static_cast<const uint8_t*>(memory), *at = static_cast<const uint8_t*>(data);
  return from && from <= at && at + bytes <= from + size;
}
bool meets(const void* memory, int64_t size, const void* data, int64_t bytes) {
  const auto *from = static_cast<const uint8_t*>(memory), *at = static_cast<const uint8_t*>(data);
  return from && from < at + bytes && at < from + size;
}

/// Whether a result lies in the memory of some buffer, other than of one that the step says it may be a view of.
bool is_undeclared_view(const plan::Plan& plan, const plan::Step& step, const std::vector<void*>& pointers,
                        const void* data, int64_t bytes) {
  for (int b : step.aliases)
    if (holds(pointers[b], plan.buffers[b].bytes, data, bytes)) return false;
  for (size_t b = 0; b < pointers.size(); ++b)
    if (meets(pointers[b], plan.buffers[b].bytes, data, bytes)) return true;
  return false;
}

}  // namespace

void run_extern(const plan::Plan& plan, const plan::Step& step, const Call& call, const std::vector<void*>& inputs,
                std::vector<void*>& pointers, std::vector<std::shared_ptr<void>>& owners,
                const std::function<void(void* to, const void* from, int64_t bytes)>& copy) {
  require(static_cast<bool>(call.extern_call), "a plan with extern steps needs extern_call");
  std::vector<ExternTensor> results = call.extern_call(step, inputs);
  require(results.size() == step.writes.size(),
          fmt::format("{}: {} results, the plan expects {}", step.target, results.size(), step.writes.size()));
  for (size_t i = 0; i < results.size(); ++i) {
    const int b = step.writes[i];
    const plan::Buffer& buffer = plan.buffers[b];
    require(results[i].data || buffer.bytes == 0, fmt::format("{}: result {} is undefined", step.target, i));
    if (buffer.space == plan::MemorySpace::Extern) {
      if (buffer.bytes > 0 && is_undeclared_view(plan, step, pointers, results[i].data, buffer.bytes)) {
        require(static_cast<bool>(results[i].copy),
                fmt::format("{}: result {} is a view that cannot be copied", step.target, i));
        results[i] = results[i].copy();
      }
      pointers[b] = results[i].data;
      owners[b] = std::move(results[i].owner);
    } else if (buffer.bytes > 0) {  // wanted elsewhere: the layout is the same, so its bytes are copied
      require(pointers[b] != nullptr, fmt::format("{}: no memory for {}", step.target, buffer.name));
      copy(pointers[b], results[i].data, buffer.bytes);
    }
  }
}

bool may_draw(const plan::Step& step) { return step.kind == plan::StepKind::Extern && (step.random || step.may_draw); }

namespace {

int64_t elements(const plan::Buffer& b) {
  int64_t n = 1;
  for (int64_t d : b.shape) n *= d;
  return n;
}

/// 32-bit draws of a Random step.
int64_t draws_of(const plan::Plan& plan, const plan::Step& step) {
  if (step.kind != plan::StepKind::Random || step.kernel >= 0 || step.p <= 0 || step.p >= 1) return 0;
  return draws_of_mask(mask_generator(), step.writes.empty() ? step.increment : elements(plan.buffers[step.writes[0]]));
}

}  // namespace

size_t Draws::end_of_segment(size_t i) const {
  while (i < plan_.steps.size() && !may_draw(plan_.steps[i])) ++i;
  return i;
}

void Draws::take(size_t i, const std::function<State(const State&)>& moved_on) {
  require(static_cast<bool>(generator_.get_state) && static_cast<bool>(generator_.exchange),
          "a plan with random steps needs a generator");
  end_ = end_of_segment(i);
  State before;
  do {
    before = generator_.get_state();
    after_ = moved_on(before);
  } while (!generator_.exchange(before, after_));
}

std::array<uint64_t, 2> Draws::philox(size_t i) {
  if (i >= end_) {
    take(i, [&](const State& before) {
      require(before.size() == sizeof *philox_,
              fmt::format("the state of a device's generator has {} bytes, not 16", before.size()));
      std::array<uint64_t, 2> state;
      std::memcpy(state.data(), before.data(), before.size());
      philox_ = state;
      for (size_t s = i; s < end_; ++s)
        if (plan_.steps[s].kind == plan::StepKind::Random) state[1] += static_cast<uint64_t>(plan_.steps[s].increment);
      State after(sizeof state);
      std::memcpy(after.data(), state.data(), sizeof state);
      return after;
    });
  }
  const std::array<uint64_t, 2> draw = *philox_;
  (*philox_)[1] += static_cast<uint64_t>(plan_.steps[i].increment);
  return draw;
}

void Draws::give_back() {
  State drawn;
  if (twister_) drawn = twister_->state();
  if (philox_) drawn.resize(sizeof *philox_), std::memcpy(drawn.data(), philox_->data(), drawn.size());
  twister_.reset();
  philox_.reset();
  if (!drawn.empty() && drawn != after_) generator_.exchange(after_, drawn);
}

void Draws::take_host(size_t i) {
  if (i < end_) return;
  take(i, [&](const State& before) {
    MersenneTwister after = twister_.emplace(before);
    int64_t draws = 0;
    for (size_t s = i; s < end_; ++s) draws += draws_of(plan_, plan_.steps[s]);
    after.skip(draws);
    return after.state();
  });
}

void Draws::run(size_t i, const std::vector<void*>& pointers) {
  const plan::Step& step = plan_.steps[i];
  if (!step.writes.empty()) return fill(i, pointers[step.writes[0]]);
  const int64_t draws = draws_of(plan_, step);
  if (draws == 0) return;
  take_host(i);
  twister_->skip(draws);
}

void Draws::fill(size_t i, void* mask) {
  const plan::Step& step = plan_.steps[i];
  const plan::Buffer& buffer = plan_.buffers[step.writes[0]];
  const int64_t n = elements(buffer);
  require(n == 0 || mask != nullptr, "no memory for a mask");
  if (n == 0) return;
  auto* out = static_cast<uint8_t*>(mask);
  if (step.p <= 0 || step.p >= 1) {
    std::memset(out, step.p < 1 ? 0 : buffer.bits ? 0xff : 1, static_cast<size_t>(buffer.bits ? (n + 7) / 8 : n));
    return;
  }
  take_host(i);
  (buffer.bits ? bernoulli_bits : bernoulli)(mask_generator(), *twister_, step.p, out, n);
}

}  // namespace trainc::runtime
