// StableHLO -> Program. Takes: a module as JSON (docs/frontend.md; python/trainc/xla writes it). Gives: Program. One
// table row per operation; what has no row is refused. Calls are inlined, loops of a known trip count unrolled, up to
// a number of primitives (cost/unrolling.h).
// Includes: graph, frontend/formulas, reference (to know how often a loop runs), nlohmann-json.
//
// Wire format:
//   {"front": "stablehlo", "name": "step", "functions": {"main": F, "threefry2x32_1": F, ...}}
//   F = {"args": [{"name": "%0", "dtype": "f32", "shape": [8, 64]}, ...], "body": [NODE, ...], "returns": ["%7", ...]}
//   NODE = {"op": "stablehlo.add", "operands": ["%0", "%1"], "results": [{"name": "%2", "dtype": "f32", "shape": []}],
//           "attrs": {...}, "regions": [F, ...], "origin": "train.py:41 (jit(step)/transpose(jvp(loss))/add)"}
//   - Names are unique in the module; regions may read names from outside.
//   - "op": "stablehlo.X", "chlo.X", "func.call" (attrs {"callee": "threefry2x32_1"}), or another dialect's (refused).
//   - "dtype": the names of support/dtype.h (i1 is "bool"), any other as its MLIR text (refused where it is met):
//     "complex<f32>" and "complex<f64>" are compiled. An argument or a result of "main" of these is one of the
//     Program's with a last axis of 2 more, the real and the imaginary part.
//   - "attrs": MLIR's attributes under StableHLO's names: integers, bools, strings, lists of integers (of rank 2 and
//     more: flattened, the shape under NAME_shape), enums as their text ("LT"), structured attributes as objects with
//     StableHLO's field names, symbols as strings.
//   - stablehlo.constant: attrs {"value": {"splat": one element} or {"bytes": all, row-major}}, base64 of little-endian
//     bytes; bool one byte an element, a complex number its parts. "bytes" of at most 64 elements: the door gives
//     larger ones as further arguments of "main", behind the program's.
//   - Arguments of "main" may have "donated": true, which means nothing here. Its results are the outputs, in order.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "graph/program.h"

namespace trainc::frontend {

/// Throws InternalError that names operation and origin of what is refused, or where the module is not as above.
Program import_stablehlo(const nlohmann::json& root);
/// An operation of "main" by its place in the body, and why it, or an operation of what it calls, is not compiled.
struct RefusedOperation {
  size_t place;
  std::string reason;
};
/// All that `import_stablehlo` would refuse, as if what is refused were computed elsewhere and came as arguments.
std::vector<RefusedOperation> refused_by_stablehlo(const nlohmann::json& root);
/// Names of all operations with a row; "complex NAME" of those with one for complex numbers.
std::vector<std::string> stablehlo_operations();

}  // namespace trainc::frontend
