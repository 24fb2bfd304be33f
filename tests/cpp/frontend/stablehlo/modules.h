// Modules in the wire format, and what the importer makes of them.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "frontend/stablehlo/import.h"
#include "reference/reference.h"
#include "support/error.h"

namespace trainc::frontend {

using nlohmann::json;
using reference::Tensor;

inline json value(const std::string& name, const std::string& dtype, const Dims& shape) {
  return {{"name", name}, {"dtype", dtype}, {"shape", shape}};
}
inline json node(const std::string& op, const std::vector<std::string>& operands, const std::vector<json>& results,
                 const json& attrs = json::object(), const std::vector<json>& regions = {}) {
  return {{"op", op},       {"operands", operands}, {"results", results},
          {"attrs", attrs}, {"regions", regions},   {"origin", "step.py:7 (jit(step)/it)"}};
}
inline json function(const std::vector<json>& args, const std::vector<json>& body,
                     const std::vector<std::string>& returns) {
  return {{"args", args}, {"body", body}, {"returns", returns}};
}
inline json module(const json& main, const json& others = json::object()) {
  json functions = others;
  functions["main"] = main;
  return {{"front", "stablehlo"}, {"name", "step"}, {"functions", functions}};
}
/// A scalar i32 from its bytes.
inline json number(const std::string& name, int32_t v) {
  static const char* digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const uint64_t bits = static_cast<uint64_t>(__builtin_bswap32(static_cast<uint32_t>(v))) << 16;
  std::string text;
  for (int i = 0; i < 6; ++i) text += digits[bits >> (42 - 6 * i) & 63];
  return node("stablehlo.constant", {}, {value(name, "i32", {})}, {{"value", {{"splat", text + "=="}}}});
}

inline std::vector<Tensor> run(const json& root, const std::vector<Tensor>& inputs) {
  const Program program = import_stablehlo(root);
  return reference::evaluate(program.graph, inputs, {reference::Precision::Rounded, {}, {}});
}
inline Tensor floats(std::vector<double> v) { return {{DType::F32, {static_cast<int64_t>(v.size())}}, v, {}}; }
inline Tensor integers(std::vector<int64_t> v, DType d = DType::I32) {
  return {{d, {static_cast<int64_t>(v.size())}}, {}, v};
}

/// One operation on arguments of these dtypes, of `n` elements.
inline json one(const std::string& op, const std::vector<std::string>& dtypes, const std::string& result, int64_t n,
                const json& attrs = json::object()) {
  std::vector<json> args;
  std::vector<std::string> names;
  for (const std::string& d : dtypes) {
    names.push_back("%" + std::to_string(args.size()));
    args.push_back(value(names.back(), d, {n}));
  }
  return module(function(args, {node(op, names, {value("%r", result, {n})}, attrs)}, {"%r"}));
}

inline std::string refused(const json& root) {
  try {
    import_stablehlo(root);
  } catch (const InternalError& e) { return e.what(); }
  return "nothing";
}

}  // namespace trainc::frontend
