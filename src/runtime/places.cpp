#include "runtime/places.h"

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
    switch (b.home) {
      case plan::Home::Input: p = call.inputs[b.index]; break;
      case plan::Home::Output: p = call.outputs[b.index]; break;
      case plan::Home::Saved: p = call.saved ? static_cast<uint8_t*>(call.saved) + b.offset : nullptr; break;
      case plan::Home::Temp: p = arena ? arena + b.offset : nullptr; break;
      case plan::Home::Constant: p = const_cast<uint8_t*>(plan.constants.data()) + b.offset; break;
      case plan::Home::Extern: case plan::Home::Draw: break;
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
bool is_undeclared_view(const plan::Plan& plan, const plan::Step& step, const std::vector<void*>& pointers, const void* data, int64_t bytes) {
  for (int b : step.aliases)
    if (holds(pointers[b], plan.buffers[b].bytes, data, bytes)) return false;
  for (size_t b = 0; b < pointers.size(); ++b)
    if (meets(pointers[b], plan.buffers[b].bytes, data, bytes)) return true;
  return false;
}

}  // namespace

void run_extern(const plan::Plan& plan, const plan::Step& step, const Call& call, const std::vector<void*>& inputs, Draws& draws,
                std::vector<void*>& pointers, std::vector<std::shared_ptr<void>>& owners,
                const std::function<void(void* to, const void* from, int64_t bytes)>& copy) {
  require(static_cast<bool>(call.extern_call), "a plan with extern steps needs extern_call");
  if (step.random) draws.write_back();
  std::vector<ExternTensor> results = call.extern_call(step, inputs);
  require(results.size() == step.writes.size(),
          fmt::format("{}: {} results, the plan expects {}", step.target, results.size(), step.writes.size()));
  for (size_t i = 0; i < results.size(); ++i) {
    const int b = step.writes[i];
    const plan::Buffer& buffer = plan.buffers[b];
    require(results[i].data || buffer.bytes == 0, fmt::format("{}: result {} is undefined", step.target, i));
    if (buffer.home == plan::Home::Extern) {
      if (buffer.bytes > 0 && is_undeclared_view(plan, step, pointers, results[i].data, buffer.bytes)) {
        require(static_cast<bool>(results[i].copy), fmt::format("{}: result {} is a view that cannot be copied", step.target, i));
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

std::array<uint64_t, 2> Draws::philox(int64_t increment) {
  if (!philox_) {
    require(static_cast<bool>(generator_.get_state) && static_cast<bool>(generator_.set_state), "a plan with random steps needs a generator");
    const std::vector<uint8_t> state = generator_.get_state();
    require(state.size() == sizeof *philox_, fmt::format("the state of a device's generator has {} bytes, not 16", state.size()));
    philox_.emplace();
    std::memcpy(philox_->data(), state.data(), state.size());
  }
  const std::array<uint64_t, 2> draw = *philox_;
  (*philox_)[1] += static_cast<uint64_t>(increment);
  return draw;
}

void Draws::write_back() {
  std::vector<uint8_t> state;
  if (twister_) state = twister_->state();
  if (philox_) state.resize(sizeof *philox_), std::memcpy(state.data(), philox_->data(), state.size());
  twister_.reset();
  philox_.reset();
  if (!state.empty()) generator_.set_state(state);
}

void Draws::fill(const plan::Step& step, const plan::Buffer& buffer, void* mask) {
  int64_t n = 1;
  for (int64_t d : buffer.shape) n *= d;
  require(n == 0 || mask != nullptr, "no memory for a mask");
  if (n == 0) return;
  auto* out = static_cast<uint8_t*>(mask);
  const bool drawn = step.p > 0 && step.p < 1;
  if (drawn && buffer.bits) bernoulli_bits(mask_generator(), twister(), step.p, out, n);
  else if (drawn) bernoulli(mask_generator(), twister(), step.p, out, n);
  else if (buffer.bits) std::memset(out, step.p >= 1 ? 0xff : 0, static_cast<size_t>((n + 7) / 8));
  else std::memset(out, step.p >= 1, static_cast<size_t>(n));
}

}  // namespace trainc::runtime
