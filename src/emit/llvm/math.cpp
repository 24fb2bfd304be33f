#include "emit/llvm/math.h"

#include <limits>

#include "llvm/Analysis/VectorUtils.h"
#include "llvm/IR/IntrinsicsX86.h"

#include "support/error.h"

namespace trainc::emit {
namespace {

using llvm::Value;

// x * 2^floor(n) by one instruction of AVX-512 a register (vscalefps, vscalefpd), which rounds once and knows
// denormals; null where there is none, or less than a register.
Value* scale_at_once(Builder& b, Value* x, Value* n) {
  const int lanes = lanes_of(x), bytes = x->getType()->getScalarSizeInBits() / 8 * lanes;
  if (b.level == CpuLevel::Avx2 || bytes < 32 || bytes % 32 != 0) return nullptr;
  const bool f64 = x->getType()->getScalarType()->isDoubleTy();
  const bool whole = bytes % 64 == 0;
  const int each = (whole ? 64 : 32) / (f64 ? 8 : 4);
  const auto id =
      f64     ? whole ? llvm::Intrinsic::x86_avx512_mask_scalef_pd_512 : llvm::Intrinsic::x86_avx512_mask_scalef_pd_256
      : whole ? llvm::Intrinsic::x86_avx512_mask_scalef_ps_512
              : llvm::Intrinsic::x86_avx512_mask_scalef_ps_256;
  llvm::Function* instruction = llvm::Intrinsic::getDeclaration(b.GetInsertBlock()->getModule(), id);
  llvm::Type* mask = instruction->getFunctionType()->getParamType(3);
  llvm::SmallVector<Value*, 8> parts;
  for (int at = 0; at < lanes; at += each) {
    llvm::SmallVector<int, 16> part;
    for (int k = 0; k < each; ++k) part.push_back(at + k);
    const auto cut = [&](Value* v) { return each == lanes ? v : b.CreateShuffleVector(v, part); };
    Value* like = cut(x);
    llvm::SmallVector<Value*, 5> operands = {like, cut(n), llvm::PoisonValue::get(like->getType()),
                                             llvm::ConstantInt::getAllOnesValue(mask)};
    if (whole) operands.push_back(b.getInt32(4));  // rounds as the control register says
    parts.push_back(b.CreateCall(instruction, operands));
  }
  return parts.size() == 1 ? parts[0] : llvm::concatenateVectors(b, parts);
}

// Arithmetic on one float type (and its vectors), so that what follows reads as formulas.
struct Reals {
  Builder& b;
  llvm::Type* type;       // float or double, with lanes
  llvm::Type* bits_type;  // integers of the same size
  bool f64;

  Reals(Builder& builder, Value* like)
      : b(builder), type(like->getType()), bits_type(), f64(type->getScalarType()->isDoubleTy()) {
    bits_type = widen(b.getIntNTy(f64 ? 64 : 32), lanes_of(like));
  }
  Value* num(double x) const { return llvm::ConstantFP::get(type, x); }
  Value* bits(uint64_t x) const { return llvm::ConstantInt::get(bits_type, x); }
  Value* add(Value* x, Value* y) const { return b.CreateFAdd(x, y); }
  Value* sub(Value* x, Value* y) const { return b.CreateFSub(x, y); }
  Value* mul(Value* x, Value* y) const { return b.CreateFMul(x, y); }
  Value* div(Value* x, Value* y) const { return b.CreateFDiv(x, y); }
  Value* neg(Value* x) const { return b.CreateFNeg(x); }
  Value* fma(Value* x, Value* y, Value* z) const { return b.CreateIntrinsic(llvm::Intrinsic::fma, {type}, {x, y, z}); }
  Value* abs(Value* x) const { return b.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x); }
  Value* round(Value* x) const { return b.CreateUnaryIntrinsic(llvm::Intrinsic::roundeven, x); }
  Value* with_sign(Value* x, Value* sign) const { return b.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, x, sign); }
  Value* less(Value* x, Value* y) const { return b.CreateFCmpOLT(x, y); }
  Value* equal(Value* x, Value* y) const { return b.CreateFCmpOEQ(x, y); }
  Value* nan(Value* x) const { return b.CreateFCmpUNO(x, x); }
  Value* pick(Value* c, Value* x, Value* y) const { return b.CreateSelect(c, x, y); }
  Value* min(Value* x, double y) const { return pick(b.CreateFCmpOGT(x, num(y)), num(y), x); }  // a NaN stays
  Value* max(Value* x, double y) const { return pick(b.CreateFCmpOLT(x, num(y)), num(y), x); }
  Value* to_bits(Value* x) const { return b.CreateBitCast(x, bits_type); }
  Value* from_bits(Value* x) const { return b.CreateBitCast(x, type); }
  // c[0] + c[1] x + c[2] x^2 + ...
  Value* polynomial(Value* x, std::initializer_list<double> c) const {
    auto it = std::rbegin(c);
    Value* v = num(*it);
    for (++it; it != std::rend(c); ++it) v = fma(v, x, num(*it));
    return v;
  }
  // An integer-valued float of magnitude below 2^22 (f64: 2^51), as an integer. Any bits for NaN, but never poison.
  Value* small_int(Value* n) const {
    const double magic = f64 ? 0x1.8p52 : 0x1.8p23;
    return b.CreateSub(to_bits(add(n, num(magic))), to_bits(num(magic)));
  }
  Value* power_of_two(Value* n) const {  // n: integers within the exponents of normal numbers
    return from_bits(b.CreateShl(b.CreateAdd(n, bits(f64 ? 1023 : 127)), bits(f64 ? 52 : 23)));
  }
  // x * 2^n rounded once; n: floats that are integers, below twice the exponents of normal numbers. By hand, denormal
  // results come from the second factor alone.
  Value* scale(Value* x, Value* n) const {
    if (Value* scaled = scale_at_once(b, x, n)) return scaled;
    Value *whole = small_int(n), *half = b.CreateAShr(whole, bits(1));
    return mul(mul(x, power_of_two(half)), power_of_two(b.CreateSub(whole, half)));
  }
  Value* exactly_two_to(Value* n) const {  // n: as power_of_two takes them, but floats
    if (Value* scaled = scale_at_once(b, num(1), n)) return scaled;
    return power_of_two(small_int(n));
  }
};

// e^x = 2^n (1 + p), |log 2^n - x| <= ln(2)/2. `low`: a small addend of x (f64 only), or null.
struct Exponential { Value *n, *p; };
Exponential exponential(const Reals& r, Value* x, Value* low = nullptr) {
  if (!r.f64) {
    Value* n = r.round(r.mul(x, r.num(0x1.715476p+0)));
    Value* t = r.fma(n, r.num(-0.693115234375), x);  // 12 bits: n times it is exact
    t = r.fma(n, r.num(-3.19461833e-05), t);
    Value* q = r.polynomial(
        t, {0x1.0p-1, 0x1.55548b011e66ep-3, 0x1.555458e15bf88p-5, 0x1.123e443b0ca4ap-7, 0x1.6db852beb7880p-10});
    return {n, r.fma(r.mul(t, t), q, t)};
  }
  Value* n = r.round(r.mul(x, r.num(0x1.71547652b82fep+0)));
  Value* t = r.fma(n, r.num(-0x1.62e42fee00000p-1), x);
  Value* tail = r.mul(n, r.num(-0x1.a39ef35793c76p-33));
  if (low) tail = r.add(tail, low);
  t = r.add(t, tail);
  Value* q =
      r.polynomial(t, {0x1.0p-1, 0x1.5555555555559p-3, 0x1.555555555555bp-5, 0x1.111111110f5a1p-7,
                       0x1.6c16c16c14282p-10, 0x1.a01a01b05d88dp-13, 0x1.a01a01b14369bp-16, 0x1.71ddf705c7090p-19,
                       0x1.27e4c4792bc5ap-22, 0x1.af61356916f0fp-26, 0x1.1f972680e9a99p-29});
  return {n, r.fma(r.mul(t, t), q, t)};
}

Value* clamp_exponent(const Reals& r, Value* x) {
  return r.f64 ? r.max(r.min(x, 710), -746) : r.max(r.min(x, 89), -104);
}

Value* exp(const Reals& r, Value* x, Value* low = nullptr) {
  const Exponential e = exponential(r, clamp_exponent(r, x), low);
  return r.scale(r.add(e.p, r.num(1)), e.n);
}

Value* expm1(const Reals& r, Value* x) {  // f64
  const Exponential e = exponential(r, r.max(r.min(x, 710), -40));
  // 2^n (1 + p) - 1; by 2^(n-1), for 2^1024 is no number.
  Value* n = r.small_int(e.n);
  Value* s = r.power_of_two(r.b.CreateSub(n, r.bits(1)));
  Value* y = r.mul(r.fma(s, e.p, r.sub(s, r.num(0.5))), r.num(2));
  return r.pick(r.equal(x, r.num(0)), x, y);  // keeps -0
}

// log x for x in (0, inf), as n ln 2 + 2 atanh(s) with s = f / (2 + f), x = 2^n (1 + f), 1 + f in [sqrt(1/2), sqrt(2)).
struct Logarithm { Value *n, *f, *s; };
Logarithm reduce_log(const Reals& r, Value* x) {  // f64
  Value* tiny = r.less(x, r.num(0x1p-1022));
  Value* bits = r.to_bits(r.pick(tiny, r.mul(x, r.num(0x1p54)), x));
  // Adding the distance from sqrt(1/2) to 1 carries into the exponent exactly where the mantissa is above sqrt(2).
  Value* shifted = r.b.CreateAdd(bits, r.bits(0x3ff0000000000000 - 0x3fe6a09e667f3bcd));
  Value* n = r.b.CreateSub(r.b.CreateLShr(shifted, r.bits(52)), r.bits(1023));
  Value* mantissa = r.b.CreateAdd(r.b.CreateAnd(shifted, r.bits(0x000fffffffffffff)), r.bits(0x3fe6a09e667f3bcd));
  Value* f = r.sub(r.from_bits(mantissa), r.num(1));
  n = r.b.CreateSub(n, r.pick(tiny, r.bits(54), r.bits(0)));
  // As a float: the magic number of small_int, the other way round.
  Value* fn = r.sub(r.from_bits(r.b.CreateAdd(n, r.to_bits(r.num(0x1.8p52)))), r.num(0x1.8p52));
  return {fn, f, r.div(f, r.add(r.num(2), f))};
}
Value* log_series(const Reals& r, Value* z) {  // (2 atanh(s) - 2 s) / s^3, z = s^2
  return r.polynomial(z, {0x1.5555555555555p-1, 0x1.9999999999e0ep-2, 0x1.249249242a0c4p-2, 0x1.c71c725a6af1dp-3,
                          0x1.745cddc2ec66ap-3, 0x1.3b20bf3d885e2p-3, 0x1.0f5b0b45d8da7p-3, 0x1.0f72f937e3f07p-3});
}
constexpr double ln2_high = 0x1.62e42fee00000p-1, ln2_low = 0x1.a39ef35793c76p-33;  // n times ln2_high is exact

// + correction, small against the result or x near 1
Value* log_of_positive(const Reals& r, Value* x, Value* correction) {
  const Logarithm l = reduce_log(r, x);
  Value* z = r.mul(l.s, l.s);
  // log(1+f) = f - s (f - s^2 R): f is exact, so that the result near 1 is as good as f.
  Value* h = r.mul(r.mul(l.f, l.f), r.num(0.5));
  Value* inner = r.mul(l.s, r.fma(z, log_series(r, z), h));
  Value* low = r.fma(l.n, r.num(ln2_low), inner);
  if (correction) low = r.add(low, correction);
  return r.fma(l.n, r.num(ln2_high), r.sub(l.f, r.sub(h, low)));
}

Value* log_edges(const Reals& r, Value* x, Value* result) {
  const double inf = std::numeric_limits<double>::infinity();
  result = r.pick(r.equal(x, r.num(inf)), x, result);
  result = r.pick(r.equal(x, r.num(0)), r.num(-inf), result);
  return r.pick(r.b.CreateFCmpUGE(x, r.num(0)), r.pick(r.nan(x), x, result),
                r.num(std::numeric_limits<double>::quiet_NaN()));
}

Value* log(const Reals& r, Value* x) { return log_edges(r, x, log_of_positive(r, x, nullptr)); }  // f64

Value* log1p(const Reals& r, Value* x) {  // f64
  Value* u = r.add(x, r.num(1));
  // What the sum lost, to first order: log(u + c) = log(u) + c / u.
  Value* big = r.less(r.num(1), x);
  Value* lost = r.pick(big, r.sub(r.num(1), r.sub(u, x)), r.sub(x, r.sub(u, r.num(1))));
  Value* y = log_edges(r, u, log_of_positive(r, u, r.div(lost, u)));
  return r.pick(r.less(r.abs(x), r.num(0x1p-54)), x, y);
}

Value* tanh(const Reals& r, Value* x) {
  Value* t = r.abs(x);
  if (r.f64) {
    Value* e = expm1(r, r.mul(r.min(t, 22), r.num(2)));
    return r.with_sign(r.div(e, r.add(e, r.num(2))), x);
  }
  Value* z = r.mul(x, x);
  Value* p = r.polynomial(z, {-0x1.5555342d0916ep-2, 0x1.110768b391bd7p-3, -0x1.b844485e3ffddp-5, 0x1.5256d4132200dp-6,
                              -0x1.76ac0adf59676p-8});
  Value* small = r.fma(r.mul(z, p), x, x);
  Value* c = r.min(t, 10);
  const Exponential e = exponential(r, r.add(c, c));
  Value* s = r.exactly_two_to(e.n);
  Value* large = r.sub(r.num(1), r.div(r.num(2), r.add(r.fma(s, e.p, s), r.num(1))));
  return r.with_sign(r.pick(r.less(t, r.num(0.625)), small, large), x);
}

// x + x P(x^2) near 0, 1 - e^-g(|x|) elsewhere, g = -log(erfc): the subtraction leaves only absolute errors, and erfc
// is small.
Value* erf(const Reals& r, Value* x) {
  Value *t = r.abs(x), *z = r.mul(x, x);
  if (!r.f64) {
    Value* p = r.polynomial(z, {0x1.06eba5387eaa3p-3, -0x1.8126d06e063fdp-2, 0x1.ce16c04645e62p-4,
                                -0x1.b6539fb10d378p-6, 0x1.45eb14f13c06ap-8, -0x1.34a307f1bc9a2p-11});
    Value* small = r.fma(p, x, x);
    Value* c = r.min(t, 4);
    // g = t + t q, so that the leading term is exact
    Value* q =
        r.polynomial(c, {0x1.20ef591fe564ep+0 - 1, 0x1.453088ae66662p-1, 0x1.b340fe21bb127p-4, -0x1.85b30431135ccp-6,
                         0x1.dee82dbb4ffb9p-9, -0x1.55793c048267ep-12, 0x1.82a1b44e85645p-17});
    Value* large = r.sub(r.num(1), exp(r, r.neg(r.fma(q, c, c))));
    return r.with_sign(r.pick(r.less(t, r.num(0.93)), small, large), x);
  }
  Value* p =
      r.polynomial(z, {0x1.06eba8214db69p-3, -0x1.812746b0379e5p-2, 0x1.ce2f21a042a5bp-4, -0x1.b82ce3127f065p-6,
                       0x1.565bcd0c6ea96p-8, -0x1.c02db385777abp-11, 0x1.f9a3142045413p-14, -0x1.f4d073a0955c0p-17,
                       0x1.b9c5ac28aae08p-20, -0x1.5df66157fd5e8p-23, 0x1.e6b232e6cd1cep-27, -0x1.e242b7ca1beb7p-31});
  Value* small = r.fma(p, x, x);
  Value* u = r.sub(r.min(t, 2.15), r.num(1.52));
  Value* middle =
      r.polynomial(u, {0x1.ba3e456fd22dcp+1, 0x1.c5b36538206dcp+1, 0x1.c9d15dc445f50p-1, 0x1.9f4fb705093efp-6,
                       -0x1.8180db0105874p-8, 0x1.42d3f65f348ffp-10, -0x1.be40315b9d81cp-13, 0x1.7f975f2237562p-16,
                       0x1.2bf3522bf18a7p-19, -0x1.28c7ebabe799ep-19, 0x1.a0bc75fda5c8bp-21, -0x1.905d053926cb5p-23,
                       0x1.ff34c09a92a74p-26, 0x1.c6c37ca30dc90p-30, -0x1.dfaaae202f707p-29});
  Value* v = r.sub(r.min(t, 6), r.num(4.05));
  Value* far =
      r.polynomial(v, {0x1.266eb84ee5f1ap+4, 0x1.0aae1374d4ed1p+3, 0x1.f2b0c68a16d25p-1, 0x1.e2353902fe1b5p-9,
                       -0x1.258e6d9e73b3ep-11, 0x1.6c715b0f75f22p-14, -0x1.c2280a4b727a2p-17, 0x1.0f66852388facp-19,
                       -0x1.35bfce4919facp-22, 0x1.caa5f5228f38fp-25, 0x1.b371e0b187c8ap-28, 0x1.e19368ccf3feap-28,
                       0x1.2ee13b1dfe36ap-29, 0x1.01d229b63e5c2p-31, 0x1.a40da03b0e2f1p-35});
  Value* g = r.pick(r.less(t, r.num(2.15)), middle, far);
  Value* large = r.sub(r.num(1), exp(r, r.neg(g)));
  return r.with_sign(r.pick(r.less(t, r.num(0.85)), small, large), x);
}

// e^(-x^2) p(t) / (1 + 2 |x|) with t = (|x| - k) / (|x| + k), which takes [0, inf) to [-1, 1); below 0: 2 less that.
// The coefficients are the interpolation of e^(x^2) erfc(x) (1 + 2 x) at Chebyshev's points up to where erfc is 0.
Value* erfc(const Reals& r, Value* x) {
  Value* t = r.min(r.abs(x), r.f64 ? 28 : 11);
  Value *k = r.num(r.f64 ? 4 : 3), *place = r.div(r.sub(t, k), r.add(t, k));
  Value* p =
      r.f64
          ? r.polynomial(
                place, {0x1.3ba5916e9fd7fp+0,   -0x1.1df1ad154a29ap-3,  0x1.f7f5df66fda68p-7,   0x1.16ecefcfa5ef4p-4,
                        -0x1.9ddb23c3ea117p-4,  0x1.7fee004df8fd8p-4,   -0x1.0fb06dfe39c6ep-4,  0x1.3079edf9c6579p-5,
                        -0x1.09623885e296cp-6,  0x1.49c671981a350p-8,   -0x1.8d4a9b8de5113p-11, -0x1.a1de821a844f8p-13,
                        0x1.3be08def94d4ep-13,  -0x1.996aba9c22640p-16, -0x1.789e15c15fc4bp-17, 0x1.7fbcc3f447a87p-18,
                        0x1.426a45261adb0p-22,  -0x1.c0c6363fdbeaep-21, 0x1.10cff3710db44p-24,  0x1.f347b88d2069cp-24,
                        -0x1.0d4e9902913a9p-27, -0x1.e3bd0ec1921e9p-27, -0x1.0b66f16459774p-29})
          : r.polynomial(place,
                         {0x1.40c522d601fcap+0, -0x1.15c089bb78e80p-3, -0x1.85a154ed7ab42p-5, 0x1.098424d3728c7p-3,
                          -0x1.e88a70eaa49afp-4, 0x1.17baef6f51f61p-4, -0x1.85c77971e5c6ep-6, 0x1.5217773a5c8e9p-9,
                          0x1.056b7648fef03p-9, -0x1.a28f44084767cp-11, -0x1.22cc60fae0c0bp-12});
  Value *square = r.mul(t, t), *lost = r.neg(r.fma(t, t, r.neg(square)));  // what rounding the square lost
  Value* e = r.f64 ? exp(r, r.neg(square), lost) : exp(r, r.neg(square));
  if (!r.f64) e = r.fma(e, lost, e);
  Value* y = r.mul(e, r.div(p, r.fma(r.num(2), t, r.num(1))));
  y = r.pick(r.less(x, r.num(0)), r.sub(r.num(2), y), y);
  return r.pick(r.nan(x), x, y);
}

}  // namespace

Value* transcendental(Builder& b, Op op, Value* x) {
  const Reals r(b, x);
  const auto in_f64 = [&](Value* (*f)(const Reals&, Value*)) -> Value* {
    if (r.f64) return f(r, x);
    Value* wide = b.CreateFPExt(x, widen(b.getDoubleTy(), lanes_of(x)));
    return b.CreateFPTrunc(f(Reals(b, wide), wide), x->getType());
  };
  switch (op) {
    case Op::Exp: return exp(r, x);
    case Op::Tanh: return tanh(r, x);
    case Op::Erf: return erf(r, x);
    case Op::Erfc: return erfc(r, x);
    case Op::Expm1: return in_f64(expm1);
    case Op::Log: return in_f64(log);
    case Op::Log1p: return in_f64(log1p);
    case Op::Sin: return sine(b, x, false);
    case Op::Cos: return sine(b, x, true);
    default: throw InternalError("emit: " + std::string(name_of(op)) + " is not a transcendental function");
  }
}

Value* power(Builder& b, Value* x, Value* y) {
  if (x->getType()->getScalarType()->isFloatTy()) {
    llvm::Type* wide = widen(b.getDoubleTy(), lanes_of(x));
    return b.CreateFPTrunc(power(b, b.CreateFPExt(x, wide), b.CreateFPExt(y, wide)), x->getType());
  }
  const Reals r(b, x);
  const double inf = std::numeric_limits<double>::infinity();
  // log|x| to about 68 bits, as high + low: |y log x| reaches 745, and its absolute error is the result's relative one.
  Value* t = r.abs(x);
  const Logarithm l = reduce_log(r, t);
  Value* d = r.add(r.num(2), l.f);
  Value* d_low = r.sub(l.f, r.sub(d, r.num(2)));
  Value* s_low = r.div(r.fma(r.neg(l.s), d_low, r.fma(r.neg(l.s), d, l.f)), d);
  // 2 s + (2/3) s^3 + s^5 (...): the second term in two parts as well
  Value* z = r.mul(l.s, l.s);
  Value* z_low = r.fma(r.num(2), r.mul(l.s, s_low), r.fma(l.s, l.s, r.neg(z)));
  Value* c = r.mul(z, l.s);
  Value* c_low = r.fma(z, s_low, r.fma(z_low, l.s, r.fma(z, l.s, r.neg(c))));
  const double third = 0x1.5555555555555p-1, third_low = 0x1.5555555555555p-55;  // 2/3 in two parts
  Value* cubic = r.mul(c, r.num(third));
  Value* cubic_low = r.fma(c, r.num(third_low), r.fma(c_low, r.num(third), r.fma(c, r.num(third), r.neg(cubic))));
  Value* rest = r.mul(r.mul(c, z), r.polynomial(z, {0x1.9999999999b36p-2, 0x1.2492492457241p-2, 0x1.c71c722e6a0dfp-3,
                                                    0x1.745ce986d6c78p-3, 0x1.3b1efd51ec073p-3, 0x1.0f7e49a69cf8dp-3,
                                                    0x1.0e52371ee56f8p-3}));
  const auto sum = [&](Value* a, Value* e, Value*& lost) {  // exact
    Value *h = r.add(a, e), *back = r.sub(h, a);
    lost = r.add(r.sub(a, r.sub(h, back)), r.sub(e, back));
    return h;
  };
  Value *lost1, *lost2;
  Value* high = sum(r.mul(l.n, r.num(ln2_high)), r.add(l.s, l.s), lost1);
  high = sum(high, cubic, lost2);
  Value* low =
      r.add(r.add(r.add(lost1, lost2), r.add(rest, cubic_low)), r.fma(l.n, r.num(ln2_low), r.add(s_low, s_low)));
  Value* lost3;
  high = sum(high, low, lost3);
  // e^(y (high + lost3))
  Value* exponent = r.mul(y, high);
  Value* exponent_low = r.fma(y, lost3, r.fma(y, high, r.neg(exponent)));
  Value* finite = r.less(r.abs(exponent), r.num(1000));
  Value* result = exp(r, exponent, r.pick(finite, exponent_low, r.num(0)));

  Value *zero = r.num(0), *one = r.num(1);
  Value* whole = r.equal(b.CreateUnaryIntrinsic(llvm::Intrinsic::trunc, y), y);
  Value* half = r.mul(y, r.num(0.5));
  Value* odd =
      b.CreateAnd(whole, b.CreateAnd(r.less(r.abs(y), r.num(0x1p53)),
                                     b.CreateFCmpUNE(b.CreateUnaryIntrinsic(llvm::Intrinsic::trunc, half), half)));
  // |x| = 0, 1, inf, and infinite y
  Value* rising = r.less(zero, y);
  result = r.pick(r.equal(t, zero), r.pick(rising, zero, r.num(inf)), result);
  result = r.pick(r.equal(t, r.num(inf)), r.pick(rising, r.num(inf), zero), result);
  Value* grows = b.CreateICmpEQ(r.less(one, t), rising);
  result = r.pick(r.equal(r.abs(y), r.num(inf)), r.pick(grows, r.num(inf), zero), result);
  result = r.pick(r.equal(t, one), one, result);
  // negative x (and -0): the sign of an odd power; no real value for a broken one
  result = r.pick(odd, r.with_sign(result, x), result);
  Value* broken = b.CreateAnd(b.CreateAnd(r.less(x, zero), b.CreateNot(whole)), r.less(t, r.num(inf)));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  result = r.pick(broken, r.num(nan), result);
  result = r.pick(b.CreateOr(r.nan(x), r.nan(y)), r.num(nan), result);
  return r.pick(b.CreateOr(r.equal(x, one), r.equal(y, zero)), one, result);
}

}  // namespace trainc::emit
