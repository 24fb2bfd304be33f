#include "bindings/bindings.h"
#include "support/cpu.h"

namespace trainc::bindings {

void bind_machine(nb::module_& m) {
  m.def("cpu_level", [] { return std::string(name_of(cpu_level())); }, "The level that kernels are compiled for; TRAINC_CPU forces a lower one.");
  m.def("machine_cpu_level", [] { return std::string(name_of(machine_cpu_level())); });
  m.def("cpu_model", &cpu_model);
  m.def("cpu_is_intel", &cpu_is_intel);
  m.def("thread_count", &runtime::thread_count);
  m.def("version", [] { return std::string(TRAINC_VERSION); });
}

}  // namespace trainc::bindings
