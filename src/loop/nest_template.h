// The template of a nest: the nest without its numbers. Nests of one template differ in numbers alone, and one kernel
// can serve them all if those that differ are its parameters: given to it at the call.
#pragma once
#include <string>
#include <vector>

#include "loop/loop.h"

namespace trainc::loop {

/// Numbers that may differ between nests of one template: extents, coefficients and constants of index arithmetic, and
/// constants of the computation, in the order of the statements (terms of a sum in an order that does not depend on
/// their coefficients).
struct NestTemplate {
  // equal texts: one template. What must be a number where code is made of it (tiles, registers, lanes) is part of it
  std::string text;
  std::vector<int64_t> integers;
  std::vector<double> reals;
  // of integers: those that should be parameters whether they were seen to differ or not (named sizes, lengths of
  // loops)
  std::vector<bool> always;
  std::vector<int64_t> scratch;  // elements of each Scratch buffer
};
NestTemplate template_of(const LoopNest&);

/// Which numbers of a template are parameters of the kernel; the others are part of it.
struct ParameterMask {
  std::vector<bool> integers, reals;
  bool none() const;
};

/// The nest with its parameters read from two more arguments, `sizes` (i64) and `factors` (f64), in the order of the
/// template; each argument is there only if something is in it. Scratch buffers have `scratch` elements. Needs: sizes
/// fit. Gives: a nest that computes, with its own numbers, what `nest` computes, bit for bit; and, with those of
/// another nest of the template that has the same numbers where they are no parameters, what that one computes.
LoopNest parameterize(const LoopNest& nest, const ParameterMask&, const std::vector<int64_t>& scratch);

}  // namespace trainc::loop
