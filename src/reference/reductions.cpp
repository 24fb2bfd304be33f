// Sums and their like: accumulated in fp64 in row-major order, rounded once.
#include <algorithm>
#include <cmath>

#include "reference/kernels.h"
#include "support/rounding.h"

namespace trainc::reference {
namespace {

/// Strides that send an element of `shape` to the element of the shape without `axes`.
Dims kept_strides(const Dims& shape, const Dims& axes) {
  Dims strides(shape.size(), 0);
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (std::find(axes.begin(), axes.end(), static_cast<int64_t>(i)) != axes.end()) continue;
    strides[i] = stride;
    stride *= shape[i];
  }
  return strides;
}

bool is_nan(double a) { return std::isnan(a); }
bool is_nan(int64_t) { return false; }

/// Whether `a` goes before `best` as the greatest (or least); NaN wins.
template <class T> bool better(T a, T best, bool greatest) {
  return !is_nan(best) && (is_nan(a) || (greatest ? a > best : a < best));
}

double product(double a, double b) { return a * b; }
int64_t product(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

/// Folds `in`, of `shape`, to `count` elements.
template <class T> std::vector<T> fold(ReduceKind kind, const std::vector<T>& in, const Dims& shape, const Dims& axes,
                                       int64_t count) {
  std::vector<T> out(count, kind == ReduceKind::Prod ? T(1) : T(0));  // what nothing folds to
  std::vector<bool> begun(count);
  walk(shape, kept_strides(shape, axes), 0, [&](int64_t from, int64_t to) {
    if (!begun[to]) {  // not 0 + x, which would make the sum of one -0.0 a 0.0
      out[to] = in[from];
      begun[to] = true;
      return;
    }
    switch (kind) {
      case ReduceKind::Sum: out[to] = sum(out[to], in[from]); break;
      case ReduceKind::Prod: out[to] = product(out[to], in[from]); break;
      case ReduceKind::Max:
      case ReduceKind::Min:
        if (better(in[from], out[to], kind == ReduceKind::Max)) out[to] = in[from];
        break;
      case ReduceKind::ArgMax:
      case ReduceKind::ArgMin: throw InternalError("reference: fold of an index");
    }
  });
  return out;
}

template <class T> std::vector<int64_t> find_extreme(ReduceKind kind, const std::vector<T>& in, const Dims& shape,
                                                     int64_t axis, int64_t count) {
  std::vector<int64_t> out(count, -1);
  std::vector<T> best(count);
  const int64_t inner = contiguous_strides(shape)[axis];
  walk(shape, kept_strides(shape, {axis}), 0, [&](int64_t from, int64_t to) {
    if (out[to] >= 0 && !better(in[from], best[to], kind == ReduceKind::ArgMax)) return;
    best[to] = in[from];
    out[to] = from / inner % shape[axis];
  });
  return out;
}

template <class T> std::vector<T> scan(const std::vector<T>& in, const Dims& shape, int64_t axis) {
  std::vector<T> out = in;
  const int64_t inner = contiguous_strides(shape)[axis];
  for (int64_t i = 0; i < static_cast<int64_t>(in.size()); ++i)
    // from zero, as eager: -0.0 alone gives 0.0
    out[i] = sum(i / inner % shape[axis] > 0 ? out[i - inner] : T(0), in[i]);
  return out;
}

template <class T> std::vector<T> contract(const std::vector<T>& lhs, const std::vector<T>& rhs, int64_t b, int64_t m,
                                           int64_t n, int64_t k) {
  std::vector<T> out(b * m * n, T(0));
  for (int64_t ib = 0; ib < b; ++ib)
    for (int64_t im = 0; im < m; ++im)
      for (int64_t in = 0; in < n; ++in) {
        T total = 0;
        for (int64_t ik = 0; ik < k; ++ik)
          total = sum(total, product(lhs[(ib * m + im) * k + ik], rhs[(ib * n + in) * k + ik]));
        out[(ib * m + im) * n + in] = total;
      }
  return out;
}

}  // namespace

Tensor evaluate_reduction(const Node& node, const Operands& in, Precision precision) {
  const Tensor& a = *in[0];
  const Dims& shape = a.type.shape;
  Tensor out{node.type, {}, {}};
  switch (node.op) {
    case Op::Reduce: {
      const auto& [kind, axes] = node.as<ReduceAttr>();
      const int64_t count = node.type.numel();
      if (kind == ReduceKind::ArgMax || kind == ReduceKind::ArgMin) {
        out.i = is_float(a.type.dtype) ? find_extreme(kind, a.f, shape, axes[0], count)
                                       : find_extreme(kind, a.i, shape, axes[0], count);
        return out;
      }
      if (is_float(node.dtype())) out.f = fold(kind, a.f, shape, axes, count);
      else out.i = fold(kind, a.i, shape, axes, count);
      break;
    }
    case Op::Scan:
      if (is_float(node.dtype())) out.f = scan(a.f, shape, node.as<AxisAttr>().axis);
      else out.i = scan(a.i, shape, node.as<AxisAttr>().axis);
      break;
    case Op::Contract: {
      const int64_t b = shape[0], m = shape[1], k = shape[2], n = in[1]->type.shape[1];
      if (is_float(node.dtype())) out.f = contract(a.f, in[1]->f, b, m, n, k);
      else out.i = contract(a.i, in[1]->i, b, m, n, k);
      break;
    }
    default: throw InternalError("reference: no such reduction");
  }
  for (double& x : out.f) x = kept(precision, node.dtype(), x);
  for (int64_t& x : out.i) x = wrap_to(node.dtype(), x);
  return out;
}

}  // namespace trainc::reference
