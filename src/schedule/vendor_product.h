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
/// with rows or columns side by side, one value is stored, and it is the contraction, or its rounding. Its arguments
/// are lhs, rhs (the buffers that the expressions load) and `stored`.
struct VendorProduct {
  plan::Product product;
  int lhs, rhs;
  const Node* stored;
};
OrRefused<VendorProduct> vendor_product(const Contraction&, const loop::LoopNest&, const Schedule&, const Group&,
                                        bool tf32);

}  // namespace trainc::schedule
