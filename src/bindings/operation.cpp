// Operations that run beside the kernels, done by Python: a collective of the framework's, say.
#include <nanobind/stl/string.h>

#include "bindings/bindings.h"
#include "runtime/operation.h"

namespace trainc::bindings {
namespace {

/// What a Start of Python's gave: `over(seconds)`, `finish()`, `cancel()`.
class PythonFlight : public runtime::InFlight {
 public:
  explicit PythonFlight(nb::object flight) : flight_(keep(std::move(flight))) {}
  bool over_within(std::chrono::milliseconds time) override {
    const Locked lock;
    return nb::cast<bool>(flight().attr("over")(std::chrono::duration<double>(time).count()));
  }
  void check() override {
    const Locked lock;
    flight().attr("finish")();
  }
  double over_at() override {
    const Locked lock;
    return nb::cast<double>(flight().attr("over_at"));
  }
  void cancel() override {
    const Locked lock;
    flight().attr("cancel")();
  }

 private:
  nb::handle flight() const { return static_cast<PyObject*>(flight_.get()); }
  std::shared_ptr<void> flight_;
};

class PythonOperation : public runtime::Operation {
 public:
  explicit PythonOperation(nb::object operation) : operation_(keep(std::move(operation))) {}
  std::unique_ptr<runtime::InFlight> start(const std::vector<void*>& arguments) const override {
    const Locked lock;
    nb::list pointers;
    for (void* p : arguments) pointers.append(reinterpret_cast<uintptr_t>(p));
    return std::make_unique<PythonFlight>(nb::handle(static_cast<PyObject*>(operation_.get()))(nb::tuple(pointers)));
  }

 private:
  std::shared_ptr<void> operation_;
};

void register_operation(const std::string& name, nb::object make) {
  runtime::register_operation(name, [make = keep(std::move(make))](const plan::Plan& plan, const plan::Step& step) {
    const Locked lock;
    nb::list arguments;
    for (const int b : step.arguments) arguments.append(layout(plan.buffers[b]));
    nb::object made = nb::handle(static_cast<PyObject*>(make.get()))(step.arguments_json, arguments);
    return std::make_unique<PythonOperation>(std::move(made));
  });
}

}  // namespace

void bind_operation(nb::module_& m) {
  m.def(
      "register_operation", &register_operation, nb::arg("name"), nb::arg("make"),
      "Who begins the steps of plans that start `name`: `make(arguments as JSON, [(dtype, shape, strides)])`, once for "
      "each step when its plan is loaded, gives what is called with the pointers of the step's buffers (operands, then "
      "results) and gives an object with `over(seconds)`, whether it is over after at most so long; `finish()`, called "
      "then, which raises what it failed with; `over_at`, read before that: when it was over, by time.perf_counter(), "
      "or 0.0; "
      "and `cancel()`, after which it touches these buffers no more.");
}

}  // namespace trainc::bindings
