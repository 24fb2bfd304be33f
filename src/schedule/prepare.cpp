#include "schedule/prepare.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <unordered_set>

#include "cost/blocking.h"
#include "cost/loops.h"
#include "cost/sums.h"
#include "graph/build.h"
#include "loop/loop.h"
#include "schedule/product_order.h"
#include "schedule/schedule.h"
#include "schedule/variance.h"
#include "schedule/vendor_epilogue.h"
#include "schedule/vendor_operands.h"
#include "support/division.h"

namespace trainc::schedule {
namespace {

bool few_results(const Node* x, const ReduceAttr& attr, const Type& type) {
  const bool across = !std::binary_search(attr.axes.begin(), attr.axes.end(), x->type.rank() - 1);
  return type.numel() < (across ? cost::kAcross * cost::kFewVectors : cost::kFewResults);
}

const Node* keep_dims(Builder& b, const Node* reduced, const Dims& shape, const Dims& axes) {
  Dims kept = shape;
  for (int64_t axis : axes) kept[axis] = 1;
  return b.broadcast(b.reshape(reduced, kept), shape);
}

const Node* arg_reduce(Builder& b, const Node* x, const ReduceAttr& attr) {
  const Dims& shape = x->shape();
  const ReduceKind kind = attr.kind == ReduceKind::ArgMax ? ReduceKind::Max : ReduceKind::Min;
  if (x->dtype() == DType::Bool) x = b.cast(x, DType::I32);
  const Node* best = keep_dims(b, b.reduce(kind, x, attr.axes), shape, attr.axes);
  const Node* here = b.binary(Op::Eq, x, best);
  if (is_float(x->dtype())) here = b.binary(Op::Or, here, b.unary(Op::IsNan, x));
  const Node* position = b.iota(DType::I64, shape, attr.axes.at(0));
  const Node* none = b.broadcast(b.constant_int(DType::I64, std::numeric_limits<int64_t>::max()), shape);
  return b.reduce(ReduceKind::Min, b.select(here, position, none), attr.axes);
}

/// A long sum in two steps, so that more threads (or vectors) take part: the longest axis that is summed becomes
/// [parts, rest]; rest is summed first, then the parts.
const Node* split_sum(Builder& b, const Node* x, const ReduceAttr& attr) {
  const Dims& shape = x->shape();
  int64_t axis = attr.axes.at(0);
  for (int64_t a : attr.axes)
    if (shape[a] > shape[axis]) axis = a;
  int64_t parts = 0;
  for (int64_t p : cost::kSumParts)
    if (shape[axis] % p == 0 && shape[axis] > p) {
      parts = p;
      break;
    }
  if (!parts) return nullptr;
  Dims split = shape;
  split[axis] = parts;
  split.insert(split.begin() + axis + 1, shape[axis] / parts);
  Dims inner, outer;
  int64_t removed = 0;
  for (int64_t a : attr.axes) {
    if (a == axis) {
      inner.push_back(axis + 1);
      outer.push_back(axis - removed);
    } else {
      inner.push_back(a < axis ? a : a + 1);
      if (a < axis) ++removed;
    }
  }
  std::sort(inner.begin(), inner.end());
  return b.reduce(attr.kind, b.reduce(attr.kind, b.reshape(x, split), inner), outer);
}

const Node* reduce(Builder&, const Node* x, const ReduceAttr&, const Type&, int64_t threads);

/// The least divisor of `length` that is `wanted` parts or more, else the greatest, of at least `least` terms each.
int64_t parts_of(int64_t length, int64_t wanted, int64_t least = cost::kLeastTerms) {
  int64_t parts = 1;
  for (int64_t p = 2; p <= length / least && parts < wanted; ++p)
    if (length % p == 0) parts = p;
  return parts;
}

/// A sum of f32 or f64 on a device, where a thread a result is too few: trailing axes first, which have a block a row;
/// leading ones in parts, then the parts. nullptr: in one stage.
const Node* in_stages(Builder& b, const Node* x, const ReduceAttr& attr, const Type& type, int64_t threads) {
  const int64_t results = type.numel(), rank = x->type.rank();
  if (results == 0 || results >= threads || x->type.numel() < cost::kLongSum) return nullptr;
  const auto folded = [&](int64_t k) { return std::binary_search(attr.axes.begin(), attr.axes.end(), k); };
  Dims trailing, others;
  int64_t kept = rank;  // axes from here on are folded, or of one element
  while (kept > 0 && (folded(kept - 1) || x->shape()[kept - 1] == 1)) --kept;
  for (int64_t a : attr.axes) (a >= kept ? trailing : others).push_back(a);
  if (!trailing.empty()) {
    if (others.empty()) return nullptr;
    return reduce(b, b.reduce(attr.kind, x, trailing), {attr.kind, others}, type, threads);
  }
  if (!are_leading(x->shape(), attr.axes)) return nullptr;
  const int64_t length = x->type.numel() / results, parts = parts_of(length, ceil_div(threads, results));
  if (parts == 1) return nullptr;
  const Node* first = b.reduce(attr.kind, b.reshape(x, {parts, length / parts, results}), {1});
  // The parts' results are few, and near: a warp adds up those of one result, whatever number they are.
  const Node* second =
      parts >= loop::kWarp ? b.reduce(attr.kind, b.permute(first, {1, 0}), {1}) : b.reduce(attr.kind, first, {0});
  return b.reshape(second, type.shape);
}

/// `threads`: of a device that sums are to keep busy; 0: a CPU.
const Node* reduce(Builder& b, const Node* x, const ReduceAttr& attr, const Type& type, int64_t threads) {
  if (attr.kind == ReduceKind::ArgMax || attr.kind == ReduceKind::ArgMin) return arg_reduce(b, x, attr);
  if (x->type.numel() == 0 && type.numel() > 0)
    return b.full(type.dtype, type.shape, attr.kind == ReduceKind::Prod ? 1 : 0);
  if (x->dtype() == DType::Bool) return b.cast(b.reduce(attr.kind, b.cast(x, DType::I32), attr.axes), DType::Bool);
  // rounded once: the parts' results are f32
  const bool half = x->dtype() == DType::BF16 || x->dtype() == DType::F16;
  if (threads > 0 && is_float(x->dtype())) {
    const Type sums{half ? DType::F32 : type.dtype, type.shape};
    if (const Node* staged = in_stages(b, half ? b.cast(x, DType::F32) : x, attr, sums, threads))
      return half ? b.cast(staged, type.dtype) : staged;
  }
  if (few_results(x, attr, type) && x->type.numel() >= cost::kLongSum) {
    if (const Node* split = split_sum(b, half ? b.cast(x, DType::F32) : x, attr))
      return half ? b.cast(split, type.dtype) : split;
  }
  return b.reduce(attr.kind, x, attr.axes);
}

/// One of the two sums of a variance of `x`, both taken in one way over it.
const Node* sum_for_variance(Builder& b, const Node* n, const Variance& of, const Node* x) {
  const auto total = [&](const Node* terms) {
    return reduce(b, terms, n->as<ReduceAttr>(), {DType::F64, n->shape()}, 0);
  };
  x = b.cast(x, DType::F64);
  const Node* sum = total(x);
  if (n == of.sum) return b.cast(sum, DType::F32);
  const auto number = [&](double value) { return b.full(DType::F64, n->shape(), value); };
  const Node* rest = b.sub(total(b.mul(x, x)), b.div(b.mul(sum, sum), number(of.count)));
  // Of equal numbers it may be less than 0, by a rounding.
  return b.cast(b.select(b.binary(Op::Lt, rest, number(0)), number(0), rest), DType::F32);
}

/// `n`, a sum of floats into few places along the first axis, on a device that it would leave idle (a place's sources
/// follow each other): its sources in parts, each with places of its own, then the parts. nullptr: in one stage.
const Node* scatter_in_stages(Builder& b, const Node* n, const std::vector<const Node*>& inputs, int64_t threads) {
  const auto& [axis, kind, failure] = n->as<ScatterAttr>();
  const Node *init = inputs[0], *src = inputs[2];
  if (axis != 0 || kind != ScatterKind::Sum || !is_float(n->dtype()) || threads == 0 || n->type.numel() == 0 ||
      src->type.numel() < cost::kLongSum)
    return nullptr;
  const int64_t places = n->shape()[0], sources = src->shape()[0];
  const int64_t parts = parts_of(sources, ceil_div(threads, src->type.numel() / sources),
                                 std::max(cost::kLeastTerms, places * cost::kSourcesOfAPlace));
  if (parts == 1) return nullptr;
  const DType sums = n->dtype() == DType::F64 ? DType::F64 : DType::F32;
  Dims in = src->shape(), out = n->shape();
  in[0] = sources / parts;
  in.insert(in.begin(), parts);
  out.insert(out.begin(), parts);
  const Node* first = b.scatter(ScatterKind::Sum, b.full(sums, out, 0), b.reshape(inputs[1], in),
                                b.cast(b.reshape(src, in), sums), 1, failure);
  const Node* total = reduce(b, first, {ReduceKind::Sum, {0}}, {sums, n->shape()}, threads);
  return b.cast(b.binary(Op::Add, b.cast(init, sums), total), n->dtype());
}

/// Where element `at` of `n` lies in what its movements (and casts) read.
int64_t source_of(const Node* n, int64_t at) {
  for (;;) {
    const Dims& shape = n->shape();
    Dims axes(shape.size());
    int64_t left = at;
    for (size_t k = shape.size(); k-- > 0;)
      axes[k] = shape[k] ? left % shape[k] : 0, left /= std::max<int64_t>(shape[k], 1);
    if (n->op == Op::Input && !n->as<InputAttr>().strides.empty())
      return std::inner_product(axes.begin(), axes.end(), n->as<InputAttr>().strides.begin(), int64_t{0});
    Dims from = axes;
    switch (n->op) {
      case Op::Reshape:
      case Op::Cast: n = n->in(0); continue;
      case Op::Permute:
        for (size_t k = 0; k < axes.size(); ++k) from[n->as<AxesAttr>().axes[k]] = axes[k];
        break;
      case Op::Slice:
        for (size_t k = 0; k < axes.size(); ++k)
          from[k] = n->as<SliceAttr>().start[k] + axes[k] * n->as<SliceAttr>().step[k];
        break;
      case Op::Reverse:
        for (int64_t axis : n->as<AxesAttr>().axes) from[axis] = shape[axis] - 1 - axes[axis];
        break;
      case Op::Broadcast:
        for (size_t k = 0; k < axes.size(); ++k)
          if (n->in(0)->shape()[k] == 1) from[k] = 0;
        break;
      default: return at;
    }
    n = n->in(0);
    const Dims strides = contiguous_strides(n->shape());
    at = std::inner_product(from.begin(), from.end(), strides.begin(), int64_t{0});
  }
}

/// Whether a copy of `n` with its outermost axis innermost can be made by squares (lower/transpose.cpp): all of it is
/// read, and both it and what lies beside each other in it divide by a vector.
bool transposes_by_squares(const Node* n) {
  const int64_t outermost = n->shape()[0], others = n->type.numel() / std::max<int64_t>(outermost, 1);
  if (outermost % cost::kTransposedSquare != 0 || others % cost::kTransposedSquare != 0) return false;
  for (; is_movement(n->op) || n->op == Op::Cast; n = n->in(0))
    if (n->type.numel() != n->in(0)->type.numel()) return false;
  return n->dtype() == DType::F32;
}

/// A contraction's operand that has neighbours in memory along k or along its rows: itself, or, where the permute it is
/// read through leaves none (a convolution's weight, whose taps are innermost), the same over a copy in another order,
/// with an axis of k or of the rows innermost.
const Node* with_neighbours(Builder& b, const Node* operand) {
  const int64_t rows = operand->shape()[1], k = operand->shape()[2];
  if (operand->type.numel() == 0 || rows == 1 || k == 1) return operand;
  const int64_t origin = source_of(operand, 0);
  if (std::abs(source_of(operand, 1) - origin) <= 1 || std::abs(source_of(operand, k) - origin) <= 1) return operand;
  std::vector<const Node*> above;
  const Node* p = operand;
  while (p->op == Op::Reshape || p->op == Op::Cast) above.push_back(p), p = p->in(0);
  if (p->op != Op::Permute) return operand;
  for (const Node* n = p; is_movement(n->op) || n->op == Op::Cast; n = n->in(0))
    if (n->op == Op::Window || n->op == Op::Broadcast) return operand;  // the copy would be larger than what is read
  const Dims& order = p->as<AxesAttr>().axes;
  size_t row_end = order.size();  // axes of p from here on are k
  for (int64_t inner = 1; row_end > 0 && inner < k;) inner *= p->shape()[--row_end];
  // Outermost stays outermost: then the copy moves within what is near. With an axis of k innermost if that is another
  // one.
  int64_t last = order.back();
  if (last == 0 && row_end > 0) last = order[row_end - 1];
  Dims kept;
  for (int64_t axis = 0; axis < static_cast<int64_t>(order.size()); ++axis)
    if (axis != last) kept.push_back(axis);
  kept.push_back(last);
  // the outermost axis innermost, the others as k and the rows have them: squares are transposed on the way
  if (transposes_by_squares(p->in(0))) {
    kept.clear();
    for (size_t k = row_end; k < order.size(); ++k) kept.push_back(order[k]);
    for (size_t k = 0; k < row_end; ++k) kept.push_back(order[k]);
    std::erase(kept, 0);
    kept.push_back(0);
  }
  const Node* n = copied(b.graph, b.permute(p->in(0), kept));
  Dims back;
  for (int64_t axis : order) back.push_back(std::find(kept.begin(), kept.end(), axis) - kept.begin());
  n = b.permute(n, back);
  for (size_t i = above.size(); i-- > 0;)
    n = above[i]->op == Op::Cast ? b.cast(n, above[i]->dtype()) : b.reshape(n, above[i]->shape());
  return n;
}

/// How often each matrix is multiplied with few rows at a time (a recurrent layer's weight, once a step).
std::unordered_map<const Node*, int64_t> multiplied_with_few_rows(const Graph& graph) {
  std::unordered_map<const Node*, int64_t> times;
  for (const Node* n : graph.live())
    if (n->op == Op::Contract && n->shape()[1] > 1 && n->shape()[1] <= cost::kFewRows && n->in(1)->shape()[2] > 1)
      ++times[n->in(1)];
  return times;
}

/// An operand over a copy in panels: a cache line of rows, whose consecutive k lie one after the other, then the next
/// rows. Few rows of the other operand are one register tile, which reads this one as it lies then, from front to end.
/// Else each product would transpose it again; or, where rows are neighbours in memory, read a line of each k, and the
/// next k lies in another page.
const Node* in_panels(Builder& b, const Node* operand) {
  const bool multiplied_as_it_is = operand->dtype() == DType::F32 || operand->dtype() == DType::F64;
  const int64_t batch = operand->shape()[0], rows = operand->shape()[1], k = operand->shape()[2];
  const int64_t panel = cost::kCacheLine / size_of(operand->dtype());
  if (!multiplied_as_it_is || operand->type.numel() == 0 || rows == 1) return operand;
  const bool near =
      source_of(operand, k) - source_of(operand, 0) == 1 && rows * size_of(operand->dtype()) <= cost::kNearRows;
  if (near) return operand;
  const int64_t panels = ceil_div(rows, panel), rest = panels * panel - rows;
  const Node* whole = operand;
  if (rest > 0) whole = b.pad(operand, b.constant(operand->dtype(), 0.0), {0, 0, 0}, {0, rest, 0});
  const Node* split = b.permute(b.reshape(whole, {batch, panels, panel, k}), {0, 1, 3, 2});
  const Node* n = b.permute(copied(b.graph, split, b.origin), {0, 1, 3, 2});
  n = b.reshape(n, {batch, panels * panel, k});
  return rest > 0 ? b.slice(n, {0, 0, 0}, {batch, rows, k}, {1, 1, 1}) : n;
}

/// The products that a sum adds up, results across vector lanes: where a factor is the same for many of them and its
/// neighbours lie apart in memory (a depthwise convolution's weight), over a copy in the order in which it is read.
const Node* with_factors_in_order(Builder& b, const Node* products, const ReduceAttr& attr) {
  const int64_t innermost = products->type.rank() - 1;
  if (products->op != Op::Mul || products->type.numel() == 0 || innermost < 0 ||
      std::find(attr.axes.begin(), attr.axes.end(), innermost) != attr.axes.end())
    return products;
  const int64_t columns = products->shape().back();
  std::vector<const Node*> factors = products->inputs;
  for (const Node*& factor : factors) {
    if (factor->op != Op::Broadcast) continue;
    const Node *repeated = factor->in(0), *n = repeated;
    if (columns == 1 || repeated->type.rank() == 0 || repeated->shape().back() != columns ||
        repeated->type.numel() * cost::kReadsOfACopy > products->type.numel())
      continue;
    while ((is_movement(n->op) && !is_copy(n) && n->op != Op::Window && n->op != Op::Broadcast) || n->op == Op::Cast)
      n = n->in(0);
    if (n == repeated || std::abs(source_of(repeated, 1) - source_of(repeated, 0)) == 1) continue;
    factor = b.broadcast(copied(b.graph, repeated, b.origin), products->shape());
  }
  return factors == products->inputs ? products : b.mul(factors[0], factors[1]);
}

/// A contraction of a vector with the rows of a matrix, as they lie: a sum of products for each. Of a register tile one
/// row or column would be wanted, and the other operand brought into panels for it. nullptr where it is none.
const Node* products_of_rows(Builder& b, const Node* lhs, const Node* rhs, const Type& type) {
  const bool of_lhs = lhs->shape()[1] == 1;
  const Node *vector = of_lhs ? lhs : rhs, *matrix = of_lhs ? rhs : lhs;
  const int64_t k = matrix->shape()[2];
  if (vector->shape()[1] != 1 || k < cost::kLeastRow || matrix->type.numel() == 0 || !is_float(type.dtype))
    return nullptr;
  for (const Node* n = matrix; is_movement(n->op) || n->op == Op::Cast; n = n->in(0))
    if (n->op == Op::Window) return nullptr;
  if (source_of(matrix, 1) - source_of(matrix, 0) != 1 || source_of(matrix, k - 1) - source_of(matrix, 0) != k - 1)
    return nullptr;
  // computed once, not in each row
  const Node* base = vector;
  while (is_movement(base->op) || base->op == Op::Cast) base = base->in(0);
  if (is_elementwise(base->op)) vector = copied(b.graph, vector, b.origin);
  const DType sums = type.dtype == DType::F64 ? DType::F64 : DType::F32;
  const Node* products = b.mul(b.cast(matrix, sums), b.broadcast(b.cast(vector, sums), matrix->shape()));
  const ReduceAttr attr{ReduceKind::Sum, {2}};
  const Type rows{sums, {type.shape[0], matrix->shape()[1]}};
  const Node* sum = reduce(b, products, attr, rows, 0);
  if (!sum) sum = b.reduce(attr.kind, products, attr.axes);
  return b.reshape(b.cast(sum, type.dtype), type.shape);
}

/// Whether a value's kernel writes it row by row, so that a reshape of it needs no other memory.
bool is_made_in_order(const Node* n) { return n->op == Op::Contract || n->op == Op::Reduce; }

/// The order of axes in which `strides` are row-major over the permuted shape; empty where there is none.
Dims memory_order(const Dims& shape, const Dims& strides) {
  Dims order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    if ((shape[a] == 1) != (shape[b] == 1)) return shape[a] == 1;  // axes of size 1 anywhere: put them first
    return shape[a] != 1 && strides[a] > strides[b];
  });
  int64_t expected = 1;
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    if (shape[*it] == 1) continue;
    if (strides[*it] != expected) return {};
    expected *= shape[*it];
  }
  return order;
}

}  // namespace

Graph prepare(const Graph& from, int64_t caller_inputs, int64_t caller_outputs,
              std::unordered_map<const Node*, const Node*>* stands_for, const VendorLibrary& library,
              int64_t sum_threads) {
  Graph to;
  to.input_count = from.input_count;
  std::unordered_map<const Node*, const Node*> made;
  const std::unordered_set<const Node*> with_products = sums_of_operands(from, library);
  const bool cpu = sum_threads == 0;
  const std::unordered_set<const Node*> in_order = cpu ? permutes_to_write(from) : std::unordered_set<const Node*>();
  const std::unordered_map<const Node*, int64_t> few_rows =
      cpu ? multiplied_with_few_rows(from) : std::unordered_map<const Node*, int64_t>();
  const std::unordered_map<const Node*, Variance> variances =
      cpu ? variances_of(from) : std::unordered_map<const Node*, Variance>();
  for (const Node* n : from.live()) {
    std::vector<const Node*> inputs;
    for (const Node* i : n->inputs) inputs.push_back(made.at(i));
    // A call gets its tensors in the shapes that it was written for, each a value of its own. What is started looks at
    // no shapes.
    if (n->op == Op::Extern)
      for (const Node*& i : inputs)
        if (i->op == Op::Reshape && !(is_started(n) && is_made_in_order(base_of(i)))) i = copied(to, i);
    const auto& origins = from.origins(n);
    Builder b{to, origins.empty() ? std::string() : origins[0]};
    if (n->op == Op::Contract) {
      const bool vendor = for_vendor(n, library.least_flops);
      const bool widen = inputs[0]->dtype() == DType::F32 && inputs[1]->dtype() == DType::F32 &&
                         vendor_source(inputs[0])->dtype() != vendor_source(inputs[1])->dtype();
      for (const Node*& i : inputs) i = vendor ? vendor_operand(b, i, widen) : with_neighbours(b, i);
      const auto times = few_rows.find(n->in(1));
      if (times != few_rows.end() && n->shape()[1] <= cost::kFewRows && times->second >= cost::kMultipliedAgain)
        inputs[1] = in_panels(b, inputs[1]);
    }
    const Node* copy = nullptr;
    if (n->op == Op::Contract && cpu && !for_vendor(n, library.least_flops))
      copy = products_of_rows(b, inputs[0], inputs[1], n->type);
    const auto variance = variances.find(n);
    if (variance != variances.end()) {
      copy = sum_for_variance(b, n, variance->second, made.at(variance->second.x));
    } else if (n->op == Op::Reduce) {
      const auto& attr = n->as<ReduceAttr>();
      inputs[0] = with_factors_in_order(b, inputs[0], attr);
      copy = reduce(b, inputs[0], attr, n->type, with_products.count(n) ? 0 : sum_threads);
    }
    if (n->op == Op::Scatter) copy = scatter_in_stages(b, n, inputs, sum_threads);
    if (!copy) copy = to.make(n->op, n->attrs, inputs, n->type);
    if (in_order.count(n)) copy = copied(to, copy, b.origin);
    for (const std::string& origin : origins) to.add_origin(copy, origin);
    made[n] = copy;
  }

  // What a call reads from memory of its own keeps the layout that it was written for; so does what a loop begins with.
  std::unordered_set<const Node*> called;
  for (const Node& n : to.nodes())
    if (n.op == Op::Extern && (!is_started(&n) || is_loop(&n))) called.insert(n.inputs.begin(), n.inputs.end());
  std::unordered_set<const Node*> given;  // bases that are some output's memory already
  for (const Output& o : from.outputs) {
    if (!o.value) {
      to.outputs.push_back(o);
      continue;
    }
    const Node* v = made.at(o.value);
    Dims strides = o.strides;
    Builder b{to, {}};
    const bool callers = v->op == Op::Input && v->as<InputAttr>().index < caller_inputs &&
                         static_cast<int64_t>(to.outputs.size()) < caller_outputs;
    if (callers && strides == v->as<InputAttr>().strides) {  // handed through: the caller gets his own tensor
      to.outputs.push_back({v, strides});
      continue;
    }
    if (!strides.empty()) {
      const Dims order = memory_order(v->shape(), strides);
      if (order.empty() && v->type.rank() > 0) strides.clear();
      else if (!std::is_sorted(order.begin(), order.end())) v = b.permute(v, order);
    }
    if (v->op == Op::Permute && v->in(0)->op == Op::Permute) {  // undone at once, more often than not
      const Dims &outer = v->as<AxesAttr>().axes, &inner = v->in(0)->as<AxesAttr>().axes;
      Dims both;
      for (int64_t axis : outer) both.push_back(inner[axis]);
      const Node* x = v->in(0)->in(0);
      v = std::is_sorted(both.begin(), both.end()) ? x : b.permute(x, both);
    }
    const Node* base = base_of(v);
    const bool foreign = base->op == Op::Result && !is_started(base->in(0));  // the framework's memory
    const bool as_made =
        o.value->shape() == base->shape() && (strides.empty() || strides == contiguous_strides(base->shape()));
    if (base->op == Op::Input || foreign || (called.count(base) && !as_made)) v = copied(to, v);
    while (!given.insert(base_of(v)).second) v = copied(to, v);
    to.outputs.push_back({v, strides});
  }
  for (const Node* effect : from.effects) to.effects.push_back(made.at(effect));
  if (stands_for) *stands_for = std::move(made);
  return to;
}

}  // namespace trainc::schedule
