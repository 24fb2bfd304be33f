#include "frontend/aten/strided_view.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace trainc::frontend::aten {
namespace {

/// The strides of a reshaped tensor; nullopt where some new axis would have no single one.
std::optional<Dims> reshaped(const Dims& from, const Dims& strides, const Dims& to) {
  Dims made(to.size(), 1);
  size_t j = to.size();
  for (size_t i = from.size(); i > 0;) {
    // the next axes, from inside, that lie as one
    int64_t together = from[i - 1], innermost = strides[i - 1];
    for (--i; i > 0 && (from[i - 1] == 1 || together == 1 || strides[i - 1] == together * innermost); --i) {
      if (together == 1) innermost = strides[i - 1];
      together *= from[i - 1];
    }
    int64_t covered = 1;
    for (; j > 0 && (covered < together || to[j - 1] == 1); --j) {
      made[j - 1] = covered * innermost;
      covered *= to[j - 1];
    }
    if (covered != together) return std::nullopt;
  }
  return made;
}

std::optional<StridedView> moved(const Node* n) {
  StridedView v = strided_view(n->in(0));
  const Dims& from = n->in(0)->shape();
  switch (n->op) {
    case Op::Reshape: {
      const std::optional<Dims> strides = reshaped(from, v.strides, n->shape());
      if (!strides) return std::nullopt;
      v.strides = *strides;
      return v;
    }
    case Op::Permute: {
      Dims strides;
      for (int64_t axis : n->as<AxesAttr>().axes) strides.push_back(v.strides[static_cast<size_t>(axis)]);
      v.strides = std::move(strides);
      return v;
    }
    case Op::Broadcast:
      for (size_t i = 0; i < from.size(); ++i)
        if (from[i] != n->shape()[i]) v.strides[i] = 0;
      return v;
    case Op::Slice: {
      const SliceAttr& slice = n->as<SliceAttr>();
      for (size_t i = 0; i < from.size(); ++i) {
        v.offset += slice.start[i] * v.strides[i];
        v.strides[i] *= slice.step[i];
      }
      return v;
    }
    default: return std::nullopt;
  }
}

}  // namespace

StridedView strided_view(const Node* n) {
  if (is_movement(n->op) && n->type.numel() > 0)
    if (std::optional<StridedView> v = moved(n)) return *std::move(v);
  if (n->op == Op::Input && !n->as<InputAttr>().strides.empty()) return {n, n->as<InputAttr>().strides};
  return {n, contiguous_strides(n->shape())};
}

bool lie_alike(const Dims& shape, const Dims& strides, const Dims& others) {
  for (size_t i = 0; i < shape.size(); ++i)
    if (shape[i] != 1 && strides[i] != others[i]) return false;
  return true;
}

Dims order_in_memory(const Dims& shape, const Dims& strides) {
  Dims order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  const auto at = [](const Dims& d, int64_t i) { return d[static_cast<size_t>(i)]; };
  // axes of one element stay where they are among their neighbours' strides
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return at(strides, a) > at(strides, b); });
  int64_t side_by_side = 1;
  for (size_t i = order.size(); i-- > 0;) {
    if (at(shape, order[i]) == 1) continue;
    if (at(strides, order[i]) != side_by_side) return {};
    side_by_side *= at(shape, order[i]);
  }
  return order;
}

}  // namespace trainc::frontend::aten
