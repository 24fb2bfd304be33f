// Matrix products: all of them are the one rank-3 contraction. Half types are contracted in f32, so that a bias is
// added before the one rounding, as eager does.
#include "frontend/formulas/contractions.h"

#include "frontend/aten/table.h"

namespace trainc::frontend::aten {
namespace {

using formulas::column;
using formulas::rank3;

Outcome mm(const Call& c) {
  if (!is_float(c.dtype())) return std::nullopt;
  return c.give(reshape(matmul(rank3(c.in(0, "self")), rank3(c.in(1, "mat2"))), c.type().shape));
}

Outcome bmm(const Call& c) {
  if (!is_float(c.dtype())) return std::nullopt;
  return c.give(matmul(c.in(0, "self"), c.in(1, "mat2")));
}

const Node* with_bias(const Call& c, Value product) {
  return c.give(formulas::with_bias(product, c.in(0, "self"), c.arg(3, "beta").number(1), c.arg(4, "alpha").number(1)));
}

Outcome addmm(const Call& c) {
  if (!is_float(c.dtype())) return std::nullopt;
  return with_bias(c, reshape(matmul(rank3(c.in(1, "mat1")), rank3(c.in(2, "mat2"))), c.type().shape));
}

Outcome baddbmm(const Call& c) {
  if (!is_float(c.dtype())) return std::nullopt;
  return with_bias(c, matmul(c.in(1, "batch1"), c.in(2, "batch2")));
}

Outcome mv(const Call& c) {
  if (!is_float(c.dtype())) return std::nullopt;
  return c.give(reshape(matmul(rank3(c.in(0, "self")), column(c.in(1, "vec"))), c.type().shape));
}

Outcome addmv(const Call& c) {
  if (!is_float(c.dtype())) return std::nullopt;
  return with_bias(c, reshape(matmul(rank3(c.in(1, "mat")), column(c.in(2, "vec"))), c.type().shape));
}

Outcome dot(const Call& c) {
  if (!is_float(c.dtype())) return std::nullopt;
  Value products = c.in(0, "self") * c.in(1, "tensor");
  return c.give(from_zero(sum(products, {0}, false), products.numel()));
}

}  // namespace

void add_contractions(Table& t) {
  t.add({"aten.mm.default"}, mm);
  t.add({"aten.bmm.default"}, bmm);
  t.add({"aten.addmm.default"}, addmm);
  t.add({"aten.baddbmm.default"}, baddbmm);
  t.add({"aten.mv.default"}, mv);
  t.add({"aten.addmv.default"}, addmv);
  t.add({"aten.dot.default"}, dot);
}

}  // namespace trainc::frontend::aten
