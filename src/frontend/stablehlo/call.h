// One operation of the imported module, as a row of the table sees it. Includes: frontend/formulas, nlohmann-json.
#pragma once
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "frontend/formulas/shapes.h"
#include "frontend/stablehlo/known.h"

namespace trainc::frontend::stablehlo {

class Call;
using formulas::compute_dtype;
using formulas::Value;
using Json = nlohmann::json;
using Values = std::vector<Value>;
/// How many Values each of some values of the module is: a complex one is two, its real and its imaginary part.
using Parts = std::vector<int>;
/// Of one value as the wire format tells it: by its dtype.
int parts_of(const Json& value);

/// An InternalError that says operation and origin.
struct Refused : InternalError { using InternalError::InternalError; };

/// What rows with regions need of the importer.
class Regions {
 public:
  virtual ~Regions() = default;
  /// Inlines a region, or a function of the module: the values it returns. Complex ones are two everywhere here.
  virtual Values run(const Json& region, const Values& arguments) = 0;
  /// The same of a region on scalars, for each element of the arguments, which have one shape.
  virtual Values map(const Json& region, const Values& arguments) = 0;
  virtual const Json& function(const std::string& name) = 0;
  /// The same of a branch, which is computed where it is not taken, too: but for loops, which might never end. They
  /// make no trip there. `taken`: a bool.
  virtual Values branch(const Json& region, const Value& taken) = 0;
  /// Whether this is of such a loop's body, a graph of its own.
  virtual bool in_loop() const = 0;
  /// A loop in the plan. `goes_on`: whether there is a first trip; `in_vain`: primitives that were made of it before,
  /// and that nobody reads.
  virtual Values loop(const Call&, const Value& goes_on, int64_t in_vain) = 0;
};

class Call {
 public:
  Builder& b;
  std::string name;         // "stablehlo.add"
  Values in;                // the operands; a complex one is its real part and, behind it, its imaginary part
  std::vector<Type> types;  // of the results, complex ones as two likewise
  Parts operands, results;  // how `in` and `types` are made up
  const Json& attrs;
  const Json& regions;
  Regions& importer;
  Known& known;

  bool is_complex() const;  // whether one of its operands or results is
  /// The same call of the real parts (0) or the imaginary parts (1) of what is complex.
  Call part(int) const;

  const Type& type(size_t i = 0) const { return types.at(i); }
  DType dtype() const { return type().dtype; }
  const Dims& shape() const { return type().shape; }
  const Value& operand(size_t i) const;
  /// The operand in the dtype that floats are computed in.
  Value computed(size_t i) const { return formulas::cast(operand(i), compute_dtype(operand(i).dtype())); }
  /// v in the first result's dtype.
  Value rounded(Value v) const { return formulas::cast(v, dtype()); }
  Value scalar(DType d, double v) const { return {&b, b.constant(d, v)}; }

  int64_t integer(const char* attr) const;
  int64_t integer(const char* attr, int64_t otherwise) const {
    return attrs.contains(attr) ? integer(attr) : otherwise;
  }
  /// A list; empty where there is none.
  Dims list(const char* attr) const;
  /// A list of `size`, `otherwise` where it is missing.
  Dims list(const char* attr, size_t size, int64_t otherwise) const;
  std::string text(const char* attr, const char* otherwise = "") const { return attrs.value(attr, otherwise); }
  const Json& object(const char* attr) const;
  const Json& region(size_t i) const;
  [[noreturn]] void fail(const std::string& what) const;  // Refused, with name and origin
  void need(bool ok, const char* what) const {
    if (!ok) fail(what);
  }
};

/// A field of a structured attribute; empty where it is missing.
Dims field(const Json& object, const char* name);

using Handler = std::function<Values(const Call&)>;

}  // namespace trainc::frontend::stablehlo
