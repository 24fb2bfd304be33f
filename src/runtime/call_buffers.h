// What the executables of all devices share: where buffers lie in a call, and the framework's generator during one run.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/cpu/random.h"
#include "runtime/runtime.h"
#include "support/error.h"

namespace trainc::runtime {

/// The pointer of each buffer; nullptr for those that an extern step will give, and for what the caller left out.
/// Throws InternalError where the numbers of inputs or outputs are not the plan's.
std::vector<void*> place_buffers(const plan::Plan&, const Call&, uint8_t* arena);

/// An Extern step: the framework computes `inputs`' results, and the plan takes them over; those that are wanted
/// elsewhere than where the framework put them are copied by `copy(to, from, bytes)`. A result that came back in the
/// memory of a buffer, though the step does not declare it a view of that one, is copied by the framework: the plan
/// does not know that this memory is still in use.
/// Throws InternalError where results are missing, or are not as many as the plan's.
void run_extern(const plan::Plan&, const plan::Step&, const Call&, const std::vector<void*>& inputs,
                std::vector<void*>& pointers, std::vector<std::shared_ptr<void>>& owners,
                const std::function<void(void* to, const void* from, int64_t bytes)>& copy);

/// Whether the framework may draw in this step.
bool may_draw(const plan::Step&);

/// The framework's generator during one run. What the plan draws up to the next step in which the framework may draw
/// itself is taken at once: the generator is moved on over all of it before any of it is used, so that whoever draws
/// meanwhile (another thread, a signal handler) gets other numbers.
class Draws {
 public:
  Draws(const plan::Plan& plan, const Generator& generator) : plan_(plan), generator_(generator) {}
  /// Random step `i` without a kernel, by the buffers' pointers: into memory of the host, or over what nobody reads.
  void run(size_t i, const std::vector<void*>& pointers);
  /// Seed and offset for the draw of Philox in step `i`; the generator's state is these two, u64.
  std::array<uint64_t, 2> philox(size_t i);
  /// After an error: what was taken and not drawn is given back, as far as nobody has drawn since.
  void give_back();

 private:
  using State = std::vector<uint8_t>;
  /// Where p is 0 or 1 nothing is drawn: the generator is not even read.
  void fill(size_t i, void* mask);
  void take_host(size_t i);
  void take(size_t i, const std::function<State(const State&)>& moved_on);
  size_t end_of_segment(size_t i) const;

  const plan::Plan& plan_;
  const Generator& generator_;
  size_t end_ = 0;                                 // steps before it have their numbers
  State after_;                                    // the generator's state once they were taken
  std::optional<MersenneTwister> twister_;         // the host's generator as it was before, and as far on as was drawn,
  std::optional<std::array<uint64_t, 2>> philox_;  // or a device's: seed, offset
};

}  // namespace trainc::runtime
