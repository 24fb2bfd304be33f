#include "compiler/kernels.h"

#include <bit>

#include "cost/memory.h"

namespace trainc::compiler {

SharedKernels::SharedKernels() : impl(std::make_unique<Impl>()) {}
SharedKernels::~SharedKernels() = default;

void SharedKernels::learn(const LoweredPlan& sample) {
  std::lock_guard lock(impl->mutex);
  std::vector<loop::Form>& forms = impl->roles[sample.plan.name].samples.emplace_back();
  for (const loop::LoopNest& nest : sample.nests) forms.push_back(loop::form_of(nest));
}

size_t SharedKernel::mismatches(const loop::Form& other) const {
  size_t n = 0;
  for (size_t i = 0; i < form.integers.size(); ++i) n += !lifted.integers[i] && form.integers[i] != other.integers[i];
  for (size_t i = 0; i < form.reals.size(); ++i)
    n += !lifted.reals[i] && std::bit_cast<uint64_t>(form.reals[i]) != std::bit_cast<uint64_t>(other.reals[i]);
  for (size_t i = 0; i < scratch.size(); ++i) n += other.scratch[i] > scratch[i];
  return n;
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

size_t differences(const loop::Form& a, const loop::Form& b) {
  size_t n = 0;
  for (size_t i = 0; i < a.integers.size(); ++i) n += a.integers[i] != b.integers[i];
  return n;
}

/// Marks where two nests of one form differ.
void mark(const loop::Form& a, const loop::Form& b, loop::Lifted& lifted) {
  for (size_t i = 0; i < a.integers.size(); ++i)
    if (a.integers[i] != b.integers[i]) lifted.integers[i] = true;
  for (size_t i = 0; i < a.reals.size(); ++i)
    if (std::bit_cast<uint64_t>(a.reals[i]) != std::bit_cast<uint64_t>(b.reals[i])) lifted.reals[i] = true;
}

/// Room for other sizes.
int64_t room(int64_t numel, size_t i) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(numel * cost::kScratchForOthers))) +
         cost::kScratchOffset * static_cast<int64_t>(i + 1);
}

}  // namespace

SharedKernel& shared_kernel(SharedKernels::Impl::Role& role, const loop::Form& form) {
  auto& known = role.known[form.text];
  for (const auto& kernel : known)
    if (kernel->mismatches(form) == 0) return *kernel;

  auto made = std::make_unique<SharedKernel>();
  made->lifted = {form.always, std::vector<bool>(form.reals.size(), false)};
  // Of each sample, the nest that this one is likest to: plans of different sizes need not have the same kernels.
  for (const auto& sample : role.samples) {
    const loop::Form* nearest = nullptr;
    size_t least = form.integers.size() + 1;
    for (const loop::Form& other : sample)
      if (other.text == form.text)
        if (const size_t n = differences(form, other); n < least) least = n, nearest = &other;
    if (nearest) mark(form, *nearest, made->lifted);
  }
  // And of earlier sizes: what the samples did not show, they do.
  SharedKernel* nearest = nullptr;
  size_t least = form.integers.size() / cost::kAlikeShare + cost::kAlikeNumbers;
  for (const auto& kernel : known)
    if (const size_t n = kernel->mismatches(form); n <= least) least = n, nearest = kernel.get();
  if (nearest) {
    for (size_t j = 0; j < form.integers.size(); ++j)
      made->lifted.integers[j] = made->lifted.integers[j] || nearest->lifted.integers[j];
    for (size_t j = 0; j < form.reals.size(); ++j)
      made->lifted.reals[j] = made->lifted.reals[j] || nearest->lifted.reals[j];
    mark(form, nearest->form, made->lifted);
  }
  for (size_t s = 0; s < form.scratch.size(); ++s)
    made->scratch.push_back(made->lifted.none() ? form.scratch[s] : room(form.scratch[s], s));
  made->form = form;
  known.push_back(std::move(made));
  return *known.back();
}

}  // namespace trainc::compiler
