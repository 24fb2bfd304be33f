// One ATen call of the imported graph, as a row of the table sees it: its arguments by the schema's position and name,
// the types that the framework says it gives. Includes: frontend/formulas, nlohmann-json.
#pragma once
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "frontend/formulas/shapes.h"
#include "support/mask_generator.h"

namespace trainc::frontend::aten {

using formulas::all_axes;
using formulas::compute_dtype;
using formulas::iota;
using formulas::Value;
using Json = nlohmann::json;
using Results = std::vector<const Node*>;  // one per result; nullptr: undefined

/// What an imported node of the traced graph has become.
struct ImportedValue {
  Results nodes;
  std::vector<Dims> strides;  // of the framework's tensors; only operations that ask for memory order look
  bool is_list = false;       // several results: taken apart by getitem
  Dims offsets;               // beside `strides`: the first element's place in its storage
  // Whether it is an argument of the graph or a view of one whose place in the storage may be another at the next call
  // ("begins" says that it is asked for).
  bool of_argument = false;
};
using Environment = std::unordered_map<std::string, ImportedValue>;

/// The dtype that PyTorch gives two tensors of these.
DType promote(DType, DType);
bool is_row_major(const Dims& shape, const Dims& strides);
/// A sum of `terms` of a tensor's elements as eager adds it up, from 0.0: of one term, -0.0 becomes 0.0, where the
/// graph's sum is the term itself.
Value from_zero(Value sum, int64_t terms);

class Call;

class Arg {
 public:
  bool none() const;  // absent, null, or a result that is undefined
  bool is_tensor() const;
  bool is_bool() const { return json_ && json_->is_boolean(); }
  bool is_list() const { return json_ && json_->is_array(); }
  Value tensor() const;
  std::vector<std::optional<Value>> tensors() const;
  /// A tensor, or a number as a scalar; cast to d, not broadcast.
  Value as(DType d) const;
  int64_t integer() const;
  int64_t integer(int64_t otherwise) const { return none() ? otherwise : integer(); }
  double number() const;
  double number(double otherwise) const { return none() ? otherwise : number(); }
  bool flag(bool otherwise) const { return none() ? otherwise : number() != 0; }
  std::string text(const char* otherwise) const;
  Dims ints() const;  // a single integer is a list of one; true is 1
  DType dtype(DType otherwise) const;
  Dims strides() const;      // of the framework's tensor
  int64_t offset() const;    // its first element's place in its storage
  bool of_argument() const;  // as ImportedValue has it

 private:
  friend class Call;
  const ImportedValue* value() const;
  const Call* call_ = nullptr;
  const Json* json_ = nullptr;
};

class Call {
 public:
  Builder& b;
  std::string target;                      // "aten.add.Tensor"
  std::vector<std::optional<Type>> types;  // of the results, as the framework says; nullopt: undefined
  std::vector<Dims> strides;               // beside them
  const Json& args;
  const Json& kwargs;
  const Environment& environment;
  int64_t& draws;  // random operations so far
  // the framework draws on the device: masks are dealt out (import.h, "generator"), and only dropout's are known
  bool philox = false;
  MaskGenerator generator = MaskGenerator::Twister;  // else
  DType default_dtype = DType::F32;                  // the framework's, of Python's floats
  int64_t threads = 0, vector = 0;                   // with `philox`, of a mask: RandomAttr's; 0: not given

  Arg arg(size_t position, const char* name) const;
  const Type& type(size_t i = 0) const;
  bool defined(size_t i) const { return i < types.size() && types[i].has_value(); }
  DType dtype() const { return type().dtype; }
  DType compute() const { return compute_dtype(type().dtype); }
  /// The argument in the dtype that this call computes in.
  Value in(size_t position, const char* name) const { return arg(position, name).as(compute()); }
  /// The same of an operation that promotes: eager's iterator gives every operand the result's dtype first, numbers too
  /// (0.1 is 0.1001 beside bf16).
  Value operand(size_t position, const char* name) const { return cast(arg(position, name).as(dtype()), compute()); }
  /// The same of an argument that may be missing.
  std::optional<Value> optional(size_t position, const char* name, DType d) const {
    const Arg a = arg(position, name);
    return a.none() ? std::nullopt : std::optional(a.as(d));
  }
  /// Whether an argument, where it is a number, is one of the result's dtype. Where it is not, eager's operations that
  /// fill, bound or choose raise an error (those that compute wrap): such a call is left to the framework, which says
  /// so.
  bool fits(size_t position, const char* name) const;
  /// The common dtype of these arguments by PyTorch's rules (dimensions before scalars before Python numbers).
  DType promoted(std::initializer_list<Arg>) const;
  /// v as result i: cast and broadcast to its type.
  const Node* give(Value v, size_t i = 0) const;
  Value full(const Dims& shape, DType d, double v) const { return {&b, b.full(d, shape, v)}; }
  /// A random mask as eager draws it: in memory order of a tensor with these strides (of single elements dealt out: in
  /// logical order).
  Value random_mask(const Dims& shape, const Dims& strides, double p) const;
  [[noreturn]] void fail(const std::string& what) const;  // InternalError with target and origin
};

/// What a row gives: nodes, or nothing where this form of the operation is not compiled (it becomes an extern node).
struct Outcome {
  std::optional<Results> results;
  Outcome(const Node* n) : results(Results{n}) {}
  Outcome(Results r) : results(std::move(r)) {}
  Outcome(std::nullopt_t) {}
};
using Handler = std::function<Outcome(const Call&)>;

/// Axis counted from 0; negative ones count from the end, a scalar has one axis as in PyTorch.
int64_t wrap_axis(const Call&, int64_t axis, int64_t rank);
/// The axes of an optional list argument, ascending; all where absent or empty.
Dims axes_of(const Call&, const Arg&, int64_t rank);

}  // namespace trainc::frontend::aten
