// Products: dot_general, and dot of XLA's own modules, are contractions of rank 3.
#include "frontend/stablehlo/products.h"
#include "frontend/stablehlo/table.h"

namespace trainc::frontend::stablehlo {
namespace {

using formulas::cast;
using formulas::join;
using formulas::product;

/// Axes in the order batches, free ones, contracted ones; and their sizes.
struct Operand {
  Dims order, batch, free, contracted;
  Operand(Value x, const Dims& batches, const Dims& contracting) {
    const auto is_among = [](const Dims& axes, int64_t axis) {
      return std::find(axes.begin(), axes.end(), axis) != axes.end();
    };
    Dims others;
    for (int64_t axis = 0; axis < x.rank(); ++axis)
      if (!is_among(batches, axis) && !is_among(contracting, axis))
        others.push_back(axis), free.push_back(x.size(axis));
    for (int64_t axis : batches) batch.push_back(x.size(axis));
    for (int64_t axis : contracting) contracted.push_back(x.size(axis));
    order = join({batches, others, contracting});
  }
  Value rank3(Value x) const {
    return reshape(permute(x, order), {product(batch), product(free), product(contracted)});
  }
};

}  // namespace

Value contract(Value x, Value y) {
  if (is_float(x.dtype())) return with(x, x.b->contract(x.node, y.node));
  x = reshape(x, {x.size(0), x.size(1), 1, x.size(2)});
  y = reshape(y, {y.size(0), 1, y.size(1), y.size(2)});
  return formulas::sum(x * y, {3}, /*keep=*/false);
}

namespace {

Values contracted(const Call& c, const Operand& lhs, const Operand& rhs) {
  if (c.type().numel() == 0 || product(lhs.contracted) == 0) return {{&c.b, c.b.full(c.dtype(), c.shape(), 0)}};
  const bool logic = c.dtype() == DType::Bool;  // a sum of products of bools is whether any is true
  // The wider of the operands' and the result's dtype: StableHLO sums in the result's, which may be narrower.
  DType sums = logic ? DType::I32 : compute_dtype(c.dtype());
  if (c.operand(0).dtype() == DType::F64) sums = DType::F64;
  const Value x = cast(lhs.rank3(c.operand(0)), sums), y = cast(rhs.rank3(c.operand(1)), sums);
  return {c.rounded(reshape(contract(x, y), c.shape()))};
}

Values dot_general(const Call& c) {
  const Json& dims = c.object("dot_dimension_numbers");
  return contracted(c,
                    {c.operand(0), field(dims, "lhs_batching_dimensions"), field(dims, "lhs_contracting_dimensions")},
                    {c.operand(1), field(dims, "rhs_batching_dimensions"), field(dims, "rhs_contracting_dimensions")});
}

/// Of vectors and matrices: the last axis with the first.
Values dot(const Call& c) {
  c.need(c.operand(0).rank() > 0 && c.operand(1).rank() > 0, "one of its operands is a number");
  return contracted(c, {c.operand(0), {}, {c.operand(0).rank() - 1}}, {c.operand(1), {}, {0}});
}

}  // namespace

void add_contractions(Table& t) {
  t.add({"stablehlo.dot_general"}, dot_general);
  t.add({"stablehlo.dot"}, dot);
}

}  // namespace trainc::frontend::stablehlo
