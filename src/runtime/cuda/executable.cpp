#include "runtime/cuda/executable.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "plan/live.h"
#include "plan/parts.h"
#include "runtime/call_buffers.h"
#include "runtime/cuda/cublaslt.h"
#include "support/error.h"
#include "support/failure.h"

namespace trainc::runtime::cuda {

namespace {

/// A part of a plan as a graph. Kernels reach their arguments through the table; a product bakes its pointers in.
struct Recording {
  std::vector<const void*> baked;
  Graph graph = nullptr;  // nullptr: it ran once with these, step by step
};
// So many of one part are kept: where the framework gives memory in turn from several places, each of them has its
// graph.
constexpr size_t kMostRecordings = 4;

/// What one run knows, on the host and on the device. There are as many as ran at once: one, unless an extern step
/// calls the plan that it is in.
struct Run {
  explicit Run(std::shared_ptr<Driver> d) : driver(std::move(d)) {}
  ~Run() {
    for (const std::vector<Recording>& part : recordings)
      for (const Recording& r : part)
        if (r.graph) driver->release_graph(r.graph);
    if (table) driver->release(table);
    if (status) driver->release_status(status);
  }

  std::shared_ptr<Driver> driver;
  // on the device: a pointer a buffer, then the state of each draw, two words
  void* table = nullptr;
  std::vector<uint64_t> words;                     // what was last copied there
  uint32_t* status = nullptr;                      // by step
  std::vector<Launch> launches;                    // by step; those with a kernel
  std::vector<std::vector<Recording>> recordings;  // by part of the plan, the latest first
  std::optional<Stream> last;                      // the stream of the last run, which may still read the table
  std::vector<void*> pointers;                     // by buffer, as last copied to the table
  std::vector<std::shared_ptr<void>> owners;       // by buffer: of Extern ones
};

}  // namespace

struct CudaExecutable::Impl {
  const plan::Plan& plan;
  std::shared_ptr<Driver> driver;
  std::mutex mutex;  // of `free`; not held while anything runs
  std::vector<std::unique_ptr<Run>> free;
  std::vector<Function> functions;  // by kernel
  std::vector<size_t> draws;        // by step: where its state lies among the words; only where a kernel draws
  std::vector<plan::Part> parts;
  size_t word_count = 0;
  mutable std::mutex refusals_mutex;
  mutable std::map<size_t, std::string> refusals;  // by part: why it cannot be recorded
  void* constants = nullptr;                       // on the device
  std::vector<std::vector<int>> dies_after;        // by step: Extern buffers whose last use it is

  Impl(const plan::Plan& p, std::shared_ptr<Driver> d) : plan(p), driver(std::move(d)) {}

  /// Apart from the constructor: what is there when the driver refuses something is released.
  void load() {
    for (const plan::Kernel& k : plan.kernels)
      require(k.threads > 0, fmt::format("plan {}: kernel {} has no threads of a block", plan.name, k.name));
    for (const plan::Kernel& k : plan.kernels)
      named("loading kernel " + k.name, {}, [&] { functions.push_back(driver->load(k)); });
    for (const plan::Step& s : plan.steps) {
      if (s.kind == plan::StepKind::Start)
        throw InternalError(
            fmt::format("plan {}, step {}: nothing is started beside a device's kernels yet", plan.name, s.name));
      if (s.kind == plan::StepKind::Random && s.kernel < 0)
        throw InternalError(fmt::format("plan {}, step {}: the CPU's masks are not drawn on a GPU", plan.name, s.name));
      if (s.kind == plan::StepKind::Product && !driver->multiplies())
        throw UserError(fmt::format("plan {} was compiled with cuBLASLt, which cannot be loaded here: compile it again",
                                    plan.name));
      if (s.kind == plan::StepKind::Product &&
          !driver->has_algorithm(s.product, plan.buffers[static_cast<size_t>(s.arguments[3])].bytes))
        throw UserError(
            fmt::format("plan {}, product {}: the cuBLASLt that is here has no algorithm for it: compile it again",
                        plan.name, s.name));
    }
    parts = plan::parts(plan);
    word_count = plan.buffers.size();
    for (const plan::Step& s : plan.steps) {
      draws.push_back(word_count);
      if (s.kind == plan::StepKind::Random && s.kernel >= 0) word_count += 2;
    }
    if (!plan.constants.empty()) {
      constants = driver->allocate(static_cast<int64_t>(plan.constants.size()));
      driver->load_data(constants, plan.constants.data(), static_cast<int64_t>(plan.constants.size()));
    }
    dies_after.resize(plan.steps.size());
    const std::vector<plan::LiveRange> live = plan::live_ranges(plan);
    for (size_t b = 0; b < plan.buffers.size(); ++b)
      if (plan.buffers[b].space == plan::MemorySpace::Extern && live[b].last >= 0)
        dies_after[live[b].last].push_back(static_cast<int>(b));
    free.push_back(new_run());
  }

  std::unique_ptr<Run> new_run() const {
    auto run = std::make_unique<Run>(driver);
    run->words.resize(word_count);
    run->owners.resize(plan.buffers.size());
    run->table = driver->allocate(static_cast<int64_t>(word_count * sizeof(uint64_t)));
    run->status = driver->allocate_status(static_cast<int64_t>(plan.steps.size()));
    std::set<int> written;
    for (size_t i = 0; i < plan.steps.size(); ++i) {
      const plan::Step& s = plan.steps[i];
      run->launches.push_back(s.kernel >= 0 ? launch_of(*run, i, written) : Launch{});
      written.insert(s.writes.begin(), s.writes.end());
    }
    run->recordings.resize(parts.size());
    for (size_t p = 0; p < parts.size(); ++p)
      if (!parts[p].multiplies)
        if (const Graph graph = record(*run, parts[p])) run->recordings[p].push_back({{}, graph});
    return run;
  }

  /// None where nothing would be spared.
  Graph record(const Run& run, const plan::Part& part) const {
    std::vector<GraphNode> nodes;
    for (size_t i = part.first; i < part.last; ++i) {
      const plan::Step& s = plan.steps[i];
      if (s.kind == plan::StepKind::Product)
        nodes.push_back(Multiplication{&s.product, factors(plan, s, run.pointers)});
      else if (run.launches[i].blocks > 0) nodes.push_back(run.launches[i]);
    }
    Graph graph = nullptr;
    if (nodes.empty() || driver->waits() || (nodes.size() == 1 && parts.size() > 1)) return graph;
    named("recording its graph", {}, [&] { graph = driver->record(nodes); });
    return graph;
  }

  /// What a graph of this part bakes in.
  std::vector<const void*> baked_by(const Run& run, const plan::Part& part) const {
    std::vector<const void*> baked;
    for (size_t i = part.first; i < part.last; ++i)
      if (plan.steps[i].kind == plan::StepKind::Product)
        for (int b : plan.steps[i].arguments) baked.push_back(run.pointers[b]);
    return baked;
  }

  /// The graph of a part, where there is one for the pointers of this run. One with products is recorded when they
  /// lie a second time where they did: the first time, the library loads what it needs.
  Graph graph_of(Run& run, size_t p) const {
    std::vector<Recording>& known = run.recordings[p];
    if (!parts[p].multiplies) return known.empty() ? nullptr : known[0].graph;
    if (driver->waits() || refused(p)) return nullptr;
    std::vector<const void*> baked = baked_by(run, parts[p]);
    const auto found = std::ranges::find(known, baked, &Recording::baked);
    if (found == known.end()) {
      known.insert(known.begin(), {std::move(baked), nullptr});
      if (known.size() <= kMostRecordings) return nullptr;
      if (known.back().graph) driver->drain(), driver->release_graph(known.back().graph);
      known.pop_back();
      return nullptr;
    }
    std::rotate(known.begin(), found, found + 1);
    if (known[0].graph) return known[0].graph;
    try {
      return known[0].graph = record(run, parts[p]);
    } catch (const InternalError& e) {  // the steps are launched one by one instead
      const std::lock_guard lock(refusals_mutex);
      refusals.emplace(p, e.what());
      return nullptr;
    }
  }
  bool refused(size_t p) const {
    const std::lock_guard lock(refusals_mutex);
    return refusals.contains(p);
  }

  std::vector<std::string> notes() const {
    std::vector<std::string> notes;
    std::set<std::string> between;
    for (size_t p = 1; p < parts.size(); ++p)
      for (size_t i = parts[p - 1].last; i < parts[p].first; ++i) between.insert(plan.steps[i].target);
    if (parts.size() > 1)
      notes.push_back(fmt::format("{} CUDA graphs instead of one: between them PyTorch runs {}", parts.size(),
                                  fmt::join(between, ", ")));
    const std::lock_guard lock(refusals_mutex);
    for (const auto& [part, why] : refusals)
      notes.push_back(
          fmt::format("steps {} to {} are no CUDA graph: {}", parts[part].first, parts[part].last - 1, why));
    return notes;
  }

  std::unique_ptr<Run> take_run() {
    {
      std::lock_guard lock(mutex);
      if (!free.empty()) {
        std::unique_ptr<Run> run = std::move(free.back());
        free.pop_back();
        return run;
      }
    }
    return new_run();
  }
  void give_back(std::unique_ptr<Run> run) {
    std::lock_guard lock(mutex);
    free.push_back(std::move(run));
  }

  ~Impl() {
    driver->drain();
    free.clear();
    for (Function f : functions) driver->unload(f);
    if (constants) driver->release(constants);
  }

  Launch launch_of(const Run& run, size_t i, const std::set<int>& written) const {
    const plan::Step& s = plan.steps[i];
    Launch l;
    l.function = functions[s.kernel];
    l.blocks = s.parallel_extent;
    l.threads = plan.kernels[s.kernel].threads;
    l.table = run.table;
    l.slots = s.arguments;
    l.status = run.status + i;
    l.name = &s.name;
    for (int b : s.arguments) {
      l.bytes.push_back(plan.buffers[b].bytes);
      const bool reads = std::find(s.reads.begin(), s.reads.end(), b) != s.reads.end();
      l.fresh.push_back(!reads && !written.count(b));
    }
    return l;
  }

  void throw_failed(Run& run) const {
    for (size_t i = 0; i < plan.steps.size(); ++i) {
      // The device may write it at any time: a zero must not be written over what is told just now.
      const std::atomic_ref<uint32_t> word(run.status[i]);
      if (word.load() == 0) continue;
      const uint32_t failed = word.exchange(0);
      throw_failure(
          static_cast<Failure>(failed),
          fmt::format(" in {} (check {} of {})", fmt::join(plan.steps[i].origins, ", "), failed, plan.steps[i].name));
    }
  }

  void follow(Run& run, Stream stream) const {
    if (run.last && *run.last != stream) driver->order(*run.last, stream);
    run.last = stream;
  }

  void copy_table(Run& run, Stream stream) const {
    std::transform(run.pointers.begin(), run.pointers.end(), run.words.begin(),
                   [](void* p) { return reinterpret_cast<uint64_t>(p); });
    if (!run.words.empty())
      driver->copy_in(run.table, run.words.data(), static_cast<int64_t>(run.words.size() * sizeof(uint64_t)), stream);
  }

  /// The state of the draws from step `from` on, up to where the framework draws itself.
  void place_draws(Run& run, size_t from, Draws& generator) const {
    for (size_t i = from; i < plan.steps.size(); ++i) {
      const plan::Step& s = plan.steps[i];
      if (may_draw(s)) return;
      if (s.kind != plan::StepKind::Random || s.kernel < 0) continue;
      const std::array<uint64_t, 2> state = generator.philox(i);
      std::copy(state.begin(), state.end(), run.words.begin() + static_cast<int64_t>(draws[i]));
      run.pointers[s.arguments[0]] = static_cast<uint64_t*>(run.table) + draws[i];
    }
  }

  /// A missing pointer is an error only where it would be used.
  void check_pointers(const Run& run, const plan::Step& step) const {
    for (int b : step.arguments)
      if (!run.pointers[b] && plan.buffers[b].bytes > 0)
        throw InternalError(
            fmt::format("plan {}, step {}: no memory for {}", plan.name, step.name, plan.buffers[b].name));
  }

  void extern_step(Run& run, size_t i, const Call& call, Draws& draws) const {
    const plan::Step& step = plan.steps[i];
    std::vector<void*> inputs;
    for (int b : step.arguments) inputs.push_back(run.pointers[b]);
    run_extern(plan, step, call, inputs, run.pointers, run.owners,
               [&](void* to, const void* from, int64_t bytes) { driver->copy(to, from, bytes, call.stream); });
    if (may_draw(step)) place_draws(run, i + 1, draws);
    copy_table(run, call.stream);
  }

  /// Whatever the driver says of `what`, with the plan's name and the user's lines before it.
  template <class Do> void named(const std::string& what, const std::vector<std::string>& origins,
                                 const Do& action) const {
    const auto words = [&](const std::exception& e) {
      return fmt::format("plan {}, {}{}: {}", plan.name, what,
                         origins.empty() ? "" : fmt::format(" from {}", fmt::join(origins, ", ")), e.what());
    };
    try {
      action();
    } catch (const DeviceLost& e) { throw DeviceLost(words(e)); } catch (const InternalError& e) {
      throw InternalError(words(e));
    }
  }

  void launch(const Run& run, size_t i, Stream stream) const {
    if (run.launches[i].blocks == 0) return;
    named("kernel " + plan.steps[i].name, plan.steps[i].origins, [&] { driver->launch(run.launches[i], stream); });
  }

  void multiply(const Run& run, const plan::Step& s, Stream stream) const {
    named("product " + s.name, s.origins, [&] { driver->multiply(s.product, factors(plan, s, run.pointers), stream); });
  }

  void run_part(Run& run, size_t p, const Call& call) const {
    const auto [first, last, multiplies] = parts[p];
    for (size_t i = first; i < last; ++i) {
      if (call.check_signals) call.check_signals();
      check_pointers(run, plan.steps[i]);
    }
    if (const Graph graph = graph_of(run, p)) {
      named("its graph of " + std::to_string(last - first) + " steps (CUDA_LAUNCH_BLOCKING=1 tells which)", {},
            [&] { driver->run(graph, call.stream); });
      return;
    }
    for (size_t i = first; i < last; ++i) {
      if (plan.steps[i].kind == plan::StepKind::Product) multiply(run, plan.steps[i], call.stream);
      else launch(run, i, call.stream);
    }
  }

  void run_steps(Run& run, const Call& call, Draws& draws) const {
    size_t next = 0;  // part
    for (size_t i = 0; i < plan.steps.size();) {
      size_t end = i + 1;
      if (next < parts.size() && parts[next].first == i) {
        end = parts[next].last;
        run_part(run, next++, call);
      } else {
        if (call.check_signals) call.check_signals();
        check_pointers(run, plan.steps[i]);
        require(plan.steps[i].kind == plan::StepKind::Extern, "a step that was refused when it was loaded");
        extern_step(run, i, call, draws);
      }
      for (; i < end; ++i)
        for (int b : dies_after[i]) run.owners[b].reset(), run.pointers[b] = nullptr;
    }
  }
};

CudaExecutable::CudaExecutable(plan::Plan given, std::shared_ptr<Driver> driver)
    : Executable(std::move(given)), impl_(std::make_unique<Impl>(plan(), std::move(driver))) {
  impl_->load();
}
CudaExecutable::~CudaExecutable() = default;

void CudaExecutable::run(const Call& call) {
  std::unique_ptr<Run> run = impl_->take_run();
  struct GiveBack {
    Impl& impl;
    std::unique_ptr<Run>& run;
    ~GiveBack() { impl.give_back(std::move(run)); }
  } after{*impl_, run};
  impl_->throw_failed(*run);
  require(call.temp || impl_->plan.temp_bytes == 0, "plan " + impl_->plan.name + ": no memory for temporaries");
  run->pointers = place_buffers(impl_->plan, call, static_cast<uint8_t*>(call.temp));
  const std::vector<plan::Buffer>& buffers = impl_->plan.buffers;
  for (size_t i = 0; i < buffers.size(); ++i)
    if (buffers[i].space == plan::MemorySpace::Constant)
      run->pointers[i] = static_cast<uint8_t*>(impl_->constants) + buffers[i].offset;
  Draws draws(impl_->plan, call.generator);
  try {
    impl_->place_draws(*run, 0, draws);
    impl_->follow(*run, call.stream);
    impl_->copy_table(*run, call.stream);
    impl_->run_steps(*run, call, draws);
  } catch (...) {
    for (auto& owner : run->owners) owner.reset();
    draws.give_back();  // as in eager: what was drawn before the error stays drawn
    throw;
  }
  if (impl_->driver->on_host()) impl_->throw_failed(*run);
}

std::vector<std::string> CudaExecutable::notes() const { return impl_->notes(); }

void CudaExecutable::finish() {
  std::lock_guard lock(impl_->mutex);
  for (const auto& run : impl_->free) impl_->throw_failed(*run);
}

}  // namespace trainc::runtime::cuda
