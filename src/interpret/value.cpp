#include "interpret/value.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "loop/loop.h"
#include "support/rounding.h"

namespace trainc::interpret {
namespace {

template <class T> T read(const uint8_t* bytes, int64_t index) {
  T v;
  std::memcpy(&v, bytes + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return v;
}
template <class T> void write(uint8_t* bytes, int64_t index, T v) {
  std::memcpy(bytes + index * static_cast<int64_t>(sizeof(T)), &v, sizeof(T));
}

Value cast(DType from, DType to, Value a) {
  if (to == DType::Bool) return int_value(is_float(from) ? a.f != 0 : a.i != 0);
  if (is_float(to)) {
    // i64 to f32 rounds once: not by way of double; halves are reached through f32
    if (to == DType::F64) return float_value(is_float(from) ? a.f : float_of_integer<double>(from, a.i));
    return float_value(round_to(to, is_float(from) ? static_cast<float>(a.f) : float_of_integer<float>(from, a.i)));
  }
  if (!is_float(from)) return int_value(wrap_to(to, a.i));
  return int_value(truncate_to(to, a.f));
}

Value bitcast(DType from, DType to, Value a) {
  const uint64_t bits = is_float(from) ? bits_of_float(from, a.f) : static_cast<uint64_t>(a.i);
  return is_float(to) ? float_value(float_of_bits(to, bits)) : int_value(wrap_to(to, static_cast<int64_t>(bits)));
}

double greater(double a, double b) { return std::isnan(a) || a > b ? a : b; }
double lesser(double a, double b) { return std::isnan(a) || a < b ? a : b; }

// T is the dtype's own: each operation rounds to it.
template <class T> T arithmetic(Op op, T a, T b) {
  switch (op) {
    case Op::Neg: return -a;
    case Op::Abs: return std::fabs(a);
    case Op::Sign: return static_cast<T>(a > 0 ? 1 : a < 0 ? -1 : 0);
    case Op::Floor: return std::floor(a);
    case Op::Ceil: return std::ceil(a);
    case Op::Round: return std::nearbyint(a);
    case Op::Trunc: return std::trunc(a);
    case Op::Sqrt: return std::sqrt(a);
    case Op::Rsqrt: return static_cast<T>(1) / std::sqrt(a);
    case Op::Exp: return static_cast<T>(std::exp(static_cast<double>(a)));
    case Op::Expm1: return static_cast<T>(std::expm1(static_cast<double>(a)));
    case Op::Log: return static_cast<T>(std::log(static_cast<double>(a)));
    case Op::Log1p: return static_cast<T>(std::log1p(static_cast<double>(a)));
    case Op::Sin: return static_cast<T>(std::sin(static_cast<double>(a)));
    case Op::Cos: return static_cast<T>(std::cos(static_cast<double>(a)));
    case Op::Tanh: return static_cast<T>(std::tanh(static_cast<double>(a)));
    case Op::Erf: return static_cast<T>(std::erf(static_cast<double>(a)));
    case Op::Erfc: return static_cast<T>(std::erfc(static_cast<double>(a)));
    case Op::Pow: return static_cast<T>(std::pow(static_cast<double>(a), static_cast<double>(b)));
    case Op::Add: return a + b;
    case Op::Sub: return a - b;
    case Op::Mul: return a * b;
    case Op::Div: return a / b;
    case Op::FloorDiv: return std::floor(a / b);
    case Op::Mod: {
      const T r = std::fmod(a, b);
      return r != 0 && (r < 0) != (b < 0) ? r + b : r;
    }
    case Op::Max: return static_cast<T>(greater(a, b));
    case Op::Min: return static_cast<T>(lesser(a, b));
    default: throw InternalError("interpret: " + std::string(name_of(op)) + " of floats");
  }
}

// wraps; negative exponents as integer division would give
uint64_t power(uint64_t base, int64_t exponent, DType d) {
  if (exponent < 0 && d != DType::U64) return base == 1 ? 1 : base == ~0ull ? (exponent & 1 ? ~0ull : 1) : 0;
  uint64_t r = 1;
  for (auto rest = static_cast<uint64_t>(exponent); rest; rest >>= 1, base *= base)
    if (rest & 1) r *= base;
  return r;
}

int64_t arithmetic(Op op, int64_t a, int64_t b, DType d) {
  const uint64_t ua = static_cast<uint64_t>(a), ub = static_cast<uint64_t>(b);
  if (d == DType::U64 && (op == Op::Div || op == Op::FloorDiv || op == Op::Mod)) {
    if (ub == 0) return op == Op::Mod ? a : 0;
    return static_cast<int64_t>(op == Op::Mod ? ua % ub : ua / ub);
  }
  const bool overflows = b == -1;  // the least integer / -1 traps on the machine: negate, which wraps
  switch (op) {
    case Op::Neg: return static_cast<int64_t>(0 - ua);
    case Op::Abs: return a < 0 && d != DType::U64 ? static_cast<int64_t>(0 - ua) : a;
    case Op::Sign: return a > 0 ? 1 : a == 0 ? 0 : d == DType::U64 ? 1 : -1;
    case Op::Floor:
    case Op::Ceil:
    case Op::Round:
    case Op::Trunc: return a;
    case Op::Not: return d == DType::Bool ? !a : ~a;
    case Op::Add: return static_cast<int64_t>(ua + ub);
    case Op::Sub: return static_cast<int64_t>(ua - ub);
    case Op::Mul: return static_cast<int64_t>(ua * ub);
    case Op::Div: return b == 0 ? 0 : overflows ? static_cast<int64_t>(0 - ua) : a / b;
    case Op::FloorDiv:
      return b == 0 ? 0 : overflows ? static_cast<int64_t>(0 - ua) : a / b - (a % b != 0 && (a % b < 0) != (b < 0));
    case Op::Mod: {
      if (b == 0) return a;  // a - (a / 0) * 0
      const int64_t r = overflows ? 0 : a % b;
      return r != 0 && (r < 0) != (b < 0) ? r + b : r;
    }
    case Op::Pow: return static_cast<int64_t>(power(ua, b, d));
    case Op::Max: return ordered(d, a) > ordered(d, b) ? a : b;
    case Op::Min: return ordered(d, a) < ordered(d, b) ? a : b;
    case Op::Shl: return shifted(Shift::Left, d, a, b);
    case Op::Shr: return shifted(Shift::Right, d, a, b);
    case Op::Sar: return shifted(Shift::SignedRight, d, a, b);
    case Op::And: return a & b;
    case Op::Or: return a | b;
    case Op::Xor: return a ^ b;
    default: throw InternalError("interpret: " + std::string(name_of(op)) + " of integers");
  }
}

template <class T> bool compare(Op op, T a, T b) {
  switch (op) {
    case Op::Lt: return a < b;
    case Op::Le: return a <= b;
    case Op::Eq: return a == b;
    default: return a != b;  // Ne; IsNan with b = a
  }
}

}  // namespace

Value load(const uint8_t* bytes, int64_t index, DType d) {
  switch (d) {
    case DType::F64: return float_value(read<double>(bytes, index));
    case DType::F32: return float_value(static_cast<double>(read<float>(bytes, index)));
    case DType::BF16: return float_value(float_of_bits(d, read<uint16_t>(bytes, index)));
    case DType::F16: return float_value(float_of_bits(d, read<uint16_t>(bytes, index)));
    case DType::I64: return int_value(read<int64_t>(bytes, index));
    case DType::I32: return int_value(read<int32_t>(bytes, index));
    case DType::I16: return int_value(read<int16_t>(bytes, index));
    case DType::I8: return int_value(read<int8_t>(bytes, index));
    case DType::U8: return int_value(read<uint8_t>(bytes, index));
    case DType::U64: return int_value(static_cast<int64_t>(read<uint64_t>(bytes, index)));
    case DType::U32: return int_value(read<uint32_t>(bytes, index));
    case DType::U16: return int_value(read<uint16_t>(bytes, index));
    case DType::Bool: return int_value(read<uint8_t>(bytes, index) != 0);
  }
  return int_value(0);
}

void store(uint8_t* bytes, int64_t index, DType d, Value v) {
  switch (d) {
    case DType::F64: return write<double>(bytes, index, v.f);
    case DType::F32: return write<float>(bytes, index, static_cast<float>(v.f));
    case DType::BF16: return write(bytes, index, static_cast<uint16_t>(bits_of_float(d, v.f)));
    case DType::F16: return write(bytes, index, static_cast<uint16_t>(bits_of_float(d, v.f)));
    case DType::I64:
    case DType::U64: return write<int64_t>(bytes, index, v.i);
    case DType::I32:
    case DType::U32: return write<int32_t>(bytes, index, static_cast<int32_t>(v.i));
    case DType::I16:
    case DType::U16: return write<int16_t>(bytes, index, static_cast<int16_t>(v.i));
    case DType::I8: return write<int8_t>(bytes, index, static_cast<int8_t>(v.i));
    case DType::U8:
    case DType::Bool: return write<uint8_t>(bytes, index, static_cast<uint8_t>(v.i));
  }
}

Value elementwise(Op op, DType from, DType to, const Value* args) {
  if (op == Op::Cast) return cast(from, to, args[0]);
  if (op == Op::Bitcast) return bitcast(from, to, args[0]);
  if (op == Op::Select) return args[0].i ? args[1] : args[2];
  const bool unary = arity_of(op) == 1;
  const Value a = args[0], b = unary ? args[0] : args[1];
  if (op == Op::Lt || op == Op::Le || op == Op::Eq || op == Op::Ne || op == Op::IsNan)
    return int_value(is_float(from) ? compare(op, a.f, b.f) : compare(op, ordered(from, a.i), ordered(from, b.i)));
  if (from == DType::F64) return float_value(arithmetic<double>(op, a.f, b.f));
  if (from == DType::F32)
    return float_value(static_cast<double>(arithmetic<float>(op, static_cast<float>(a.f), static_cast<float>(b.f))));
  if (is_float(from)) throw InternalError("interpret: arithmetic in " + std::string(name_of(from)));
  return int_value(wrap_to(to, arithmetic(op, a.i, b.i, from)));
}

Value fused_multiply_add(DType d, Value a, Value b, Value c) {
  if (d == DType::F64) return float_value(std::fma(a.f, b.f, c.f));
  return float_value(
      static_cast<double>(std::fma(static_cast<float>(a.f), static_cast<float>(b.f), static_cast<float>(c.f))));
}

Value pair_of(Value low, Value high) {
  return int_value(static_cast<int32_t>(bits_of_float(DType::BF16, high.f) << 16 | bits_of_float(DType::BF16, low.f)));
}
Value dot(Value a, Value b, Value c) {
  const auto half = [](Value pair, int shift) {
    return float_value(float_of_bits(DType::BF16, static_cast<uint64_t>(pair.i) >> shift & 0xffff));
  };
  return fused_multiply_add(DType::F32, half(a, 0), half(b, 0),
                            fused_multiply_add(DType::F32, half(a, 16), half(b, 16), c));
}

namespace {

float flushed(float x) { return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x; }

// sums[j] = x * y[j] + sums[j], rounded once each.
void add_products(float x, const float* y, float* sums, int n) {
  bool exact = true;  // products of two bf16 are in f32, unless they leave the range of normal numbers
  float next[loop::kTileSide];
  for (int j = 0; j < n; ++j) {
    const float product = x * y[j], magnitude = std::fabs(product);
    exact &= (magnitude >= std::numeric_limits<float>::min() && magnitude <= std::numeric_limits<float>::max()) |
             (x == 0) | (y[j] == 0);
    next[j] = flushed(product + sums[j]);
  }
  for (int j = 0; j < n; ++j) sums[j] = exact ? next[j] : flushed(std::fma(x, y[j], sums[j]));
}

}  // namespace

void tile_dot(uint8_t* sums, const uint8_t* a, const uint8_t* b) {
  constexpr int n = loop::kTileSide;
  const auto operand = [](const uint8_t* tile, int pair, int half) {
    return flushed(static_cast<float>(float_of_bits(DType::BF16, read<uint16_t>(tile, 2 * pair + half))));
  };
  float columns[2][n][n];  // [half][k][j]
  for (int half = 0; half < 2; ++half)
    for (int at = 0; at < n * n; ++at) columns[half][at / n][at % n] = operand(b, at, half);
  for (int i = 0; i < n; ++i) {
    float halves[2][n] = {};
    for (int k = 0; k < n; ++k)
      for (int half = 0; half < 2; ++half) add_products(operand(a, i * n + k, half), columns[half][k], halves[half], n);
    for (int j = 0; j < n; ++j)
      write(sums, i * n + j, flushed(flushed(read<float>(sums, i * n + j)) + flushed(halves[0][j] + halves[1][j])));
  }
}

Value neutral(ReduceKind kind, DType d) {
  const double infinity = std::numeric_limits<double>::infinity();
  const int bits = static_cast<int>(size_of(d)) * 8;
  const auto all = static_cast<int64_t>(~uint64_t{0} >> (64 - bits + (is_unsigned(d) ? 0 : 1)));
  const int64_t greatest = d == DType::Bool ? 1 : all, least = is_unsigned(d) ? 0 : -greatest - 1;
  switch (kind) {
    case ReduceKind::Sum: return is_float(d) ? float_value(0) : int_value(0);
    case ReduceKind::Prod: return is_float(d) ? float_value(1) : int_value(1);
    case ReduceKind::Max: return is_float(d) ? float_value(-infinity) : int_value(least);
    case ReduceKind::Min: return is_float(d) ? float_value(infinity) : int_value(greatest);
    case ReduceKind::ArgMax:
    case ReduceKind::ArgMin: break;
  }
  throw InternalError("interpret: Reduce with a kind that is not sum, prod, max or min");
}

Value combine(ReduceKind kind, DType d, Value before, Value value) {
  const Value args[2] = {before, value}, turned[2] = {value, before};
  switch (kind) {
    case ReduceKind::Sum: return elementwise(Op::Add, d, d, args);
    case ReduceKind::Prod: return elementwise(Op::Mul, d, d, args);
    case ReduceKind::Max: return elementwise(Op::Max, d, d, turned);
    case ReduceKind::Min: return elementwise(Op::Min, d, d, turned);
    case ReduceKind::ArgMax:
    case ReduceKind::ArgMin: break;
  }
  throw InternalError("interpret: Reduce with a kind that is not sum, prod, max or min");
}

}  // namespace trainc::interpret
