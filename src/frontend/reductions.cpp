// Reductions over axes. Half types are summed in f32; integers and bool in i64, as the framework's result says.
#include <algorithm>
#include <cmath>

#include "frontend/table.h"

namespace trainc::frontend {
namespace {

double count_of(Value x, const Dims& axes) {
  double n = 1;
  for (int64_t axis : axes) n *= x.size(axis);
  return n;
}

/// The result as eager shapes it: the importer knows whether axes are kept.
const Node* shaped(const Call& c, Value v, size_t i = 0) { return c.give(reshape(v, c.type(i).shape), i); }

Outcome sum_row(const Call& c) {
  Value x = c.in(0, "self");
  if (c.dtype() == DType::Bool) return std::nullopt;
  return shaped(c, sum(x, axes_of(c, c.arg(1, "dim"), x.rank())));
}
Outcome sum_all(const Call& c) {
  Value x = c.in(0, "self");
  return shaped(c, sum(x, all_axes(x.rank())));
}

Outcome mean_over(const Call& c, const Dims& axes) {
  Value x = c.in(0, "self");
  return shaped(c, sum(x, axes) / count_of(x, axes));
}
Outcome mean_row(const Call& c) { return mean_over(c, axes_of(c, c.arg(1, "dim"), c.arg(0, "self").tensor().rank())); }
Outcome mean_all(const Call& c) { return mean_over(c, all_axes(c.arg(0, "self").tensor().rank())); }

// --- variance, in two passes (eager: Welford's); divided by n - correction
struct Moments { Value var, mean; };
Moments moments(const Call& c, const Dims& axes, double correction) {
  Value x = c.in(0, "self");
  const double n = count_of(x, axes);
  Value mean = sum(x, axes) / n;
  Value d = x - mean;
  return {sum(d * d, axes) / std::max(0.0, n - correction), mean};
}

enum class Spread { Var, Std, VarMean, StdMean };
enum class Signature { Correction, Unbiased, UnbiasedAll };  // (dim, *, correction), (dim, unbiased), (unbiased)
Handler spread(Spread what, Signature signature) {
  return [=](const Call& c) -> Outcome {
    const int64_t rank = c.arg(0, "self").tensor().rank();
    const bool all = signature == Signature::UnbiasedAll;
    const Dims axes = all ? all_axes(rank) : axes_of(c, c.arg(1, "dim"), rank);
    const double correction = signature == Signature::Correction ? c.arg(2, "correction").number(1) : c.arg(all ? 1 : 2, "unbiased").flag(true);
    Moments m = moments(c, axes, correction);
    const bool root = what == Spread::Std || what == Spread::StdMean;
    Results r{shaped(c, root ? sqrt(m.var) : m.var)};
    if (what == Spread::VarMean || what == Spread::StdMean) r.push_back(shaped(c, m.mean, 1));
    return r;
  };
}

// --- extrema: NaN wins
Handler extremum(ReduceKind kind) {
  return [kind](const Call& c) -> Outcome {
    Value x = c.in(0, "self");
    return shaped(c, reduce(kind, x, axes_of(c, c.arg(1, "dim"), x.rank())));
  };
}

/// values and indices along one axis; the first of equals.
Handler extremum_with_index(ReduceKind kind, ReduceKind arg) {
  return [kind, arg](const Call& c) -> Outcome {
    Value x = c.in(0, "self");
    if (x.rank() == 0) return Results{c.give(x), c.give(c.full({}, DType::I64, 0), 1)};
    const int64_t axis = wrap_axis(c, c.arg(1, "dim").integer(), x.rank());
    return Results{shaped(c, reduce(kind, x, {axis})), shaped(c, reduce(arg, x, {axis}), 1)};
  };
}

Handler arg_extremum(ReduceKind kind) {
  return [kind](const Call& c) -> Outcome {
    Value x = c.arg(0, "self").tensor();
    x = cast(x, compute_dtype(x.dtype()));
    if (c.arg(1, "dim").none() || x.rank() == 0) return shaped(c, reduce(kind, reshape(x, {x.numel()}), {0}));
    return shaped(c, reduce(kind, x, {wrap_axis(c, c.arg(1, "dim").integer(), x.rank())}));
  };
}

Outcome prod_all(const Call& c) {
  Value x = c.in(0, "self");
  return shaped(c, reduce(ReduceKind::Prod, x, all_axes(x.rank())));
}
Outcome prod_row(const Call& c) {
  Value x = c.in(0, "self");
  if (x.rank() == 0) return c.give(x);
  return shaped(c, reduce(ReduceKind::Prod, x, {wrap_axis(c, c.arg(1, "dim").integer(), x.rank())}));
}

/// any, all; an empty axis gives false and true.
Handler truth(ReduceKind kind) {
  return [kind](const Call& c) -> Outcome {
    if (c.dtype() != DType::Bool) return std::nullopt;  // of u8 tensors eager gives u8
    Value x = c.arg(0, "self").as(DType::Bool);
    const Dims axes = axes_of(c, c.arg(1, "dim"), x.rank());
    if (x.numel() == 0) return c.give(c.full({}, DType::Bool, kind == ReduceKind::Min));
    return shaped(c, reduce(kind, x, axes));
  };
}

Outcome cumsum(const Call& c) {
  Value x = c.in(0, "self");
  if (x.rank() == 0) return c.give(x);
  return c.give(with(x, c.b.scan(x.node, wrap_axis(c, c.arg(1, "dim").integer(), x.rank()))));
}

Outcome logsumexp(const Call& c) {
  Value x = c.in(0, "self");
  const Dims axes = axes_of(c, c.arg(1, "dim"), x.rank());
  if (x.numel() == 0 || !is_float(x.dtype())) return std::nullopt;
  Value m = amax(x, axes);
  m = where(abs(m) == INFINITY, 0, m);  // inf - inf is NaN
  return shaped(c, log(sum(exp(x - m), axes)) + m);
}

/// The norms of order 1, 2 and infinity.
const Node* norm(const Call& c, Value x, double order, const Dims& axes) {
  if (!is_float(x.dtype()) || x.numel() == 0) return nullptr;
  if (order == 2) return shaped(c, sqrt(sum(x * x, axes)));
  if (order == 1) return shaped(c, sum(abs(x), axes));
  if (order == INFINITY) return shaped(c, amax(abs(x), axes));
  return nullptr;
}
Outcome norm_or_extern(const Node* n) { return n ? Outcome(n) : Outcome(std::nullopt); }

Outcome vector_norm(const Call& c) {
  Value x = c.in(0, "self");
  return norm_or_extern(norm(c, x, c.arg(1, "ord").number(2), axes_of(c, c.arg(2, "dim"), x.rank())));
}
Outcome norm_all(const Call& c) {
  Value x = c.in(0, "self");
  return norm_or_extern(norm(c, x, c.arg(1, "p").number(2), all_axes(x.rank())));
}

}  // namespace

void add_reductions(Table& t) {
  t.add({"aten.sum.default"}, sum_all);
  t.add({"aten.sum.dim_IntList"}, sum_row);
  t.add({"aten.mean.default"}, mean_all);
  t.add({"aten.mean.dim"}, mean_row);
  t.add({"aten.var.correction"}, spread(Spread::Var, Signature::Correction));
  t.add({"aten.var.dim"}, spread(Spread::Var, Signature::Unbiased));
  t.add({"aten.var.default"}, spread(Spread::Var, Signature::UnbiasedAll));
  t.add({"aten.std.correction"}, spread(Spread::Std, Signature::Correction));
  t.add({"aten.std.dim"}, spread(Spread::Std, Signature::Unbiased));
  t.add({"aten.std.default"}, spread(Spread::Std, Signature::UnbiasedAll));
  t.add({"aten.var_mean.correction"}, spread(Spread::VarMean, Signature::Correction));
  t.add({"aten.std_mean.correction"}, spread(Spread::StdMean, Signature::Correction));
  t.add({"aten.amax.default"}, extremum(ReduceKind::Max));
  t.add({"aten.amin.default"}, extremum(ReduceKind::Min));
  t.add({"aten.max.default"}, extremum(ReduceKind::Max));
  t.add({"aten.min.default"}, extremum(ReduceKind::Min));
  t.add({"aten.max.dim"}, extremum_with_index(ReduceKind::Max, ReduceKind::ArgMax));
  t.add({"aten.min.dim"}, extremum_with_index(ReduceKind::Min, ReduceKind::ArgMin));
  t.add({"aten.argmax.default"}, arg_extremum(ReduceKind::ArgMax));
  t.add({"aten.argmin.default"}, arg_extremum(ReduceKind::ArgMin));
  t.add({"aten.prod.default"}, prod_all);
  t.add({"aten.prod.dim_int"}, prod_row);
  t.add({"aten.any.default", "aten.any.dim", "aten.any.dims"}, truth(ReduceKind::Max));
  t.add({"aten.all.default", "aten.all.dim", "aten.all.dims"}, truth(ReduceKind::Min));
  t.add({"aten.cumsum.default"}, cumsum);
  t.add({"aten.logsumexp.default"}, logsumexp);
  t.add({"aten.linalg_vector_norm.default"}, vector_norm);
  t.add({"aten.norm.Scalar"}, norm_all);
  t.add({"aten.norm.ScalarOpt_dim"}, vector_norm);
}

}  // namespace trainc::frontend
