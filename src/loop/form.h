// The form of a nest: the nest without its numbers. Nests of one form differ in numbers alone, and one kernel can serve
// them all if it is given those that differ at the call.
#pragma once
#include <string>
#include <vector>

#include "loop/loop.h"

namespace trainc::loop {

/// Numbers that may differ between nests of one form: extents, coefficients and constants of index arithmetic, and
/// constants of the computation, in the order of the statements (terms of a sum in an order that does not depend on
/// their coefficients).
struct Form {
  // equal texts: one form. What must be a number where code is made of it (tiles, registers, lanes) is part of it
  std::string text;
  std::vector<int64_t> integers;
  std::vector<double> reals;
  // of integers: those worth lifting whether they were seen to differ or not (named sizes, the lengths of loops)
  std::vector<bool> always;
  std::vector<int64_t> scratch;  // elements of each Scratch buffer
};
Form form_of(const LoopNest&);

/// Which numbers a kernel is given at the call; the others are part of it.
struct Lifted {
  std::vector<bool> integers, reals;
  bool none() const;
};

/// The nest with the lifted numbers read from two more arguments, `sizes` (i64) and `factors` (f64), in the order of
/// the form; each is there only if something is in it. Scratch buffers have `scratch` elements. Needs: sizes fit.
/// Gives: a nest that computes, with its own numbers, what `nest` computes, bit for bit; and, with those of another
/// nest of the form that has the same numbers where they are not lifted, what that one computes.
LoopNest lift(const LoopNest& nest, const Lifted&, const std::vector<int64_t>& scratch);

}  // namespace trainc::loop
