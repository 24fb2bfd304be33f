// The operation `sleep`, for tests of plans that start something: it does nothing for a while, then gives its input as
// its output. A model cannot come by it: it is registered here alone.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/operation.h"
#include "support/error.h"

namespace trainc::testing {

/// What sleepers wait for instead of a time: opened by a test, or by one of its kernels.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void shut() {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }
  /// False where it did not open for a time that is long on any machine, or where it is to stop.
  bool wait(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, stop, std::chrono::seconds(60), [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable_any changed_;
  bool open_ = false;
};
inline Gate& gate(int number) {
  static Gate gates[4];
  return gates[number];
}
/// How many of them sleep, and how many have ended.
inline std::atomic<int> sleeping{0}, slept{0};

/// Attributes: `seconds` to sleep, or the `gate` to wait for; then `fails`: what it throws, "user:..." or "other:...".
/// Arguments: none; one, which is as it was in the end; or two of the same size, the second of which becomes the first.
/// What it writes holds something else while it sleeps, so that who touches it meanwhile is found out.
class Sleep : public runtime::Operation {
 public:
  Sleep(const plan::Plan& plan, const plan::Step& step) : attributes_(nlohmann::json::parse(step.arguments_json)) {
    if (step.arguments.size() > 2) throw InternalError("a sleeper takes two arguments at most");
    for (int b : step.arguments) bytes_.push_back(plan.buffers[b].bytes);
    writes_ = !step.writes.empty();
    if (bytes_.size() == 2 && bytes_[0] != bytes_[1]) throw InternalError("a sleeper gives what it takes");
  }
  std::unique_ptr<runtime::InFlight> start(const std::vector<void*>& arguments) const override {
    return runtime::on_own_thread([this, arguments](const std::stop_token& stop) {
      ++sleeping;
      const auto invert = [&] {
        auto* memory = static_cast<uint8_t*>(arguments.back());
        for (int64_t i = 0; i < bytes_.back(); ++i) memory[i] = static_cast<uint8_t>(~memory[i]);
      };
      if (writes_) invert();
      const bool woken = sleep(stop);
      if (writes_ && arguments.size() == 1) invert();
      if (woken && arguments.size() == 2 && bytes_[0] > 0)
        std::memmove(arguments[1], arguments[0], static_cast<size_t>(bytes_[0]));
      --sleeping, ++slept;
      if (!woken) throw std::runtime_error("it was not woken");
      if (const std::string what = attributes_.value("fails", ""); what.starts_with("user:"))
        throw UserError(what.substr(5));
      else if (!what.empty()) throw std::runtime_error(what.substr(what.find(':') + 1));
    });
  }

 private:
  bool sleep(const std::stop_token& stop) const {
    if (attributes_.contains("gate")) return gate(attributes_["gate"].get<int>()).wait(stop);
    std::mutex mutex;
    std::condition_variable_any never;
    std::unique_lock lock(mutex);
    never.wait_for(lock, stop, std::chrono::duration<double>(attributes_.value("seconds", 0.0)), [] { return false; });
    return !stop.stop_requested();
  }

  nlohmann::json attributes_;
  std::vector<int64_t> bytes_;
  bool writes_ = false;
};

inline void register_sleep() {
  runtime::register_operation(
      "sleep", [](const plan::Plan& plan, const plan::Step& step) { return std::make_unique<Sleep>(plan, step); });
}

}  // namespace trainc::testing
