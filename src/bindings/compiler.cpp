// The compiler from Python: progress bars, Ctrl-C, and the interpreter lock released meanwhile.
#include "compiler/compiler.h"

#include <malloc.h>

#include <limits>
#include <thread>

#include "bindings/bindings.h"
#include "bindings/front_end.h"
#include "runtime/foreach.h"
#include "support/error.h"
#include "support/float_environment.h"

namespace trainc::bindings {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// What every function here does its work in: without the interpreter lock, and in the floating-point environment that
/// the options say. That of the calling thread may be another, and constants are folded on it.
template <class F> auto compiling(const compiler::CompileOptions& options, const F& work) {
  const Unlocked unlock;
  const FloatEnvironment environment(options.flushes_denormals);
  return work();
}

/// Of the library's algorithms for a product, so many are measured.
constexpr int kMostAlgorithms = 8;

/// `tuner`: variant(text, variants, measure) as compiler::Tuning::choose has it, measure(variant) giving seconds;
/// way(text, ways, measure) as choose_way; and
/// framework(text, call, plans), plans being functions that give an Executable: ours, framework, tuned, alone
/// (compiler::FrameworkCandidate).
compiler::Tuning tuning_of(const nb::object& tuner, const std::string& device) {
  const auto choose = [&tuner](const std::string& text, int variants, const std::function<double(int)>& measure) {
    const Locked lock;
    return nb::cast<int>(tuner.attr("variant")(text, variants, nb::cpp_function([&measure](int variant) {
                                                 const Unlocked unlock;
                                                 return measure(variant);
                                               })));
  };
  const auto framework = [&tuner, device](const compiler::FrameworkCandidate& candidate) {
    const Locked lock;
    nb::dict plans;
    const auto add = [&plans, &device](const char* name, const std::function<plan::Plan()>& make) {
      plans[name] = nb::cpp_function([&make, &device] {
        plan::Plan plan = [&] {
          const Unlocked unlock;
          return make();
        }();
        return executable_of(std::move(plan), device, nullptr);
      });
    };
    add("ours", candidate.ours), add("framework", candidate.framework), add("tuned", candidate.tuned),
        add("alone", candidate.alone);
    return nb::cast<std::string>(tuner.attr("framework")(candidate.text, candidate.call, plans));
  };
  const auto choose_way = [&tuner](const std::string& text, const std::vector<std::string>& ways,
                                   const std::function<double(int)>& measure) {
    const Locked lock;
    return nb::cast<std::string>(tuner.attr("way")(text, ways, nb::cpp_function([&measure](int way) {
                                                     const Unlocked unlock;
                                                     return measure(way);
                                                   })));
  };
  const std::shared_ptr<const runtime::Device> on = runtime::device(device);
  const auto seconds = [on](const plan::Kernel& kernel, int64_t extent, const std::vector<int64_t>& arguments) {
    return on->seconds_of(kernel, extent, arguments);
  };
  const auto algorithms = [on](const plan::Product& p, int64_t bytes) {
    return on->algorithms(p, bytes, kMostAlgorithms);
  };
  const auto product_seconds = [on](const plan::Product& p, int64_t bytes) { return on->seconds_of(p, bytes); };
  return {.seconds = seconds,
          .choose = choose,
          .algorithms = algorithms,
          .product_seconds = product_seconds,
          .choose_way = choose_way,
          .framework = framework};
}

/// What all compiling functions are given.
struct CompileRequest {
  compiler::CompileOptions options;
  std::string device;  // where the plan is to run: a name that runtime::device knows
  nb::object tuner;    // None, or who chooses between measured variants (tuning.py)

  CompileRequest(const std::string& options, std::string device, nb::object tuner)
      : options(compiler::options_of(options)), device(std::move(device)), tuner(std::move(tuner)) {
    require(this->options.target.name() == runtime::device(this->device)->target(),
            "compile options are of another device");
  }
  /// `callback`: progress(done, total), or None. It and Ctrl-C may raise out of the compiler.
  compiler::Job job(const nb::object& callback, compiler::SharedKernels* shared) const {
    compiler::Job job;
    job.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    job.shared = shared;
    if (!tuner.is_none() && options.target.tunes()) job.tuning = tuning_of(tuner, device);
    job.library_has = [on = runtime::device(device)](const plan::Product& p, int64_t bytes) {
      return on->has_algorithm(p, bytes);
    };
    job.progress = [&callback, signals = SignalCheck()](int64_t done, int64_t total) mutable {
      signals();
      const Locked lock;
      if (!callback.is_none()) callback(done, total);
    };
    return job;
  }
};

json record(const compiler::Timing& timing, double seconds) {
  json passes = json::array();
  for (const Pipeline::Record& r : timing.passes)
    passes.push_back({{"pass", r.pass},
                      {"seconds", r.seconds},
                      {"nodes_before", r.nodes_before},
                      {"nodes_after", r.nodes_after},
                      {"changed", r.changed},
                      {"skipped", r.skipped}});
  return {{"passes", passes},
          {"seconds", seconds},
          {"schedule_seconds", timing.schedule_seconds},
          {"code_seconds", timing.code_seconds},
          {"kernels", timing.kernels},
          {"distinct_kernels", timing.distinct_kernels},
          {"compiled_kernels", timing.compiled_kernels}};
}

/// Runs `make(job, timing)`, which gives a plan, without the interpreter lock. `earlier`: seconds that were spent on it
/// before.
template <class F>
std::unique_ptr<CoreExecutable> compiled(const CompileRequest& request, const nb::object& callback,
                                         compiler::SharedKernels* shared, double earlier, const F& make) {
  const auto start = Clock::now();
  compiler::Timing timing;
  const compiler::Job job = request.job(callback, shared);
  plan::Plan plan = compiling(request.options, [&] {
    plan::Plan made = make(job, &timing);
    malloc_trim(0);  // what code generation needed is the step's to use
    return made;
  });
  return executable_of(std::move(plan), request.device, record(timing, earlier + seconds_since(start)));
}

/// What sizes change is learned for `shared`, from what `lower(job)` gives for a sample's.
template <class F>
void learn(compiler::SharedKernels& shared, const compiler::CompileOptions& options, const F& lower) {
  compiling(options, [&] {
    compiler::Job job;
    job.shared = &shared;
    for (const compiler::LoweredPlan& part : lower(job)) shared.learn(part);
  });
}

std::vector<compiler::LoweredPlan> only(compiler::LoweredPlan plan) {
  std::vector<compiler::LoweredPlan> one;
  one.push_back(std::move(plan));
  return one;
}

std::unique_ptr<CoreExecutable> compile(const std::string& graph, const std::string& name, const std::string& options,
                                        const nb::object& callback, compiler::SharedKernels* shared,
                                        const std::string& device, nb::object tuner,
                                        const compiler::GivenAway& given_away) {
  const CompileRequest request(options, device, std::move(tuner));
  return compiled(request, callback, shared, 0, [&](const compiler::Job& job, compiler::Timing* timing) {
    return compiler::compile(import_graph(graph, request.options.generator), name, request.options, job, timing,
                             given_away);
  });
}

void learn_graph(const std::string& graph, const std::string& name, const std::string& options,
                 compiler::SharedKernels& shared) {
  const compiler::CompileOptions o = compiler::options_of(options);
  learn(shared, o, [&](const compiler::Job& job) {
    return only(compiler::lower(import_graph(graph, o.generator), name, o, job));
  });
}

nb::dict as_dict(const compiler::Footprint& f) {
  nb::dict d;
  d["saved"] = f.saved, d["temporary"] = f.temporary, d["results"] = f.results, d["again_flops"] = f.again_flops;
  return d;
}

/// (graph, inputs that its results replace); (formula, gradient, inputs of the plan; -1: the gradient).
using Formulas = std::vector<std::pair<std::string, std::vector<int64_t>>>;
using Updates = std::vector<std::tuple<int64_t, int64_t, std::vector<int64_t>>>;

std::vector<compiler::Update> all_of(const Updates& updates) {
  std::vector<compiler::Update> all;
  for (const auto& [formula, gradient, inputs] : updates)
    all.push_back({.formula = formula, .gradient = gradient, .inputs = inputs});
  return all;
}
std::vector<plan::Foreach> kernels_of(const Formulas& formulas, const compiler::CompileOptions& o) {
  std::vector<plan::Foreach> kernels;
  for (const auto& [graph, in_place] : formulas)
    kernels.push_back(compiler::compile_foreach(import_graph(graph), in_place,
                                                "update" + std::to_string(kernels.size()), o, compiler::Entry::Plan));
  return kernels;
}
/// For a plan that is only looked at.
std::vector<plan::Foreach> without_code(const Formulas& formulas, const compiler::CompileOptions& o) {
  std::vector<plan::Foreach> kernels;
  for (const auto& [graph, in_place] : formulas)
    kernels.push_back(
        compiler::lower_foreach(import_graph(graph), in_place, "update" + std::to_string(kernels.size()), o).foreach);
  return kernels;
}

struct JointGraph {
  CompileRequest request;
  std::unique_ptr<compiler::JointGraph> joint;
  double seconds = 0;  // importing and preparing; counted to the forward plan

  JointGraph(const std::string& graph, int64_t primals, int64_t forward_outputs, const std::string& name,
             const std::string& options, int64_t defer_from, const std::string& device, nb::object tuner,
             const std::vector<int64_t>& undefined)
      : request(options, device, std::move(tuner)) {
    const auto start = Clock::now();
    compiling(request.options, [&] {
      joint = std::make_unique<compiler::JointGraph>(
          import_graph(graph, request.options.generator), primals, forward_outputs, name, request.options,
          defer_from < 0 ? std::numeric_limits<int64_t>::max() : defer_from, defer_from < 0, undefined);
    });
    seconds = seconds_since(start);
  }
  std::unique_ptr<CoreExecutable> forward(const nb::object& callback, compiler::SharedKernels* shared) const {
    return compiled(request, callback, shared, seconds, [&](const compiler::Job& job, compiler::Timing* timing) {
      return joint->forward(request.options, job, timing);
    });
  }
  void learn_forward(compiler::SharedKernels& shared) const {
    learn(shared, request.options,
          [&](const compiler::Job& job) { return only(joint->lower_forward(request.options, job)); });
  }
  std::unique_ptr<CoreExecutable> deferred(const nb::object& callback, compiler::SharedKernels* shared) const {
    return compiled(request, callback, shared, 0, [&](const compiler::Job& job, compiler::Timing* timing) {
      return joint->deferred(request.options, job, timing);
    });
  }
  void learn_deferred(compiler::SharedKernels& shared) const {
    learn(shared, request.options,
          [&](const compiler::Job& job) { return only(joint->lower_deferred(request.options, job)); });
  }
  std::unique_ptr<CoreExecutable> backward(const std::vector<bool>& defined, bool overwrites,
                                           const std::vector<int64_t>& unmade, const nb::object& callback,
                                           compiler::SharedKernels* shared) const {
    return compiled(request, callback, shared, 0, [&](const compiler::Job& job, compiler::Timing* timing) {
      return joint->backward(defined, request.options, job, timing, overwrites, unmade);
    });
  }
  void learn_backward(const std::vector<bool>& defined, bool overwrites, const std::vector<int64_t>& unmade,
                      compiler::SharedKernels& shared) const {
    learn(shared, request.options, [&](const compiler::Job& job) {
      return only(joint->lower_backward(defined, request.options, job, nullptr, overwrites, unmade));
    });
  }
  std::unique_ptr<CoreExecutable> step(const std::vector<bool>& defined, const Formulas& formulas,
                                       const Updates& updates, const nb::object& callback,
                                       compiler::SharedKernels* shared) const {
    return compiled(request, callback, shared, seconds, [&](const compiler::Job& job, compiler::Timing* timing) {
      return joint->step(defined, kernels_of(formulas, request.options), all_of(updates), request.options, job, timing);
    });
  }
  void learn_step(const std::vector<bool>& defined, const Formulas&, const Updates&,
                  compiler::SharedKernels& shared) const {
    learn(shared, request.options,
          [&](const compiler::Job& job) { return joint->lower_parts_of_step(defined, request.options, job); });
  }
  std::unique_ptr<CoreExecutable> backward_step(const std::vector<bool>& defined, bool overwrites,
                                                const std::vector<int64_t>& unmade, const Formulas& formulas,
                                                const Updates& updates, const nb::object& callback,
                                                compiler::SharedKernels* shared) const {
    return compiled(request, callback, shared, 0, [&](const compiler::Job& job, compiler::Timing* timing) {
      return joint->backward_step(defined, kernels_of(formulas, request.options), all_of(updates), request.options, job,
                                  timing, overwrites, unmade);
    });
  }
  void learn_backward_step(const std::vector<bool>& defined, bool overwrites, const std::vector<int64_t>& unmade,
                           const Formulas&, const Updates&, compiler::SharedKernels& shared) const {
    learn(shared, request.options, [&](const compiler::Job& job) {
      return only(joint->lower_backward_of_step(defined, request.options, job, nullptr, overwrites, unmade));
    });
  }
  template <class F> nb::dict footprint_of(const F& find) const {
    return as_dict(compiling(request.options, [&] { return find(request.options); }));
  }
  void cut(double price) {
    compiling(request.options, [&] { joint->cut(price); });
  }
  /// As it will be with the threads that there are now: a plan without a budget does not depend on their number.
  nb::dict footprint(const Formulas& formulas, const Updates& updates) const {
    compiler::CompileOptions now = request.options;
    now.workers = runtime::thread_count();
    return footprint_of([&](const compiler::CompileOptions&) {
      return joint->footprint(now, without_code(formulas, now), all_of(updates));
    });
  }
  nb::dict fit(int64_t budget, const Formulas& formulas, const Updates& updates) {
    return footprint_of([&](const compiler::CompileOptions& o) {
      return joint->fit(budget, o, without_code(formulas, o), all_of(updates));
    });
  }
  nb::dict fit_step(int64_t budget, const std::vector<bool>& defined, const Formulas& formulas,
                    const Updates& updates) {
    return footprint_of([&](const compiler::CompileOptions& o) {
      return joint->fit_step(budget, defined, without_code(formulas, o), all_of(updates), o);
    });
  }
};

struct Foreach {
  std::unique_ptr<runtime::Foreach> loaded;
  double compile_seconds = 0;  // 0 for a stored one
  runtime::StepTime time;      // of the runs since forget_time: an optimizer's step runs once for each group

  Foreach(plan::Foreach plan, const std::string& on, double compile_seconds = 0)
      : loaded(runtime::device(on)->load(std::move(plan))), compile_seconds(compile_seconds) {}
  const plan::Foreach& plan() const { return loaded->plan(); }

  static Foreach compiled(const std::string& graph, const std::vector<int64_t>& in_place, const std::string& name,
                          const std::string& options, const std::string& device) {
    const auto start = Clock::now();
    const compiler::CompileOptions o = compiler::options_of(options);
    return compiling(o, [&] {
      return Foreach(compiler::compile_foreach(import_graph(graph), in_place, name, o), device, seconds_since(start));
    });
  }
  bool run(const std::vector<std::vector<uintptr_t>>& tensors, const std::vector<int64_t>& numels,
           const std::vector<double>& scalars, uintptr_t stream) {
    const int64_t wanted = loaded->tensor_inputs();
    std::vector<void*> pointers;
    for (size_t i = 0; i < tensors.size(); ++i) {
      require(static_cast<int64_t>(tensors[i].size()) == wanted,
              plan().name + ": " + std::to_string(tensors[i].size()) + " pointers for a tensor, it takes " +
                  std::to_string(wanted));
      for (uintptr_t p : tensors[i]) {
        if (p == 0 && numels.at(i) > 0) throw InternalError(plan().name + ": no memory for a tensor");
        pointers.push_back(reinterpret_cast<void*>(p));
      }
    }
    require(tensors.size() == numels.size(), plan().name + ": pointers and sizes differ in number");
    const Unlocked unlock;
    if (!runtime::writes_apart(plan(), pointers, numels)) return false;
    runtime::StepTime run;
    {
      const runtime::StepTimer timer(&run);
      loaded->run(pointers, numels, scalars, reinterpret_cast<void*>(stream));
    }
    if (time.seconds == 0) time.start = run.start;
    time.seconds += run.seconds, time.thread = run.thread;
    time.parts.insert(time.parts.end(), run.parts.begin(), run.parts.end());
    return true;
  }
  std::string report() const {
    const plan::Foreach& p = plan();
    return json{{"name", p.name},
                {"cpu", p.device.empty() ? p.cpu : p.device},
                {"kernel", p.kernel.name},
                {"origins", p.origins},
                {"code_bytes", p.kernel.code.size()},
                {"compile", {{"seconds", compile_seconds}}},
                {"code", plan::code_hash(p.kernel)},
                {"time", json_of(time)}}
        .dump();
  }
};

}  // namespace

void bind_compiler(nb::module_& m) {
  nb::class_<compiler::SharedKernels>(m, "SharedKernels",
                                      "Kernels that the plans of one graph for different sizes share.")
      .def(nb::init<>());
  // `options`: compiler/options.h's, as python/trainc/base/options.py writes them. `shared`: where kernels are looked
  // for, and kept. `learn_...`: nothing is compiled; what sizes change is learned for `shared`.
  const auto shared = [] { return nb::arg("shared").none() = nb::none(); };
  const auto progress = [] { return nb::arg("progress") = nb::none(); };
  m.def("compile", &compile, nb::arg("json"), nb::arg("name"), nb::arg("options"), progress(), shared(),
        nb::arg("device") = "cpu", nb::arg("tuner") = nb::none(), nb::arg("given_away") = compiler::GivenAway{},
        "`given_away`: pairs of an input and an output that may take its memory.");
  m.def("learn", &learn_graph, nb::arg("json"), nb::arg("name"), nb::arg("options"), nb::arg("shared"));
  nb::class_<JointGraph>(m, "JointGraph", "A joint graph, cut into a forward and a backward plan.")
      .def(nb::init<const std::string&, int64_t, int64_t, const std::string&, const std::string&, int64_t,
                    const std::string&, nb::object, const std::vector<int64_t>&>(),
           nb::arg("json"), nb::arg("primals"), nb::arg("forward_outputs"), nb::arg("name"), nb::arg("options"),
           nb::arg("defer_from") = cost::kDeferredBytes, nb::arg("device") = "cpu", nb::arg("tuner") = nb::none(),
           nb::arg("undefined") = std::vector<int64_t>{},
           "`defer_from`: bytes of an output from which on it is deferred; -1: none is, and forward and backward are "
           "of one plan. `undefined`: inputs, tangents among them, that no backward will have.")
      .def("forward", &JointGraph::forward, progress(), shared())
      .def("learn_forward", &JointGraph::learn_forward, nb::arg("shared"))
      .def("backward", &JointGraph::backward, nb::arg("defined"), nb::arg("overwrites") = true,
           nb::arg("unmade") = std::vector<int64_t>{}, progress(), shared(),
           "`unmade`: gradients that are given as None.")
      .def("learn_backward", &JointGraph::learn_backward, nb::arg("defined"), nb::arg("overwrites"), nb::arg("unmade"),
           nb::arg("shared"))
      .def("step", &JointGraph::step, nb::arg("defined"), nb::arg("formulas"), nb::arg("updates"), progress(), shared())
      .def("learn_step", &JointGraph::learn_step, nb::arg("defined"), nb::arg("formulas"), nb::arg("updates"),
           nb::arg("shared"))
      .def("backward_step", &JointGraph::backward_step, nb::arg("defined"), nb::arg("overwrites"), nb::arg("unmade"),
           nb::arg("formulas"), nb::arg("updates"), progress(), shared())
      .def("learn_backward_step", &JointGraph::learn_backward_step, nb::arg("defined"), nb::arg("overwrites"),
           nb::arg("unmade"), nb::arg("formulas"), nb::arg("updates"), nb::arg("shared"))
      .def("deferred", &JointGraph::deferred, progress(), shared())
      .def("learn_deferred", &JointGraph::learn_deferred, nb::arg("shared"))
      .def("footprint", &JointGraph::footprint, nb::arg("formulas") = Formulas{}, nb::arg("updates") = Updates{},
           "Bytes that the two plans need beside inputs and gradients: {saved, temporary, results, again_flops}; with "
           "updates in the backward.")
      .def("fit", &JointGraph::fit, nb::arg("budget"), nb::arg("formulas") = Formulas{}, nb::arg("updates") = Updates{},
           "Cuts so that the footprint fits, or is the least there is; gives it.")
      .def("fit_step", &JointGraph::fit_step, nb::arg("budget"), nb::arg("defined"), nb::arg("formulas"),
           nb::arg("updates"))
      .def("cut", &JointGraph::cut, nb::arg("price"))
      .def_prop_ro(
          "chunked", [](const JointGraph& j) { return j.joint->chunked(); },
          "Whether a loss is made in chunks of rows.")
      .def_prop_ro("again_flops", [](const JointGraph& j) { return j.joint->again_flops(); })
      .def_prop_ro("price", [](const JointGraph& j) { return j.joint->price(); })
      .def_prop_ro("deferred_outputs", [](const JointGraph& j) { return j.joint->deferred_outputs(); })
      .def_prop_ro("saved_inputs", [](const JointGraph& j) { return j.joint->saved_inputs(); })
      .def_prop_ro("saved_bytes", [](const JointGraph& j) { return j.joint->saved_bytes(); });
  nb::class_<Foreach>(m, "Foreach", "An elementwise update of many tensors: an optimizer's step.")
      .def("run", &Foreach::run, nb::arg("tensors"), nb::arg("numels"), nb::arg("scalars"), nb::arg("stream") = 0,
           "False, and nothing is done, where a tensor that is written shares memory with another.")
      .def(
          "forget_time", [](Foreach& f) { f.time = {}; }, "What report() tells is then of the runs that follow.")
      .def("report", &Foreach::report)
      .def("save", [](const Foreach& f) {
        const std::string bytes = plan::save(f.plan());
        return nb::bytes(bytes.data(), bytes.size());
      });
  m.def(
      "compile_foreach",
      [](const std::string& graph, const std::vector<int64_t>& in_place, const std::string& name,
         const std::string& options,
         const std::string& device) { return new Foreach(Foreach::compiled(graph, in_place, name, options, device)); },
      nb::arg("json"), nb::arg("in_place"), nb::arg("name"), nb::arg("options"), nb::arg("device") = "cpu");
  m.def(
      "load_foreach",
      [](const nb::bytes& bytes, const std::string& device) {
        return new Foreach(plan::load_foreach({static_cast<const char*>(bytes.data()), bytes.size()}), device);
      },
      nb::arg("bytes"), nb::arg("device") = "cpu", "What `save` wrote.");
}

}  // namespace trainc::bindings
