#include "runtime/while.h"

#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "plan/live.h"
#include "runtime/arena.h"
#include "runtime/device.h"
#include "runtime/short_lock.h"
#include "support/error.h"
#include "support/float_environment.h"
#include "support/while_operation.h"

namespace trainc::runtime {
namespace {

using plan::Buffer;
using plan::MemorySpace;

class Over : public InFlight {
 public:
  bool over_within(std::chrono::milliseconds) override { return true; }
  void check() override {}
};

class While : public Operation {
 public:
  While(const plan::Plan& outer, const plan::Step& step, plan::Plan body, size_t carried, bool flushes_denormals)
      : body_(device("cpu")->load(std::move(body))), carried_(carried), flushes_denormals_(flushes_denormals) {
    const plan::Plan& p = body_->plan();
    const auto fits = [&](bool so, const char* what) { require(so, fmt::format("{}: its body {}", step.name, what)); };
    const size_t inputs = static_cast<size_t>(p.input_count);
    fits(p.saved_bytes == 0, "is a part of a step");
    fits(carried <= inputs && p.outputs.size() == carried + 1, "carries other values");
    fits(step.arguments.size() == inputs + 1 + carried, "takes other operands");
    const auto bytes = [&](size_t argument) { return outer.buffers[step.arguments[argument]].bytes; };
    fits(bytes(inputs) == 1, "is begun by more than one bool");
    arena_bytes_ = plan::aligned(p.temp_bytes);
    for (const Buffer& b : p.buffers)
      if (b.space == MemorySpace::Input)
        fits(bytes(static_cast<size_t>(b.index)) == b.bytes, "takes an operand of another size");
    for (size_t k = 0; k < carried; ++k) {
      fits(bytes(k) == bytes(inputs + 1 + k), "gives a result of another size");
      bytes_.push_back(bytes(k));
    }
    for (size_t k = 0; k <= carried; ++k) {
      fits(p.outputs[k] >= 0, "gives no value");
      const Buffer& b = p.buffers[p.outputs[k]];
      fits(b.bytes == (k < carried ? bytes_[k] : 1), "gives a value of another size");
      Result result;
      if (b.space == MemorySpace::Input) result.given_back = b.index;
      const bool stays = b.space == MemorySpace::Input
                             ? b.index == static_cast<int64_t>(k)
                             : b.over >= 0 && p.buffers[b.over].index == static_cast<int64_t>(k);
      if (k < carried && !stays) {
        result.turns = true, result.offset = arena_bytes_;
        arena_bytes_ += plan::aligned(bytes_[k]);
        turning_.push_back(k);
        if (result.given_back >= 0) moved_.push_back(k);
      }
      results_.push_back(result);
    }
  }

  std::unique_ptr<InFlight> start(const std::vector<void*>& arguments) const override {
    const size_t inputs = static_cast<size_t>(body_->plan().input_count);
    const auto result = [&](size_t k) { return static_cast<uint8_t*>(arguments[inputs + 1 + k]); };
    for (size_t k = 0; k < carried_; ++k) copy(result(k), arguments[k], bytes_[k]);
    if (*static_cast<const uint8_t*>(arguments[inputs]) == 0) return std::make_unique<Over>();

    const FloatEnvironment environment(flushes_denormals_);
    const Arena arena(arena_bytes_);
    Lent lent(*this);
    Memory& m = *lent.memory;
    for (bool odd : {false, true}) {
      Call& call = m.calls[odd];
      call.temp = arena.data();
      call.inputs.assign(arguments.begin(), arguments.begin() + static_cast<int64_t>(inputs));
      call.outputs.assign(carried_ + 1, nullptr);
      call.outputs[carried_] = results_[carried_].given_back >= 0 ? nullptr : &m.again;
      for (size_t k = 0; k < carried_; ++k) {
        uint8_t* const places[] = {result(k), results_[k].turns ? arena.data() + results_[k].offset : result(k)};
        call.inputs[k] = places[odd];
        m.next[odd][k] = places[!odd];
        if (results_[k].given_back < 0) call.outputs[k] = places[!odd];
      }
    }
    const int64_t from = results_[carried_].given_back;
    const auto* const again = from < 0 ? &m.again : static_cast<const uint8_t*>(m.calls[0].inputs[from]);
    const auto* const again_odd = from < 0 ? &m.again : static_cast<const uint8_t*>(m.calls[1].inputs[from]);
    bool odd = false, goes_on = true;
    int64_t trips = 0;
    for (; goes_on; ++trips) {
      if (trips == static_cast<int64_t>(odd)) m.trips[odd]->place(m.calls[odd]);
      m.trips[odd]->run();
      for (size_t k : moved_) copy(m.next[odd][k], m.calls[odd].inputs[results_[k].given_back], bytes_[k]);
      goes_on = *(odd ? again_odd : again) != 0;
      odd = !odd && !turning_.empty();
    }
    starts_ += 1, trips_ += trips;
    if (odd)
      for (size_t k : turning_) copy(result(k), m.calls[odd].inputs[k], bytes_[k]);
    return std::make_unique<Over>();
  }

 private:
  struct Result {
    int64_t given_back = -1;  // it is that input of the body as it is
    bool turns = false;  // it is not written where the value lies that was carried, but there and elsewhere in turn
    int64_t offset = 0;  // of the second place, in the arena
  };
  /// What one start needs, kept for the next. There is as much as ran at once.
  struct Memory {
    std::unique_ptr<Trips> trips[2];  // the even ones, the odd ones
    Call calls[2];
    std::vector<uint8_t*> next[2];  // where what is carried lies after the trip
    uint8_t again = 0;
  };
  struct Lent {
    explicit Lent(const While& of) : loop(of) {
      {
        const ShortLock lock;
        if (!loop.free_.empty()) memory = std::move(loop.free_.back()), loop.free_.pop_back();
      }
      if (memory) return;
      memory = std::make_unique<Memory>();
      for (bool odd : {false, true}) {
        memory->trips[odd] = loop.body_->trips();
        memory->calls[odd].flushes_denormals = loop.flushes_denormals_;
        memory->next[odd].resize(loop.carried_);
      }
    }
    ~Lent() {
      const ShortLock lock;
      loop.free_.push_back(std::move(memory));
    }
    const While& loop;
    std::unique_ptr<Memory> memory;
  };

  Loop loop() const override { return {body_.get(), starts_, trips_}; }

  static void copy(void* to, const void* from, int64_t bytes) {
    if (to != from && bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  }

  std::unique_ptr<Executable> body_;
  size_t carried_;
  bool flushes_denormals_;
  int64_t arena_bytes_ = 0;              // the body's, and behind it second places
  std::vector<int64_t> bytes_;           // of what is carried
  std::vector<Result> results_;          // of the body; the last: whether it goes on
  std::vector<size_t> turning_, moved_;  // of results_: those that turn; those that a trip moves to another place
  mutable std::atomic<int64_t> starts_{0}, trips_{0};
  mutable std::vector<std::unique_ptr<Memory>> free_;  // under the short lock
};

/// Of this thread: the loops whose bodies are being loaded, each within the one before.
thread_local int loading = 0;
struct Loading {
  Loading() {
    if (loading == kDeepestLoop)
      throw UserError(fmt::format("stored plan: a loop within {} others, which is deeper than any is loaded", loading));
    ++loading;
  }
  ~Loading() { --loading; }
};

}  // namespace

std::unique_ptr<Operation> make_while(const plan::Plan& plan, const plan::Step& step) {
  const Loading deeper;  // a file may hold as many as it has bytes for, and each takes stack
  const nlohmann::json told = nlohmann::json::parse(step.arguments_json, nullptr, /*allow_exceptions=*/false);
  require(told.is_object() && told.contains("body") && told.contains("carried") && told.contains("flushes_denormals"),
          fmt::format("{}: it is not told what it runs", step.name));
  const auto body = told["body"].get<size_t>();
  require(body < plan.bodies.size(), fmt::format("{}: its body is not there", step.name));
  const std::vector<uint8_t>& bytes = plan.bodies[body];
  return std::make_unique<While>(plan, step, plan::load({reinterpret_cast<const char*>(bytes.data()), bytes.size()}),
                                 told["carried"].get<size_t>(), told["flushes_denormals"].get<bool>());
}

}  // namespace trainc::runtime
