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

class Draws;

/// An Extern step: the framework computes `inputs`' results, and the plan takes them over; those that are wanted elsewhere than where the framework put
/// them are copied by `copy(to, from, bytes)`. A result that came back in the memory of a buffer, though the step does not declare it a view of that one, is
/// copied by the framework: the plan does not know that this memory is still in use. Generator state that was drawn from is written back before a random operation.
/// Throws InternalError where results are missing, or are not as many as the plan's.
void run_extern(const plan::Plan&, const plan::Step&, const Call&, const std::vector<void*>& inputs, Draws&, std::vector<void*>& pointers,
                std::vector<std::shared_ptr<void>>& owners, const std::function<void(void* to, const void* from, int64_t bytes)>& copy);

/// The framework's generator during one run: read when first needed, written back before anybody else may look at it.
class Draws {
 public:
  explicit Draws(const Generator& generator) : generator_(generator) {}
  Twister& twister() {
    if (!twister_) {
      require(static_cast<bool>(generator_.get_state) && static_cast<bool>(generator_.set_state), "a plan with random steps needs a generator");
      twister_.emplace(generator_.get_state());
    }
    return *twister_;
  }
  /// A Random step, into memory of the host. Where p is 0 or 1 nothing is drawn: the generator is not even read.
  void fill(const plan::Step&, const plan::Buffer&, void* mask);
  /// Seed and offset for a draw of Philox, after which the generator's offset is `increment` further. Its state is these two, u64.
  std::array<uint64_t, 2> philox(int64_t increment);
  void write_back();

 private:
  const Generator& generator_;
  std::optional<Twister> twister_;                // the host's generator,
  std::optional<std::array<uint64_t, 2>> philox_;  // or a device's: seed, offset
};

}  // namespace trainc::runtime
