#include "bindings/bindings.h"
#include "runtime/cuda/executable.h"
#include "runtime/interpret/device.h"
#include "support/error.h"

namespace trainc::bindings {

void SignalCheck::operator()() {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_ < std::chrono::milliseconds(20)) return;
  last_ = now;
  const Locked lock;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

}  // namespace trainc::bindings

NB_MODULE(_core, m) {
  using namespace trainc::bindings;
  nb::set_leak_warnings(false);  // a model in a global variable of the user's script lives until the process ends
  m.doc() = "The compiler and the runtime of trainc. Use the package `trainc`; this module may change without notice.";
  nb::exception<trainc::UserError>(m, "UserError", PyExc_ValueError);
  nb::exception<trainc::InternalError>(m, "InternalError", PyExc_RuntimeError);
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const trainc::IndexError& e) { PyErr_SetString(PyExc_IndexError, e.what()); }
  });
  trainc::runtime::cuda::register_devices();
  trainc::runtime::interpreted::register_devices();
  bind_machine(m);
  bind_random(m);
  bind_executable(m);
  bind_operation(m);
  bind_reference(m);
  bind_compiler(m);
  bind_xla(m);
  bind_watch(m);
}
