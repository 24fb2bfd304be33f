// The oracle itself: every operation against numbers worked out by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "../common/random_graph.h"
#include "graph/text.h"

namespace trainc::reference {
namespace {

using ::testing::ElementsAre;

constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();

struct FloatCase {
  Op op;
  double a, b, expected;
};
const FloatCase kFloats[] = {
    {Op::Neg, 0.0, 0, -0.0},
    {Op::Abs, -2.5, 0, 2.5},
    {Op::Sign, -3, 0, -1},
    {Op::Sign, kNan, 0, 0},
    {Op::Floor, -1.5, 0, -2},
    {Op::Ceil, -1.5, 0, -1},
    {Op::Round, 2.5, 0, 2},
    {Op::Round, -3.5, 0, -4},
    {Op::Trunc, -1.9, 0, -1},
    {Op::Sqrt, 9, 0, 3},
    {Op::Sqrt, -1, 0, kNan},
    {Op::Rsqrt, 4, 0, 0.5},
    {Op::Rsqrt, 0.0, 0, kInf},
    {Op::Exp, 0, 0, 1},
    {Op::Exp, -kInf, 0, 0},
    {Op::Expm1, 1e-20, 0, 1e-20},
    {Op::Log, 1, 0, 0},
    {Op::Log, 0, 0, -kInf},
    {Op::Log1p, 1e-20, 0, 1e-20},
    {Op::Sin, 0.5, 0, 0.479425538604203},
    {Op::Cos, 0.5, 0, 0.8775825618903728},
    {Op::Tanh, 0.5, 0, 0.46211715726000973},
    {Op::Erf, 0.5, 0, 0.5204998778130465},
    {Op::Erfc, 6, 0, 2.1519736712498916e-17},
    {Op::IsNan, kNan, 0, 1},
    {Op::IsNan, kInf, 0, 0},
    {Op::Add, 1, 2, 3},
    {Op::Add, kInf, -kInf, kNan},
    {Op::Sub, 1, 2, -1},
    {Op::Mul, -2, 3, -6},
    {Op::Mul, 0, kInf, kNan},
    {Op::Div, 1, 4, 0.25},
    {Op::Div, -1, 0.0, -kInf},
    {Op::FloorDiv, -7, 2, -4},
    {Op::Mod, -7, 3, 2},
    {Op::Mod, 7, -3, -2},
    {Op::Mod, -1, kInf, kInf},
    {Op::Pow, 2, 10, 1024},
    {Op::Pow, kNan, 0, 1},
    {Op::Max, 1, 2, 2},
    {Op::Max, kNan, 2, kNan},
    {Op::Max, 2, kNan, kNan},
    {Op::Min, 1, 2, 1},
    {Op::Min, 2, kNan, kNan},
    {Op::Min, kNan, 2, kNan},
    {Op::Lt, 1, 2, 1},
    {Op::Lt, 1, kNan, 0},
    {Op::Le, 2, 2, 1},
    {Op::Eq, 0.0, -0.0, 1},
    {Op::Eq, kNan, kNan, 0},
    {Op::Ne, kNan, kNan, 1},
};
struct IntegerCase {
  Op op;
  int64_t a, b, expected;
};
const IntegerCase kIntegers[] = {
    {Op::Neg, 5, 0, -5},
    {Op::Abs, -5, 0, 5},
    {Op::Sign, -5, 0, -1},
    {Op::Not, 5, 0, -6},
    {Op::Add, std::numeric_limits<int64_t>::max(), 1, kLeast},
    {Op::Sub, 2, 5, -3},
    {Op::Mul, -2, 3, -6},
    {Op::Div, -7, 2, -3},
    {Op::Div, 7, 0, 0},
    {Op::Div, kLeast, -1, kLeast},
    {Op::FloorDiv, -7, 2, -4},
    {Op::FloorDiv, 7, 0, 0},
    {Op::FloorDiv, -8, 2, -4},
    {Op::Mod, -7, 3, 2},
    {Op::Mod, 7, -3, -2},
    {Op::Pow, 3, 4, 81},
    {Op::Pow, -1, -3, -1},
    {Op::Pow, 2, -1, 0},
    {Op::Max, 2, 3, 3},
    {Op::Min, 2, 3, 2},
    {Op::And, 6, 3, 2},
    {Op::Or, 6, 3, 7},
    {Op::Xor, 6, 3, 5},
    {Op::Shl, 3, 62, kLeast / 2},
    {Op::Shl, 3, 64, 0},
    {Op::Shr, -1, 60, 15},
    {Op::Shr, -1, -1, 0},
    {Op::Sar, -9, 1, -5},
    {Op::Sar, -9, 64, -1},
    {Op::Lt, 2, 3, 1},
    {Op::Le, 3, 2, 0},
    {Op::Eq, 3, 3, 1},
    {Op::Ne, 3, 3, 0},
    {Op::Floor, 3, 0, 3},
    {Op::Ceil, 3, 0, 3},
    {Op::Round, 3, 0, 3},
    {Op::Trunc, 3, 0, 3},
};

Tensor floats(Dims shape, std::vector<double> values, DType dtype = DType::F32) { return {{dtype, shape}, values, {}}; }
Tensor integers(Dims shape, std::vector<int64_t> values, DType dtype = DType::I64) {
  return {{dtype, shape}, {}, values};
}

Tensor run(const std::string& text, const std::vector<Tensor>& inputs, Options options = {}) {
  return evaluate(parse(text), inputs, options).at(0);
}

TEST(Reference, FloatsElementwise) {
  for (const FloatCase& c : kFloats) {
    Graph g;
    Builder b{g, {}};
    const Node* x = b.input(0, {DType::F64, {1}});
    g.outputs = {{arity_of(c.op) == 1 ? b.unary(c.op, x) : b.binary(c.op, x, b.input(1, {DType::F64, {1}})), {}}};
    const Tensor out = evaluate(g, {floats({1}, {c.a}, DType::F64), floats({1}, {c.b}, DType::F64)})[0];
    const double got = is_float(out.type.dtype) ? out.f[0] : out.i[0];
    EXPECT_TRUE(std::isnan(c.expected) ? std::isnan(got)
                                       : got == c.expected && std::signbit(got) == std::signbit(c.expected))
        << name_of(c.op) << " " << c.a << " " << c.b << " gives " << got;
  }
}

TEST(Reference, IntegersElementwise) {
  for (const IntegerCase& c : kIntegers) {
    Graph g;
    Builder b{g, {}};
    const Node* x = b.input(0, {DType::I64, {1}});
    g.outputs = {{arity_of(c.op) == 1 ? b.unary(c.op, x) : b.binary(c.op, x, b.input(1, {DType::I64, {1}})), {}}};
    EXPECT_EQ(evaluate(g, {integers({1}, {c.a}), integers({1}, {c.b})})[0].i[0], c.expected)
        << name_of(c.op) << " " << c.a << " " << c.b;
  }
}

TEST(Reference, EveryElementwiseOperationHasACase) {
  std::set<Op> seen = {Op::Cast, Op::Bitcast, Op::Select};  // below
  for (const FloatCase& c : kFloats) seen.insert(c.op);
  for (const IntegerCase& c : kIntegers) seen.insert(c.op);
#define OP(Name, text, inputs, Class, meaning) \
  if (OpClass::Class == OpClass::Elementwise) { EXPECT_TRUE(seen.contains(Op::Name)) << text; }
#include "graph/ops.def"
}

TEST(Reference, NarrowIntegersWrapAndBoolIsLogical) {
  EXPECT_THAT(
      run("%x = input index=0 : i8[2]\n%y = add %x %x : i8[2]\nreturn %y", {integers({2}, {100, -3}, DType::I8)}).i,
      ElementsAre(-56, -6));
  EXPECT_THAT(
      run("%x = input index=0 : bool[2]\n%y = not %x : bool[2]\nreturn %y", {integers({2}, {1, 0}, DType::Bool)}).i,
      ElementsAre(0, 1));
}

TEST(Reference, Casts) {
  const auto cast = [](const Tensor& x, DType to, Precision precision = Precision::Rounded) {
    Graph g;
    Builder b{g, {}};
    g.outputs = {{b.cast(b.input(0, x.type), to), {}}};
    return evaluate(g, {x}, {precision, {}, {}})[0];
  };
  // What does not fit: as cvttss2si gives it, and eager
  const Tensor far = floats({6}, {-1.9, 300.5, kNan, 3e9, -5e9, 1e19}, DType::F64);
  EXPECT_THAT(cast(far, DType::I32).i, ElementsAre(-1, 300, INT32_MIN, INT32_MIN, INT32_MIN, INT32_MIN));
  EXPECT_THAT(cast(far, DType::I64).i, ElementsAre(-1, 300, INT64_MIN, 3000000000, -5000000000, INT64_MIN));
  EXPECT_THAT(cast(far, DType::I16).i, ElementsAre(-1, 300, 0, 0, 0, 0));
  EXPECT_THAT(cast(far, DType::U8).i, ElementsAre(255, 44, 0, 0, 0, 0));
  // by way of f32, where it is a tie
  EXPECT_THAT(cast(floats({1}, {1 + 0x1p-8 + 0x1p-40}, DType::F64), DType::BF16).f, ElementsAre(1));
  EXPECT_THAT(cast(floats({3}, {0.0, -0.5, kNan}), DType::Bool).i, ElementsAre(0, 1, 1));
  EXPECT_THAT(cast(integers({1}, {(1 << 24) + 1}), DType::F32).f, ElementsAre(1 << 24));
  // 2^24 + 1 + a little: through fp64 it would be a tie, and go down
  EXPECT_THAT(cast(integers({1}, {(((1LL << 24) + 1) << 38) + 1}), DType::F32).f,
              ElementsAre(std::ldexp((1 << 24) + 2, 38)));
  EXPECT_THAT(cast(floats({1}, {0.1}, DType::F64), DType::F32).f, ElementsAre(static_cast<double>(0.1f)));
  EXPECT_THAT(cast(floats({1}, {0.1}, DType::F64), DType::F32, Precision::Truth).f, ElementsAre(0.1));
}

TEST(Reference, BitsAreThoseOfTheDtype) {
  const auto bits = [](const Tensor& x, DType to) {
    Graph g;
    Builder b{g, {}};
    g.outputs = {{b.bitcast(b.input(0, x.type), to), {}}};
    return evaluate(g, {x})[0];
  };
  const double less = std::ldexp(1, -149);
  EXPECT_THAT(bits(floats({6}, {1, -0.0, kInf, 0.1, less, -1.5}), DType::U32).i,
              ElementsAre(0x3f800000, 0x80000000, 0x7f800000, 0x3dcccccd, 1, 0xbfc00000));  // 0.1: not f64's bits
  EXPECT_THAT(bits(floats({3}, {1, -2, std::ldexp(1, -24)}, DType::F16), DType::I16).i,
              ElementsAre(0x3c00, -0x4000, 1));
  EXPECT_THAT(bits(floats({2}, {1, -kInf}, DType::BF16), DType::U16).i, ElementsAre(0x3f80, 0xff80));
  EXPECT_THAT(bits(integers({4}, {0x3f800000, 1, -0x40000000, 0x7f800000}, DType::I32), DType::F32).f,
              ElementsAre(1, less, -2, kInf));
  EXPECT_THAT(bits(integers({1}, {-1}, DType::I64), DType::U64).i, ElementsAre(-1));
  EXPECT_TRUE(std::isnan(bits(integers({1}, {0x7fc00001}, DType::I32), DType::F32).f[0]));
}

TEST(Reference, UnsignedOf64BitsAreKeptAsTheirBits) {
  const auto of = [](Op op) {
    Graph g;
    Builder b{g, {}};
    const Type type{DType::U64, {3}};
    g.outputs = {{b.binary(op, b.input(0, type), b.input(1, type)), {}}};
    return evaluate(g, {integers({3}, {-1, 7, -1}, DType::U64), integers({3}, {2, -1, -2}, DType::U64)})[0].i;
  };
  EXPECT_THAT(of(Op::Div), ElementsAre(INT64_MAX, 0, 1));
  EXPECT_THAT(of(Op::Mod), ElementsAre(1, 7, 1));
  EXPECT_THAT(of(Op::Max), ElementsAre(-1, -1, -1));
  EXPECT_THAT(of(Op::Min), ElementsAre(2, 7, -2));
  EXPECT_THAT(of(Op::Lt), ElementsAre(0, 1, 0));
  EXPECT_THAT(of(Op::Shr), ElementsAre(INT64_MAX >> 1, 0, 0));
  Graph g;
  Builder b{g, {}};
  g.outputs = {{b.cast(b.input(0, {DType::U64, {1}}), DType::F64), {}}};
  EXPECT_EQ(evaluate(g, {integers({1}, {-1}, DType::U64)})[0].f[0], 0x1p64);
}

TEST(Reference, RoundedIsAnIdealMachine) {
  const std::string text =
      "%x = input index=0 : f32[1]\n%y = input index=1 : f32[1]\n%z = div %x %y : f32[1]\nreturn %z";
  const std::vector<Tensor> inputs = {floats({1}, {1}), floats({1}, {3})};
  EXPECT_EQ(run(text, inputs).f[0], 1.0 / 3);
  EXPECT_EQ(run(text, inputs, {Precision::Rounded, {}, {}}).f[0], static_cast<double>(1.0f / 3.0f));
}

const Tensor kTable = floats({2, 3}, {1, 2, 3, 4, 5, 6});

TEST(Reference, Reductions) {
  const auto reduce = [](ReduceKind kind, const Tensor& x, Dims axes) {
    Graph g;
    Builder b{g, {}};
    g.outputs = {{b.reduce(kind, b.input(0, x.type), axes), {}}};
    return evaluate(g, {x})[0];
  };
  EXPECT_THAT(reduce(ReduceKind::Sum, kTable, {0}).f, ElementsAre(5, 7, 9));
  EXPECT_THAT(reduce(ReduceKind::Sum, kTable, {1}).f, ElementsAre(6, 15));
  EXPECT_THAT(reduce(ReduceKind::Prod, kTable, {0, 1}).f, ElementsAre(720));
  EXPECT_THAT(reduce(ReduceKind::Max, floats({2, 2}, {1, -1, kNan, 7}), {1}).f, ElementsAre(1, ::testing::IsNan()));
  EXPECT_THAT(reduce(ReduceKind::Min, kTable, {1}).f, ElementsAre(1, 4));
  EXPECT_THAT(reduce(ReduceKind::ArgMax, floats({2, 3}, {1, 5, 5, 3, kNan, kNan}), {1}).i, ElementsAre(1, 1));
  EXPECT_THAT(reduce(ReduceKind::ArgMin, floats({3, 2}, {3, 1, 2, 1, 2, 0}), {0}).i, ElementsAre(1, 2));
  EXPECT_THAT(reduce(ReduceKind::Sum, floats({2, 0}, {}), {1}).f, ElementsAre(0, 0));
  EXPECT_TRUE(std::signbit(reduce(ReduceKind::Sum, floats({1}, {-0.0}), {0}).f[0]));
  EXPECT_THAT(reduce(ReduceKind::Sum, integers({2}, {kLeast, kLeast}), {0}).i, ElementsAre(0));
}

TEST(Reference, ScanAndContract) {
  EXPECT_THAT(run("%x = input index=0 : f32[2,3]\n%y = scan %x axis=1 : f32[2,3]\nreturn %y", {kTable}).f,
              ElementsAre(1, 3, 6, 4, 9, 15));
  EXPECT_FALSE(std::signbit(
      run("%x = constant value=-0 : f32[]\n%a = reshape %x : f32[1]\n%y = scan %a axis=0 : f32[1]\nreturn %y", {})
          .f[0]));
  EXPECT_THAT(run("%x = input index=0 : f32[2,3]\n%y = scan %x axis=0 : f32[2,3]\nreturn %y", {kTable}).f,
              ElementsAre(1, 2, 3, 5, 7, 9));
  EXPECT_THAT(run("%x = input index=0 : f32[1,2,3]\n%y = input index=1 : f32[1,1,3]\n%z = contract %x %y : "
                  "f32[1,2,1]\nreturn %z",
                  {floats({1, 2, 3}, kTable.f), floats({1, 1, 3}, {1, 0, -1})})
                  .f,
              ElementsAre(-2, -2));
  EXPECT_THAT(
      run("%x = input index=0 : f32[1,2,0]\n%z = contract %x %x : f32[1,2,2]\nreturn %z", {floats({1, 2, 0}, {})}).f,
      ElementsAre(0, 0, 0, 0));
}

TEST(Reference, Movements) {
  const auto move = [](const std::string& line) {
    return run("%x = input index=0 : f32[2,3]\n%c = constant value=9 : f32[]\n%y = " + line + "\nreturn %y", {kTable})
        .f;
  };
  EXPECT_THAT(move("reshape %x : f32[3,2]"), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(move("permute %x order=[1,0] : f32[3,2]"), ElementsAre(1, 4, 2, 5, 3, 6));
  EXPECT_THAT(move("slice %x start=[1,0] step=[1,2] : f32[1,2]"), ElementsAre(4, 6));
  EXPECT_THAT(move("reverse %x axes=[1] : f32[2,3]"), ElementsAre(3, 2, 1, 6, 5, 4));
  EXPECT_THAT(move("window %x axes=[1] size=[2] step=[1] dilation=[1] : f32[2,2,2]"),
              ElementsAre(1, 2, 2, 3, 4, 5, 5, 6));
  EXPECT_THAT(move("window %x axes=[0,1] size=[2,2] step=[1,1] dilation=[1,2] : f32[1,1,2,2]"),
              ElementsAre(1, 3, 4, 6));
  EXPECT_THAT(move("window %x axes=[1] size=[1] step=[2] dilation=[1] : f32[2,2,1]"), ElementsAre(1, 3, 4, 6));
  EXPECT_THAT(move("pad %x %c low=[0,1] high=[1,0] : f32[3,4]"), ElementsAre(9, 1, 2, 3, 9, 4, 5, 6, 9, 9, 9, 9));
  EXPECT_THAT(move("concat %x %x axis=1 : f32[2,6]"), ElementsAre(1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6));
  EXPECT_THAT(run("%x = input index=0 : f32[2,1]\n%y = broadcast %x : f32[2,3]\nreturn %y", {floats({2, 1}, {1, 2})}).f,
              ElementsAre(1, 1, 1, 2, 2, 2));
  EXPECT_THAT(run("%x = iota axis=1 : i64[2,3]\nreturn %x", {}).i, ElementsAre(0, 1, 2, 0, 1, 2));
}

TEST(Reference, ByIndex) {
  const std::string gather =
      "%x = input index=0 : f32[2,3]\n%i = input index=1 : i64[2,2]\n%y = gather %x %i axis=1 : f32[2,2]\nreturn %y";
  EXPECT_THAT(run(gather, {kTable, integers({2, 2}, {2, 0, 1, 1})}).f, ElementsAre(3, 1, 5, 5));
  for (int64_t wrong : {3, -1}) {
    try {
      run(gather, {kTable, integers({2, 2}, {0, 0, 0, wrong})});
      ADD_FAILURE() << wrong;
    } catch (const IndexError& e) {
      EXPECT_EQ(e.what(),
                "index out of range: index " + std::to_string(wrong) + " is out of bounds for axis 1 with size 3");
    }
  }
  const auto scatter = [](const char* kind) {
    return run(std::string("%x = input index=0 : f32[3]\n%i = input index=1 : i64[4]\n%s = input index=2 : f32[4]\n%y "
                           "= scatter %x %i %s axis=0 kind=") +
                   kind + " : f32[3]\nreturn %y",
               {floats({3}, {10, 20, 30}), integers({4}, {0, 2, 2, 0}), floats({4}, {1, 2, 3, 4})})
        .f;
  };
  EXPECT_THAT(scatter("sum"), ElementsAre(15, 20, 35));
  EXPECT_THAT(scatter("last"), ElementsAre(4, 20, 3));
}

TEST(Reference, SelectsPassesRandomAndExternThrough) {
  Options options;
  options.random = [](const Node* node) { return integers(node->shape(), {1, 0, 1}, DType::Bool); };
  options.call = [](const Node*, const std::vector<Tensor>& in) {
    return std::vector<Tensor>{in[0], integers({}, {7})};
  };
  const Graph g = parse(
      "%x = input index=0 : f32[3]\n%m = random draw=0 p=0.5 : bool[3]\n%n = neg %x : f32[3]\n%s = select %m %x %n : "
      "f32[3]\n"
      "%e = extern %s target=\"aten.x\" arguments=\"{}\" results=[f32[3],i64[]] : f32[3]\n%r = result %e index=1 : "
      "i64[]\nreturn %e %r none");
  const std::vector<Tensor> out = evaluate(g, {floats({3}, {1, 2, 3})}, options);
  EXPECT_THAT(out.at(0).f, ElementsAre(1, -2, 3));
  EXPECT_THAT(out.at(1).i, ElementsAre(7));
  EXPECT_TRUE(out.at(2).f.empty());
  EXPECT_THROW(evaluate(g, {floats({3}, {1, 2, 3})}), InternalError);
}

TEST(Reference, RefusesInputsOfAnotherType) {
  EXPECT_THROW(run("%x = input index=0 : f32[2]\nreturn %x", {floats({3}, {1, 2, 3})}), InternalError);
  EXPECT_THROW(run("%x = input index=0 : f32[2]\nreturn %x", {}), InternalError);
}

// Whatever the graph: a value of Precision::Rounded is one of its dtype.
TEST(Reference, RoundedValuesAreOfTheirDType) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    testing::RandomGraphOptions options;
    options.transcendental = false;
    const Graph g = testing::random_graph(seed, options);
    const auto inputs = testing::random_inputs(g, seed);
    for (const Tensor& t : evaluate(g, inputs, {Precision::Rounded, {}, {}}))
      for (double x : t.f) EXPECT_TRUE(std::isnan(x) || round_to(t.type.dtype, x) == x) << "seed " << seed;
  }
}

}  // namespace
}  // namespace trainc::reference
