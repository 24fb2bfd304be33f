// Layer, batch and group norm with their backwards.
#include "frontend/formulas/normalization.h"

#include "frontend/aten/table.h"

namespace trainc::frontend::aten {
namespace {

namespace f = formulas;

/// The gradients that a backward is asked for, shaped as its results. Those of scale and shift are sums of terms like
/// x's.
Results wanted(const Call& c, int64_t mask_at, const f::NormGradients& g) {
  const Dims mask = c.arg(mask_at, "output_mask").ints();
  Results r(3, nullptr);
  for (size_t i = 0; i < 3; ++i) {
    if (mask.at(i) == 0 || !c.defined(i)) continue;
    const Value v = i == 0 ? g.x : from_zero(i == 1 ? g.scale : g.shift, g.x.numel() / g.shift.numel());
    r[i] = c.give(reshape(v, c.type(i).shape), i);
  }
  return r;
}

/// A statistic that the forward has computed, as it was before it was rounded to its result's type: where x is of a
/// half type and the parameters are float32, eager's statistics are float32, but PyTorch's fake tensors, which the
/// types come from, call them half. (Where eager does round them, its backward is less exact for that.)
Value statistic(const Call& c, int64_t at, const char* name, DType d) {
  const Value v = c.arg(at, name).tensor();
  if (v.node->op == Op::Cast && v.node->in(0)->dtype() == d) return f::with(v, v.node->in(0));
  return cast(v, d);
}

// --- layer norm
Dims inner_axes(const Call& c, int64_t shape_at, int64_t rank) {
  return f::last_axes(rank, c.arg(shape_at, "normalized_shape").ints().size());
}

Outcome layer_norm(const Call& c) {
  Value x = c.in(0, "input");
  if (x.numel() == 0) return std::nullopt;
  const f::Normalized n = f::normalize_or_nan(x, inner_axes(c, 1, x.rank()), c.arg(4, "eps").number());
  const auto scale = c.optional(2, "weight", c.compute()), shift = c.optional(3, "bias", c.compute());
  return Results{c.give(f::affine(n.value, scale, shift)), c.give(n.mean, 1), c.give(n.rstd, 2)};
}

Outcome layer_norm_backward(const Call& c) {
  const DType d = compute_dtype(c.arg(1, "input").tensor().dtype());
  Value dy = c.arg(0, "grad_out").as(d), x = c.arg(1, "input").as(d);
  if (x.numel() == 0) return std::nullopt;
  const Dims inner = inner_axes(c, 2, x.rank());
  Dims outer = all_axes(x.rank());
  outer.resize(x.rank() - inner.size());
  Value mean = statistic(c, 3, "mean", d), rstd = statistic(c, 4, "rstd", d);
  return wanted(c, 7, f::norm_backward(dy, x, mean, rstd, c.optional(5, "weight", d), inner, outer));
}

// --- batch norm
struct BatchNorm {
  bool training;
  int running_at, momentum_at, eps_at;  // places among the arguments; running_at < 0: none
};

Results batch_norm_with(const Call& c, const BatchNorm& form) {
  Value x = c.in(0, "input");
  const int64_t rank = x.rank();
  const double eps = c.arg(form.eps_at, "eps").number();
  auto running = [&](int i) { return c.arg(form.running_at + i, i ? "running_var" : "running_mean").as(x.dtype()); };
  const auto channels = [&](int at, const char* name) -> std::optional<Value> {
    const auto p = c.optional(at, name, c.compute());
    return p ? std::optional(f::along_channels(*p, rank)) : std::nullopt;
  };
  const f::Normalized n =
      form.training ? f::normalize(x, f::all_but_channels(rank), eps)
                    : f::normalize_by(x, f::along_channels(running(0), rank), f::along_channels(running(1), rank), eps);
  Results r{c.give(f::affine(n.value, channels(1, "weight"), channels(2, "bias")))};
  for (size_t i : {1, 2}) {  // what the backward reads; eager leaves it empty in evaluation
    const Type& t = c.type(i);
    r.push_back(t.shape == Dims{0} && !form.training ? c.full(t.shape, t.dtype, 0).node
                                                     : c.give(reshape(i == 1 ? n.mean : n.rstd, t.shape), i));
  }
  if (c.types.size() == 5) {
    const double count = x.numel() / static_cast<double>(x.size(1)),
                 momentum = c.arg(form.momentum_at, "momentum").number();
    for (int i : {0, 1}) {
      Value old = running(i);
      if (!form.training) {
        r.push_back(c.give(old, 3 + i));
        continue;
      }
      Value now = reshape(i ? n.var * (count / (count - 1)) : n.mean, old.shape());
      r.push_back(c.give(now * momentum + old * (1 - momentum), 3 + i));
    }
  }
  return r;
}

bool empty(const Call& c) { return c.arg(0, "input").tensor().numel() == 0 || c.arg(0, "input").tensor().rank() < 2; }

Outcome batch_norm_functional(const Call& c) {
  if (empty(c)) return std::nullopt;
  return batch_norm_with(c, {c.arg(5, "training").flag(false), 3, 6, 7});
}
Outcome batch_norm_no_stats(const Call& c) {
  if (empty(c)) return std::nullopt;
  return batch_norm_with(c, {true, -1, 4, 5});
}
Outcome batch_norm_no_training(const Call& c) {
  if (empty(c)) return std::nullopt;
  return batch_norm_with(c, {false, 3, 5, 6});
}
/// The forms that write the running statistics: only where they do not.
Outcome batch_norm_in_place(const Call& c) {
  const bool training = c.arg(5, "training").flag(false);
  if (training && !c.arg(3, "running_mean").none()) c.fail("writes over its running statistics");
  if (empty(c)) return std::nullopt;
  return batch_norm_with(c, {training, 3, 6, 7});
}

Outcome batch_norm_backward(const Call& c) {
  const DType d = compute_dtype(c.arg(1, "input").tensor().dtype());
  Value dy = c.arg(0, "grad_out").as(d), x = c.arg(1, "input").as(d);
  const int64_t rank = x.rank();
  if (x.numel() == 0 || rank < 2) return std::nullopt;
  const bool training = c.arg(7, "train").flag(false);
  Value mean = f::along_channels(training ? statistic(c, 5, "save_mean", d) : c.arg(3, "running_mean").as(d), rank);
  Value rstd = training ? f::along_channels(statistic(c, 6, "save_invstd", d), rank)
                        : 1.0 / sqrt(f::along_channels(c.arg(4, "running_var").as(d), rank) + c.arg(8, "eps").number());
  return wanted(c, 9, f::batch_norm_backward(dy, x, mean, rstd, c.optional(2, "weight", d), training));
}

// --- group norm
f::ChannelGroups groups_of(const Call& c, int at) {
  return {c.arg(at, "N").integer(), c.arg(at + 1, "C").integer(), c.arg(at + 2, "HxW").integer(),
          c.arg(at + 3, "group").integer()};
}
/// A parameter, or nothing.
std::optional<Value> per_channel(const f::ChannelGroups& g, std::optional<Value> p) {
  return p ? std::optional(g.per_channel(*p)) : std::nullopt;
}

Outcome group_norm(const Call& c) {
  const f::ChannelGroups g = groups_of(c, 3);
  Value x = c.in(0, "input");
  if (x.numel() == 0) return std::nullopt;
  const f::Normalized n = f::normalize_or_nan(g.grouped(x), {2, 3}, c.arg(7, "eps").number());
  const auto scale = per_channel(g, c.optional(1, "weight", c.compute())),
             shift = per_channel(g, c.optional(2, "bias", c.compute()));
  Value y = f::affine(n.value, scale, shift);
  return Results{c.give(reshape(y, c.type().shape)), c.give(reshape(n.mean, c.type(1).shape), 1),
                 c.give(reshape(n.rstd, c.type(2).shape), 2)};
}

Outcome group_norm_backward(const Call& c) {
  const f::ChannelGroups g = groups_of(c, 5);
  const DType d = compute_dtype(c.arg(1, "input").tensor().dtype());
  Value x = c.arg(1, "input").as(d);
  if (x.numel() == 0) return std::nullopt;
  Value dy = g.grouped(c.arg(0, "grad_out").as(d));
  Value mean = g.per_group(statistic(c, 2, "mean", d)), rstd = g.per_group(statistic(c, 3, "rstd", d));
  return wanted(
      c, 9, f::norm_backward(dy, g.grouped(x), mean, rstd, per_channel(g, c.optional(4, "weight", d)), {2, 3}, {0, 3}));
}

}  // namespace

void add_normalization(Table& t) {
  t.add({"aten.native_layer_norm.default"}, layer_norm);
  t.add({"aten.native_layer_norm_backward.default"}, layer_norm_backward);
  t.add({"aten._native_batch_norm_legit_functional.default"}, batch_norm_functional);
  t.add({"aten._native_batch_norm_legit.no_stats"}, batch_norm_no_stats);
  t.add({"aten._native_batch_norm_legit_no_training.default"}, batch_norm_no_training);
  t.add({"aten._native_batch_norm_legit.default", "aten.native_batch_norm.default"}, batch_norm_in_place);
  t.add({"aten.native_batch_norm_backward.default"}, batch_norm_backward);
  t.add({"aten.native_group_norm.default"}, group_norm);
  t.add({"aten.native_group_norm_backward.default"}, group_norm_backward);
}

}  // namespace trainc::frontend::aten
