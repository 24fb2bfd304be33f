// The function of a reduction, a region on scalars: which operation of the graph it is, and what is done where it is
// none. StableHLO leaves the order of the operands' grouping to us, and promises that the initial value changes
// nothing.
#pragma once
#include "frontend/stablehlo/call.h"

namespace trainc::frontend::stablehlo {

class Monoid {
 public:
  Monoid(const Call& c, const Json& region) : call_(c), region_(region) {}
  const Call& call() const { return call_; }

  /// The operation that the region is, alone, on two scalars of one operand.
  std::optional<Op> operation() const;
  /// Whether it is no monoid but a scatter's: what is there, less what comes.
  bool subtracts() const;
  /// The region for each element of tensors of one shape.
  Values combine(const Values& x, const Values& y) const;

 private:
  const Json* alone() const;  // the region's one operation, whose result it gives

  const Call& call_;
  const Json& region_;
};

/// The reduction over `axes` (ascending), which vanish. `init`: scalars.
Values reduced(const Monoid&, Values x, const Values& init, const Dims& axes);

}  // namespace trainc::frontend::stablehlo
