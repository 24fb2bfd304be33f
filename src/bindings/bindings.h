// trainc._core, the module between Python and C++. Takes: Python objects; tensors as pointers (ints), graphs as JSON in
// the wire format of frontend/aten/import.h. Gives: plans that run. Includes: everything; decides nothing.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "runtime/device.h"

namespace trainc::bindings {

namespace nb = nanobind;

/// What Python calls Executable.
struct CoreExecutable {
  std::shared_ptr<runtime::Executable> loaded;
  const plan::Plan& plan() const { return loaded->plan(); }
  std::vector<int> read_inputs;   // buffers of the caller's that some step reads, empty ones aside
  nlohmann::json compile_record;  // how it was made, for report(); null for a loaded plan
};
/// `device`: a name that runtime::device knows.
std::unique_ptr<CoreExecutable> executable_of(plan::Plan, const std::string& device, nlohmann::json compile_record);
/// Replaces the line in each origin where it is in `to`: the lines of a stored plan are those of the program that
/// stored it.
void rename(std::vector<std::string>& origins, const std::map<std::string, std::string>& to);

/// {start, seconds, thread, parts: [[thread, start, seconds]]}; seconds of Python's time.perf_counter.
nlohmann::json json_of(const runtime::StepTime&);
/// As JSON: {steps, temporary, saved, buffers: those of the plan's arena and of the handle's}.
std::string layout_text(const plan::Plan&);

/// Takes the interpreter lock by `take`. CPython, before 3.14, ends a thread that wants it while the interpreter itself
/// ends: it unwinds the thread, and where that comes to a destructor the process aborts, in the middle of an orderly
/// end. Such a thread waits here until the process is gone, as in later versions.
template <class F> void take_lock(const F& take) noexcept {
  try {
    take();
  } catch (...) {
    while (true) pause();
  }
}

/// Without the interpreter lock, for a scope.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() {
    take_lock([this] { PyEval_RestoreThread(state_); });
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

/// With the interpreter lock, for a scope, on whatever thread.
class Locked {
 public:
  Locked() {
    take_lock([this] { state_ = PyGILState_Ensure(); });
  }
  ~Locked() { PyGILState_Release(state_); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  PyGILState_STATE state_{};
};

/// A reference that may be dropped without the interpreter lock.
std::shared_ptr<void> keep(nb::object);
/// (dtype, shape, strides)
nb::tuple layout(const plan::Buffer&);

void bind_machine(nb::module_&);     // CPU, threads, version, build
void bind_random(nb::module_&);      // bernoulli
void bind_executable(nb::module_&);  // Executable, load_plan
void bind_operation(nb::module_&);   // register_operation
void bind_xla(nb::module_&);         // publish, xla_handler
void bind_watch(nb::module_&);       // CallWatch, AttributeWatch, same_contents, type_version
void bind_reference(nb::module_&);   // import_text, optimized_text, evaluate
void bind_compiler(nb::module_&);    // compile, JointGraph, Foreach

/// Has the framework draw a mask once, and sets the runtime to the generator that gives the same. Needs the interpreter
/// lock; does nothing where torch is not imported. Throws InternalError where neither generator does: masks would not
/// be eager's.
void find_mask_generator();

/// Raises KeyboardInterrupt where Ctrl-C was pressed, without the interpreter lock held; looks at most every 20 ms,
/// because taking the lock can mean to wait for another Python thread.
class SignalCheck {
 public:
  void operator()();

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace trainc::bindings
