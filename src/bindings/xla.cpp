// Plans that XLA calls, and the handler by which it does.
#include "runtime/xla/handler.h"

#include "bindings/bindings.h"

namespace trainc::bindings {

void bind_xla(nb::module_& m) {
  m.def(
      "publish",
      [](const std::string& name, const CoreExecutable& e, bool flushes_denormals) {
        runtime::xla::publish(name, e.loaded, flushes_denormals);
      },
      nb::arg("name"), nb::arg("executable"), nb::arg("flushes_denormals"),
      "Lets XLA call the plan by this name, until the process ends.");
  m.def(
      "needed_inputs", [](const CoreExecutable& e) { return runtime::xla::needed_inputs(e.plan()); },
      nb::arg("executable"), "The inputs that a call of the plan may be given alone.");
  m.def(
      "xla_handler",
      [] { return nb::capsule(reinterpret_cast<void*>(&runtime::xla::handle), "xla._CUSTOM_CALL_TARGET"); },
      "The handler of XLA's foreign functions that calls published plans.");
  m.def(
      "register_xla_handler",
      [](uintptr_t api, const std::string& name) {
        runtime::xla::register_with(*reinterpret_cast<const runtime::xla::FfiApi*>(api), name);
      },
      nb::arg("api"), nb::arg("name"), "Registers it with the XLA whose interface (XLA_FFI_Api) lies at this address.");
}

}  // namespace trainc::bindings
