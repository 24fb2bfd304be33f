// Indexing by tensors. Negative indices are wrapped where eager wraps them; an index out of bounds stays out of bounds,
// so that running raises what eager does: an IndexError in some of these operations, a RuntimeError in others
// (Failure::Bounds).
#include "frontend/formulas/indexing.h"

#include "frontend/aten/table.h"

namespace trainc::frontend::aten {
namespace {

// --- embedding
Outcome embedding(const Call& c) {
  Value weight = c.arg(0, "weight").tensor(), index = c.arg(1, "indices").as(DType::I64);
  return c.give(reshape(formulas::take_rows(weight, index), c.type().shape));
}

Outcome embedding_backward(const Call& c) {
  if (c.arg(4, "scale_grad_by_freq").flag(false)) return std::nullopt;
  Value index = c.arg(1, "indices").as(DType::I64), dy = c.in(0, "grad_output");
  dy = reshape(dy, {index.numel(), c.type().shape[1]});
  return c.give(formulas::take_rows_backward(dy, index, c.type().shape[0], c.arg(3, "padding_idx").integer()));
}

// --- along one axis
Outcome gather(const Call& c) {
  Value x = c.arg(0, "self").tensor(), index = c.arg(2, "index").as(DType::I64);
  if (x.rank() == 0 || index.rank() != x.rank()) return std::nullopt;
  return c.give(formulas::gathered(x, index, wrap_axis(c, c.arg(1, "dim").integer(), x.rank()), Failure::Bounds));
}

/// Classes that one_hot was given (trace.py), each in [0, num_classes).
Outcome classes(const Call& c) {
  Value x = c.arg(0, "classes").as(c.dtype());
  if (x.numel() == 0) return c.give(x);
  return c.give(checked(x, (x >= 0) & (x < static_cast<double>(c.arg(1, "num_classes").integer())), Failure::Class));
}

Outcome index_select(const Call& c) {
  Value x = c.arg(0, "self").tensor(), index = c.arg(2, "index").as(DType::I64);
  if (x.rank() == 0) return std::nullopt;
  const int64_t axis = wrap_axis(c, c.arg(1, "dim").integer(), x.rank());
  return c.give(formulas::gathered(x, formulas::along(index, c.type().shape, axis), axis));
}

/// scatter.src, scatter.value, scatter_add: the index may be smaller than src.
Handler scatter(ScatterKind kind) {
  return [kind](const Call& c) -> Outcome {
    const DType d = kind == ScatterKind::Sum ? c.compute() : c.dtype();
    Value x = c.arg(0, "self").as(d), index = c.arg(2, "index").as(DType::I64), src = c.arg(3, "src").as(d);
    if (x.rank() == 0 || index.rank() != x.rank() || (kind == ScatterKind::Sum && d == DType::Bool))
      return std::nullopt;
    if (src.rank() == 0) src = broadcast(src, index.shape());
    else if (src.rank() != index.rank()) return std::nullopt;
    else src = with(src, c.b.slice(src.node, Dims(src.rank(), 0), index.shape(), Dims(src.rank(), 1)));
    return c.give(
        formulas::scattered(kind, x, index, src, wrap_axis(c, c.arg(1, "dim").integer(), x.rank()), Failure::Bounds));
  };
}

/// index_add, index_copy: a vector of indices along one axis of source.
Handler index_rows(ScatterKind kind) {
  return [kind](const Call& c) -> Outcome {
    const DType d = kind == ScatterKind::Sum ? c.compute() : c.dtype();
    Value x = c.arg(0, "self").as(d), index = c.arg(2, "index").as(DType::I64), src = c.arg(3, "source").as(d);
    if (x.rank() == 0 || src.rank() != x.rank() || (kind == ScatterKind::Sum && d == DType::Bool)) return std::nullopt;
    const int64_t axis = wrap_axis(c, c.arg(1, "dim").integer(), x.rank());
    if (const Arg alpha = c.arg(4, "alpha"); alpha.number(1) != 1) src = src * alpha.as(src.dtype());
    return c.give(formulas::scattered(kind, x, formulas::along(index, src.shape(), axis), src, axis,
                                      kind == ScatterKind::Sum ? Failure::Bounds : Failure::Index));
  };
}

// --- x[i, :, j]
/// Nothing where one of the indices is a mask, which has as many results as it has trues.
std::optional<formulas::Indexed> indexed(Value x, const Arg& indices) {
  const auto list = indices.tensors();
  for (const auto& index : list)
    if (index && (index->dtype() == DType::Bool || index->dtype() == DType::U8)) return std::nullopt;
  return formulas::indexed(x, list);
}

Outcome index(const Call& c) {
  Value x = c.arg(0, "self").tensor();
  const auto r = indexed(x, c.arg(1, "indices"));
  if (!r) return std::nullopt;
  return c.give(reshape(formulas::indexed_read(x, *r), c.type().shape));
}

/// x[mask] = scalar, a choice; anything else with a mask is the framework's.
Outcome put_by_mask(const Call& c, Value x, const Arg& indices, Value values) {
  const auto list = indices.tensors();
  if (list.size() != 1 || !list[0] || list[0]->dtype() != DType::Bool || list[0]->shape() != x.shape() ||
      values.numel() != 1)
    return std::nullopt;
  return c.give(where(*list[0], reshape(values, {}), x));
}

Outcome index_put(const Call& c) {
  const bool accumulate = c.arg(3, "accumulate").flag(false);
  const DType d = accumulate ? c.compute() : c.dtype();
  Value x = c.arg(0, "self").as(d), values = c.arg(2, "values").as(d);
  const auto r = indexed(x, c.arg(1, "indices"));
  if (!r) return accumulate ? Outcome(std::nullopt) : put_by_mask(c, x, c.arg(1, "indices"), values);
  if (accumulate && d == DType::Bool) return std::nullopt;
  return c.give(formulas::indexed_write(accumulate ? ScatterKind::Sum : ScatterKind::Last, x, *r, values));
}

}  // namespace

void add_indexing(Table& t) {
  t.add({"aten.embedding.default"}, embedding);
  t.add({"aten.embedding_dense_backward.default"}, embedding_backward);
  t.add({"aten.gather.default"}, gather);
  t.add({"aten.index_select.default"}, index_select);
  t.add({"trainc.classes.default"}, classes);
  t.add({"aten.scatter.src"}, scatter(ScatterKind::Last));
  t.add({"aten.scatter.value"}, scatter(ScatterKind::Last));
  t.add({"aten.scatter_add.default"}, scatter(ScatterKind::Sum));
  t.add({"aten.index_add.default"}, index_rows(ScatterKind::Sum));
  t.add({"aten.index_copy.default"}, index_rows(ScatterKind::Last));
  t.add({"aten.index.Tensor", "aten._unsafe_index.Tensor"}, index);
  t.add({"aten.index_put.default", "aten._unsafe_index_put.default", "aten._index_put_impl.default"}, index_put);
}

}  // namespace trainc::frontend::aten
