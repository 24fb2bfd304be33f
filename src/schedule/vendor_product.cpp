#include "schedule/vendor_product.h"

#include <algorithm>
#include <map>
#include <unordered_set>

namespace trainc::schedule {
namespace {

using loop::Expr;
using loop::ExprKind;

/// index = constant + sum of coefficient * variable, where it is such a sum.
struct Linear {
  int64_t constant = 0;
  std::map<int, int64_t> of;
};
std::optional<Linear> linear(const Expr& e) {
  Linear sum;
  if (e->kind == ExprKind::Int) {
    sum.constant = e->int_value;
    return sum;
  }
  if (e->kind == ExprKind::Var) {
    sum.of[e->id] = 1;
    return sum;
  }
  if (e->kind != ExprKind::Apply || (e->op != Op::Add && e->op != Op::Sub && e->op != Op::Mul)) return std::nullopt;
  std::optional<Linear> a = linear(e->args[0]), b = linear(e->args[1]);
  if (!a || !b) return std::nullopt;
  if (e->op == Op::Mul) {
    if (!a->of.empty() && !b->of.empty()) return std::nullopt;
    if (!a->of.empty()) std::swap(a, b);
    for (auto& [var, factor] : b->of) factor *= a->constant;
    b->constant *= a->constant;
    return b;
  }
  const int64_t sign = e->op == Op::Sub ? -1 : 1;
  a->constant += sign * b->constant;
  for (const auto& [var, factor] : b->of) a->of[var] += sign * factor;
  return a;
}

struct Operand {
  plan::Matrix matrix;
  int buffer;
};

std::optional<Operand> operand(Expr e, const loop::LoopNest& nest, int b, int row, int column, int64_t rows,
                               int64_t columns, int64_t batch) {
  if (e->kind == ExprKind::Apply && e->op == Op::Cast && e->dtype == DType::F32 &&
      (e->args[0]->dtype == DType::BF16 || e->args[0]->dtype == DType::F16))
    e = e->args[0];
  if (e->kind != ExprKind::Load || e->args.size() != 1 || !is_float(e->dtype)) return std::nullopt;
  const std::optional<Linear> at = linear(e->args[0]);
  if (!at) return std::nullopt;
  Operand found{{.dtype = nest.buffers[static_cast<size_t>(e->id)].dtype, .offset = at->constant}, e->id};
  const auto stride = [&](int var, int64_t extent) { return at->of.count(var) && extent > 1 ? at->of.at(var) : 0; };
  plan::Matrix& m = found.matrix;
  m.batch_stride = stride(b, batch);
  m.row_stride = stride(row, rows);
  m.column_stride = stride(column, columns);
  for (const auto& [var, factor] : at->of)
    if (var != b && var != row && var != column && factor != 0) return std::nullopt;
  // An axis of one element has any stride.
  if (columns == 1) m.column_stride = 1;
  if (rows == 1) m.row_stride = m.column_stride == 1 ? columns : 1;
  const bool row_major = m.column_stride == 1 && m.row_stride >= columns,
             column_major = m.row_stride == 1 && m.column_stride >= rows;
  if ((!row_major && !column_major) || m.offset < 0 || m.batch_stride < 0) return std::nullopt;
  return found;
}

}  // namespace

OrRefused<VendorProduct> vendor_product(const Contraction& c, const loop::LoopNest& nest, const Schedule& schedule,
                                        const Group& group, bool tf32) {
  const Node* contract = group.values[0];
  VendorEpilogue epilogue{contract};
  std::unordered_set<const Node*> made{contract}, stored;
  if (const auto known = schedule.vendor_epilogues.find(contract); known != schedule.vendor_epilogues.end()) {
    const auto here = [&](const Node* n) { return n && std::ranges::find(group.values, n) != group.values.end(); };
    if (here(known->second.result)) epilogue = known->second;
    if (!here(known->second.sums)) epilogue.sums = nullptr;
    else epilogue.sums = known->second.sums, epilogue.of_lhs = known->second.of_lhs;
  }
  for (const Node* n : {epilogue.result, epilogue.sums, epilogue.reduce()})
    if (n) made.insert(n);
  for (const Node* v : group.values)
    if (schedule.stored.count(v)) stored.insert(v);
  std::unordered_set<const Node*> written{epilogue.result};
  if (epilogue.sums) written.insert(epilogue.sums);
  if (epilogue.sums && epilogue.sums->dtype() != epilogue.result->dtype()) return "its sums differ from it in dtype";
  if (stored != written || made.size() != group.values.size()) return "its epilogue is more than the library's";
  const auto lhs = operand(c.lhs, nest, c.b, c.row, c.along, c.m, c.k, c.batch),
             rhs = operand(c.rhs, nest, c.b, c.along, c.column, c.k, c.n, c.batch);
  if (!lhs || !rhs) return "an operand does not lie in memory in rows or columns";
  if (lhs->matrix.dtype != rhs->matrix.dtype) return "its operands differ in dtype";
  const DType in = lhs->matrix.dtype, out = epilogue.result->dtype();
  const bool half = in == DType::BF16 || in == DType::F16;
  if (out != in && !(half && out == DType::F32)) return "the vendor's library does not give this dtype";
  plan::Product p{.batch = c.batch,
                  .m = c.m,
                  .n = c.n,
                  .k = c.k,
                  .lhs = lhs->matrix,
                  .rhs = rhs->matrix,
                  .result = {},
                  .tf32 = tf32 && in == DType::F32,
                  .bias = epilogue.bias != nullptr,
                  .addend = epilogue.addend != nullptr};
  if (epilogue.sums) p.sums_of = epilogue.of_lhs ? plan::SumsOf::Lhs : plan::SumsOf::Rhs;
  p.result = {.dtype = out, .offset = 0, .batch_stride = c.m * c.n, .row_stride = c.n, .column_stride = 1};
  return VendorProduct{p, lhs->buffer, rhs->buffer, epilogue.result, epilogue.bias, epilogue.addend, epilogue.sums};
}

}  // namespace trainc::schedule
