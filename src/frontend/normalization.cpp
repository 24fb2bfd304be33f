// Layer, batch and group norm with their backwards. Statistics are two passes in f32; the backwards are written with the
// normalised value, which loses fewer digits than eager's sums of x where the mean is large.
#include <algorithm>

#include "frontend/table.h"

namespace trainc::frontend {
namespace {

double count_of(Value x, const Dims& axes) {
  double n = 1;
  for (int64_t axis : axes) n *= x.size(axis);
  return n;
}

struct Moments { Value mean, var, rstd; };
Moments moments(Value x, const Dims& axes, double eps) {
  const double n = count_of(x, axes);
  Value mean = sum(x, axes) / n, d = x - mean;
  Value var = sum(d * d, axes) / n;
  return {mean, var, 1.0 / sqrt(var + eps)};
}

/// d loss / d x of normalised = (x - mean) * rstd, for d = d loss / d normalised.
Value normalized_backward(Value d, Value normalized, Value rstd, const Dims& axes) {
  const double n = count_of(normalized, axes);
  return (d - sum(d, axes) / n - normalized * (sum(d * normalized, axes) / n)) * rstd;
}

/// A parameter of one axis ([C]) along axis 1 of `rank`.
Value along_channels(Value p, int64_t rank) {
  Dims shape(rank, 1);
  shape.at(1) = p.numel();
  return reshape(p, shape);
}
Dims all_but_channels(int64_t rank) {
  Dims axes = all_axes(rank);
  axes.erase(axes.begin() + 1);
  return axes;
}

/// Which results a backward is asked for.
bool wanted(const Call& c, int64_t mask_at, size_t i) { return c.arg(mask_at, "output_mask").ints().at(i) != 0 && c.defined(i); }

// --- layer norm: over the last axes
Dims last_axes(const Call& c, int64_t shape_at, int64_t rank) {
  const int64_t n = c.arg(shape_at, "normalized_shape").ints().size();
  Dims axes = all_axes(rank);
  axes.erase(axes.begin(), axes.end() - n);
  return axes;
}

Outcome layer_norm(const Call& c) {
  Value x = c.in(0, "input");
  if (x.numel() == 0) return std::nullopt;
  Moments m = moments(x, last_axes(c, 1, x.rank()), c.arg(4, "eps").number());
  Value y = (x - m.mean) * m.rstd;
  if (!c.arg(2, "weight").none()) y = y * c.in(2, "weight");
  if (!c.arg(3, "bias").none()) y = y + c.in(3, "bias");
  return Results{c.give(y), c.give(m.mean, 1), c.give(m.rstd, 2)};
}

Outcome layer_norm_backward(const Call& c) {
  const DType d = compute_dtype(c.arg(1, "input").tensor().dtype());
  Value dy = c.arg(0, "grad_out").as(d), x = c.arg(1, "input").as(d);
  if (x.numel() == 0) return std::nullopt;
  Value rstd = c.arg(4, "rstd").as(d), normalized = (x - c.arg(3, "mean").as(d)) * rstd;
  const Dims inner = last_axes(c, 2, x.rank());
  Dims outer = all_axes(x.rank());
  outer.resize(x.rank() - inner.size());
  Results r(3, nullptr);
  if (wanted(c, 7, 0)) {
    Value dn = c.arg(5, "weight").none() ? dy : dy * c.arg(5, "weight").as(d);
    r[0] = c.give(normalized_backward(dn, normalized, rstd, inner), 0);
  }
  if (wanted(c, 7, 1)) r[1] = c.give(sum(dy * normalized, outer, false), 1);
  if (wanted(c, 7, 2)) r[2] = c.give(sum(dy, outer, false), 2);
  return r;
}

// --- batch norm: over all axes but the channels
struct BatchNorm {
  bool training;
  int running_at, momentum_at, eps_at;  // places among the arguments; running_at < 0: none
};

Results batch_norm_with(const Call& c, const BatchNorm& form) {
  Value x = c.in(0, "input");
  const int64_t rank = x.rank();
  const double eps = c.arg(form.eps_at, "eps").number();
  auto running = [&](int i) { return c.arg(form.running_at + i, i ? "running_var" : "running_mean"); };
  Value mean, rstd, var;
  if (form.training) {
    Moments m = moments(x, all_but_channels(rank), eps);
    mean = m.mean, var = m.var, rstd = m.rstd;
  } else {
    mean = along_channels(running(0).as(x.dtype()), rank);
    rstd = 1.0 / sqrt(along_channels(running(1).as(x.dtype()), rank) + eps);
  }
  Value y = (x - mean) * rstd;
  if (!c.arg(1, "weight").none()) y = y * along_channels(c.in(1, "weight"), rank);
  if (!c.arg(2, "bias").none()) y = y + along_channels(c.in(2, "bias"), rank);
  Results r{c.give(y)};
  for (size_t i : {1, 2}) {  // what the backward reads; eager leaves it empty in evaluation
    const Type& t = c.type(i);
    r.push_back(t.shape == Dims{0} && !form.training ? c.full(t.shape, t.dtype, 0).node : c.give(reshape(i == 1 ? mean : rstd, t.shape), i));
  }
  if (c.types.size() == 5) {
    const double n = x.numel() / static_cast<double>(x.size(1)), momentum = c.arg(form.momentum_at, "momentum").number();
    for (int i : {0, 1}) {
      Value old = running(i).as(x.dtype());
      if (!form.training) {
        r.push_back(c.give(old, 3 + i));
        continue;
      }
      Value now = reshape(i ? var * (n / (n - 1)) : mean, old.shape());
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
  const Dims axes = all_but_channels(rank);
  Value mean = along_channels(c.arg(training ? 5 : 3, "mean").as(d), rank);
  Value rstd = training ? along_channels(c.arg(6, "save_invstd").as(d), rank)
                        : 1.0 / sqrt(along_channels(c.arg(4, "running_var").as(d), rank) + c.arg(8, "eps").number());
  Value normalized = (x - mean) * rstd;
  // The weight is one number where the sums are: d loss / d x and the parameters' gradients share two sums.
  Value shift = sum(dy, axes, false), scale = sum(dy * normalized, axes, false);
  Results r(3, nullptr);
  if (wanted(c, 9, 0)) {
    const double n = count_of(x, axes);
    Value dn = training ? dy - along_channels(shift / n, rank) - normalized * along_channels(scale / n, rank) : dy;
    r[0] = c.give(dn * (c.arg(2, "weight").none() ? rstd : rstd * along_channels(c.arg(2, "weight").as(d), rank)), 0);
  }
  if (wanted(c, 9, 1)) r[1] = c.give(scale, 1);
  if (wanted(c, 9, 2)) r[2] = c.give(shift, 2);
  return r;
}

// --- group norm: [N, C, ...] seen as [N, G, C/G, rest]
struct Groups { int64_t n, channels, rest, groups; };
Groups groups_of(const Call& c, int at) {
  return {c.arg(at, "N").integer(), c.arg(at + 1, "C").integer(), c.arg(at + 2, "HxW").integer(), c.arg(at + 3, "group").integer()};
}
Value grouped(Value x, const Groups& g) { return reshape(x, {g.n, g.groups, g.channels / g.groups, g.rest}); }
Value per_channel(Value p, const Groups& g) { return reshape(p, {1, g.groups, g.channels / g.groups, 1}); }

Outcome group_norm(const Call& c) {
  const Groups g = groups_of(c, 3);
  Value x = c.in(0, "input");
  if (x.numel() == 0) return std::nullopt;
  x = grouped(x, g);
  Moments m = moments(x, {2, 3}, c.arg(7, "eps").number());
  Value y = (x - m.mean) * m.rstd;
  if (!c.arg(1, "weight").none()) y = y * per_channel(c.in(1, "weight"), g);
  if (!c.arg(2, "bias").none()) y = y + per_channel(c.in(2, "bias"), g);
  return Results{c.give(reshape(y, c.type().shape)), c.give(reshape(m.mean, c.type(1).shape), 1), c.give(reshape(m.rstd, c.type(2).shape), 2)};
}

Outcome group_norm_backward(const Call& c) {
  const Groups g = groups_of(c, 5);
  const DType d = compute_dtype(c.arg(1, "input").tensor().dtype());
  Value x = c.arg(1, "input").as(d);
  if (x.numel() == 0) return std::nullopt;
  Value dy = grouped(c.arg(0, "grad_out").as(d), g);
  auto per_group = [&](Value s) { return reshape(s, {g.n, g.groups, 1, 1}); };
  Value rstd = per_group(c.arg(3, "rstd").as(d)), normalized = (grouped(x, g) - per_group(c.arg(2, "mean").as(d))) * rstd;
  Results r(3, nullptr);
  if (wanted(c, 9, 0)) {
    Value dn = c.arg(4, "weight").none() ? dy : dy * per_channel(c.arg(4, "weight").as(d), g);
    r[0] = c.give(reshape(normalized_backward(dn, normalized, rstd, {2, 3}), c.type(0).shape), 0);
  }
  if (wanted(c, 9, 1)) r[1] = c.give(reshape(sum(dy * normalized, {0, 3}), c.type(1).shape), 1);
  if (wanted(c, 9, 2)) r[2] = c.give(reshape(sum(dy, {0, 3}), c.type(2).shape), 2);
  return r;
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

}  // namespace trainc::frontend
