// Elementwise operations, an element at a time: floats in fp64, integers in 64 bits wrapped to their width.
#include <cmath>

#include "reference/kernels.h"
#include "support/rounding.h"

namespace trainc::reference {
namespace {

[[noreturn]] void no_such(Op op) { throw InternalError("reference: no arithmetic for " + std::string(name_of(op))); }

double sign(double a) { return (a > 0) - (a < 0); }

/// Python's %: what fmod leaves, exactly, moved to the sign of b.
double modulo(double a, double b) {
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

/// `round` is the rounding to the dtype: for operations that are made of several.
template <class Round> double of_floats(Op op, double a, double b, Round round) {
  switch (op) {
    case Op::Neg: return -a;
    case Op::Abs: return std::fabs(a);
    case Op::Sign: return sign(a);
    case Op::Floor: return std::floor(a);
    case Op::Ceil: return std::ceil(a);
    case Op::Round: return std::nearbyint(a);
    case Op::Trunc: return std::trunc(a);
    case Op::Sqrt: return std::sqrt(a);
    case Op::Rsqrt: return 1 / round(std::sqrt(a));
    case Op::Exp: return std::exp(a);
    case Op::Expm1: return std::expm1(a);
    case Op::Log: return std::log(a);
    case Op::Log1p: return std::log1p(a);
    case Op::Sin: return std::sin(a);
    case Op::Cos: return std::cos(a);
    case Op::Tanh: return std::tanh(a);
    case Op::Erf: return std::erf(a);
    case Op::Erfc: return std::erfc(a);
    case Op::Add: return a + b;
    case Op::Sub: return a - b;
    case Op::Mul: return a * b;
    case Op::Div: return a / b;
    case Op::FloorDiv: return std::floor(round(a / b));
    case Op::Mod: return modulo(a, b);
    case Op::Pow: return std::pow(a, b);
    case Op::Max: return std::isnan(a) || a > b ? a : b;  // a NaN b fails the comparison and is taken
    case Op::Min: return std::isnan(a) || a < b ? a : b;
    default: no_such(op);
  }
}

int64_t power(DType dtype, int64_t base, int64_t exponent) {
  if (exponent < 0 && dtype != DType::U64) return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
  uint64_t result = 1, square = static_cast<uint64_t>(base);
  for (auto rest = static_cast<uint64_t>(exponent); rest; rest >>= 1, square *= square)
    if (rest & 1) result *= square;
  return static_cast<int64_t>(result);
}

int64_t divide(DType dtype, int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (dtype == DType::U64) return static_cast<int64_t>(static_cast<uint64_t>(a) / static_cast<uint64_t>(b));
  return b == -1 ? static_cast<int64_t>(-static_cast<uint64_t>(a)) : a / b;  // the least integer has no opposite
}

int64_t floor_divide(DType dtype, int64_t a, int64_t b) {
  const int64_t quotient = divide(dtype, a, b);
  return !is_unsigned(dtype) && b != 0 && b != -1 && a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

int64_t of_integers(Op op, DType dtype, int64_t a, int64_t b) {
  const auto u = [](int64_t x) { return static_cast<uint64_t>(x); };  // so that overflow wraps
  switch (op) {
    case Op::Neg: return -u(a);
    case Op::Abs: return a < 0 && dtype != DType::U64 ? -u(a) : u(a);
    case Op::Sign: return dtype == DType::U64 ? a != 0 : (a > 0) - (a < 0);
    case Op::Floor:
    case Op::Ceil:
    case Op::Round:
    case Op::Trunc: return a;
    case Op::Not: return dtype == DType::Bool ? !a : ~a;
    case Op::Add: return u(a) + u(b);
    case Op::Sub: return u(a) - u(b);
    case Op::Mul: return u(a) * u(b);
    case Op::Div: return divide(dtype, a, b);
    case Op::FloorDiv: return floor_divide(dtype, a, b);
    case Op::Mod: return u(a) - u(floor_divide(dtype, a, b)) * u(b);
    case Op::Pow: return power(dtype, a, b);
    case Op::Max: return ordered(dtype, a) > ordered(dtype, b) ? a : b;
    case Op::Min: return ordered(dtype, a) < ordered(dtype, b) ? a : b;
    case Op::Shl: return shifted(Shift::Left, dtype, a, b);
    case Op::Shr: return shifted(Shift::Right, dtype, a, b);
    case Op::Sar: return shifted(Shift::SignedRight, dtype, a, b);
    case Op::And: return a & b;
    case Op::Or: return a | b;
    case Op::Xor: return a ^ b;
    default: no_such(op);
  }
}

template <class T> bool compare(Op op, T a, T b) {
  switch (op) {
    case Op::Lt: return a < b;
    case Op::Le: return a <= b;
    case Op::Eq: return a == b;
    case Op::Ne:
    case Op::IsNan: return a != b;
    default: no_such(op);
  }
}

Tensor cast(const Node& node, const Tensor& a, Precision precision) {
  Tensor out = zeros(node.type);
  const DType from = a.type.dtype, to = node.dtype();
  // halves are reached through f32, as on the machine and in eager
  const bool by_f32 = precision == Precision::Rounded && to != DType::F64;
  const auto of_float = [&](double value) { return kept(precision, to, by_f32 ? static_cast<float>(value) : value); };
  const auto of_integer = [&](int64_t value) {
    return kept(precision, to, by_f32 ? float_of_integer<float>(from, value) : float_of_integer<double>(from, value));
  };
  for (int64_t i = 0; i < node.type.numel(); ++i) {
    if (is_float(to)) out.f[i] = is_float(from) ? of_float(a.f[i]) : of_integer(a.i[i]);
    else if (!is_float(from)) out.i[i] = wrap_to(to, a.i[i]);
    else out.i[i] = to == DType::Bool ? a.f[i] != 0 : truncate_to(to, a.f[i]);
  }
  return out;
}

/// Of a float that is not rounded to its dtype: the bits of the one that it stands for.
Tensor bitcast(const Node& node, const Tensor& a) {
  Tensor out = zeros(node.type);
  const DType from = a.type.dtype, to = node.dtype();
  for (int64_t i = 0; i < node.type.numel(); ++i) {
    const uint64_t bits = is_float(from) ? bits_of_float(from, a.f[i]) : static_cast<uint64_t>(a.i[i]);
    if (is_float(to)) out.f[i] = float_of_bits(to, bits);
    else out.i[i] = wrap_to(to, static_cast<int64_t>(bits));
  }
  return out;
}

Tensor select(const Node& node, const Operands& in) {
  Tensor out = zeros(node.type);
  for (size_t i = 0; i < out.f.size(); ++i) out.f[i] = in[0]->i[i] ? in[1]->f[i] : in[2]->f[i];
  for (size_t i = 0; i < out.i.size(); ++i) out.i[i] = in[0]->i[i] ? in[1]->i[i] : in[2]->i[i];
  return out;
}

}  // namespace

Tensor evaluate_elementwise(const Node& node, const Operands& in, Precision precision) {
  if (node.op == Op::Cast) return cast(node, *in[0], precision);
  if (node.op == Op::Bitcast) return bitcast(node, *in[0]);
  if (node.op == Op::Select) return select(node, in);
  Tensor out = zeros(node.type);
  const Tensor &a = *in[0], &b = *in.back();  // one and the same where there is one input
  const bool compares =
      node.op == Op::Lt || node.op == Op::Le || node.op == Op::Eq || node.op == Op::Ne || node.op == Op::IsNan;
  const auto round = [&](double value) { return kept(precision, node.dtype(), value); };
  for (int64_t i = 0; i < node.type.numel(); ++i) {
    if (compares)
      out.i[i] = is_float(a.type.dtype)
                     ? compare(node.op, a.f[i], b.f[i])
                     : compare(node.op, ordered(a.type.dtype, a.i[i]), ordered(a.type.dtype, b.i[i]));
    else if (is_float(node.dtype())) out.f[i] = round(of_floats(node.op, a.f[i], b.f[i], round));
    else out.i[i] = wrap_to(node.dtype(), of_integers(node.op, node.dtype(), a.i[i], b.i[i]));
  }
  return out;
}

}  // namespace trainc::reference
