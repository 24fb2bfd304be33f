// Short spellings for Graph::make with the type worked out. Shapes must agree as ops.def says: no implicit broadcast
// here, except where a function says so. Every function throws InternalError when a contract is broken.
#pragma once
#include <initializer_list>
#include <span>

#include "graph/graph.h"

namespace trainc {

/// Builds into one graph; every node made through it carries `origin`.
struct Builder {
  Graph& graph;
  std::string origin;

  const Node* input(int64_t index, Type, Dims strides = {});
  const Node* constant(DType, double value);  // rounded to dtype; integers: value must be integral
  const Node* constant_int(DType, int64_t value);
  /// A scalar constant broadcast to `shape`.
  const Node* full(DType, const Dims& shape, double value);
  const Node* iota(DType, const Dims& shape, int64_t axis);
  const Node* random(const Dims& shape, RandomAttr);

  const Node* unary(Op, const Node*);
  const Node* binary(Op, const Node*, const Node*);  // comparisons give bool
  const Node* select(const Node* c, const Node* a, const Node* b);
  const Node* cast(const Node*, DType);  // nothing where the dtype is already so

  const Node* bitcast(const Node*, DType);  // the same

  const Node* add(const Node* a, const Node* b) { return binary(Op::Add, a, b); }
  const Node* sub(const Node* a, const Node* b) { return binary(Op::Sub, a, b); }
  const Node* mul(const Node* a, const Node* b) { return binary(Op::Mul, a, b); }
  const Node* div(const Node* a, const Node* b) { return binary(Op::Div, a, b); }

  const Node* reduce(ReduceKind, const Node*, Dims axes, bool keep_dims = false);
  const Node* scan(const Node*, int64_t axis);
  const Node* contract(const Node* lhs, const Node* rhs);  // [B,M,K], [B,N,K] -> [B,M,N]

  const Node* reshape(const Node*, const Dims&);
  const Node* permute(const Node*, const Dims& order);
  /// To `shape` by the rules of NumPy: missing leading axes are put there first, then axes of size 1 are repeated.
  const Node* broadcast(const Node*, const Dims& shape);
  const Node* slice(const Node*, const Dims& start, const Dims& extent, const Dims& step);
  const Node* slice_axis(const Node*, int64_t axis, int64_t start, int64_t extent, int64_t step = 1);
  const Node* pad(const Node*, const Node* value, const Dims& low, const Dims& high);
  /// All windows of `size` along `axes` that lie within `a`: the axes count windows, and the places in a window are new
  /// last axes.
  const Node* window(const Node*, WindowAttr);
  const Node* concat(std::span<const Node* const>, int64_t axis);
  const Node* reverse(const Node*, const Dims& axes);
  const Node* gather(const Node*, const Node* index, int64_t axis, Failure = Failure::Index);
  const Node* scatter(ScatterKind, const Node* init, const Node* index, const Node* src, int64_t axis,
                      Failure = Failure::Index);
  const Node* extern_call(ExternAttr, std::vector<const Node*> inputs);
  const Node* result(const Node* extern_node, int64_t index);
};

/// NumPy's common shape of two; throws InternalError where there is none.
Dims broadcast_shape(const Dims&, const Dims&);

/// The tensor that `n` casts, reshapes, or (of floats) multiplies or divides by a number: each element is made of the
/// one at the same row-major position. nullptr: `n` does something else.
const Node* scaled_tensor(const Node* n);

}  // namespace trainc
