// Movements: views, joins, pads, and the backwards and scatters of slices. A tensor has no memory order here, so that a
// view, a copy and a detach of the same shape are one thing.
#include <algorithm>

#include "frontend/aten/table.h"
#include "frontend/formulas/slices.h"

namespace trainc::frontend::aten {
namespace {

using formulas::Range;

Outcome same_elements(const Call& c) { return c.give(reshape(c.arg(0, "self").tensor(), c.type().shape)); }
Outcome expand(const Call& c) { return c.give(c.arg(0, "self").tensor()); }

Outcome permute_row(const Call& c) {
  Value x = c.arg(0, "self").tensor();
  Dims order = c.arg(1, "dims").ints();
  for (int64_t& axis : order) axis = wrap_axis(c, axis, x.rank());
  return c.give(permute(x, order));
}

Value transposed(Value x, int64_t i, int64_t j) {
  Dims order = all_axes(x.rank());
  std::swap(order[i], order[j]);
  return permute(x, order);
}
Outcome transpose(const Call& c) {
  Value x = c.arg(0, "self").tensor();
  if (x.rank() == 0) return c.give(x);
  return c.give(transposed(x, wrap_axis(c, c.arg(1, "dim0").integer(), x.rank()),
                           wrap_axis(c, c.arg(2, "dim1").integer(), x.rank())));
}
Outcome t_row(const Call& c) {
  Value x = c.arg(0, "self").tensor();
  return c.give(x.rank() < 2 ? x : transposed(x, 0, 1));
}

/// [n1, n2] -> [1, n1, 1, n2] -> [r1, n1, r2, n2] -> [r1 n1, r2 n2]
Outcome repeat(const Call& c) {
  Value x = c.arg(0, "self").tensor();
  const Dims times = c.arg(1, "repeats").ints();
  Dims ones, many;
  for (size_t i = 0; i < times.size(); ++i) {
    const int64_t axis = static_cast<int64_t>(i) - static_cast<int64_t>(times.size()) + x.rank();
    const int64_t n = axis < 0 ? 1 : x.size(axis);
    ones.insert(ones.end(), {1, n});
    many.insert(many.end(), {times[i], n});
  }
  return c.give(reshape(broadcast(reshape(x, ones), many), c.type().shape));
}

// --- slices
/// Python's slice of an axis of size n: negative ends count from the end, all are clamped.
Range range_of(const Call& c, const Dims& shape, int dim_at) {
  Range r{wrap_axis(c, c.arg(dim_at, "dim").integer(0), shape.size()), 0, 0, c.arg(dim_at + 3, "step").integer(1)};
  const int64_t n = shape.at(r.axis);
  auto wrapped = [n](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + n : i, 0, n); };
  r.start = wrapped(c.arg(dim_at + 1, "start").integer(0));
  const int64_t end = std::max(r.start, wrapped(c.arg(dim_at + 2, "end").integer(INT64_MAX)));
  r.extent = (end - r.start + r.step - 1) / r.step;
  return r;
}

int64_t index_of(const Call& c, const Arg& a, int64_t size) {
  const int64_t i = a.integer();
  if (i < -size || i >= size) c.fail("index " + std::to_string(i) + " of size " + std::to_string(size));
  return i < 0 ? i + size : i;
}

Outcome slice(const Call& c) {
  Value x = c.arg(0, "self").tensor();
  return c.give(sliced(x, range_of(c, x.shape(), 1)));
}
Outcome slice_backward(const Call& c) {
  const Dims shape = c.arg(1, "input_sizes").ints();
  const Range r = range_of(c, shape, 2);
  return c.give(unsliced(c.arg(0, "grad_output").tensor(), r, shape[r.axis], c.full({}, c.dtype(), 0)));
}
Outcome slice_scatter(const Call& c) {
  Value x = c.arg(0, "self").tensor();
  const Range r = range_of(c, x.shape(), 2);
  return c.give(slice_scattered(x, c.arg(1, "src").as(c.dtype()), r));
}

Outcome select(const Call& c) {
  Value x = c.arg(0, "self").tensor();
  const int64_t axis = wrap_axis(c, c.arg(1, "dim").integer(), x.rank());
  return c.give(reshape(sliced(x, {axis, index_of(c, c.arg(2, "index"), x.size(axis)), 1, 1}), c.type().shape));
}
Outcome select_backward(const Call& c) {
  const Dims shape = c.arg(1, "input_sizes").ints();
  const int64_t axis = wrap_axis(c, c.arg(2, "dim").integer(), shape.size());
  Dims one = shape;
  one[axis] = 1;
  const Range r{axis, index_of(c, c.arg(3, "index"), shape[axis]), 1, 1};
  return c.give(unsliced(reshape(c.arg(0, "grad_output").tensor(), one), r, shape[axis], c.full({}, c.dtype(), 0)));
}
Outcome select_scatter(const Call& c) {
  Value x = c.arg(0, "self").tensor();
  const int64_t axis = wrap_axis(c, c.arg(2, "dim").integer(), x.rank());
  Dims one = x.shape();
  one[axis] = 1;
  const Range r{axis, index_of(c, c.arg(3, "index"), x.size(axis)), 1, 1};
  return c.give(slice_scattered(x, reshape(c.arg(1, "src").as(c.dtype()), one), r));
}

// --- several at once; the sizes are those of the results
Outcome split(const Call& c) {
  Value x = c.arg(0, "self").tensor();
  const int64_t axis = wrap_axis(c, c.arg(2, "dim").integer(0), x.rank());
  Results parts;
  for (int64_t start = 0; parts.size() < c.types.size();) {
    const int64_t extent = c.type(parts.size()).shape.at(axis);
    const Range r{axis, start, extent, 1};
    parts.push_back(c.give(sliced(x, r), parts.size()));
    start += extent;
  }
  return parts;
}
Outcome unbind(const Call& c) {
  Value x = c.arg(0, "self").tensor();
  const int64_t axis = wrap_axis(c, c.arg(1, "dim").integer(0), x.rank());
  Results parts;
  for (int64_t i = 0; i < x.size(axis); ++i)
    parts.push_back(c.give(reshape(sliced(x, {axis, i, 1, 1}), c.type(i).shape), i));
  return parts;
}

Outcome cat(const Call& c) {
  std::vector<const Node*> parts;
  for (const auto& x : c.arg(0, "tensors").tensors())
    if (x && !(x->shape() == Dims{0} && c.type().shape.size() != 1))  // eager passes over an empty vector of any rank
      parts.push_back(cast(*x, c.dtype()).node);
  if (parts.empty()) return c.give(c.full(c.type().shape, c.dtype(), 0));
  return c.b.concat(parts, wrap_axis(c, c.arg(1, "dim").integer(0), c.type().rank()));
}
Outcome stack(const Call& c) {
  const int64_t axis = wrap_axis(c, c.arg(1, "dim").integer(0), c.type().rank());
  Dims one = c.type().shape;
  one[axis] = 1;
  std::vector<const Node*> parts;
  for (const auto& x : c.arg(0, "tensors").tensors()) parts.push_back(reshape(cast(*x, c.dtype()), one).node);
  return c.b.concat(parts, axis);
}

Outcome flip(const Call& c) {
  Value x = c.arg(0, "self").tensor();
  Dims axes = c.arg(1, "dims").ints();
  for (int64_t& axis : axes) axis = wrap_axis(c, axis, x.rank());
  std::sort(axes.begin(), axes.end());
  return c.give(x.rank() == 0 ? x : with(x, c.b.reverse(x.node, axes)));
}

Outcome roll(const Call& c) {
  Value x = c.arg(0, "self").tensor();
  const Dims shifts = c.arg(1, "shifts").ints();
  Dims axes = c.arg(2, "dims").none() ? Dims{} : c.arg(2, "dims").ints();
  if (x.numel() == 0) return c.give(x);
  if (axes.empty()) {  // over the flat tensor
    x = reshape(x, {x.numel()});
    axes = {0};
  }
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t axis = wrap_axis(c, axes[i], x.rank()), n = x.size(axis), head = ((-shifts.at(i)) % n + n) % n;
    if (head == 0) continue;
    const Node* parts[] = {sliced(x, {axis, head, n - head, 1}).node, sliced(x, {axis, 0, head, 1}).node};
    x = with(x, c.b.concat(parts, axis));
  }
  return c.give(reshape(x, c.type().shape));
}

/// The last three axes in `parts`, in another `order`, and together again. Axes before them stay.
Value shuffled(Value x, const Dims& parts, const Dims& order, const Dims& shape) {
  const int64_t before = x.rank() - 3;
  Dims split(x.shape().begin(), x.shape().begin() + before), axes = all_axes(before);
  split.insert(split.end(), parts.begin(), parts.end());
  for (int64_t axis : order) axes.push_back(before + axis);
  return reshape(permute(reshape(x, split), axes), shape);
}

/// [C r r, H, W] -> [C, H r, W r]
Outcome pixel_shuffle(const Call& c) {
  Value x = c.arg(0, "self").tensor();
  const int64_t r = c.arg(1, "upscale_factor").integer(), channels = x.size(x.rank() - 3) / (r * r);
  const Dims parts{channels, r, r, x.size(x.rank() - 2), x.size(x.rank() - 1)};
  return c.give(shuffled(x, parts, {0, 3, 1, 4, 2}, c.type().shape));
}
/// [C, H r, W r] -> [C r r, H, W]
Outcome pixel_unshuffle(const Call& c) {
  Value x = c.arg(0, "self").tensor();
  const int64_t r = c.arg(1, "downscale_factor").integer();
  if (x.numel() == 0) return std::nullopt;  // eager gives another shape than its own meta kernel says
  const Dims parts{x.size(x.rank() - 3), x.size(x.rank() - 2) / r, r, x.size(x.rank() - 1) / r, r};
  return c.give(shuffled(x, parts, {0, 2, 4, 1, 3}, c.type().shape));
}

/// [n, g c, rest...] -> [n, c g, rest...]
Outcome channel_shuffle(const Call& c) {
  Value x = c.arg(0, "self").tensor();
  const int64_t g = c.arg(1, "groups").integer(), n = x.size(0), channels = x.size(1);
  const int64_t rest = n * channels == 0 ? 0 : x.numel() / (n * channels);
  return c.give(reshape(permute(reshape(x, {n, g, channels / g, rest}), {0, 2, 1, 3}), c.type().shape));
}

/// pad holds (low, high) from the last axis on; negative ones cut off.
Outcome constant_pad(const Call& c) {
  if (!c.fits(2, "value")) return std::nullopt;
  Value x = c.arg(0, "self").tensor();
  const Dims pad = c.arg(1, "pad").ints();
  Value fill = c.arg(2, "value").none() ? c.full({}, c.dtype(), 0) : c.arg(2, "value").as(c.dtype());
  Dims low(x.rank(), 0), high(x.rank(), 0);
  for (size_t i = 0; i < pad.size() / 2; ++i) {
    const int64_t axis = x.rank() - 1 - i, l = pad[2 * i], h = pad[2 * i + 1];
    const int64_t cut = std::max<int64_t>(0, -l),
                  extent = x.size(axis) + std::min<int64_t>(0, l) + std::min<int64_t>(0, h);
    if (extent < 0) return std::nullopt;
    x = sliced(x, {axis, cut, extent, 1});
    low[axis] = std::max<int64_t>(0, l);
    high[axis] = std::max<int64_t>(0, h);
  }
  return c.give(with(x, c.b.pad(x.node, fill.node, low, high)));
}

}  // namespace

void add_views(Table& t) {
  t.add(
      {"aten.view.default", "aten._unsafe_view.default", "aten.reshape.default", "aten._reshape_alias.default",
       "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims", "aten.unsqueeze.default", "aten.alias.default",
       "aten.detach.default", "aten.clone.default", "aten.contiguous.default", "aten.lift_fresh_copy.default",
       "aten.view_copy.default", "aten.alias_copy.default", "aten.detach_copy.default"},
      same_elements);
  t.add({"aten.expand.default", "aten.expand_copy.default"}, expand);
  t.add({"aten.permute.default"}, permute_row);
  t.add({"aten.transpose.int"}, transpose);
  t.add({"aten.t.default"}, t_row);
  t.add({"aten.repeat.default"}, repeat);
  t.add({"aten.slice.Tensor"}, slice);
  t.add({"aten.slice_backward.default"}, slice_backward);
  t.add({"aten.slice_scatter.default"}, slice_scatter);
  t.add({"aten.select.int"}, select);
  t.add({"aten.select_backward.default"}, select_backward);
  t.add({"aten.select_scatter.default"}, select_scatter);
  t.add({"aten.split.Tensor", "aten.split_with_sizes.default"}, split);
  t.add({"aten.unbind.int"}, unbind);
  t.add({"aten.cat.default"}, cat);
  t.add({"aten.stack.default"}, stack);
  t.add({"aten.flip.default"}, flip);
  t.add({"aten.roll.default"}, roll);
  t.add({"aten.pixel_shuffle.default"}, pixel_shuffle);
  t.add({"aten.pixel_unshuffle.default"}, pixel_unshuffle);
  t.add({"aten.channel_shuffle.default"}, channel_shuffle);
  t.add({"aten.constant_pad_nd.default"}, constant_pad);
}

}  // namespace trainc::frontend::aten
