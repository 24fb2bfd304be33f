// A contraction's operands and epilogue as expressions. Inside lower only.
#pragma once
#include <functional>
#include <vector>

#include "lower/contraction.h"
#include "lower/expressions.h"

namespace trainc::lower {

/// Operands and epilogue are written once over variables with their true extents, where index arithmetic simplifies
/// best, and the generator's own coordinates are put in their place.
class ContractExpressions {
 public:
  /// Reads the operands of `contract`: values that are `own` as own_value says. Sets all of `spec` but the epilogue.
  ContractExpressions(Expressions&, const Node* contract, const LoweringOptions&);
  /// For spec.epilogue: binds the sum, and makes and stores `values` (the contraction, and what is aligned with it).
  /// `also`: one more statement, given the sum.
  Stmt epilogue(const Schedule&, const std::vector<const Node*>& values, const Expr& b, const Expr& m, const Expr& n,
                const Expr& sum, const std::function<Stmt(const Expr&)>& also = nullptr);
  lower::ContractionSpec spec;

 private:
  /// Whether the rhs lies in panels, as schedule::prepare has it for few rows of the lhs.
  bool in_panels(Expressions&, const Expr& rhs);
  Expressions& e_;
  const Node* c_;
  int b_, m_, n_, k_;  // variables that the operands are read at while they are written
};

}  // namespace trainc::lower
