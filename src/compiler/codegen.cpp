#include "compiler/codegen.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <unordered_map>

#include "compiler/lower_plan.h"
#include "graph/text.h"
#include "plan/live.h"
#include "support/float_environment.h"
#include "support/while_operation.h"

namespace trainc::compiler {

void dump(const std::string& name, const std::string& text) {
  if (write_dump(name, text).empty())
    throw UserError("TRAINC_DUMP: cannot write " + name + "; set TRAINC_DUMP_DIR to a directory that you can write");
}

void dump_kernel(const std::string& name, const loop::LoopNest& nest, const plan::Kernel& code, const Target& target,
                 Entry entry) {
  const std::string stem = name + "." + plan::code_hash(code);
  if (dumping("loop")) dump(stem + ".loop", loop::print(nest));
  if (!dumping("asm")) return;
  const CodeGenerator::Listing listing = generator_of(target).listing(nest, target, entry);
  dump(stem + listing.ending, listing.text);
}

loop::LoopNest anonymous(loop::LoopNest nest) {
  nest.name = "kernel";
  nest.origins.clear();
  nest.bytes = nest.flops = 0;
  return nest;
}

int64_t storage_bytes(const Type& type, const Dims& strides) {
  if (type.numel() == 0) return 0;
  int64_t last = 0;
  for (size_t k = 0; k < type.shape.size(); ++k) last += (type.shape[k] - 1) * strides[k];
  return (last + 1) * size_of(type.dtype);
}

plan::Kernel without_code(const loop::LoopNest& nest) { return {nest.name, {}, 0, nest.scratch_bytes(), nest.threads}; }

Code code_of(const std::vector<loop::LoopNest>& nests, const CompileOptions& options, const Job& job, Entry entry,
             SharedKernels::Impl::Role* role) {
  Code code;
  // Kernels of identical layers differ in names and origins only.
  std::unordered_map<std::string, size_t> known;      // by text: the first nest of it
  std::unordered_map<const SharedKernel*, int> used;  // of other plans' too: its place in this one
  std::vector<SharedKernel*> shared;                  // of distinct[i], or null
  std::vector<loop::LoopNest> distinct;
  std::vector<int> place;  // of distinct[i] among the plan's kernels
  const auto add = [&](loop::LoopNest nest, SharedKernel* of) {
    place.push_back(static_cast<int>(code.kernels.size()));
    code.kernels.push_back(without_code(nest));
    distinct.push_back(std::move(nest)), shared.push_back(of);
    return place.back();
  };
  for (const loop::LoopNest& n : nests) {
    loop::LoopNest plain = anonymous(n);
    const size_t i = code.kernel_of.size();
    auto [it, fresh] = known.emplace(loop::print(plain), i);
    if (!fresh) {
      code.kernel_of.push_back(code.kernel_of[it->second]);
      code.parameters.push_back(code.parameters[it->second]);
      continue;
    }
    plain.name = n.name;
    if (!role) {
      code.kernel_of.push_back(add(std::move(plain), nullptr));
      code.parameters.emplace_back();
      continue;
    }
    const loop::NestTemplate nest_template = loop::template_of(plain);
    SharedKernel& kernel = shared_kernel(*role, nest_template);
    auto [at, first] = used.emplace(&kernel, -1);
    if (first && kernel.kernel) {
      at->second = static_cast<int>(code.kernels.size());
      code.kernels.push_back(*kernel.kernel);
    } else if (first) {
      at->second = add(
          kernel.parameters.none() ? std::move(plain) : loop::parameterize(plain, kernel.parameters, kernel.scratch),
          &kernel);
    }
    code.kernel_of.push_back(at->second);
    code.parameters.push_back(kernel.values_for(nest_template));
  }
  code.compiled = static_cast<int64_t>(distinct.size());

  const CodeGenerator& generator = generator_of(options.target);
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<int64_t> next = 0;
  std::atomic<bool> stop = false;
  int64_t done = 0;
  std::exception_ptr failure;
  auto work = [&] {
    const FloatEnvironment environment(options.flushes_denormals);  // as the thread that lowered these nests has it
    while (!stop) {
      const int64_t i = next++;
      if (i >= static_cast<int64_t>(distinct.size())) return;
      try {
        CodeGenerator::Code made = generator.generate(distinct[i], options.target, entry);
        std::lock_guard lock(mutex);
        plan::Kernel& kernel = code.kernels[place[i]];
        kernel.code = std::move(made.bytes);
        kernel.entry = made.entry;
        if (shared[i]) shared[i]->kernel = kernel;
        ++done;
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        stop = true;
      }
      changed.notify_one();
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < std::max(1, job.threads); ++t) threads.emplace_back(work);
  auto finish = [&] {
    stop = true;
    for (std::thread& t : threads) t.join();
  };
  const int64_t total = static_cast<int64_t>(distinct.size());
  try {
    for (;;) {
      int64_t now;
      {
        std::unique_lock lock(mutex);
        changed.wait_for(lock, std::chrono::milliseconds(100), [&] { return done == total || failure; });
        now = done;
        if (failure) break;
      }
      if (job.progress) job.progress(now, total);
      if (now == total) break;
    }
  } catch (...) {  // Ctrl-C, through progress
    finish();
    throw;
  }
  finish();
  if (failure) std::rethrow_exception(failure);
  return code;
}

namespace {

/// Buffers of constants, each content once.
class Constants {
 public:
  explicit Constants(plan::Plan& plan) : plan_(plan) {}

  template <class T>
  int buffer(const std::vector<T>& values, DType dtype, const char* name) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
    auto [it, fresh] = known_.emplace(std::vector<uint8_t>(bytes, bytes + values.size() * sizeof(T)),
                                      static_cast<int>(plan_.buffers.size()));
    if (!fresh) return it->second;
    plan_.constants.resize(static_cast<size_t>(plan::aligned(static_cast<int64_t>(plan_.constants.size()))));
    plan::Buffer b;
    b.name = name;
    b.space = plan::MemorySpace::Constant;
    b.offset = static_cast<int64_t>(plan_.constants.size());
    b.dtype = dtype;
    b.shape = {static_cast<int64_t>(values.size())};
    b.strides = {1};
    b.bytes = static_cast<int64_t>(it->first.size());
    plan_.constants.insert(plan_.constants.end(), it->first.begin(), it->first.end());
    plan_.buffers.push_back(std::move(b));
    return it->second;
  }

 private:
  plan::Plan& plan_;
  std::map<std::vector<uint8_t>, int> known_;  // by content: the buffer
};

void dump_kernels(const LoweredPlan& lowered, const Code& code, const CompileOptions& options) {
  std::vector<bool> seen(code.kernels.size());
  for (size_t i = 0; i < lowered.nests.size(); ++i) {
    const int k = code.kernel_of[i];
    if (seen[k]) continue;
    seen[k] = true;
    const loop::LoopNest& nest = lowered.nests[i];
    dump_kernel(lowered.plan.name + ".k" + std::to_string(k) + "." + nest.name, nest, code.kernels[k], options.target,
                Entry::Plan);
  }
}

/// The plan of a loop's body, in the place of its graph.
void compile_body(plan::Plan& plan, plan::Step& step, const CompileOptions& options, const Job& job, Timing& timing) {
  const auto told = nlohmann::json::parse(step.arguments_json);
  const auto carried = told.at("carried").get<int64_t>();
  GivenAway to_the_next_trip;
  for (int64_t i = 0; i < carried; ++i) to_the_next_trip.emplace_back(i, i);
  Program body;
  body.graph = parse(told.at("graph").get<std::string>());
  Job own = job;
  own.shared = nullptr, own.progress = {};
  const std::string name = fmt::format("{}.loop{}", plan.name, plan.bodies.size());
  const std::string saved = save(compile(std::move(body), name, options, own, &timing, to_the_next_trip));
  step.arguments_json =
      nlohmann::json{
          {"carried", carried}, {"body", plan.bodies.size()}, {"flushes_denormals", options.flushes_denormals}}
          .dump();
  plan.bodies.emplace_back(saved.begin(), saved.end());
}

}  // namespace

plan::Plan generate(LoweredPlan lowered, const CompileOptions& options, const Job& job, Timing* timing) {
  Timing local;
  if (!timing) timing = &local;
  const auto start = std::chrono::steady_clock::now();
  SharedKernels::Impl::Role* role = nullptr;
  std::unique_lock<std::mutex> lock;
  if (job.shared && options.target.shares_kernels) {
    lock = std::unique_lock(job.shared->impl->mutex);
    role = &job.shared->impl->roles[lowered.plan.name];
  }
  Code code = code_of(lowered.nests, options, job, Entry::Plan, role);
  timing->code_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  timing->kernels += static_cast<int64_t>(lowered.nests.size());
  timing->distinct_kernels += static_cast<int64_t>(code.kernels.size());
  timing->compiled_kernels += code.compiled;
  if (dumping("loop") || dumping("asm")) dump_kernels(lowered, code, options);

  plan::Plan& plan = lowered.plan;
  plan.kernels = std::move(code.kernels);
  Constants constants(plan);
  for (plan::Step& step : plan.steps) {
    if (step.kernel < 0) continue;
    const ParameterValues& parameters = code.parameters[step.kernel];
    step.kernel = code.kernel_of[step.kernel];
    const auto give = [&](int b) {
      step.arguments.push_back(b), step.reads.push_back(b);
      if (!step.shifts.empty()) step.shifts.push_back(0);
    };
    if (!parameters.sizes.empty()) give(constants.buffer(parameters.sizes, DType::I64, "sizes"));
    if (!parameters.factors.empty()) give(constants.buffer(parameters.factors, DType::F64, "factors"));
  }
  for (plan::Step& step : plan.steps)
    if (step.target == kWhile) compile_body(plan, step, options, job, *timing);
  return finished(std::move(plan));
}

}  // namespace trainc::compiler
