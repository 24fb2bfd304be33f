// Matrix products: all of them are the one rank-3 contraction. Half types are contracted in f32, so that a bias is added
// before the one rounding, as eager does.
#include "frontend/table.h"

namespace trainc::frontend {
namespace {

Value rank3(Value x) { return reshape(x, {1, x.size(0), x.size(1)}); }

Outcome mm(const Call& c) {
  if (!is_float(c.dtype())) return std::nullopt;
  return c.give(reshape(matmul(rank3(c.in(0, "self")), rank3(c.in(1, "mat2"))), c.type().shape));
}

Outcome bmm(const Call& c) {
  if (!is_float(c.dtype())) return std::nullopt;
  return c.give(matmul(c.in(0, "self"), c.in(1, "mat2")));
}

/// beta * self + alpha * product; beta 0 does not read self (its NaNs vanish).
const Node* with_bias(const Call& c, Value product) {
  const double beta = c.arg(3, "beta").number(1), alpha = c.arg(4, "alpha").number(1);
  if (alpha != 1) product = product * alpha;
  if (beta == 0) return c.give(product);
  Value bias = c.in(0, "self");
  return c.give(product + (beta == 1 ? bias : bias * beta));
}

Outcome addmm(const Call& c) {
  if (!is_float(c.dtype())) return std::nullopt;
  return with_bias(c, reshape(matmul(rank3(c.in(1, "mat1")), rank3(c.in(2, "mat2"))), c.type().shape));
}

Outcome baddbmm(const Call& c) {
  if (!is_float(c.dtype())) return std::nullopt;
  return with_bias(c, matmul(c.in(1, "batch1"), c.in(2, "batch2")));
}

Value column(Value x) { return reshape(x, {1, x.numel(), 1}); }

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
  return c.give(sum(c.in(0, "self") * c.in(1, "tensor"), {0}, false));
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

}  // namespace trainc::frontend
