#include "compiler/kernels.h"

#include <bit>

#include "cost/memory.h"

namespace trainc::compiler {

SharedKernels::SharedKernels() : impl(std::make_unique<Impl>()) {}
SharedKernels::~SharedKernels() = default;

void SharedKernels::learn(const LoweredPlan& sample) {
  std::lock_guard lock(impl->mutex);
  std::vector<loop::NestTemplate>& templates = impl->roles[sample.plan.name].samples.emplace_back();
  for (const loop::LoopNest& nest : sample.nests) templates.push_back(loop::template_of(nest));
}

size_t SharedKernel::mismatches(const loop::NestTemplate& other) const {
  size_t n = 0;
  for (size_t i = 0; i < nest.integers.size(); ++i)
    n += !parameters.integers[i] && nest.integers[i] != other.integers[i];
  for (size_t i = 0; i < nest.reals.size(); ++i)
    n += !parameters.reals[i] && std::bit_cast<uint64_t>(nest.reals[i]) != std::bit_cast<uint64_t>(other.reals[i]);
  for (size_t i = 0; i < scratch.size(); ++i) n += other.scratch[i] > scratch[i];
  return n;
}

ParameterValues SharedKernel::values_for(const loop::NestTemplate& other) const {
  ParameterValues result;
  for (size_t i = 0; i < parameters.integers.size(); ++i)
    if (parameters.integers[i]) result.sizes.push_back(other.integers[i]);
  for (size_t i = 0; i < parameters.reals.size(); ++i)
    if (parameters.reals[i]) result.factors.push_back(other.reals[i]);
  return result;
}

namespace {

size_t differences(const loop::NestTemplate& a, const loop::NestTemplate& b) {
  size_t n = 0;
  for (size_t i = 0; i < a.integers.size(); ++i) n += a.integers[i] != b.integers[i];
  return n;
}

/// Makes parameters of those numbers in which two nests of one template differ.
void mark(const loop::NestTemplate& a, const loop::NestTemplate& b, loop::ParameterMask& parameters) {
  for (size_t i = 0; i < a.integers.size(); ++i)
    if (a.integers[i] != b.integers[i]) parameters.integers[i] = true;
  for (size_t i = 0; i < a.reals.size(); ++i)
    if (std::bit_cast<uint64_t>(a.reals[i]) != std::bit_cast<uint64_t>(b.reals[i])) parameters.reals[i] = true;
}

/// Room for other sizes.
int64_t room(int64_t numel, size_t i) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(numel * cost::kScratchForOthers))) +
         cost::kScratchOffset * static_cast<int64_t>(i + 1);
}

}  // namespace

SharedKernel& shared_kernel(SharedKernels::Impl::Role& role, const loop::NestTemplate& nest) {
  auto& known = role.known[nest.text];
  for (const auto& kernel : known)
    if (kernel->mismatches(nest) == 0) return *kernel;

  auto made = std::make_unique<SharedKernel>();
  made->parameters = {nest.always, std::vector<bool>(nest.reals.size(), false)};
  // Of each sample, the nest that is most like this one: plans of different sizes need not have the same kernels.
  for (const auto& sample : role.samples) {
    const loop::NestTemplate* nearest = nullptr;
    size_t least = nest.integers.size() + 1;
    for (const loop::NestTemplate& other : sample)
      if (other.text == nest.text)
        if (const size_t n = differences(nest, other); n < least) least = n, nearest = &other;
    if (nearest) mark(nest, *nearest, made->parameters);
  }
  // And of earlier sizes: what the samples did not show, they do.
  SharedKernel* nearest = nullptr;
  size_t least = nest.integers.size() / cost::kSimilarShare + cost::kSimilarNumbers;
  for (const auto& kernel : known)
    if (const size_t n = kernel->mismatches(nest); n <= least) least = n, nearest = kernel.get();
  if (nearest) {
    for (size_t j = 0; j < nest.integers.size(); ++j)
      made->parameters.integers[j] = made->parameters.integers[j] || nearest->parameters.integers[j];
    for (size_t j = 0; j < nest.reals.size(); ++j)
      made->parameters.reals[j] = made->parameters.reals[j] || nearest->parameters.reals[j];
    mark(nest, nearest->nest, made->parameters);
  }
  for (size_t s = 0; s < nest.scratch.size(); ++s)
    made->scratch.push_back(made->parameters.none() ? nest.scratch[s] : room(nest.scratch[s], s));
  made->nest = nest;
  known.push_back(std::move(made));
  return *known.back();
}

}  // namespace trainc::compiler
