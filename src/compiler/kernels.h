// What plans of one graph for different sizes share: kernels whose numbers are given at the call. Inside compiler only.
#pragma once
#include <mutex>
#include <optional>
#include <unordered_map>

#include "compiler/compiler.h"
#include "loop/form.h"
#include "lower/lower.h"

namespace trainc::compiler {

/// What a kernel is given at the call beside its buffers: the lifted numbers of one nest (loop/form.h).
struct Given {
  std::vector<int64_t> sizes;
  std::vector<double> factors;
};

/// A kernel that serves nests of one form.
struct SharedKernel {
  loop::Form form;  // the nest that it was made of
  loop::Lifted lifted;
  std::vector<int64_t> scratch;
  std::optional<plan::Kernel> kernel;  // none until its code is there

  /// Numbers of another nest of the form that are not this kernel's and not given to it, and Scratch buffers that do
  /// not fit: 0 where it serves.
  size_t mismatches(const loop::Form& other) const;
  Given given(const loop::Form& other) const;
};

struct SharedKernels::Impl {
  struct Role {
    lower::Pinned pinned;
    std::vector<std::vector<loop::Form>> samples;                                       // of each sample, the nests
    std::unordered_map<std::string, std::vector<std::unique_ptr<SharedKernel>>> known;  // by form
  };
  std::mutex mutex;  // held while a plan is compiled
  std::unordered_map<std::string, Role> roles;
};

/// The kernel that serves the nest of this form in a role's plan, or one to be made: with those numbers lifted in which
/// nests of samples and of earlier sizes differ from it.
SharedKernel& shared_kernel(SharedKernels::Impl::Role&, const loop::Form&);

}  // namespace trainc::compiler
