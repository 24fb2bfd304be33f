// Which contractions the vendor's library may compute. Inside schedule only.
#pragma once
#include <optional>

#include "loop/loop.h"
#include "plan/plan.h"
#include "schedule/schedule.h"
#include "support/remark.h"

namespace trainc::schedule {

/// A contraction's operands as expressions over the variables of a nest: b and along, and row (lhs) or column (rhs).
struct Contraction {
  int64_t batch, m, n, k;
  loop::Expr lhs, rhs;
  int b, row, column, along;
};

/// The product where the library can compute the whole group, or why it cannot: operands lie in memory as they are,
/// with rows or columns side by side, and of the group the contraction alone is stored, or what its epilogue makes of
/// it. Its arguments are lhs, rhs (the buffers that the expressions load), `stored`, what the epilogue adds, and sums.
struct VendorProduct {
  plan::Product product;
  int lhs, rhs;
  const Node *stored, *bias, *addend, *sums;  // the last three: nullptr where there is none
};
OrRefused<VendorProduct> vendor_product(const Contraction&, const loop::LoopNest&, const Schedule&, const Group&,
                                        bool tf32);

}  // namespace trainc::schedule
