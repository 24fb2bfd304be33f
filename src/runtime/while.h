// Loops whose trips are known when they run (support/while_operation.h). Includes: runtime/operation.h.
#pragma once
#include "runtime/operation.h"

namespace trainc::runtime {

/// The operation of a Start whose target is kWhile: it runs its body until that says that it is over, and is over when
/// `start` returns. InternalError where the step does not fit the body.
std::unique_ptr<Operation> make_while(const plan::Plan&, const plan::Step&);

}  // namespace trainc::runtime
