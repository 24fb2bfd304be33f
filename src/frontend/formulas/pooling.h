// Pools over the last two axes of an image. Average pools are those whose windows tile the image: plain means.
#pragma once
#include <optional>

#include "frontend/formulas/value.h"

namespace trainc::formulas {

/// [..., H, W] as [..., h, H/h, w, W/w]; nothing where h by w tiles do not divide it, or it is empty.
std::optional<Dims> tiled(const Dims& image, int64_t h, int64_t w);
/// The mean of each tile: [..., h, w]. `tiles`: of `tiled`.
Value mean_of_tiles(Value x, const Dims& tiles);
/// dy [..., h, w] -> [..., H, W], each tile a share of its gradient.
Value mean_of_tiles_backward(Value dy, const Dims& tiles);

/// One number an axis of two.
struct MaxPool { Dims kernel, stride, padding, dilation; };
/// value: of x's dtype; index: i64, the maximum's place within its image, row * W + column. Both [N, C, h, w].
struct Pooled { Value value, index; };
/// x: floats [N, C, H, W], of any size but 0. As PyTorch's kernels: the first of equals, but the last NaN; padding is
/// no candidate.
Pooled max_pool(Value x, const MaxPool&);
/// dy and index: [N, C, h, w]. Each window gives its gradient to the place it took its maximum from, windows in order:
/// [N, C, H, W].
Value max_pool_backward(Value dy, Value index, int64_t height, int64_t width);

}  // namespace trainc::formulas
