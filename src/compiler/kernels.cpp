#include "compiler/kernels.h"

#include <bit>

namespace trainc::compiler {

SharedKernels::SharedKernels() : impl(std::make_unique<Impl>()) {}
SharedKernels::~SharedKernels() = default;

bool SharedKernel::serves(const loop::Form& other) const {
  for (size_t i = 0; i < form.integers.size(); ++i)
    if (!lifted.integers[i] && form.integers[i] != other.integers[i]) return false;
  for (size_t i = 0; i < form.reals.size(); ++i)
    if (!lifted.reals[i] && std::bit_cast<uint64_t>(form.reals[i]) != std::bit_cast<uint64_t>(other.reals[i])) return false;
  for (size_t i = 0; i < scratch.size(); ++i)
    if (other.scratch[i] > scratch[i]) return false;
  return true;
}

Given SharedKernel::given(const loop::Form& other) const {
  Given result;
  for (size_t i = 0; i < lifted.integers.size(); ++i)
    if (lifted.integers[i]) result.sizes.push_back(other.integers[i]);
  for (size_t i = 0; i < lifted.reals.size(); ++i)
    if (lifted.reals[i]) result.factors.push_back(other.reals[i]);
  return result;
}

namespace {

/// Marks where two nests of one form differ.
void mark(const loop::Form& a, const loop::Form& b, loop::Lifted& lifted) {
  for (size_t i = 0; i < a.integers.size(); ++i)
    if (a.integers[i] != b.integers[i]) lifted.integers[i] = true;
  for (size_t i = 0; i < a.reals.size(); ++i)
    if (std::bit_cast<uint64_t>(a.reals[i]) != std::bit_cast<uint64_t>(b.reals[i])) lifted.reals[i] = true;
}

/// Room for other sizes. It costs nothing until it is touched; powers of two would fall on the same cache sets.
int64_t room(int64_t numel, size_t i) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(numel) * 4)) + 272 * static_cast<int64_t>(i + 1); }

}  // namespace

SharedKernel& shared_kernel(SharedKernels::Impl::Role& role, const loop::LoopNest& nest, size_t i, size_t count) {
  loop::Form form = loop::form_of(nest);
  auto& known = role.known[form.text];
  for (const auto& kernel : known)
    if (kernel->serves(form)) return *kernel;

  auto made = std::make_unique<SharedKernel>();
  made->lifted = {form.always, std::vector<bool>(form.reals.size(), false)};
  bool compared = false;
  for (const auto& sample : role.samples)
    if (sample.size() == count && sample[i].text == form.text) compared = true, mark(form, sample[i], made->lifted);
  if (!compared && !known.empty()) {  // no sample has this form: the plans of earlier sizes then say what differs
    made->lifted = known.back()->lifted;
    mark(form, known.back()->form, made->lifted);
  }
  for (size_t s = 0; s < form.scratch.size(); ++s) made->scratch.push_back(made->lifted.none() ? form.scratch[s] : room(form.scratch[s], s));
  made->form = std::move(form);
  known.push_back(std::move(made));
  return *known.back();
}

}  // namespace trainc::compiler
