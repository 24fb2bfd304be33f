#include <nanobind/ndarray.h>

#include <optional>

#include "bindings/bindings.h"
#include "reference/philox.h"
#include "runtime/cpu/random.h"
#include "support/error.h"

namespace trainc::bindings {

using runtime::MersenneTwister;

static std::vector<uint8_t> to_vector(const nb::bytes& b) {
  const auto* p = static_cast<const uint8_t*>(b.data());
  return {p, p + b.size()};
}

/// Real tensors while it lives, also inside a trace (whose modes would make fakes of ours).
struct OutsideModes {
  nb::object context = nb::module_::import_("torch.utils._python_dispatch").attr("_disable_current_modes")();
  OutsideModes() { context.attr("__enter__")(); }
  ~OutsideModes() { context.attr("__exit__")(nb::none(), nb::none(), nb::none()); }
};

void find_mask_generator() {
  static bool found = false;  // under the interpreter lock
  if (found || !nb::cast<nb::dict>(nb::module_::import_("sys").attr("modules")).contains("torch")) return;
  const OutsideModes outside;
  constexpr int64_t n = 256;
  const nb::module_ torch = nb::module_::import_("torch");
  const nb::object generator = torch.attr("Generator")();
  generator.attr("manual_seed")(20240607);
  const auto state = nb::cast<nb::bytes>(generator.attr("get_state")().attr("numpy")().attr("tobytes")());
  const nb::object mask = torch.attr("empty")(n, nb::arg("dtype") = torch.attr("bool"), nb::arg("device") = "cpu");
  mask.attr("bernoulli_")(0.5, nb::arg("generator") = generator);
  const std::vector<uint8_t> wanted = to_vector(nb::cast<nb::bytes>(mask.attr("numpy")().attr("tobytes")()));
  for (const MaskGenerator candidate : {MaskGenerator::Twister, MaskGenerator::Mkl}) {
    MersenneTwister twister(to_vector(state));
    std::vector<uint8_t> got(n);
    runtime::bernoulli(candidate, twister, 0.5, got.data(), n);
    if (got != wanted) continue;
    set_mask_generator(candidate);
    found = true;
    return;
  }
  throw InternalError("this build of torch draws dropout masks in a way that trainc does not know");
}

void bind_random(nb::module_& m) {
  m.def(
      "bernoulli",
      [](const nb::bytes& state, int64_t numel, double p, std::optional<std::string> vendor) {
        if (numel < 0 || !(p >= 0 && p <= 1))
          throw UserError("bernoulli: numel must not be negative, and p lie in [0, 1]");
        if (vendor && *vendor != "amd" && *vendor != "intel")
          throw UserError("bernoulli: vendor is \"amd\", \"intel\" or None");
        if (!vendor) find_mask_generator();
        const MaskGenerator generator = !vendor              ? mask_generator()
                                        : *vendor == "intel" ? MaskGenerator::Mkl
                                                             : MaskGenerator::Twister;
        MersenneTwister twister(to_vector(state));
        auto* mask = new uint8_t[numel];
        const nb::capsule owner(mask, [](void* p) noexcept { delete[] static_cast<uint8_t*>(p); });
        {
          const Unlocked unlock;
          runtime::bernoulli(generator, twister, p, mask, numel);
        }
        const std::vector<uint8_t> after = twister.state();
        const size_t shape[] = {static_cast<size_t>(numel)};
        return nb::make_tuple(nb::cast(nb::ndarray<nb::numpy, bool>(mask, 1, shape, owner)),
                              nb::bytes(after.data(), after.size()));
      },
      nb::arg("state"), nb::arg("numel"), nb::arg("p"), nb::arg("vendor") = nb::none(),
      "A mask as Tensor.bernoulli_(p) draws it from a generator in this state, and the state after. vendor: as builds "
      "of torch with "
      "MKL's random numbers do on Intel (\"intel\"), as all others do (\"amd\"), as the loaded torch does (None).");
  m.def(
      "dropout_mask",
      [](uint64_t seed, uint64_t offset, int64_t numel, int64_t threads, int64_t vector, double p) {
        if (numel < 0 || threads <= 0 || (vector != 1 && vector != 2 && vector != 4 && vector != 8) ||
            numel % vector != 0)
          throw UserError("dropout_mask: numel is a multiple of vector, which is 1, 2, 4 or 8; threads is positive");
        const std::vector<uint8_t> mask = reference::dropout_mask(seed, offset, numel, threads, vector, p);
        return nb::bytes(reinterpret_cast<const char*>(mask.data()), mask.size());
      },
      nb::arg("seed"), nb::arg("offset"), nb::arg("numel"), nb::arg("threads"), nb::arg("vector"), nb::arg("p"),
      "A mask (bytes 0 and 1) as torch's dropout draws it on a GPU, from a generator with this seed and offset, on so "
      "many threads that take `vector` elements "
      "at a time; p: the probability of 1.");
  m.def("mask_generator", [] {
    find_mask_generator();
    return std::string(name_of(mask_generator()));
  });
}

}  // namespace trainc::bindings
