#include "frontend/formulas/slices.h"

namespace trainc::formulas {
namespace {

Value full(Value like, const Dims& shape, DType d, double v) { return with(like, like.b->full(d, shape, v)); }

}  // namespace

Value sliced(Value x, const Range& r) { return with(x, x.b->slice_axis(x.node, r.axis, r.start, r.extent, r.step)); }

Value unsliced(Value x, const Range& r, int64_t n, Value fill) {
  if (r.extent == 0) {
    Dims shape = x.shape();
    shape[r.axis] = n;
    return broadcast(fill, shape);
  }
  Dims low(x.rank(), 0), high(x.rank(), 0);
  if (r.step > 1) {  // [e] -> [e, 1] -> [e, step] -> [e * step], the tail cut off
    Dims split = x.shape(), joined = x.shape();
    split.insert(split.begin() + r.axis + 1, 1);
    Dims none(split.size(), 0), gap(split.size(), 0);
    gap[r.axis + 1] = r.step - 1;
    joined[r.axis] = r.extent * r.step;
    x = reshape(with(x, x.b->pad(reshape(x, split).node, fill.node, none, gap)), joined);
    x = sliced(x, {r.axis, 0, std::min(joined[r.axis], n - r.start), 1});
  }
  low[r.axis] = r.start;
  high[r.axis] = n - r.start - x.size(r.axis);
  return with(x, x.b->pad(x.node, fill.node, low, high));
}

Value slice_scattered(Value self, Value src, const Range& r) {
  if (r.extent == 0) return self;
  const int64_t n = self.size(r.axis);
  if (r.step == 1) {
    std::vector<const Node*> parts;
    if (r.start > 0) parts.push_back(sliced(self, {r.axis, 0, r.start, 1}).node);
    parts.push_back(src.node);
    if (const int64_t after = r.start + r.extent; after < n)
      parts.push_back(sliced(self, {r.axis, after, n - after, 1}).node);
    return with(self, self.b->concat(parts, r.axis));
  }
  Value inside = unsliced(full(src, src.shape(), DType::Bool, 1), r, n, full(src, {}, DType::Bool, 0));
  return where(inside, unsliced(src, r, n, number(src, 0)), self);
}

}  // namespace trainc::formulas
