// A loop whose trips are known when it runs: an operation that the runtime has itself (runtime/while.cpp).
//   In a graph: an Extern of this target. Operands: what it carries, what its body reads beside, and a bool, whether
//   there is a first trip. Results: what it carries, behind the last trip. Arguments: {"carried": n, "graph": text of
//   the body}, which takes the operands but the last, and gives what it carries and whether it goes on.
//   In a plan: a Start. Arguments: {"carried": n, "body": which of Plan::bodies, "flushes_denormals": the arithmetic
//   that it was compiled for}.
#pragma once

namespace trainc {

inline constexpr const char* kWhile = "trainc_started.while";
/// Loops within one another, at most: front ends refuse deeper ones, and so does who loads a plan.
inline constexpr int kDeepestLoop = 32;

}  // namespace trainc
