// What plans of one graph for different sizes share: kernels whose numbers are given at the call. Inside compiler only.
#pragma once
#include <mutex>
#include <optional>
#include <unordered_map>

#include "compiler/compiler.h"
#include "loop/nest_template.h"
#include "lower/lower.h"

namespace trainc::compiler {

/// What a shared kernel takes at the call beside its buffers: the values of its parameters for one nest
/// (loop/nest_template.h).
struct ParameterValues {
  std::vector<int64_t> sizes;
  std::vector<double> factors;
};

/// A kernel that serves nests of one template.
struct SharedKernel {
  loop::NestTemplate nest;  // that it was made of
  loop::ParameterMask parameters;
  std::vector<int64_t> scratch;
  std::optional<plan::Kernel> kernel;  // none until its code is there

  /// How many numbers of another nest of the template differ from this kernel's and are no parameters, and how many
  /// Scratch buffers do not fit: 0 where the kernel serves that nest.
  size_t mismatches(const loop::NestTemplate& other) const;
  ParameterValues values_for(const loop::NestTemplate& other) const;
};

struct SharedKernels::Impl {
  /// Of all plans of one name (the forwards for all sizes, say).
  struct Role {
    lower::FixedBlockings blockings;
    std::vector<std::vector<loop::NestTemplate>> samples;                               // of each sample, the nests
    std::unordered_map<std::string, std::vector<std::unique_ptr<SharedKernel>>> known;  // by the template's text
  };
  std::mutex mutex;  // held while a plan is compiled
  std::unordered_map<std::string, Role> roles;
};

/// The kernel that serves this nest in a role's plan, or one to be made: those numbers in which nests of samples and of
/// earlier sizes differ from it are its parameters.
SharedKernel& shared_kernel(SharedKernels::Impl::Role&, const loop::NestTemplate&);

}  // namespace trainc::compiler
