#include "runtime/operation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/short_lock.h"
#include "runtime/times.h"
#include "runtime/while.h"
#include "support/error.h"
#include "support/while_operation.h"

namespace trainc::runtime {
namespace {

/// Under the short lock. Never destroyed: plans may still be loaded while the process ends.
std::map<std::string, MakeOperation>& makers() {
  static auto* all = new std::map<std::string, MakeOperation>{{kWhile, make_while}};
  return *all;
}

constexpr std::chrono::milliseconds kPollInterval{20};  // between two looks at signals

/// A thread that is created while this lives is sent no signals: they are for the threads of the program.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

class OwnThread : public InFlight {
 public:
  explicit OwnThread(std::function<void(std::stop_token)> work) : shared_(std::make_shared<Shared>()) {
    const NoSignals blocked;
    std::thread([shared = shared_, work = std::move(work)]() mutable {
      std::exception_ptr error;
      try {
        work(shared->stop.get_token());
      } catch (...) { error = std::current_exception(); }
      work = nullptr;  // before it is over: what it holds may be of the run
      const std::lock_guard lock(shared->mutex);
      shared->error = std::move(error), shared->over = true, shared->over_at = monotonic_seconds();
      shared->changed.notify_all();
    }).detach();  // a forked child could neither join nor destroy it
  }
  bool over_within(std::chrono::milliseconds time) override {
    // Before the lock: the thread may have held it when the child was forked.
    if (getpid() != shared_->process)
      throw InternalError("the process was forked while it was in flight: the child does not have its thread");
    std::unique_lock lock(shared_->mutex);
    return shared_->changed.wait_for(lock, time, [&] { return shared_->over; });
  }
  void check() override {
    if (shared_->error) std::rethrow_exception(std::exchange(shared_->error, nullptr));
  }
  double over_at() override { return shared_->over_at; }
  void cancel() override {
    if (getpid() == shared_->process) shared_->stop.request_stop();
  }

 private:
  struct Shared {
    const pid_t process = getpid();
    std::stop_source stop;
    std::mutex mutex;
    std::condition_variable changed;
    bool over = false;
    double over_at = 0;
    std::exception_ptr error;
  };
  std::shared_ptr<Shared> shared_;
};

/// What `action` throws, with the name of what was started and the user's lines before it.
template <class Do> void named(const plan::Step& start, const Do& action) {
  const auto text = [&](const std::exception& e) {
    const std::string from = start.origins.empty() ? "" : fmt::format(" from {}", fmt::join(start.origins, ", "));
    return fmt::format("{} ({}){}: {}", start.name, start.target, from, e.what());
  };
  try {
    action();
  } catch (const UserError& e) { throw UserError(text(e)); } catch (const InternalError& e) {
    throw InternalError(text(e));
  } catch (const IndexError& e) {
    throw IndexError(text(e));
  } catch (
      const std::runtime_error& e) {  // of a network, say. Python's errors are none of these: they pass as they are
    throw std::runtime_error(text(e));
  }
}

}  // namespace

void register_operation(const std::string& name, MakeOperation make) {
  const ShortLock lock;
  std::swap(makers()[name], make);
}

std::unique_ptr<Operation> make_operation(const plan::Plan& plan, const plan::Step& step) {
  MakeOperation make;
  {
    const ShortLock lock;
    if (const auto it = makers().find(step.target); it != makers().end()) make = it->second;
  }
  if (!make)
    throw UserError(fmt::format("plan {} starts an operation '{}', which nobody here knows: compile it again",
                                plan.name, step.target));
  std::unique_ptr<Operation> made;
  named(step, [&] { made = make(plan, step); });
  return made;
}

std::unique_ptr<InFlight> on_own_thread(std::function<void(std::stop_token)> work) {
  return std::make_unique<OwnThread>(std::move(work));
}

void OperationsInFlight::add(const plan::Step& start, std::unique_ptr<InFlight> flight) {
  flights_.at(start.token) = {std::move(flight), &start};
}

void OperationsInFlight::wait(int token, const std::function<void()>& check_signals, double* over_at) {
  Flight& f = flights_.at(token);
  require(f.flight != nullptr, fmt::format("token {} is waited for, and was not started", token));
  bool over = false;
  while (!over) {
    named(*f.start, [&] {
      try {
        over = f.flight->over_within(kPollInterval);
      } catch (...) {  // it never will be
        f.flight.reset();
        throw;
      }
    });
    if (!over && check_signals) check_signals();
  }
  const std::unique_ptr<InFlight> flight = std::move(f.flight);
  named(*f.start, [&] {
    if (over_at) *over_at = flight->over_at();
    flight->check();
  });
}

void OperationsInFlight::cancel_all() noexcept {
  for (Flight& f : flights_)
    if (f.flight) f.flight->cancel();
  for (Flight& f : flights_) {
    try {
      while (f.flight && !f.flight->over_within(kPollInterval)) {}
    } catch (...) {  // it never will be over
    }
    f.flight.reset();
  }
}

}  // namespace trainc::runtime
