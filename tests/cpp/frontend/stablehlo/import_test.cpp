// The importer on modules in the wire format: what it makes of them by the reference, and what it refuses, by its
// words.
#include "modules.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <map>

namespace trainc::frontend {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kLeast = std::numeric_limits<int32_t>::min(), kMost = std::numeric_limits<int32_t>::max();

TEST(StableHlo, IntegerDivisionNeverTraps) {
  const std::vector<Tensor> in = {integers({7, -7, kLeast, 5}), integers({0, 2, -1, 0})};
  EXPECT_THAT(run(one("stablehlo.divide", {"i32", "i32"}, "i32", 4), in)[0].i, ElementsAre(-1, -3, kLeast, -1));
  EXPECT_THAT(run(one("stablehlo.remainder", {"i32", "i32"}, "i32", 4), in)[0].i, ElementsAre(7, -1, 0, 5));
  const std::vector<Tensor> u = {integers({7, 255}, DType::U8), integers({0, 255}, DType::U8)};
  EXPECT_THAT(run(one("stablehlo.divide", {"u8", "u8"}, "u8", 2), u)[0].i, ElementsAre(255, 1));
}

TEST(StableHlo, FloatsToIntegersSaturate) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  const Tensor x = floats({nan, 3e9, -3e9, inf, -inf, -1.9, 300.7});
  const auto to = [&](const char* dtype) { return run(one("stablehlo.convert", {"f32"}, dtype, 7), {x})[0].i; };
  EXPECT_THAT(to("i32"), ElementsAre(0, kMost, kLeast, kMost, kLeast, -1, 300));
  EXPECT_THAT(to("i8"), ElementsAre(0, 127, -128, 127, -128, -1, 127));
  EXPECT_THAT(to("u8"), ElementsAre(0, 255, 0, 255, 0, 0, 255));
  EXPECT_THAT(to("u32"), ElementsAre(0, 3000000000, 0, 0xffffffff, 0, 0, 300));
  EXPECT_THAT(to("u64"), ElementsAre(0, 3000000000, 0, -1, 0, 0, 300));
  EXPECT_THAT(to("bool"), ElementsAre(1, 1, 1, 1, 1, 1, 1));
}

TEST(StableHlo, ShiftsBeyondTheWidth) {
  const std::vector<Tensor> in = {integers({-8, -8, -8, 1}), integers({1, 32, -1, 31})};
  EXPECT_THAT(run(one("stablehlo.shift_left", {"i32", "i32"}, "i32", 4), in)[0].i, ElementsAre(-16, 0, 0, kLeast));
  EXPECT_THAT(run(one("stablehlo.shift_right_logical", {"i32", "i32"}, "i32", 4), in)[0].i,
              ElementsAre(0x7ffffffc, 0, 0, 0));
  EXPECT_THAT(run(one("stablehlo.shift_right_arithmetic", {"i32", "i32"}, "i32", 4), in)[0].i,
              ElementsAre(-4, -1, -1, 0));
}

// JAX composes them of other operations; other programs need not.
TEST(StableHlo, FunctionsThatJaxDoesNotLower) {
  const std::vector<double> x = {0, 0.5, -1.25, 20};
  for (const auto& [op, f] : std::map<std::string, double (*)(double)>{
           {"stablehlo.logistic", [](double v) { return 1 / (1 + std::exp(-v)); }},
           {"chlo.tan", [](double v) { return std::tan(v); }}}) {
    const std::vector<double> got = run(one(op, {"f32"}, "f32", 4), {floats(x)})[0].f;
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(got[i], f(x[i]), 3e-7 * std::abs(f(x[i]))) << op << " " << x[i];
  }
}

TEST(StableHlo, ALoopWhoseTripsAreCounted) {
  const json cond = function({value("%i", "i32", {}), value("%x", "f32", {2})},
                             {number("%n", 3), node("stablehlo.compare", {"%i", "%n"}, {value("%c", "bool", {})},
                                                    {{"comparison_direction", "LT"}})},
                             {"%c"});
  const json body = function({value("%j", "i32", {}), value("%y", "f32", {2})},
                             {number("%one", 1), node("stablehlo.add", {"%j", "%one"}, {value("%next", "i32", {})}),
                              node("stablehlo.add", {"%y", "%y"}, {value("%z", "f32", {2})})},
                             {"%next", "%z"});
  const auto loop = [&](const std::string& counter) {
    return module(function(
        {value("%a", "f32", {2}), value("%from", "i32", {})},
        {number("%zero", 0),
         node("stablehlo.while", {counter, "%a"}, {value("%k", "i32", {}), value("%r", "f32", {2})}, {}, {cond, body})},
        {"%r", "%k"}));
  };
  const auto results = run(loop("%zero"), {floats({1, -3}), {{DType::I32, {}}, {}, {0}}});
  EXPECT_THAT(results[0].f, ElementsAre(8, -24));
  EXPECT_THAT(results[1].i, ElementsAre(3));
  EXPECT_THAT(refused(loop("%from")),
              HasSubstr("step.py:7 (jit(step)/it): stablehlo.while: after 0 trips it depends on"));
}

TEST(StableHlo, ACallIsInlinedAsOftenAsItIsMade) {
  const json twice =
      function({value("%t", "f32", {2})}, {node("stablehlo.add", {"%t", "%t"}, {value("%u", "f32", {2})})}, {"%u"});
  const json main = function({value("%a", "f32", {2})},
                             {node("func.call", {"%a"}, {value("%b", "f32", {2})}, {{"callee", "twice"}}),
                              node("func.call", {"%b"}, {value("%c", "f32", {2})}, {{"callee", "twice"}})},
                             {"%c", "%b"});
  const auto results = run(module(main, {{"twice", twice}}), {floats({1, 5})});
  EXPECT_THAT(results[0].f, ElementsAre(4, 20));
  EXPECT_THAT(results[1].f, ElementsAre(2, 10));
}

TEST(StableHlo, AChoiceByAnArgument) {
  const auto branch = [](const char* op) {
    const std::string r = std::string("%") + op;
    return function({}, {node(std::string("stablehlo.") + op, {"%x"}, {value(r, "f32", {2})})}, {r});
  };
  const auto chosen = [&](const std::string& op, const std::string& dtype, int64_t index) {
    const json main =
        function({value("%p", dtype, {}), value("%x", "f32", {2})},
                 {node(op, {"%p"}, {value("%r", "f32", {2})}, {}, {branch("negate"), branch("abs")})}, {"%r"});
    return run(module(main), {{{dtype_of(dtype), {}}, {}, {index}}, floats({1, -2})})[0].f;
  };
  EXPECT_THAT(chosen("stablehlo.if", "bool", 1), ElementsAre(-1, 2));
  EXPECT_THAT(chosen("stablehlo.if", "bool", 0), ElementsAre(1, 2));
  EXPECT_THAT(chosen("stablehlo.case", "i32", 0), ElementsAre(-1, 2));
  EXPECT_THAT(chosen("stablehlo.case", "i32", 1), ElementsAre(1, 2));
  EXPECT_THAT(chosen("stablehlo.case", "i32", -5), ElementsAre(1, 2));
}

// Of two operands, one place comes twice: the second update meets what the first one left, and one outside is left out.
TEST(StableHlo, AScatterOfSeveralOperandsIsInOrder) {
  const json region =
      function({value("%a", "f32", {}), value("%n", "i32", {}), value("%b", "f32", {}), value("%m", "i32", {})},
               {node("stablehlo.subtract", {"%b", "%a"}, {value("%d", "f32", {})}),
                node("stablehlo.add", {"%n", "%m"}, {value("%s", "i32", {})})},
               {"%d", "%s"});
  const json dims = {{"inserted_window_dims", {0}}, {"scatter_dims_to_operand_dims", {0}}, {"index_vector_dim", 1}};
  const json main = function(
      {value("%x", "f32", {3}), value("%k", "i32", {3}), value("%i", "i32", {4, 1}), value("%u", "f32", {4}),
       value("%v", "i32", {4})},
      {node("stablehlo.scatter", {"%x", "%k", "%i", "%u", "%v"}, {value("%r", "f32", {3}), value("%t", "i32", {3})},
            {{"scatter_dimension_numbers", dims}}, {region})},
      {"%r", "%t"});
  const Tensor places{{DType::I32, {4, 1}}, {}, {2, 0, 2, 3}};
  const auto got = run(
      module(main), {floats({1, 2, 3}), integers({5, 6, 7}), places, floats({10, 20, 30, 40}), integers({1, 2, 3, 4})});
  EXPECT_THAT(got[0].f, ElementsAre(19, 2, 23));
  EXPECT_THAT(got[1].i, ElementsAre(7, 6, 11));
}

TEST(StableHlo, CallsThatSayWhereValuesLie) {
  const json attrs = {{"call_target_name", "Sharding"}};
  EXPECT_THAT(run(one("stablehlo.custom_call", {"f32"}, "f32", 2, attrs), {floats({1, 2})})[0].f, ElementsAre(1, 2));
  EXPECT_THAT(
      refused(one("stablehlo.custom_call", {"f32"}, "f32", 2, {{"call_target_name", "lapack_sgetrf"}})),
      HasSubstr("step.py:7 (jit(step)/it): stablehlo.custom_call: trainc has nothing for the call of 'lapack_sgetrf'"));
}

TEST(StableHlo, WhatIsRefusedIsNamed) {
  EXPECT_EQ(refused(one("stablehlo.fft", {"f32"}, "f32", 2)),
            "step.py:7 (jit(step)/it): trainc has no row for stablehlo.fft");
  EXPECT_EQ(refused(one("stablehlo.real", {"complex<f16>"}, "f16", 2)), "%0: dtype complex<f16> is not compiled");
  EXPECT_EQ(refused(one("stablehlo.floor", {"complex<f32>"}, "complex<f32>", 2)),
            "step.py:7 (jit(step)/it): stablehlo.floor: of complex numbers is not compiled");
  EXPECT_EQ(refused(one("stablehlo.fft", {"complex<f32>"}, "complex<f32>", 2)),
            "step.py:7 (jit(step)/it): trainc has no row for stablehlo.fft");
  EXPECT_THAT(refused(one("stablehlo.convert", {"f32"}, "f8E4M3FN", 2)), HasSubstr("dtype f8E4M3FN is not compiled"));
  EXPECT_THAT(refused(one("stablehlo.compare", {"f32", "f32"}, "bool", 2)), HasSubstr("no comparison is called ''"));
  EXPECT_THAT(refused(one("stablehlo.add", {"f32", "f32"}, "f32", 2)), "nothing");
  json wrong = one("stablehlo.negate", {"f32"}, "f32", 2);
  wrong["functions"]["main"]["body"][0]["results"][0]["shape"] = {3};
  EXPECT_THAT(refused(wrong), HasSubstr("result 0 is f32[2], not f32[3]"));
  wrong["functions"]["main"]["body"][0]["operands"] = {"%9"};
  EXPECT_THAT(refused(wrong), HasSubstr("%9 is used before it is made"));
  wrong["functions"]["main"]["body"][0].erase("operands");
  EXPECT_THAT(refused(wrong), HasSubstr("the wire format is violated"));
  EXPECT_THAT(refused({{"nodes", 1}}), HasSubstr("not a module in the wire format"));
}

TEST(StableHlo, AllThatIsRefusedIsFound) {
  const json main = function({value("%x", "f32", {2}), value("%f", "f8E4M3FN", {2})},
                             {node("stablehlo.fft", {"%x"}, {value("%a", "f32", {2})}),
                              node("stablehlo.negate", {"%a"}, {value("%b", "f32", {2})}),
                              node("stablehlo.convert", {"%b"}, {value("%c", "f8E4M3FN", {2})}),
                              node("stablehlo.convert", {"%c"}, {value("%d", "f32", {2})}),
                              node("stablehlo.convert", {"%f"}, {value("%e", "f32", {2})}),
                              node("func.call", {"%e"}, {value("%g", "f32", {2})}, {{"callee", "transform"}}),
                              node("stablehlo.add", {"%g", "%d"}, {value("%h", "f32", {2})})},
                             {"%h"});
  json root = module(main);
  root["functions"]["transform"] =
      function({value("%t", "f32", {2})}, {node("stablehlo.fft", {"%t"}, {value("%u", "f32", {2})})}, {"%u"});
  std::vector<size_t> places;
  for (const auto& [place, reason] : refused_by_stablehlo(root)) places.push_back(place);
  EXPECT_THAT(places, ElementsAre(0, 2, 3, 4, 5));
  EXPECT_THAT(refused_by_stablehlo(root).back().reason, HasSubstr("trainc has no row for stablehlo.fft"));
}

TEST(StableHlo, EveryRowHasAName) {
  for (const std::string& name : stablehlo_operations())
    EXPECT_THAT(name, ::testing::ContainsRegex("^(complex )?(stablehlo|chlo|func|sdy)\\.[a-z0-9_]+$"));
}

}  // namespace
}  // namespace trainc::frontend
