#include "runtime/while.h"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/device.h"
#include "support/error.h"

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
      else result.in_place = b.over >= 0 && p.buffers[b.over].index == static_cast<int64_t>(k) && k < carried;
      results_.push_back(result);
    }
  }

  std::unique_ptr<InFlight> start(const std::vector<void*>& arguments) const override {
    const size_t inputs = static_cast<size_t>(body_->plan().input_count);
    Call call;
    call.inputs.assign(arguments.begin(), arguments.begin() + static_cast<int64_t>(inputs));
    call.outputs.resize(carried_ + 1);
    call.flushes_denormals = flushes_denormals_;
    for (size_t k = 0; k < carried_; ++k) copy(call.inputs[k] = arguments[inputs + 1 + k], arguments[k], bytes_[k]);
    bool goes_on = *static_cast<const uint8_t*>(arguments[inputs]) != 0;
    // Where a trip puts what it does not write in place: it takes turns with the result's memory.
    std::vector<std::shared_ptr<void>> owners;
    std::vector<void*> others(carried_);
    for (size_t k = 0; k < carried_ && goes_on; ++k)
      if (!results_[k].in_place && bytes_[k] > 0) {
        owners.push_back(device("cpu")->allocate(bytes_[k]));
        others[k] = owners.back().get();
      }
    while (goes_on) {
      uint8_t again = 0;
      for (size_t k = 0; k <= carried_; ++k) {
        if (results_[k].given_back >= 0) call.outputs[k] = nullptr;
        else if (k == carried_) call.outputs[k] = &again;
        else call.outputs[k] = results_[k].in_place ? call.inputs[k] : others[k];
      }
      body_->run(call);
      if (const int64_t from = results_[carried_].given_back; from >= 0) copy(&again, call.inputs[from], 1);
      for (size_t k = 0; k < carried_; ++k)
        if (const int64_t from = results_[k].given_back; from >= 0) copy(others[k], call.inputs[from], bytes_[k]);
      for (size_t k = 0; k < carried_; ++k)
        if (!results_[k].in_place) std::swap(call.inputs[k], others[k]);
      goes_on = again != 0;
    }
    for (size_t k = 0; k < carried_; ++k) copy(arguments[inputs + 1 + k], call.inputs[k], bytes_[k]);
    return std::make_unique<Over>();
  }

 private:
  struct Result {
    int64_t given_back = -1;  // it is that input of the body as it is
    bool in_place = false;    // it is written where the value lies that was carried
  };

  static void copy(void* to, const void* from, int64_t bytes) {
    if (to != from && bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  }

  std::unique_ptr<Executable> body_;
  size_t carried_;
  bool flushes_denormals_;
  std::vector<int64_t> bytes_;   // of what is carried
  std::vector<Result> results_;  // of the body; the last: whether it goes on
};

}  // namespace

std::unique_ptr<Operation> make_while(const plan::Plan& plan, const plan::Step& step) {
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
