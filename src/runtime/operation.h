// What a Start step begins: operations by name, which whoever knows how to do them registers (a collective of the
// framework's, say). Includes: plan.
//
// Glossary
//   operation  what a Start's `target` names: made once, when the plan is loaded, and started once in each run.
//   in flight  begun, and not known to be over.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "runtime/runtime.h"

namespace trainc::runtime {

/// One start of an operation. It is destroyed once it is over, or in a child that was forked meanwhile, where it never
/// will be.
class InFlight {
 public:
  virtual ~InFlight() = default;
  /// Whether it is over, after at most so long. Throws only where it never can be: it is not asked again then.
  virtual bool over_within(std::chrono::milliseconds) = 0;
  /// Throws what it failed with. Asked once, when it is over.
  virtual void check() = 0;
  /// When it was over, in monotonic_seconds(); 0: nobody knows. Asked when it is over, before `check`.
  virtual double over_at() { return 0; }
  /// Nobody wants its results any more: it should be over soon. It still has its memory until it is.
  virtual void cancel() {}
};

class Operation {
 public:
  virtual ~Operation() = default;
  /// Of a loop: what it runs in each trip, and how often so far it has been started, and has run that.
  struct Loop {
    const Executable* body = nullptr;
    int64_t starts = 0, trips = 0;
  };
  virtual Loop loop() const { return {}; }
  /// Begins with the memory of the step's arguments and returns at once. Starts are made in the plan's order, by the
  /// thread that runs the plan; several threads may run it at once. The operation draws no random numbers.
  virtual std::unique_ptr<InFlight> start(const std::vector<void*>& arguments) const = 0;
};

/// Makes the operation of a Start step; throws where it does not understand the step's arguments or attributes.
using MakeOperation = std::function<std::unique_ptr<Operation>(const plan::Plan&, const plan::Step&)>;
/// From now on, a Start whose target is `name` is made by `make`, instead of who was registered before.
void register_operation(const std::string& name, MakeOperation make);
/// Throws UserError where nobody registered the step's target.
std::unique_ptr<Operation> make_operation(const plan::Plan&, const plan::Step&);

/// For operations that block: runs `work` on a thread of its own; `cancel` requests its stop. A thread for each,
/// because operations that wait for one another (as those of several ranks do) must never wait for a place in a pool.
std::unique_ptr<InFlight> on_own_thread(std::function<void(std::stop_token)> work);

/// What one run has in flight, by token.
class OperationsInFlight {
 public:
  explicit OperationsInFlight(size_t tokens) : flights_(tokens) {}
  ~OperationsInFlight() { cancel_all(); }
  OperationsInFlight(OperationsInFlight&&) = default;

  void add(const plan::Step& start, std::unique_ptr<InFlight> flight);
  /// Returns when it is over; `check_signals` (may be empty) is called meanwhile. Throws what it failed with, with the
  /// name of its Start. `over`, where given, is when it was over (`over_at`).
  void wait(int token, const std::function<void()>& check_signals, double* over = nullptr);
  /// Cancels all that is in flight and waits until it is over: nobody touches the run's memory afterwards. Errors of
  /// theirs are nobody's any more.
  void cancel_all() noexcept;

 private:
  struct Flight {
    std::unique_ptr<InFlight> flight;
    const plan::Step* start = nullptr;
  };
  std::vector<Flight> flights_;
};

}  // namespace trainc::runtime
