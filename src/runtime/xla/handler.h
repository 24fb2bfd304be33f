// Plans that XLA calls. Takes: loaded plans, under names; XLA's calls, which say such a name. Gives: effects. Includes:
// runtime, plan.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/xla/ffi.h"

namespace trainc::plan {
struct Plan;
}
namespace trainc::runtime {
class Executable;
}

namespace trainc::runtime::xla {

/// Makes a plan known by `name` until the process ends: XLA may keep what calls it for as long. A name that is known
/// already keeps its plan. `flushes_denormals`: the arithmetic that it was compiled for, whatever that of the thread is
/// on which XLA calls.
/// Throws InternalError where a plan cannot be called so: it needs the framework within (extern steps, masks of its
/// generator, the memory of another plan), or takes or gives tensors that are not dense.
void publish(const std::string& name, std::shared_ptr<Executable>, bool flushes_denormals);

/// The inputs that somebody needs, in order: read by a step, given back, or whose memory a result may take.
std::vector<int64_t> needed_inputs(const plan::Plan&);

/// The handler of all of them: attribute "plan" is the name, arguments are the plan's inputs, all or those that are
/// needed, results its outputs. It asks nothing of Python.
FfiError* handle(FfiCall*);

/// Registers the handler as `name` with an XLA that has no other way to it than its interface's functions.
/// InternalError where that is of a version that is not known, or refuses.
void register_with(const FfiApi&, const std::string& name);

}  // namespace trainc::runtime::xla
