// Products of matrices and vectors as the graph's contraction of rank 3. Floats of one dtype, in which they are summed.
#pragma once
#include "frontend/formulas/shapes.h"

namespace trainc::formulas {

/// [M, K] as [1, M, K].
inline Value rank3(Value x) { return reshape(x, {1, x.size(0), x.size(1)}); }
/// [K] as [1, K, 1].
inline Value column(Value x) { return reshape(x, {1, x.numel(), 1}); }

/// x [..., K] times w [K, N]: [..., N].
inline Value linear(Value x, Value w) {
  const Dims rows(x.shape().begin(), x.shape().end() - 1);
  return reshape(matmul(reshape(x, {1, product(rows), x.shape().back()}), rank3(w)), join({rows, {w.size(1)}}));
}

/// beta * bias + alpha * product; beta 0 does not read the bias (its NaNs vanish).
inline Value with_bias(Value product, Value bias, double beta, double alpha) {
  if (alpha != 1) product = product * alpha;
  if (beta == 0) return product;
  return product + (beta == 1 ? bias : bias * beta);
}

}  // namespace trainc::formulas
