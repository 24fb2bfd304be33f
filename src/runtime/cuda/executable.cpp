#include "runtime/cuda/executable.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "plan/live.h"
#include "runtime/places.h"
#include "support/error.h"

namespace trainc::runtime::cuda {

struct Executable::Impl {
  plan::Plan plan;
  std::shared_ptr<Driver> driver;
  std::mutex mutex;
  std::vector<Function> functions;            // by kernel
  void* table = nullptr;                      // on the device: a pointer a buffer, then the state of each draw, two words
  std::vector<uint64_t> words;                // what was last copied there
  std::vector<size_t> draws;                  // by step: where its state lies among the words; only where a kernel draws
  void* constants = nullptr;                  // on the device
  uint32_t* status = nullptr;                 // by step
  std::vector<Launch> launches;               // by step; those with a kernel
  Graph graph = nullptr;                      // of all of them
  std::optional<Stream> last;                 // the stream of the last run, which may still read the table
  std::vector<void*> pointers;                // by buffer, as last copied to the table
  std::vector<std::shared_ptr<void>> owners;  // by buffer: of Extern ones
  std::vector<std::vector<int>> dies_after;   // by step: Extern buffers whose last use it is

  Impl(plan::Plan p, std::shared_ptr<Driver> d) : plan(std::move(p)), driver(std::move(d)) {}

  /// Apart from the constructor: what is there when the driver refuses something is released.
  void load() {
    for (const plan::Kernel& k : plan.kernels) named("loading kernel " + k.name, {}, [&] { functions.push_back(driver->load(k)); });
    for (const plan::Step& s : plan.steps)
      if (s.kind == plan::StepKind::Product && !driver->multiplies())
        throw UserError(fmt::format("plan {} was compiled with cuBLASLt, which cannot be loaded here: compile it again", plan.name));
    words.resize(plan.buffers.size());
    for (const plan::Step& s : plan.steps) {
      draws.push_back(words.size());
      if (s.kind == plan::StepKind::Random && s.kernel >= 0) words.resize(words.size() + 2);
    }
    table = driver->allocate(static_cast<int64_t>(words.size() * sizeof(uint64_t)));
    status = driver->allocate_status(static_cast<int64_t>(plan.steps.size()));
    if (!plan.constants.empty()) {
      constants = driver->allocate(static_cast<int64_t>(plan.constants.size()));
      driver->load_data(constants, plan.constants.data(), static_cast<int64_t>(plan.constants.size()));
    }
    owners.resize(plan.buffers.size());
    dies_after.resize(plan.steps.size());
    bool kernels_alone = true;
    std::set<int> written;
    for (size_t i = 0; i < plan.steps.size(); ++i) {
      const plan::Step& s = plan.steps[i];
      kernels_alone &= s.kernel >= 0;
      launches.push_back(s.kernel >= 0 ? launch_of(i, written) : Launch{});
      written.insert(s.writes.begin(), s.writes.end());
    }
    const std::vector<plan::LiveRange> live = plan::live_ranges(plan);
    for (size_t b = 0; b < plan.buffers.size(); ++b)
      if (plan.buffers[b].home == plan::Home::Extern && live[b].last >= 0) dies_after[live[b].last].push_back(static_cast<int>(b));
    if (!kernels_alone) return;  // what the framework does between kernels may allocate
    std::vector<Launch> all;
    for (const Launch& l : launches)
      if (l.blocks > 0) all.push_back(l);
    if (!all.empty() && !driver->waits()) named("recording its graph", {}, [&] { graph = driver->record(all); });
  }

  ~Impl() {
    if (graph) driver->release_graph(graph);
    for (Function f : functions) driver->unload(f);
    if (table) driver->release(table);
    if (constants) driver->release(constants);
    if (status) driver->release_status(status);
  }

  Launch launch_of(size_t i, const std::set<int>& written) const {
    const plan::Step& s = plan.steps[i];
    Launch l;
    l.function = functions[s.kernel];
    l.blocks = s.parallel_extent;
    l.threads = plan.kernels[s.kernel].threads;
    l.table = table;
    l.slots = s.arguments;
    l.status = status + i;
    l.name = &s.name;
    for (int b : s.arguments) {
      l.bytes.push_back(plan.buffers[b].bytes);
      const bool reads = std::find(s.reads.begin(), s.reads.end(), b) != s.reads.end();
      l.fresh.push_back(!reads && !written.count(b));
    }
    return l;
  }

  void throw_failed() {
    for (size_t i = 0; i < plan.steps.size(); ++i) {
      const uint32_t failed = std::exchange(status[i], 0);
      if (!failed) continue;
      throw IndexError(fmt::format("index out of range in {} (check {} of {})", fmt::join(plan.steps[i].origins, ", "), failed, plan.steps[i].name));
    }
  }

  void follow(Stream stream) {
    if (last && *last != stream) driver->order(*last, stream);
    last = stream;
  }

  void copy_table(Stream stream) {
    std::transform(pointers.begin(), pointers.end(), words.begin(), [](void* p) { return reinterpret_cast<uint64_t>(p); });
    if (!words.empty()) driver->copy_in(table, words.data(), static_cast<int64_t>(words.size() * sizeof(uint64_t)), stream);
  }

  /// The state of the draws from step `from` on, up to where the framework draws itself.
  void place_draws(size_t from, Draws& generator) {
    for (size_t i = from; i < plan.steps.size(); ++i) {
      const plan::Step& s = plan.steps[i];
      if (s.random) return;
      if (s.kind != plan::StepKind::Random || s.kernel < 0) continue;
      const std::array<uint64_t, 2> state = generator.philox(s.increment);
      std::copy(state.begin(), state.end(), words.begin() + static_cast<int64_t>(draws[i]));
      pointers[s.arguments[0]] = static_cast<uint64_t*>(table) + draws[i];
    }
  }

  /// A missing pointer is an error only where it would be used.
  void check_pointers(const plan::Step& step) const {
    for (int b : step.arguments)
      if (!pointers[b] && plan.buffers[b].bytes > 0)
        throw InternalError(fmt::format("plan {}, step {}: no memory for {}", plan.name, step.name, plan.buffers[b].name));
  }

  void extern_step(size_t i, const DeviceCall& call, Draws& draws) {
    const plan::Step& step = plan.steps[i];
    std::vector<void*> inputs;
    for (int b : step.arguments) inputs.push_back(pointers[b]);
    run_extern(plan, step, call.host, inputs, draws, pointers, owners,
               [&](void* to, const void* from, int64_t bytes) { driver->copy(to, from, bytes, call.stream); });
    if (step.random) place_draws(i + 1, draws);
    copy_table(call.stream);
  }

  /// Whatever the driver says of `what`, with the plan's name and the user's lines before it.
  template <class Do> void named(const std::string& what, const std::vector<std::string>& origins, const Do& action) const {
    try {
      action();
    } catch (const InternalError& e) {
      throw InternalError(fmt::format("plan {}, {}{}: {}", plan.name, what, origins.empty() ? "" : fmt::format(" from {}", fmt::join(origins, ", ")), e.what()));
    }
  }

  void launch(size_t i, Stream stream) const {
    if (graph || launches[i].blocks == 0) return;
    named("kernel " + plan.steps[i].name, plan.steps[i].origins, [&] { driver->launch(launches[i], stream); });
  }

  void multiply(const plan::Step& s, Stream stream) const {
    const auto at = [&](int argument) { return pointers[s.arguments[argument]]; };
    named("product " + s.name, s.origins,
          [&] { driver->multiply(s.product, at(0), at(1), at(2), at(3), plan.buffers[s.arguments[3]].bytes, stream); });
  }

  void run_steps(const DeviceCall& call, Draws& draws) {
    for (size_t i = 0; i < plan.steps.size(); ++i) {
      const plan::Step& step = plan.steps[i];
      if (call.host.check_signals) call.host.check_signals();
      check_pointers(step);
      switch (step.kind) {
        case plan::StepKind::Kernel: launch(i, call.stream); break;
        case plan::StepKind::Product: multiply(step, call.stream); break;
        case plan::StepKind::Extern: extern_step(i, call, draws); break;
        case plan::StepKind::Random:
          if (step.kernel >= 0) {
            launch(i, call.stream);
            break;
          }
          require(driver->on_host(), "the host's masks are not drawn on " + driver->description());
          draws.fill(step, plan.buffers[step.writes[0]], pointers[step.writes[0]]);
          break;
      }
      for (int b : dies_after[i]) owners[b].reset(), pointers[b] = nullptr;
    }
    if (graph) named("its graph of " + std::to_string(plan.steps.size()) + " steps (CUDA_LAUNCH_BLOCKING=1 tells which)", {}, [&] { driver->run(graph, call.stream); });
  }
};

void require_architecture(const std::string& name, const std::string& device, const Driver& driver) {
  if (device == driver.architecture()) return;
  throw UserError(fmt::format("plan {} was compiled for {}; this device is {}. Compile it here.", name, device.empty() ? "a CPU" : device,
                              driver.architecture()));
}

Executable::Executable(plan::Plan plan, std::shared_ptr<Driver> driver) {
  plan::verify(plan);
  require_architecture(plan.name, plan.device, *driver);
  impl_ = std::make_unique<Impl>(std::move(plan), std::move(driver));
  impl_->load();
}
Executable::~Executable() = default;

const plan::Plan& Executable::plan() const { return impl_->plan; }

void Executable::run(const DeviceCall& call) {
  std::lock_guard one_at_a_time(impl_->mutex);
  impl_->throw_failed();
  require(call.temp || impl_->plan.temp_bytes == 0, "plan " + impl_->plan.name + ": no memory for temporaries");
  impl_->pointers = place_buffers(impl_->plan, call.host, static_cast<uint8_t*>(call.temp));
  const std::vector<plan::Buffer>& buffers = impl_->plan.buffers;
  for (size_t i = 0; i < buffers.size(); ++i)
    if (buffers[i].home == plan::Home::Constant) impl_->pointers[i] = static_cast<uint8_t*>(impl_->constants) + buffers[i].offset;
  Draws draws(call.host.generator);
  try {
    impl_->place_draws(0, draws);
    impl_->follow(call.stream);
    impl_->copy_table(call.stream);
    impl_->run_steps(call, draws);
  } catch (...) {
    for (auto& owner : impl_->owners) owner.reset();
    draws.write_back();  // as in eager: what was drawn before the error stays drawn
    throw;
  }
  draws.write_back();
  if (impl_->driver->on_host()) impl_->throw_failed();
}

void Executable::finish() {
  std::lock_guard one_at_a_time(impl_->mutex);
  impl_->throw_failed();
}

}  // namespace trainc::runtime::cuda
