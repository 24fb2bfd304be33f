// Normalization, (x - mean) / sqrt(var + eps), and its derivatives: layer, batch, group and instance norm differ in the
// axes. Floats, computed in their dtype. Statistics are two passes, var divided by n; the derivatives are written with
// the normalised value, which loses fewer digits than PyTorch's sums of x where the mean is large. A scale or a shift
// broadcasts against x; the caller reshapes it.
#pragma once
#include <optional>

#include "frontend/formulas/value.h"

namespace trainc::formulas {

/// `value`: before scale and shift. The reduced axes of the statistics are kept, of size 1.
struct Normalized { Value value, mean, var, rstd; };
Normalized normalize(Value x, const Dims& axes, double eps);
/// The same, but NaN where the square of an element overflows: so do eager's sums of layer and group norm (Welford's)
/// of whole vectors, which tells who looks for it that training has diverged. Where only the sum of squares overflows,
/// the result is 0, as in eager.
Normalized normalize_or_nan(Value x, const Dims& axes, double eps);
/// By statistics that are known (batch norm in evaluation). They broadcast against x.
Normalized normalize_by(Value x, Value mean, Value var, double eps);
/// y * scale + shift, as far as they are there.
Value affine(Value y, std::optional<Value> scale, std::optional<Value> shift);

struct NormGradients { Value x, scale, shift; };
/// Of affine(normalize(x, axes)), given its mean and rstd (as `normalize` shapes them). Those of scale and shift are
/// sums over `parameter_axes`, which they lack.
NormGradients norm_backward(Value dy, Value x, Value mean, Value rstd, std::optional<Value> scale, const Dims& axes,
                            const Dims& parameter_axes);
/// The same of batch norm, whose parameters have the axes that the statistics have: all gradients share two sums. x:
/// [N, C, ...], scale [C]. `training`: mean and rstd are x's own; else they are constants.
NormGradients batch_norm_backward(Value dy, Value x, Value mean, Value rstd, std::optional<Value> scale, bool training);

/// [C] along axis 1 of `rank`: [1, C, 1, ...]
Value along_channels(Value parameter, int64_t rank);
/// What batch norm reduces over: all axes but 1.
Dims all_but_channels(int64_t rank);
/// What layer norm reduces over: the last n.
Dims last_axes(int64_t rank, int64_t n);
/// How group norm sees [N, C, ...]: [N, G, C/G, rest], reduced over axes 2 and 3.
struct ChannelGroups {
  int64_t images, channels, rest, groups;
  Value grouped(Value x) const { return reshape(x, {images, groups, channels / groups, rest}); }
  Value per_channel(Value parameter) const { return reshape(parameter, {1, groups, channels / groups, 1}); }
  Value per_group(Value statistic) const { return reshape(statistic, {images, groups, 1, 1}); }
};

}  // namespace trainc::formulas
