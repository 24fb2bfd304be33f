#include <array>
#include <cmath>

#include "emit/llvm/math.h"
#include "llvm/IR/Module.h"

namespace trainc::emit {
namespace {

using llvm::Value;

// 2/pi, 32 bits a word, the first just below the point: enough for every double (Payne and Hanek).
constexpr uint32_t two_over_pi[] = {0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0, 0xdb629599, 0x3c439041, 0xfe5163ab,
                                    0xdebbc561, 0xb7246e3a, 0x424dd2e0, 0x06492eea, 0x09d1921c, 0xfe1deb1c, 0xb129a73e,
                                    0xe88235f5, 0x2ebb4484, 0xe99c7026, 0xb45f7e41, 0x3991d639, 0x835339f4, 0x9c845f8b,
                                    0xbdf9283b, 0x1ff897ff, 0xde05980f, 0xef2f118b, 0x5a0a6d1f, 0x6d367ecf, 0x27cb09b7,
                                    0x4f463f66, 0x9e5fea2d, 0x7527bac7, 0xebe5f17b, 0x3d0739f7, 0x8a5292ea, 0x6bfb5fb1,
                                    0x1f8d5d08, 0x56033046, 0xfc7b6bab};

// The bits of 2^e * 2/pi mod 4 whose weights are 2^top ... 2^(top - count + 1), exactly.
double window(int e, int top, int count) {
  double sum = 0;
  for (int i = 0; i < count; ++i) {
    const int place = e - (top - i);  // 2/pi's bit of weight 2^-place
    if (place < 1 || place > static_cast<int>(std::size(two_over_pi)) * 32) continue;
    if (two_over_pi[(place - 1) / 32] >> (31 - (place - 1) % 32) & 1) sum += std::ldexp(1.0, top - i);
  }
  return sum;
}
// The same window for small e, where the leading bits would all be zero: from the first bit set.
int first_weight(int e) { return std::min(1, e - 1); }

Value* table(Builder& b, const char* name, const std::vector<double>& rows) {
  llvm::Module& m = *b.GetInsertBlock()->getModule();
  if (auto* old = m.getGlobalVariable(name, true)) return old;
  llvm::Constant* data = llvm::ConstantDataArray::get(b.getContext(), rows);
  auto* global = new llvm::GlobalVariable(m, data->getType(), true, llvm::GlobalValue::PrivateLinkage, data, name);
  global->setAlignment(llvm::Align(64));
  return global;
}

struct Reals64 {
  Builder& b;
  llvm::Type *type, *bits_type;
  Reals64(Builder& builder, int lanes)
      : b(builder), type(widen(b.getDoubleTy(), lanes)), bits_type(widen(b.getInt64Ty(), lanes)) {}
  Value* num(double x) const { return llvm::ConstantFP::get(type, x); }
  Value* bits(uint64_t x) const { return llvm::ConstantInt::get(bits_type, x); }
  Value* fma(Value* x, Value* y, Value* z) const { return b.CreateIntrinsic(llvm::Intrinsic::fma, {type}, {x, y, z}); }
  Value* round(Value* x) const { return b.CreateUnaryIntrinsic(llvm::Intrinsic::roundeven, x); }
  // Element `row * columns + column` of a table, one a lane. Rows are in bounds by construction.
  Value* look_up(Value* data, Value* row, int columns, int column) const {
    Value* index =
        b.CreateAdd(b.CreateMul(row, bits(static_cast<uint64_t>(columns))), bits(static_cast<uint64_t>(column)));
    Value* at = b.CreateGEP(b.getDoubleTy(), data, index);
    if (!type->isVectorTy()) return b.CreateAlignedLoad(type, at, llvm::Align(8));
    return b.CreateMaskedGather(type, at, llvm::Align(8),
                                llvm::ConstantInt::getTrue(widen(b.getInt1Ty(), lanes_of(row))), num(0));
  }
  // x mod 4 in [-2, 2], exact
  Value* mod4(Value* x) const { return b.CreateFSub(x, b.CreateFMul(round(b.CreateFMul(x, num(0.25))), num(4))); }
};

// x = (quarter + fraction) pi/2 up to multiples of 2 pi: `quarter` an integer within [-8, 8], angle = fraction pi/2 +
// low.
struct Reduced { Value *quarter, *angle, *low; };
constexpr double half_pi = 0x1.921fb54442d18p+0, half_pi_low = 0x1.1a62633145c07p-54;

// A float is m 2^e, m below 2^24: 29 bits of 2^e 2/pi mod 4 times m are exact, the next 53 leave 2^-58.
Reduced reduce_f32(Builder& b, Value* x) {
  std::vector<double> rows;
  for (int exponent = 0; exponent < 256; ++exponent) {
    const int e = std::max(exponent, 1) - 150;
    const int top = first_weight(e);
    rows.push_back(exponent == 255 ? NAN : window(e, top, 29));
    rows.push_back(exponent == 255 ? NAN : window(e, top - 29, 53));
  }
  const Reals64 r(b, lanes_of(x));
  llvm::Type* i32 = widen(b.getInt32Ty(), lanes_of(x));
  const auto c32 = [&](uint32_t v) { return llvm::ConstantInt::get(i32, v); };
  Value* bits = b.CreateBitCast(x, i32);
  Value* exponent = b.CreateAnd(b.CreateLShr(bits, 23), c32(255));
  Value* m = b.CreateAnd(bits, c32(0x7fffff));
  m = b.CreateOr(m, b.CreateSelect(b.CreateICmpEQ(exponent, c32(0)), c32(0), c32(0x800000)));
  Value* wide = b.CreateSIToFP(m, r.type);
  wide = b.CreateSelect(b.CreateICmpSLT(bits, c32(0)), b.CreateFNeg(wide), wide);
  Value* data = table(b, "two_over_pi.f32", rows);
  Value* row = b.CreateZExt(exponent, r.bits_type);
  Value* product = r.mod4(b.CreateFMul(wide, r.look_up(data, row, 2, 0)));
  Value* quarter = r.round(product);
  Value* fraction = r.fma(wide, r.look_up(data, row, 2, 1), b.CreateFSub(product, quarter));
  return {quarter, b.CreateFMul(fraction, r.num(half_pi)), nullptr};
}

// A double is (27 bits) 2^(e+26) + (26 bits) 2^e; five windows of 26 bits keep every product exact.
Reduced reduce_f64(Builder& b, Value* x) {
  constexpr int parts = 5, smallest = -54;  // below 2^-1 (mantissa 2^52 times 2^-54) nothing is reduced
  constexpr int last = 971 + 26;
  std::vector<double> rows;
  for (int e = smallest; e <= last + 1; ++e)
    for (int k = 0; k < parts; ++k) rows.push_back(e > last ? NAN : window(e, 1 - 26 * k, 26));
  const Reals64 r(b, lanes_of(x));
  Value* bits = b.CreateBitCast(x, r.bits_type);
  Value* exponent = b.CreateAnd(b.CreateLShr(bits, 52), r.bits(2047));
  Value* m = b.CreateOr(b.CreateAnd(bits, r.bits(0xfffffffffffff)), r.bits(0x10000000000000));
  // Row of 2^e, e = exponent - 1075; inf and NaN have the row after the last.
  Value* row =
      b.CreateBinaryIntrinsic(llvm::Intrinsic::smax, b.CreateSub(exponent, r.bits(1075 + smallest)), r.bits(0));
  Value* special = b.CreateICmpEQ(exponent, r.bits(2047));
  Value* high_row = b.CreateSelect(special, r.bits(last + 1 - smallest), b.CreateAdd(row, r.bits(26)));
  row = b.CreateSelect(special, r.bits(last + 1 - smallest), row);
  Value* negative = b.CreateICmpSLT(bits, r.bits(0));
  const auto part = [&](Value* integer) {
    Value* v = b.CreateSIToFP(integer, r.type);
    return b.CreateSelect(negative, b.CreateFNeg(v), v);
  };
  Value* high = part(b.CreateLShr(m, 26));
  Value* low = part(b.CreateAnd(m, r.bits(0x3ffffff)));
  Value* data = table(b, "two_over_pi.f64", rows);
  const auto product = [&](int k, bool upper) {
    return b.CreateFMul(upper ? high : low, r.look_up(data, upper ? high_row : row, parts, k));
  };
  Value* quarter = r.num(0);
  Value* fraction = r.num(0);
  for (const auto& [k, upper] : {std::pair{0, true}, {0, false}, {1, true}, {1, false}}) {
    fraction = b.CreateFAdd(fraction, r.mod4(product(k, upper)));  // all multiples of 2^-50 below 4: exact
    Value* n = r.round(fraction);
    quarter = b.CreateFAdd(quarter, n);
    fraction = b.CreateFSub(fraction, n);
  }
  const auto sum = [&](Value* a, Value* e, Value*& lost) {
    Value *h = b.CreateFAdd(a, e), *back = b.CreateFSub(h, a);
    lost = b.CreateFAdd(b.CreateFSub(a, b.CreateFSub(h, back)), b.CreateFSub(e, back));
    return h;
  };
  Value *lost1, *lost2;
  Value* small = sum(product(2, true), product(2, false), lost1);
  Value* h = sum(fraction, small, lost2);
  Value* rest = b.CreateFAdd(
      lost2, b.CreateFAdd(lost1, b.CreateFAdd(product(3, true), b.CreateFAdd(product(3, false), product(4, true)))));
  Value* tail;
  h = sum(h, rest, tail);  // the polynomials take the tail to first order: it must be below an ulp
  // times pi/2
  Value* angle = b.CreateFMul(h, r.num(half_pi));
  Value* angle_low =
      r.fma(h, r.num(half_pi_low), r.fma(tail, r.num(half_pi), r.fma(h, r.num(half_pi), b.CreateFNeg(angle))));
  Value* as_is = b.CreateFCmpOLT(b.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x), r.num(0.75));
  return {b.CreateSelect(as_is, r.num(0), quarter), b.CreateSelect(as_is, x, angle),
          b.CreateSelect(as_is, r.num(0), angle_low)};
}

Value* polynomial(const Reals64& r, Value* x, std::initializer_list<double> c) {
  auto it = std::rbegin(c);
  Value* v = r.num(*it);
  for (++it; it != std::rend(c); ++it) v = r.fma(v, x, r.num(*it));
  return v;
}

}  // namespace

Value* sine(Builder& b, Value* x, bool cosine) {
  const bool f64 = x->getType()->getScalarType()->isDoubleTy();
  const Reduced a = f64 ? reduce_f64(b, x) : reduce_f32(b, x);
  const Reals64 r(b, lanes_of(x));
  Value* z = b.CreateFMul(a.angle, a.angle);
  Value* cubic = polynomial(r, z,
                            {-0x1.5555555555549p-3, 0x1.111111110f841p-7, -0x1.a01a019c0a278p-13, 0x1.71de3570fcc75p-19,
                             -0x1.ae5e60c450453p-26, 0x1.5d915e0dcbeb9p-33});
  Value* tail = b.CreateFMul(b.CreateFMul(z, cubic), a.angle);
  if (a.low) tail = r.fma(r.fma(z, r.num(-0.5), r.num(1)), a.low, tail);
  Value* sin = b.CreateFAdd(a.angle, tail);
  // 1 - z/2 in two parts, then the rest
  Value* half = b.CreateFMul(z, r.num(0.5));
  Value* head = b.CreateFSub(r.num(1), half);
  Value* lost = b.CreateFSub(b.CreateFSub(r.num(1), head), half);
  Value* quartic = polynomial(r, z,
                              {0x1.555555555554cp-5, -0x1.6c16c16c15140p-10, 0x1.a01a019cab76ep-16,
                               -0x1.27e4f805357c8p-22, 0x1.1ee9e891d41a4p-29, -0x1.8facd1e497ba3p-37});
  Value* rest = r.fma(b.CreateFMul(z, z), quartic, lost);
  if (a.low) rest = r.fma(b.CreateFNeg(a.angle), a.low, rest);
  Value* cos = b.CreateFAdd(head, rest);
  // The quarter, as an integer: its two low bits after adding 2^52 * 1.5.
  Value* n = b.CreateBitCast(b.CreateFAdd(a.quarter, r.num(0x1.8p52)), r.bits_type);
  if (cosine) n = b.CreateAdd(n, r.bits(1));
  Value* odd = b.CreateICmpNE(b.CreateAnd(n, r.bits(1)), r.bits(0));
  Value* flip = b.CreateICmpNE(b.CreateAnd(n, r.bits(2)), r.bits(0));
  Value* y = b.CreateSelect(odd, cos, sin);
  y = b.CreateSelect(flip, b.CreateFNeg(y), y);
  if (!f64) y = b.CreateFPTrunc(y, x->getType());
  return cosine ? y : b.CreateSelect(b.CreateFCmpOEQ(x, llvm::ConstantFP::get(x->getType(), 0)), x, y);  // keeps -0
}

}  // namespace trainc::emit
