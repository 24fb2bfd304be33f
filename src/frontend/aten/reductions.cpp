// Reductions over axes. Half types are summed in f32; integers and bool in i64, as the framework's result says.
#include "frontend/formulas/reductions.h"
#include "frontend/aten/table.h"

namespace trainc::frontend::aten {
namespace {

/// The result as eager shapes it: the importer knows whether axes are kept.
const Node* shaped(const Call& c, Value v, size_t i = 0) { return c.give(reshape(v, c.type(i).shape), i); }
Outcome total(const Call& c, Value x, Value sum) {
  return shaped(c, sum.numel() == 0 ? sum : from_zero(sum, x.numel() / sum.numel()));
}

/// What is summed: eager rounds each element to the half type that is asked for, and adds them up in f32.
Value terms(const Call& c) {
  Value x = c.arg(0, "self").tensor();
  const bool rounds = size_of(c.dtype()) == 2 && is_float(c.dtype()) && x.dtype() != c.dtype();
  return rounds ? cast(cast(x, c.dtype()), c.compute()) : c.in(0, "self");
}
Outcome sum_row(const Call& c) {
  Value x = terms(c);
  if (c.dtype() == DType::Bool) return std::nullopt;
  return total(c, x, sum(x, axes_of(c, c.arg(1, "dim"), x.rank())));
}
Outcome sum_all(const Call& c) {
  Value x = terms(c);
  return total(c, x, sum(x, all_axes(x.rank())));
}

Outcome mean_over(const Call& c, const Dims& axes) {
  Value x = c.in(0, "self");
  return total(c, x, formulas::mean(x, axes));
}
Outcome mean_row(const Call& c) { return mean_over(c, axes_of(c, c.arg(1, "dim"), c.arg(0, "self").tensor().rank())); }
Outcome mean_all(const Call& c) { return mean_over(c, all_axes(c.arg(0, "self").tensor().rank())); }

// --- variance, in two passes (eager: Welford's)
enum class Spread { Var, Std, VarMean, StdMean };
enum class Signature { Correction, Unbiased, UnbiasedAll };  // (dim, *, correction), (dim, unbiased), (unbiased)
Handler spread(Spread what, Signature signature) {
  return [=](const Call& c) -> Outcome {
    const int64_t rank = c.arg(0, "self").tensor().rank();
    const bool all = signature == Signature::UnbiasedAll;
    const Dims axes = all ? all_axes(rank) : axes_of(c, c.arg(1, "dim"), rank);
    const double correction = signature == Signature::Correction ? c.arg(2, "correction").number(1)
                                                                 : c.arg(all ? 1 : 2, "unbiased").flag(true);
    const formulas::Spread m = formulas::variance(c.in(0, "self"), axes, correction);
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
  return shaped(c, formulas::logsumexp(x, axes));
}

Outcome norm(const Call& c, Value x, double order, const Dims& axes) {
  if (!is_float(x.dtype()) || x.numel() == 0) return std::nullopt;
  const std::optional<Value> y = formulas::vector_norm(x, order, axes);
  return y ? Outcome(shaped(c, *y)) : Outcome(std::nullopt);
}

Outcome vector_norm(const Call& c) {
  Value x = c.in(0, "self");
  return norm(c, x, c.arg(1, "ord").number(2), axes_of(c, c.arg(2, "dim"), x.rank()));
}
Outcome norm_all(const Call& c) {
  Value x = c.in(0, "self");
  return norm(c, x, c.arg(1, "p").number(2), all_axes(x.rank()));
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

}  // namespace trainc::frontend::aten
