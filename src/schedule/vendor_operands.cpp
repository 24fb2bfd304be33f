#include "schedule/vendor_operands.h"

#include <algorithm>

#include "schedule/cut.h"
#include "schedule/schedule.h"

namespace trainc::schedule {
namespace {

/// From 16 bits to f32: the library multiplies what is narrow.
bool widens(const Node* n) {
  return n->op == Op::Cast && n->dtype() == DType::F32 &&
         (n->in(0)->dtype() == DType::BF16 || n->in(0)->dtype() == DType::F16);
}

/// Strides for a movement that neither asks nor makes anything.
bool is_view(const Node* n) {
  switch (n->op) {
    case Op::Reshape:
    case Op::Permute:
    case Op::Broadcast: return true;
    case Op::Slice: return !is_copy(n);
    default: return false;
  }
}

/// The strides of the same elements in another shape: none where that cuts through axes that lie apart.
std::optional<Dims> reshaped(const Dims& from, const Dims& strides, const Dims& to) {
  struct Piece { int64_t extent, stride; };
  std::vector<Piece> pieces;  // axes that lie in one piece are one
  for (size_t k = 0; k < from.size(); ++k) {
    if (from[k] == 1) continue;
    if (!pieces.empty() && pieces.back().stride == strides[k] * from[k])
      pieces.back() = {pieces.back().extent * from[k], strides[k]};
    else pieces.push_back({from[k], strides[k]});
  }
  Dims result(to.size(), 0);  // of axes of one element: any
  for (size_t k = to.size(); k-- > 0;) {
    if (to[k] == 1) continue;
    if (pieces.empty() || to[k] == 0 || pieces.back().extent % to[k] != 0) return std::nullopt;
    Piece& piece = pieces.back();
    result[k] = piece.stride;
    piece.stride *= to[k], piece.extent /= to[k];
    if (piece.extent == 1) pieces.pop_back();
  }
  return result;
}

/// `operand` without the cast that widens it.
const Node* narrow(Builder& b, const Node* operand) {
  if (widens(operand)) return operand->in(0);
  if (!is_view(operand)) return operand;
  const Node* below = narrow(b, operand->in(0));
  if (below == operand->in(0)) return operand;
  return b.graph.make(operand->op, operand->attrs, {below}, {below->dtype(), operand->shape()});
}

/// `operand` over a copy in f32 of as little as it reads: of what a broadcast repeats, of what a slice leaves. Where as
/// much is read all the way, the source is copied as it lies.
const Node* widened(Builder& b, const Node* operand) {
  std::vector<const Node*> above;
  const Node* copy = operand;  // the deepest of those that have the fewest elements
  for (const Node* n = operand; is_view(n) || widens(n);) {
    above.push_back(n), n = n->in(0);
    if (n->type.numel() <= copy->type.numel()) copy = n;
  }
  const Node* wide = copied(b.graph, copy->dtype() == DType::F32 ? copy : b.cast(copy, DType::F32));
  const auto from = std::ranges::find(above, copy);
  for (auto it = std::make_reverse_iterator(from); it != above.rend(); ++it)
    if (is_view(*it)) wide = b.graph.make((*it)->op, (*it)->attrs, {wide}, {DType::F32, (*it)->shape()});
  return wide;
}

}  // namespace

bool for_vendor(const Node* contract, int64_t least_flops) {
  if (contract->op != Op::Contract || least_flops == 0 || flops_of(contract) < least_flops) return false;
  return std::ranges::none_of(contract->inputs, [](const Node* i) {
    const Node* source = vendor_source(i);
    return source->op == Op::Window || source->op == Op::Reverse;
  });
}

const Node* vendor_source(const Node* operand) {
  while (is_view(operand) || widens(operand)) operand = operand->in(0);
  return operand;
}

std::optional<Dims> strides_in_source(const Node* n) {
  if (!is_view(n) && !widens(n)) {
    const bool strided = n->op == Op::Input && !n->as<InputAttr>().strides.empty();
    return strided ? n->as<InputAttr>().strides : contiguous_strides(n->shape());
  }
  std::optional<Dims> in = strides_in_source(n->in(0));
  if (!in || n->op == Op::Cast) return in;
  if (n->op == Op::Reshape) return reshaped(n->in(0)->shape(), *in, n->shape());
  Dims out(n->shape().size());
  for (size_t k = 0; k < out.size(); ++k) {
    if (n->op == Op::Permute) out[k] = (*in)[n->as<AxesAttr>().axes[k]];
    else if (n->op == Op::Slice) out[k] = (*in)[k] * n->as<SliceAttr>().step[k];
    else out[k] = n->in(0)->shape()[k] == 1 ? 0 : (*in)[k];
  }
  return out;
}

std::optional<Dims> strides_without_offset(const Node* operand, const Dims& shape) {
  for (const Node* n = operand; is_view(n) || widens(n); n = n->in(0))
    if (n->op == Op::Slice) return std::nullopt;
  const std::optional<Dims> strides = strides_in_source(operand);
  return strides ? reshaped(operand->shape(), *strides, shape) : std::nullopt;
}

bool has_plain_matrices(const Node* operand) {
  const std::optional<Dims> strides = strides_in_source(operand);
  if (!strides) return false;
  const int64_t rows = operand->shape()[1], columns = operand->shape()[2];
  const int64_t row = rows == 1 ? columns : (*strides)[1], column = columns == 1 ? 1 : (*strides)[2];
  return (column == 1 && row >= columns) || ((rows == 1 || row == 1) && column >= rows);
}

const Node* vendor_operand(Builder& b, const Node* operand, bool widen) {
  if (operand->type.numel() == 0) return operand;
  if (widen && vendor_source(operand)->dtype() != DType::F32) {
    const Node* wide = widened(b, operand);
    return has_plain_matrices(wide) ? wide : copied(b.graph, operand);
  }
  if (has_plain_matrices(operand)) return operand;
  return b.cast(copied(b.graph, narrow(b, operand)), operand->dtype());
}

}  // namespace trainc::schedule
