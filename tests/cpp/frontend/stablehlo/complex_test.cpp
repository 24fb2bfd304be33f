// Complex numbers: pairs of reals in the graph, one tensor with a last axis of 2 at its edges. By the reference in fp64
// against std::complex.
#include <gmock/gmock.h>

#include <complex>
#include <functional>
#include <map>
#include <random>

#include "modules.h"

namespace trainc::frontend {
namespace {

using Number = std::complex<double>;
using Numbers = std::vector<Number>;
using ::testing::HasSubstr;

const std::string kComplex = "complex<f64>";

Tensor tensor(const Numbers& z, Dims shape) {
  shape.push_back(2);
  Tensor t{{DType::F64, shape}, {}, {}};
  for (Number v : z) t.f.push_back(v.real()), t.f.push_back(v.imag());
  return t;
}
Numbers numbers(const Tensor& t) {
  Numbers z;
  for (size_t i = 0; i < t.f.size(); i += 2) z.emplace_back(t.f[i], t.f[i + 1]);
  return z;
}
Numbers random(int64_t n, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<double> draw;
  Numbers z;
  for (int64_t i = 0; i < n; ++i) z.emplace_back(draw(rng), draw(rng));
  return z;
}
void expect_near(const Numbers& got, const Numbers& wanted, const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_LE(std::abs(got[i] - wanted[i]), 1e-13 * std::abs(wanted[i]))
        << what << " " << i << ": " << got[i] << ", not " << wanted[i];
}
/// The region (or function) of one operation on two scalars.
json pair_of(const std::string& op) {
  return function({value("%x", kComplex, {}), value("%y", kComplex, {})},
                  {node(op, {"%x", "%y"}, {value("%xy", kComplex, {})})}, {"%xy"});
}

TEST(StableHloComplex, Arithmetic) {
  const std::map<std::string, std::function<Number(Number, Number)>> operations = {
      {"stablehlo.add", std::plus<>()},
      {"stablehlo.subtract", std::minus<>()},
      {"stablehlo.multiply", std::multiplies<>()},
      {"stablehlo.divide", std::divides<>()},
      {"stablehlo.power", [](Number x, Number y) { return std::pow(x, y); }}};
  for (int64_t n : {0, 1, 7}) {
    const Numbers x = random(n, 1), y = random(n, 2);
    for (const auto& [op, f] : operations) {
      Numbers wanted;
      for (size_t i = 0; i < x.size(); ++i) wanted.push_back(f(x[i], y[i]));
      expect_near(numbers(run(one(op, {kComplex, kComplex}, kComplex, n), {tensor(x, {n}), tensor(y, {n})})[0]), wanted,
                  op);
    }
  }
}

TEST(StableHloComplex, PartsAndComparisons) {
  const Numbers x = {{1, 2}, {1, 3}, {0, -0.0}, {NAN, 0}}, y = {{1, 2}, {1, 2}, {-0.0, 0}, {NAN, 0}};
  const auto is = [&](const char* direction) {
    return run(one("stablehlo.compare", {kComplex, kComplex}, "bool", 4, {{"comparison_direction", direction}}),
               {tensor(x, {4}), tensor(y, {4})})[0]
        .i;
  };
  EXPECT_THAT(is("EQ"), ::testing::ElementsAre(1, 0, 1, 0));
  EXPECT_THAT(is("NE"), ::testing::ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(refused(one("stablehlo.compare", {kComplex, kComplex}, "bool", 4, {{"comparison_direction", "LT"}})),
              HasSubstr("complex numbers have no order"));
  EXPECT_THAT(run(one("stablehlo.imag", {kComplex}, "f64", 2), {tensor({{1, 2}, {3, 4}}, {2})})[0].f,
              ::testing::ElementsAre(2, 4));
  const Tensor re{{DType::F64, {2}}, {1, 3}, {}}, im{{DType::F64, {2}}, {2, 4}, {}};
  EXPECT_THAT(run(one("stablehlo.complex", {"f64", "f64"}, kComplex, 2), {re, im})[0].f,
              ::testing::ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(run(one("stablehlo.convert", {"f64"}, kComplex, 2), {re})[0].f, ::testing::ElementsAre(1, 0, 3, 0));
  EXPECT_THAT(run(one("stablehlo.convert", {kComplex}, "f64", 1), {tensor({{5, 6}}, {1})})[0].f,
              ::testing::ElementsAre(5));
}

// An argument that is a result as it is stays one input: no copy is made of it.
TEST(StableHloComplex, AnArgumentAsAResultIsTheInput) {
  const json main = function({value("%a", kComplex, {3}), value("%b", kComplex, {3})}, {}, {"%b", "%a"});
  const Program program = import_stablehlo(module(main));
  ASSERT_EQ(program.graph.outputs.size(), 2u);
  for (const auto& output : program.graph.outputs) EXPECT_EQ(output.value->op, Op::Input);
  EXPECT_EQ(program.graph.input_count, 2);
}

TEST(StableHloComplex, Constants) {
  // 1 + 2i and 3 - 4i in f32
  const json both = {{"bytes", "AACAPwAAAEAAAEBAAACAwA=="}}, one_of_them = {{"splat", "AACAPwAAAEA="}};
  const auto of = [](const json& v, const Dims& shape) {
    const json main =
        function({}, {node("stablehlo.constant", {}, {value("%c", "complex<f32>", shape)}, {{"value", v}})}, {"%c"});
    return run(module(main), {})[0].f;
  };
  EXPECT_THAT(of(both, {2}), ::testing::ElementsAre(1, 2, 3, -4));
  EXPECT_THAT(of(one_of_them, {2}), ::testing::ElementsAre(1, 2, 1, 2));
  EXPECT_THAT(of(one_of_them, {}), ::testing::ElementsAre(1, 2));
}

TEST(StableHloComplex, Reductions) {
  for (int64_t n : {1, 2, 7, 70})
    for (const bool product : {false, true}) {
      const std::string op = product ? "stablehlo.multiply" : "stablehlo.add";
      const Numbers x = random(2 * n, static_cast<uint64_t>(n));
      const Number start = {0.5, -2};
      const json main = function(
          {value("%a", kComplex, {2, n}), value("%s", kComplex, {})},
          {node("stablehlo.reduce", {"%a", "%s"}, {value("%r", kComplex, {2})}, {{"dimensions", {1}}}, {pair_of(op)})},
          {"%r"});
      Numbers wanted = {start, start};
      for (int64_t i = 0; i < 2 * n; ++i) {
        Number& w = wanted[static_cast<size_t>(i / n)];
        w = product ? w * x[static_cast<size_t>(i)] : w + x[static_cast<size_t>(i)];
      }
      const Numbers got = numbers(run(module(main), {tensor(x, {2, n}), tensor({start}, {})})[0]);
      for (size_t i = 0; i < 2; ++i)
        EXPECT_LE(std::abs(got[i] - wanted[i]), 1e-12 * std::abs(wanted[i]) + 1e-13 * n) << op << n;
    }
}

TEST(StableHloComplex, Products) {
  const Numbers x = random(6, 1), y = random(12, 2);
  const json dims = {{"lhs_contracting_dimensions", {1}}, {"rhs_contracting_dimensions", {0}}};
  const json main = function(
      {value("%a", kComplex, {2, 3}), value("%b", kComplex, {3, 4})},
      {node("stablehlo.dot_general", {"%a", "%b"}, {value("%r", kComplex, {2, 4})}, {{"dot_dimension_numbers", dims}})},
      {"%r"});
  Numbers wanted(8);
  for (size_t i = 0; i < 2; ++i)
    for (size_t j = 0; j < 4; ++j)
      for (size_t k = 0; k < 3; ++k) wanted[4 * i + j] += x[3 * i + k] * y[4 * k + j];
  expect_near(numbers(run(module(main), {tensor(x, {2, 3}), tensor(y, {3, 4})})[0]), wanted, "product");
}

TEST(StableHloComplex, AScatterToPlacesThatComeTwice) {
  for (const std::string op : {"add", "subtract", "multiply"}) {
    const Numbers x = random(3, 1), u = random(4, 2);
    const std::vector<int64_t> places = {2, 0, 2, 5};
    const json dims = {{"inserted_window_dims", {0}}, {"scatter_dims_to_operand_dims", {0}}, {"index_vector_dim", 1}};
    const json main = function({value("%a", kComplex, {3}), value("%i", "i32", {4, 1}), value("%u", kComplex, {4})},
                               {node("stablehlo.scatter", {"%a", "%i", "%u"}, {value("%r", kComplex, {3})},
                                     {{"scatter_dimension_numbers", dims}}, {pair_of("stablehlo." + op)})},
                               {"%r"});
    Numbers wanted = x;
    for (size_t k = 0; k < 3; ++k) {
      Number& w = wanted[static_cast<size_t>(places[k])];
      w = op == "add" ? w + u[k] : op == "subtract" ? w - u[k] : w * u[k];
    }
    const Tensor indices{{DType::I32, {4, 1}}, {}, places};
    expect_near(numbers(run(module(main), {tensor(x, {3}), indices, tensor(u, {4})})[0]), wanted, op);
  }
}

TEST(StableHloComplex, WhatMeansNothingGivesThemBack) {
  const Numbers x = random(3, 8);
  const json sharded = {{"call_target_name", "Sharding"}};
  expect_near(numbers(run(one("stablehlo.custom_call", {kComplex}, kComplex, 3, sharded), {tensor(x, {3})})[0]), x, "");
  expect_near(numbers(run(one("sdy.sharding_constraint", {kComplex}, kComplex, 3), {tensor(x, {3})})[0]), x, "");
  const json minus =
      function({value("%t", kComplex, {3})}, {node("stablehlo.negate", {"%t"}, {value("%u", kComplex, {3})})}, {"%u"});
  const json main = function(
      {value("%a", kComplex, {3})},
      {node("stablehlo.composite", {"%a"}, {value("%r", kComplex, {3})}, {{"decomposition", "minus"}})}, {"%r"});
  Numbers wanted;
  for (const Number v : x) wanted.push_back(-v);
  expect_near(numbers(run(module(main, {{"minus", minus}}), {tensor(x, {3})})[0]), wanted, "composite");
}

// JAX composes them of other operations, or has none; other programs need not.
TEST(StableHloComplex, FunctionsThatJaxDoesNotLower) {
  const Numbers z = random(9, 4);
  for (const auto& [op, f] : std::map<std::string, Number (*)(Number)>{
           {"stablehlo.cbrt", [](Number v) { return std::pow(v, 1.0 / 3); }},
           {"stablehlo.logistic", [](Number v) { return 1.0 / (1.0 + std::exp(-v)); }},
           {"stablehlo.sine", [](Number v) { return std::sin(v); }},
           {"stablehlo.cosine", [](Number v) { return std::cos(v); }},
           {"chlo.conj", [](Number v) { return std::conj(v); }},
           {"chlo.tan", [](Number v) { return std::tan(v); }}}) {
    Numbers wanted;
    for (const Number v : z) wanted.push_back(f(v));
    expect_near(numbers(run(one(op, {kComplex}, kComplex, 9), {tensor(z, {9})})[0]), wanted, op);
  }
}

TEST(StableHloComplex, LoopsCallsAndChoicesCarryThem) {
  const json cond = function({value("%x", kComplex, {2}), value("%i", "i32", {})},
                             {number("%n", 3), node("stablehlo.compare", {"%i", "%n"}, {value("%c", "bool", {})},
                                                    {{"comparison_direction", "LT"}})},
                             {"%c"});
  const json body = function({value("%y", kComplex, {2}), value("%j", "i32", {})},
                             {number("%one", 1), node("stablehlo.add", {"%j", "%one"}, {value("%next", "i32", {})}),
                              node("func.call", {"%y"}, {value("%z", kComplex, {2})}, {{"callee", "square"}})},
                             {"%z", "%next"});
  const json square = function({value("%t", kComplex, {2})},
                               {node("stablehlo.multiply", {"%t", "%t"}, {value("%u", kComplex, {2})})}, {"%u"});
  const json yes = function({}, {}, {"%r"});
  const json no = function({}, {node("stablehlo.negate", {"%r"}, {value("%minus", kComplex, {2})})}, {"%minus"});
  const json main = function(
      {value("%a", kComplex, {2}), value("%p", "bool", {})},
      {number("%zero", 0),
       node("stablehlo.while", {"%a", "%zero"}, {value("%r", kComplex, {2}), value("%k", "i32", {})}, {}, {cond, body}),
       node("stablehlo.if", {"%p"}, {value("%chosen", kComplex, {2})}, {}, {yes, no})},
      {"%k", "%chosen"});
  const Numbers x = {{0.5, 1}, {-1, 0.25}};
  for (const bool p : {true, false}) {
    Numbers wanted;
    for (Number v : x) wanted.push_back((p ? 1.0 : -1.0) * std::pow(v, 8));
    const auto got = run(module(main, {{"square", square}}), {tensor(x, {2}), {{DType::Bool, {}}, {}, {p}}});
    EXPECT_THAT(got[0].i, ::testing::ElementsAre(3));
    expect_near(numbers(got[1]), wanted, "loop");
  }
}

}  // namespace
}  // namespace trainc::frontend
