// Views that step through an axis or through memory, what is added or written back through them: diagonals, sliding
// windows, im2col, as_strided.
#include "frontend/formulas/strided.h"

#include <algorithm>

#include "frontend/aten/strided_view.h"
#include "frontend/aten/table.h"
#include "frontend/formulas/windows.h"

namespace trainc::frontend::aten {
namespace {

using formulas::permute_back;
using formulas::product;
using formulas::to_the_end;

Value zeros(const Call& c, const Dims& shape, DType d) { return c.full(shape, d, 0); }

// --- diagonals
formulas::Diagonal diagonal_of(const Call& c, const Dims& shape, int offset_at, int64_t dim1, int64_t dim2) {
  const int64_t rank = shape.size();
  return formulas::diagonal_of(shape, c.arg(offset_at, "offset").integer(0),
                               wrap_axis(c, c.arg(offset_at + 1, "dim1").integer(dim1), rank),
                               wrap_axis(c, c.arg(offset_at + 2, "dim2").integer(dim2), rank));
}

Outcome diagonal(const Call& c) {
  Value x = c.arg(0, "self").tensor();
  return c.give(formulas::diagonal(x, diagonal_of(c, x.shape(), 1, 0, 1)));
}
Outcome diagonal_backward(const Call& c) {
  return c.give(
      formulas::on_diagonal(c.arg(0, "grad_output").tensor(), diagonal_of(c, c.arg(1, "input_sizes").ints(), 2, 0, 1)));
}
Outcome diag_embed(const Call& c) {
  return c.give(formulas::on_diagonal(c.arg(0, "self").tensor(), diagonal_of(c, c.type().shape, 1, -2, -1)));
}
Outcome diagonal_scatter(const Call& c) {
  Value x = c.arg(0, "self").tensor(), src = c.arg(1, "src").as(c.dtype());
  return c.give(formulas::diagonal_scattered(x, src, diagonal_of(c, x.shape(), 2, 0, 1)));
}

// --- sliding windows
Outcome unfold(const Call& c) {
  Value x = c.arg(0, "self").tensor();
  if (c.type().numel() == 0) return c.give(zeros(c, c.type().shape, c.dtype()));
  if (x.rank() == 0) return c.give(reshape(x, {1}));
  const int64_t axis = wrap_axis(c, c.arg(1, "dimension").integer(), x.rank());
  const Dims order = to_the_end(x.rank(), {axis});
  x = formulas::sliding_windows(permute(x, order), c.type().shape.at(axis), c.arg(2, "size").integer(),
                                c.arg(3, "step").integer());
  Dims back = to_the_end(x.rank() - 1, {axis});
  back.push_back(x.rank() - 1);
  return c.give(permute_back(x, back));
}

Outcome unfold_backward(const Call& c) {
  Value dy = c.in(0, "grad_in");
  const Dims shape = c.arg(1, "input_sizes").ints();
  if (shape.empty()) return c.give(reshape(dy, {}));
  const int64_t axis = wrap_axis(c, c.arg(2, "dim").integer(), shape.size());
  Value dx = formulas::overlap_add(permute(dy, to_the_end(dy.rank(), {axis, dy.rank() - 1})), shape[axis],
                                   c.arg(4, "step").integer(), 1);
  return c.give(permute_back(dx, to_the_end(dx.rank(), {axis})));
}

/// The numbers of im2col and col2im; image [N, C, H, W] with the padding that the call has.
struct Patches {
  Dims kernel, dilation, padding, step;
  Patches(const Call& c, int at)
      : kernel(two(c.arg(at, "kernel_size").ints())),
        dilation(two(c.arg(at + 1, "dilation").ints())),
        padding(two(c.arg(at + 2, "padding").ints())),
        step(two(c.arg(at + 3, "stride").ints())) {}
  static Dims two(Dims d) { return d.size() == 1 ? Dims{d[0], d[0]} : d; }
  int64_t count(int axis, int64_t size) const {
    return (size + 2 * padding[axis] - dilation[axis] * (kernel[axis] - 1) - 1) / step[axis] + 1;
  }
};

Outcome im2col(const Call& c) {
  Value x = c.arg(0, "self").tensor();
  const Patches p(c, 1);
  if (c.type().numel() == 0) return c.give(zeros(c, c.type().shape, c.dtype()));
  if (x.rank() == 3) x = reshape(x, {1, x.size(0), x.size(1), x.size(2)});
  // [N, h, w, kh, kw, C]
  x = windows(resized(channels_last(x), p.padding, p.padding, 0), p.kernel, p.step, p.dilation);
  return c.give(reshape(permute(x, {0, 5, 3, 4, 1, 2}), c.type().shape));
}

Outcome col2im(const Call& c) {
  const Dims size = Patches::two(c.arg(1, "output_size").ints());
  const Patches p(c, 2);
  if (c.type().numel() == 0) return c.give(zeros(c, c.type().shape, c.dtype()));
  Value x = c.in(0, "self");
  const Dims& shape = c.type().shape;
  const int64_t images = shape.size() == 3 ? 1 : shape[0], channels = shape[shape.size() - 3];
  x = reshape(x, {images, channels, p.kernel[0], p.kernel[1], p.count(0, size[0]), p.count(1, size[1])});
  // one axis after the other: kh + kw terms instead of kh * kw
  // [N, C, kh, h, W]
  x = formulas::overlap_add(permute(x, {0, 1, 2, 4, 5, 3}), size[1] + 2 * p.padding[1], p.step[1], p.dilation[1]);
  // [N, C, W, H]
  x = formulas::overlap_add(permute(x, {0, 1, 4, 3, 2}), size[0] + 2 * p.padding[0], p.step[0], p.dilation[0]);
  x = sliced(sliced(x, {2, p.padding[1], size[1], 1}), {3, p.padding[0], size[0], 1});
  return c.give(reshape(permute(x, {0, 1, 3, 2}), shape));
}

// --- as_strided: places in memory, which is a flat tensor where the elements lie without gaps
struct Step { int64_t axis, size, stride; };

/// What a view by sizes and strides sees of a tensor.
class Strided {
 public:
  /// Fails where it sees what is no element of the tensor: memory beside it belongs to who knows whom.
  Strided(const Call& c, int size_at) : c_(c), self_(c.arg(0, "self").tensor()), shape_(c.arg(size_at, "size").ints()) {
    const Dims strides = c.arg(size_at + 1, "stride").ints();
    const Arg given = c.arg(size_at + 2, "storage_offset");
    if (!given.none() && c.arg(0, "self").of_argument())
      c.fail("reads an argument's memory by its place in the storage, where another call may have it elsewhere");
    start_ = given.none() ? 0 : given.integer() - c.arg(0, "self").offset();
    memory_order(c.arg(0, "self").strides());
    reach_ = start_ + 1;
    for (size_t axis = 0; axis < shape_.size(); ++axis) {
      if (shape_[axis] != 1) steps_.push_back({static_cast<int64_t>(axis), shape_[axis], strides.at(axis)});
      reach_ += (shape_[axis] - 1) * strides[axis];
    }
    if (!empty() && (start_ < 0 || reach_ > self_.numel())) c.fail("reads memory beside its tensor");
    std::stable_sort(steps_.begin(), steps_.end(), [](const Step& a, const Step& b) { return a.stride > b.stride; });
  }

  bool empty() const { return product(shape_) == 0; }
  Value self() const { return self_; }

  /// The view: from the longest stride down, each splits the flat rest into windows.
  Value read() const {
    if (empty()) return zeros(c_, shape_, self_.dtype());
    Value x = sliced(flat(self_), {0, start_, reach_ - start_, 1});
    Dims repeated;  // of stride 0
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (steps_[i].stride == 0) repeated.push_back(steps_[i].size);
      else x = formulas::sliding_windows(x, steps_[i].size, span(i + 1), steps_[i].stride);
    }
    Dims shape(x.shape().begin(), x.shape().end() - 1);  // of what is left, one element
    const Dims seen = shape;
    shape.insert(shape.end(), repeated.size(), 1);
    x = reshape(x, shape);
    shape = seen;
    shape.insert(shape.end(), repeated.begin(), repeated.end());
    x = broadcast(x, shape);
    Dims order;
    for (const Step& s : steps_) order.push_back(rank_of(s));
    return reshape(permute_back(x, order), shape_);
  }

  /// The tensor with `src` where the view lies. Fails where two elements of the view have one place: which is written
  /// last is nobody's promise.
  Value written(Value src) const {
    if (empty()) return self_;
    Dims order, shape;
    for (const Step& s : steps_) order.push_back(rank_of(s));
    for (int64_t size : shape_)
      if (size != 1) shape.push_back(size);
    src = permute(reshape(src, shape), order);
    const bool nested = is_nested();
    if (!nested && !is_injective()) c_.fail("writes two elements to one place");
    Value memory = nested ? laid(src) : scattered(src);
    return from_flat(memory);
  }

 private:
  /// The axes from the longest stride down, where the elements lie without gaps.
  void memory_order(const Dims& strides) {
    const size_t rank = static_cast<size_t>(self_.rank());
    order_ = self_.numel() == 0 ? all_axes(rank) : order_in_memory(self_.shape(), strides);
    if (order_.size() != rank) c_.fail("reads the memory of a tensor that has gaps, or holds an element twice");
  }
  Value flat(Value x) const { return reshape(permute(x, order_), {x.numel()}); }
  Value from_flat(Value x) const {
    Dims shape;
    for (int64_t axis : order_) shape.push_back(self_.size(axis));
    return permute_back(reshape(x, shape), order_);
  }

  /// Places that the steps from `i` on reach over.
  int64_t span(size_t i) const {
    int64_t n = 1;
    for (; i < steps_.size(); ++i) n += (steps_[i].size - 1) * steps_[i].stride;
    return n;
  }
  /// The axis of a step among those that are longer than 1.
  int64_t rank_of(const Step& s) const {
    return std::count_if(steps_.begin(), steps_.end(), [&](const Step& other) { return other.axis < s.axis; });
  }
  bool is_nested() const {
    for (size_t i = 0; i < steps_.size(); ++i)
      if (steps_[i].stride < span(i + 1)) return false;
    return true;
  }
  bool is_injective() const {
    std::vector<bool> seen(reach_ - start_);
    Dims at(steps_.size(), 0);
    for (int64_t n = product(shape_), place = 0; n > 0; --n) {
      if (seen[place]) return false;
      seen[place] = true;
      for (size_t i = steps_.size(); i-- > 0;) {
        place += steps_[i].stride;
        if (++at[i] < steps_[i].size) break;
        place -= steps_[i].size * steps_[i].stride;
        at[i] = 0;
      }
    }
    return true;
  }

  /// src, in the order of the steps, over the flat tensor: from the shortest stride up, each is laid out with its gaps.
  Value laid(Value src) const {
    const auto spread = [&](Value x, Value fill) {
      Dims shape = x.shape();
      shape.push_back(1);
      x = reshape(x, shape);
      for (size_t i = steps_.size(); i-- > 0;) {
        const int64_t axis = static_cast<int64_t>(i), inner = x.size(axis + 1);
        x = unsliced(x, {axis + 1, 0, inner, 1}, steps_[i].stride, fill);
        Dims joined(x.shape().begin(), x.shape().begin() + axis);
        joined.push_back(steps_[i].size * steps_[i].stride);
        x = sliced(reshape(x, joined), {axis, 0, span(i), 1});
      }
      return unsliced(x, {0, start_, x.numel(), 1}, self_.numel(), fill);
    };
    const Value memory = flat(self_);
    if (src.numel() == reach_ - start_)
      return slice_scattered(memory, reshape(src, {src.numel()}), {0, start_, src.numel(), 1});
    return where(spread(c_.full(src.shape(), DType::Bool, 1), zeros(c_, {}, DType::Bool)),
                 spread(src, zeros(c_, {}, src.dtype())), memory);
  }

  Value scattered(Value src) const {
    Value place = c_.full(src.shape(), DType::I64, static_cast<double>(start_));
    for (size_t i = 0; i < steps_.size(); ++i)
      place = place + iota(c_.b, src.shape(), static_cast<int64_t>(i)) * static_cast<double>(steps_[i].stride);
    const Dims all{src.numel()};
    const Value memory = flat(self_);
    return with(memory,
                c_.b.scatter(ScatterKind::Last, memory.node, reshape(place, all).node, reshape(src, all).node, 0));
  }

  const Call& c_;
  Value self_;
  Dims shape_;
  int64_t start_ = 0, reach_ = 0;  // places from the tensor's first: the view's first, one behind its last
  std::vector<Step> steps_;        // of axes longer than 1, from the longest stride down
  Dims order_;                     // of the tensor's axes in memory
};

Outcome as_strided(const Call& c) { return c.give(Strided(c, 1).read()); }
Outcome as_strided_scatter(const Call& c) { return c.give(Strided(c, 2).written(c.arg(1, "src").as(c.dtype()))); }

}  // namespace

void add_strided(Table& t) {
  t.add({"aten.diagonal.default", "aten.diagonal_copy.default"}, diagonal);
  t.add({"aten.diagonal_backward.default"}, diagonal_backward);
  t.add({"aten.diag_embed.default"}, diag_embed);
  t.add({"aten.diagonal_scatter.default"}, diagonal_scatter);
  t.add({"aten.unfold.default", "aten.unfold_copy.default"}, unfold);
  t.add({"aten.unfold_backward.default"}, unfold_backward);
  t.add({"aten.im2col.default"}, im2col);
  t.add({"aten.col2im.default"}, col2im);
  t.add({"aten.as_strided.default", "aten.as_strided_copy.default"}, as_strided);
  t.add({"aten.as_strided_scatter.default"}, as_strided_scatter);
}

}  // namespace trainc::frontend::aten
