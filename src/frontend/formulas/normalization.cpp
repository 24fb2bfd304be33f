#include "frontend/formulas/normalization.h"

#include "frontend/formulas/shapes.h"

namespace trainc::formulas {

Normalized normalize(Value x, const Dims& axes, double eps) {
  const double n = count_of(x, axes);
  Value mean = sum(x, axes) / n, d = x - mean;
  Value var = sum(d * d, axes) / n;
  Value rstd = 1.0 / sqrt(var + eps);
  return {(x - mean) * rstd, mean, var, rstd};
}

Normalized normalize_or_nan(Value x, const Dims& axes, double eps) {
  const double n = count_of(x, axes);
  Value mean = sum(x, axes) / n, d = x - mean, square = d * d;
  return normalize_by(x, mean, sum(square * 0.0 + square, axes) / n, eps);  // infinity * 0 is NaN
}

Normalized normalize_by(Value x, Value mean, Value var, double eps) {
  Value rstd = 1.0 / sqrt(var + eps);
  return {(x - mean) * rstd, mean, var, rstd};
}

Value affine(Value y, std::optional<Value> scale, std::optional<Value> shift) {
  if (scale) y = y * *scale;
  if (shift) y = y + *shift;
  return y;
}

NormGradients norm_backward(Value dy, Value x, Value mean, Value rstd, std::optional<Value> scale, const Dims& axes,
                            const Dims& parameter_axes) {
  Value normalized = (x - mean) * rstd;
  const double n = count_of(normalized, axes);
  Value d = scale ? dy * *scale : dy;
  Value dx = (d - sum(d, axes) / n - normalized * (sum(d * normalized, axes) / n)) * rstd;
  Value dscale = sum(dy * normalized, parameter_axes, false);
  return {dx, dscale, sum(dy, parameter_axes, false)};
}

NormGradients batch_norm_backward(Value dy, Value x, Value mean, Value rstd, std::optional<Value> scale,
                                  bool training) {
  const int64_t rank = x.rank();
  const Dims axes = all_but_channels(rank);
  Value normalized = (x - mean) * rstd;
  // The scale is one number where the sums are.
  Value dshift = sum(dy, axes, false), dscale = sum(dy * normalized, axes, false);
  const double n = count_of(x, axes);
  Value d = training ? dy - along_channels(dshift / n, rank) - normalized * along_channels(dscale / n, rank) : dy;
  return {d * (scale ? rstd * along_channels(*scale, rank) : rstd), dscale, dshift};
}

Value along_channels(Value parameter, int64_t rank) {
  Dims shape(rank, 1);
  shape.at(1) = parameter.numel();
  return reshape(parameter, shape);
}

Dims all_but_channels(int64_t rank) {
  Dims axes = all_axes(rank);
  axes.erase(axes.begin() + 1);
  return axes;
}

Dims last_axes(int64_t rank, int64_t n) {
  Dims axes = all_axes(rank);
  axes.erase(axes.begin(), axes.end() - n);
  return axes;
}

}  // namespace trainc::formulas
