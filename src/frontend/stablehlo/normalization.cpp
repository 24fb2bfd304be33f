// Batch norms of XLA's own modules: with the statistics of the batch, with given ones, and the derivative of the first.
#include "frontend/formulas/normalization.h"

#include "frontend/stablehlo/table.h"

namespace trainc::frontend::stablehlo {
namespace {

using formulas::cast;

/// x with its channels along axis 1, as the formulas have them, and the way back.
struct Channels {
  Dims order, back;
  explicit Channels(const Call& c) {
    const int64_t rank = c.operand(0).rank(), axis = c.integer("feature_index");
    c.need(rank >= 2 && 0 <= axis && axis < rank, "has no axis beside that of its channels");
    for (int64_t i = 0; i < rank; ++i)
      if (i != axis) order.push_back(i);
    order.insert(order.begin() + 1, axis);
    back.resize(rank);
    for (int64_t i = 0; i < rank; ++i) back[order[i]] = i;
  }
  Value in(Value x) const { return permute(x, order); }
  Value out(Value x) const { return permute(x, back); }
};

double epsilon_of(const Call& c) { return c.attrs.at("epsilon").get<double>(); }

Value along(const Call& c, size_t i) { return formulas::along_channels(c.computed(i), c.operand(0).rank()); }

/// A statistic or a gradient of [C] in the dtype of result i.
Value parameter(const Call& c, size_t i, Value v) { return cast(reshape(v, c.type(i).shape), c.type(i).dtype); }

/// x, scale, shift -> y, mean, variance (divided by the number of elements)
Values training(const Call& c) {
  const Channels channels(c);
  const Value x = channels.in(c.computed(0));
  const formulas::Normalized n = normalize(x, formulas::all_but_channels(x.rank()), epsilon_of(c));
  const Value y = formulas::affine(n.value, along(c, 1), along(c, 2));
  return {c.rounded(channels.out(y)), parameter(c, 1, n.mean), parameter(c, 2, n.var)};
}

/// x, scale, shift, mean, variance -> y
Values inference(const Call& c) {
  const Channels channels(c);
  const Value x = channels.in(c.computed(0));
  const formulas::Normalized n = normalize_by(x, along(c, 3), along(c, 4), epsilon_of(c));
  return {c.rounded(channels.out(formulas::affine(n.value, along(c, 1), along(c, 2))))};
}

/// x, scale, mean, variance, dy -> dx, dscale, dshift
Values gradients(const Call& c) {
  const Channels channels(c);
  const Value x = channels.in(c.computed(0)), dy = channels.in(c.computed(4));
  const Value rstd = 1.0 / sqrt(along(c, 3) + epsilon_of(c));
  const formulas::NormGradients d = batch_norm_backward(dy, x, along(c, 2), rstd, c.computed(1), /*training=*/true);
  return {c.rounded(channels.out(d.x)), parameter(c, 1, d.scale), parameter(c, 2, d.shift)};
}

}  // namespace

void add_normalization(Table& t) {
  t.add({"stablehlo.batch_norm_training"}, training);
  t.add({"stablehlo.batch_norm_inference"}, inference);
  t.add({"stablehlo.batch_norm_grad"}, gradients);
}

}  // namespace trainc::frontend::stablehlo
