// Convolutions as contractions over windows, in channels-last order (docs/frontend.md): the result's rows are (image,
// place), its columns output channels; of several groups, each is an entry of the contraction's batch. The weight's
// gradient sums over those rows; the input's gradient is a convolution of dy with the weight's taps reversed, one for
// each phase of the stride. A transposed convolution is that gradient, and has the others in exchanged roles. A
// depthwise convolution (as many groups as channels, each of one) has no products of matrices: it is sums over the taps
// of products, channels along vectors. No size is 0.
#pragma once
#include <optional>

#include "frontend/formulas/value.h"

namespace trainc::formulas {

/// One number a spatial axis, of which there are one or more. Padding of either side may be negative: places cut off.
struct Convolution {
  Dims stride, low, high, dilation, kernel, size, grid;  // size: of the input; grid: of the output
  int64_t images, channels, out, groups;
  size_t axes() const { return kernel.size(); }
  bool depthwise() const { return groups > 1 && groups == channels && groups == out; }
};
/// x: [N, C, size...], w: [O, C / groups, kernel...]; low, high: the padding before and behind.
Convolution convolution_of(const Dims& x, const Dims& w, Dims stride, Dims low, Dims high, Dims dilation);

/// x of any float dtype, contracted and summed in `sums`, in which the result is: [N, O, grid...]. bias: [O], of
/// `sums`.
Value convolution(Value x, Value w, std::optional<Value> bias, const Convolution&, DType sums);
/// dy: [N, O, grid...] -> x's shape, in `sums`.
Value convolution_input_gradient(Value dy, Value w, const Convolution&, DType sums);
/// -> w's shape.
Value convolution_weight_gradient(Value dy, Value x, const Convolution&, DType sums);
/// The gradient of what was added to each channel of y: [N, O, grid...] -> [O]
Value convolution_bias_gradient(Value dy, DType sums);

}  // namespace trainc::formulas
