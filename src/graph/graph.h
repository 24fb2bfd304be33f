// The graph: immutable, hash-consed nodes over the primitives of ops.def.
// Takes: calls of Graph::make (front ends, passes). Gives: nodes whose equality is pointer equality, so that common
// subexpressions are one node. Includes: support only.
//
// A node's value is a dense tensor in row-major order. Strides exist in two places only: at the arguments
// (InputAttr) and at the results (Output).
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "support/dtype.h"
#include "support/error.h"
#include "support/failure.h"

namespace trainc {

using Dims = std::vector<int64_t>;

struct Type {
  DType dtype = DType::F32;
  Dims shape;
  bool operator==(const Type&) const = default;
  int64_t numel() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
  int64_t rank() const { return static_cast<int64_t>(shape.size()); }
  int64_t bytes() const { return numel() * size_of(dtype); }
};
std::string to_string(const Type&);  // "f32[8,64]"

enum class Op : uint8_t {
#define OP(Name, text, inputs, Class, meaning) Name,
#include "graph/ops.def"
};
enum class OpClass : uint8_t { Leaf, Elementwise, Reduction, Contraction, Movement, Indexed, Extern };
std::string_view name_of(Op);
OpClass class_of(Op);
int arity_of(Op);  // -1: any
inline bool is_elementwise(Op op) { return class_of(op) == OpClass::Elementwise; }
inline bool is_movement(Op op) { return class_of(op) == OpClass::Movement; }

// --- attributes: one struct per need, a variant over them; all compared by value, floats by bits
struct NoAttr { bool operator==(const NoAttr&) const = default; };
struct InputAttr {
  int64_t index = 0;
  Dims strides;       // in elements, of the argument as it arrives; empty: row-major
  bool late = false;  // of a joint graph: as the argument is when the backward runs, another value where it was written
  bool operator==(const InputAttr&) const = default;
};
struct ConstantAttr {
  // f64's bits for the float dtypes (exactly representable in dtype), two's complement for the others
  uint64_t bits = 0;
  bool operator==(const ConstantAttr&) const = default;
};
struct RandomAttr {
  int64_t draw = 0;  // place among the program's random operations; the key that keeps two dropouts two
  double p = 0;      // probability of true
  // 0: the host's generator, element after element. Else Philox, as the framework's dropout deals elements out to this
  // many threads (a multiple of 256), `vector` neighbours at a time (1, 2, 4 or 8): docs/cuda.md, "Masks".
  int64_t threads = 0, vector = 0;
  bool operator==(const RandomAttr&) const = default;
};
// Arg*: one axis, i64, the first of equals; NaN wins
enum class ReduceKind : uint8_t { Sum, Prod, Max, Min, ArgMax, ArgMin };
struct ReduceAttr {
  ReduceKind kind = ReduceKind::Sum;
  Dims axes; /* ascending */
  bool operator==(const ReduceAttr&) const = default;
};
struct AxisAttr {
  int64_t axis = 0;
  Failure failure = Failure::Index;  // Gather alone: what an index out of bounds raises
  bool operator==(const AxisAttr&) const = default;
};
struct AxesAttr {
  Dims axes;
  bool operator==(const AxesAttr&) const = default;
};
struct SliceAttr {
  Dims start, step; /* one per axis; the node's shape gives the extent */
  bool operator==(const SliceAttr&) const = default;
};
struct PadAttr {
  Dims low, high;
  bool operator==(const PadAttr&) const = default;
};
struct WindowAttr {
  Dims axes, size, step, dilation; /* axes ascending; the others one number an axis of these */
  bool operator==(const WindowAttr&) const = default;
};
enum class ScatterKind : uint8_t { Sum, Last };
struct ScatterAttr {
  int64_t axis = 0;
  ScatterKind kind = ScatterKind::Sum;
  Failure failure = Failure::Index;
  bool operator==(const ScatterAttr&) const = default;
};
struct ExternAttr {
  std::string target;         // "aten.convolution.default"
  std::string arguments;      // JSON {"args": [...], "kwargs": {...}}; {"$": i} stands for the i-th input
  std::vector<Type> results;  // all of them; a result the framework leaves undefined has dtype bool and shape [0]
  bool random = false;        // draws from the framework's generator: keeps its place in the order of draws
  int64_t draw = -1;          // that place, where random (two equal calls are two then)
  // Whether it may draw though nothing says so: a user's own operation, whose schema does not tell.
  bool may_draw = false;
  // inputs, by number: a result may be a view of their memory, as the operator's schema says
  Dims aliases;
  // why the front end has no primitives for it: a remark's reason. Empty: the compiler chose it (a library's call)
  std::string reason;
  bool operator==(const ExternAttr&) const = default;
};
struct ResultAttr {
  int64_t index = 0;
  bool operator==(const ResultAttr&) const = default;
};
using Attrs = std::variant<NoAttr, InputAttr, ConstantAttr, RandomAttr, ReduceAttr, AxisAttr, AxesAttr, SliceAttr,
                           PadAttr, WindowAttr, ScatterAttr, ExternAttr, ResultAttr>;

struct Node {
  Op op;
  Attrs attrs;
  std::vector<const Node*> inputs;
  Type type;
  int64_t id = 0;  // order of making: inputs come before users

  const Node* in(size_t i) const { return inputs.at(i); }
  template <class A> const A& as() const { return std::get<A>(attrs); }
  const Dims& shape() const { return type.shape; }
  DType dtype() const { return type.dtype; }
};

/// A result of the graph: its value, and how the caller's tensor is laid out.
struct Output {
  const Node* value = nullptr;  // nullptr: the caller gets None
  Dims strides;                 // in elements; empty: row-major
};

class Graph {
 public:
  Graph() = default;
  Graph(Graph&&) = default;
  Graph& operator=(Graph&&) = default;
  Graph(const Graph&) = delete;

  /// The one node with this op, attributes, inputs and type; made when it is not there yet. Throws InternalError where
  /// the row of ops.def is violated (arity, shapes, dtypes: see verify.h).
  const Node* make(Op, Attrs, std::vector<const Node*> inputs, Type, std::string_view origin = {});

  std::vector<Output> outputs;
  /// The program's draws (Random, random Extern), whether anybody reads them or not: the generator has to move on by
  /// each. Live as outputs are.
  std::vector<const Node*> effects;
  /// What kernels ask for beside their operands (schedule/padding.h). Live as outputs are; no pass sees a graph that
  /// has some.
  std::vector<const Node*> also_wanted;
  int64_t input_count = 0;  // arguments of the graph, used or not

  const std::deque<Node>& nodes() const { return nodes_; }  // in order of making: a topological order
  /// Where the node comes from in the user's program ("model.py:41 (aten.addmm)"); outside the key, merged nodes keep
  /// all.
  const std::vector<std::string>& origins(const Node*) const;
  void add_origin(const Node*, std::string_view);
  /// Nodes that the outputs and the effects need, in topological order.
  std::vector<const Node*> live() const;

 private:
  struct Hash { size_t operator()(const Node*) const; };
  struct Same { bool operator()(const Node*, const Node*) const; };
  std::deque<Node> nodes_;
  std::unordered_map<const Node*, const Node*, Hash, Same> unique_;
  std::unordered_map<const Node*, std::vector<std::string>> origins_;
};

/// Whether the node takes numbers from the generator, and its place among those that do.
bool draws(const Node*);
int64_t draw_of(const Node*);

/// Row-major strides of `shape`, in elements.
Dims contiguous_strides(const Dims& shape);

/// The scalar of a Constant: as double (float dtypes), as int64 (the others; bool is 0 or 1).
double float_of(const Node* constant);
int64_t int_of(const Node* constant);

}  // namespace trainc
