#include "passes/values.h"

#include <bit>

namespace trainc {

bool is_uniform(const Node* node, double value) {
  const Node* c = uniform_constant(node);
  if (!c) return false;
  if (is_float(c->dtype())) return c->as<ConstantAttr>().bits == std::bit_cast<uint64_t>(value);
  return static_cast<double>(int_of(c)) == value;
}

bool is_uniform_zero(const Node* node) { return is_uniform(node, 0.0) || is_uniform(node, -0.0); }

namespace {

// binary digits of the integers held; bits of a float's exponent
struct Range {
  int digits;
  bool negative;
  int exponent;
};

Range range_of(DType d) {
  switch (d) {
    case DType::F64: return {53, true, 11};
    case DType::F32: return {24, true, 8};
    case DType::BF16: return {8, true, 8};
    case DType::F16: return {11, true, 5};
    case DType::I64: return {63, true, 0};
    case DType::I32: return {31, true, 0};
    case DType::I16: return {15, true, 0};
    case DType::I8: return {7, true, 0};
    case DType::U8: return {8, false, 0};
    case DType::U16: return {16, false, 0};
    case DType::U32: return {32, false, 0};
    case DType::U64: return {64, false, 0};
    case DType::Bool: return {1, false, 0};
  }
  return {};
}

}  // namespace

bool holds_exactly(DType from, DType to) {
  const Range f = range_of(from), t = range_of(to);
  if (from == to) return true;
  if (to == DType::Bool || (is_float(from) && !is_float(to))) return false;
  if (is_float(from)) return f.digits <= t.digits && f.exponent <= t.exponent;
  // The exponents of all float dtypes reach over the digits compared here (f16: 11 digits, 65504).
  return f.digits <= t.digits && (t.negative || !f.negative);
}

}  // namespace trainc
