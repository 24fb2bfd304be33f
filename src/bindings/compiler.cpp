// The compiler from Python: progress bars, Ctrl-C, and the interpreter lock released meanwhile.
#ifdef TRAINC_HAS_COMPILER
#include "compiler/compiler.h"

#include <chrono>
#include <thread>

#include "bindings/bindings.h"
#include "runtime/foreach.h"
#include "support/error.h"

namespace trainc::bindings {
namespace {

using nlohmann::json;

/// The progress callback of the call under way; None between calls.
struct Progress {
  nb::object callback = nb::none();
  SignalCheck signals;
};

compiler::Options options(const std::shared_ptr<Progress>& progress) {
  compiler::Options o{.level = cpu_level()};
  o.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  o.progress = [progress](int64_t done, int64_t total) {
    progress->signals();
    nb::gil_scoped_acquire lock;
    if (!progress->callback.is_none()) progress->callback(done, total);
  };
  return o;
}

/// Runs `work` without the interpreter lock, with `callback` in place; gives its result and the seconds it took.
template <class F> auto timed(const std::shared_ptr<Progress>& progress, const nb::object& callback, const F& work) {
  struct Restore {
    Progress& p;
    ~Restore() { p.callback = nb::none(); }
  } restore{*progress};
  progress->callback = callback;
  const auto start = std::chrono::steady_clock::now();
  auto result = [&] {
    nb::gil_scoped_release unlock;
    return work();
  }();
  return std::pair(std::move(result), std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

/// Compiles a plan and makes it ready; `earlier`: seconds that were spent on it before.
template <class F> std::unique_ptr<CoreExecutable> ready(const std::shared_ptr<Progress>& progress, const nb::object& callback, double earlier, const F& work) {
  auto [plan, seconds] = timed(progress, callback, work);
  return executable_of(std::move(plan), json{{"seconds", earlier + seconds}});
}

std::unique_ptr<CoreExecutable> compile(const std::string& graph, const std::string& name, const nb::object& callback) {
  const auto progress = std::make_shared<Progress>();
  return ready(progress, callback, 0, [&] { return compiler::compile(frontend::import_aten(graph), name, options(progress)); });
}

struct JointGraph {
  std::shared_ptr<Progress> progress = std::make_shared<Progress>();
  std::unique_ptr<compiler::JointGraph> joint;
  double seconds = 0;  // importing, passes, cut
  JointGraph(const std::string& graph, int64_t primals, int64_t forward_outputs, const std::string& name, const nb::object& callback) {
    std::tie(joint, seconds) = timed(progress, callback, [&] {
      return std::make_unique<compiler::JointGraph>(frontend::import_aten(graph), primals, forward_outputs, name, options(progress));
    });
  }
};

struct Foreach {
  std::unique_ptr<runtime::Foreach> foreach;
  std::string name;
  double seconds = 0;
  Foreach(const std::string& graph, const std::vector<int64_t>& in_place, const std::string& name) : name(name) {
    const auto progress = std::make_shared<Progress>();
    auto [made, s] = timed(progress, nb::none(), [&] {
      frontend::Imported imported = frontend::import_aten(graph);
      std::vector<runtime::ForeachInput> inputs(imported.graph.input_count, {.scalar = true});  // one that is not read: a scalar that nobody looks at
      for (const Node& n : imported.graph.nodes())
        if (n.op == Op::Input) inputs[n.as<InputAttr>().index] = {.scalar = n.type.rank() == 0, .dtype = n.type.dtype};
      compiler::Foreach f = compiler::compile_foreach(std::move(imported), in_place, name, options(progress));
      return std::make_unique<runtime::Foreach>(std::move(f.kernel), std::move(inputs), f.chunk);
    });
    foreach = std::move(made);
    seconds = s;
  }
  void run(const std::vector<std::vector<uintptr_t>>& tensors, const std::vector<int64_t>& numels, const std::vector<double>& scalars) const {
    std::vector<void*> pointers;
    for (const auto& tensor : tensors) {
      require(static_cast<int64_t>(tensor.size()) == foreach->tensor_inputs(),
              name + ": " + std::to_string(tensor.size()) + " pointers for a tensor, it takes " + std::to_string(foreach->tensor_inputs()));
      for (uintptr_t p : tensor) pointers.push_back(reinterpret_cast<void*>(p));
    }
    nb::gil_scoped_release unlock;
    foreach->run(pointers, numels, scalars);
  }
  std::string report() const {
    return json{{"name", name}, {"cpu", name_of(cpu_level())}, {"kernel", foreach->kernel().name},
                {"code_bytes", foreach->kernel().code.size()}, {"compile", {{"seconds", seconds}}}}.dump();
  }
};

}  // namespace

void bind_compiler(nb::module_& m) {
  m.def("compile", &compile, nb::arg("json"), nb::arg("name"), nb::arg("progress") = nb::none());
  nb::class_<JointGraph>(m, "JointGraph", "A joint graph, cut into a forward and a backward plan.")
      .def(nb::init<const std::string&, int64_t, int64_t, const std::string&, const nb::object&>(), nb::arg("json"), nb::arg("primals"),
           nb::arg("forward_outputs"), nb::arg("name"), nb::arg("progress") = nb::none())
      .def("forward", [](const JointGraph& j, const nb::object& callback) {
        return ready(j.progress, callback, j.seconds, [&] { return j.joint->forward(); });
      }, nb::arg("progress") = nb::none())
      .def("backward", [](const JointGraph& j, const std::vector<bool>& defined, const nb::object& callback) {
        return ready(j.progress, callback, 0, [&] { return j.joint->backward(defined); });
      }, nb::arg("defined"), nb::arg("progress") = nb::none())
      .def_prop_ro("saved_inputs", [](const JointGraph& j) { return j.joint->saved_inputs(); })
      .def_prop_ro("saved_bytes", [](const JointGraph& j) { return j.joint->saved_bytes(); });
  nb::class_<Foreach>(m, "Foreach", "An elementwise update of many tensors: an optimizer's step.")
      .def(nb::init<const std::string&, const std::vector<int64_t>&, const std::string&>(), nb::arg("json"), nb::arg("in_place"), nb::arg("name"))
      .def("run", &Foreach::run, nb::arg("tensors"), nb::arg("numels"), nb::arg("scalars"))
      .def("report", &Foreach::report);
}

}  // namespace trainc::bindings
#endif  // TRAINC_HAS_COMPILER
