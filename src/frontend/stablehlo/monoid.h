// The function of a reduction, a region on scalars: which operation of the graph it is, and what is done where it is
// none. StableHLO leaves the order of the operands' grouping to us, and promises that the initial value changes
// nothing; XLA keeps to an order and counts it once, and programs that break the promise get that.
#pragma once
#include "frontend/stablehlo/call.h"

namespace trainc::frontend::stablehlo {

constexpr int64_t kMostInOrder = 64;  // elements one after the other: each is the function's nodes once more

class Monoid {
 public:
  Monoid(const Call& c, const Json& region) : call_(c), region_(region) {}
  const Call& call() const { return call_; }

  /// Whether it is of one operand, be it complex.
  bool single() const;
  /// The operation that the region is, alone, on two scalars of one operand.
  std::optional<Op> operation() const;
  /// The scalar of a dtype that changes nothing, of a single operation; of a complex one its parts.
  std::optional<Values> neutral(DType) const;
  /// Whether it is no monoid but a scatter's: what is there, less what comes.
  bool subtracts() const;
  /// The region for each element of tensors of one shape.
  Values combine(const Values& x, const Values& y) const;

 private:
  const Json* alone() const;  // the region's one operation, whose result it gives

  const Call& call_;
  const Json& region_;
};

/// x is what one operand or several are, complex ones as two. The reduction over `axes` (ascending), which vanish.
/// `init`: scalars, counted once. Single operations, and what takes several operands (argmax with its index), are
/// grouped at will; another function is applied in order. `inside`: which elements are there at all; of single
/// operations the others are to be neutral.
Values reduced(const Monoid&, Values x, const Values& init, const Dims& axes, std::optional<Value> inside = {});

}  // namespace trainc::frontend::stablehlo
