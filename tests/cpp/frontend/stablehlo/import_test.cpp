// The importer on modules in the wire format: what it makes of them by the reference, and what it refuses, by its
// words.
#include "modules.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <map>

#include "graph/text.h"
#include "support/while_operation.h"

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
           {"chlo.tan", [](double v) { return std::tan(v); }},
           {"mhlo.erf", [](double v) { return std::erf(v); }}}) {
    const std::vector<double> got = run(one(op, {"f32"}, "f32", 4), {floats(x)})[0].f;
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(got[i], f(x[i]), 3e-7 * std::abs(f(x[i]))) << op << " " << x[i];
  }
}

// XLA's own modules, from which TensorFlow's programs come, have operations that JAX has not.
TEST(StableHlo, ADotContractsTheLastAxisWithTheFirst) {
  const auto dot = [](const Dims& x, const Dims& y, const Dims& result) {
    return module(function({value("%x", "f32", x), value("%y", "f32", y)},
                           {node("stablehlo.dot", {"%x", "%y"}, {value("%r", "f32", result)}),
                            node("mhlo.copy", {"%r"}, {value("%c", "f32", result)})},
                           {"%c"}));
  };
  const Tensor matrix{{DType::F32, {2, 3}}, {1, 2, 3, 4, 5, 6}, {}};
  EXPECT_THAT(run(dot({2, 3}, {3}, {2}), {matrix, floats({1, 0, -1})})[0].f, ElementsAre(-2, -2));
  EXPECT_THAT(run(dot({2}, {2, 3}, {3}), {floats({1, -1}), matrix})[0].f, ElementsAre(-3, -3, -3));
  EXPECT_THAT(run(dot({3}, {3}, {}), {floats({1, 2, 3}), floats({4, 5, 6})})[0].f, ElementsAre(32));
  EXPECT_THAT(run(dot({2, 3}, {3, 1}, {2, 1}), {matrix, {{DType::F32, {3, 1}}, {1, 1, 1}, {}}})[0].f,
              ElementsAre(6, 15));
}

/// x [2, 3, 2], channels along `axis`, through one of the batch norms; `more`: [C] each, then those of x's shape.
std::vector<Tensor> batch_norm(const std::string& op, int64_t axis, const Tensor& x, std::vector<Tensor> more,
                               size_t results) {
  std::vector<Tensor> in{x};
  for (const Tensor& t : more) in.push_back(t);
  std::vector<json> args, given;
  std::vector<std::string> names, returns;
  for (const Tensor& t : in) {
    names.push_back("%" + std::to_string(names.size()));
    args.push_back(value(names.back(), "f32", t.type.shape));
  }
  for (size_t i = 0; i < results; ++i) {
    returns.push_back("%r" + std::to_string(i));
    given.push_back(value(returns.back(), "f32", i == 0 ? x.type.shape : more[0].type.shape));
  }
  const json attrs = {{"epsilon", 0.5}, {"feature_index", axis}};
  return run(module(function(args, {node(op, names, given, attrs)}, returns)), in);
}

TEST(StableHlo, BatchNormsAndTheirDerivative) {
  for (const int64_t axis : {1, 2}) {
    const Tensor x{{DType::F32, {2, 3, 2}}, {1, 4, -2, 0, 3, 7, 5, -1, 2, 2, 6, -3}, {}};
    const Tensor dy{{DType::F32, {2, 3, 2}}, {1, 0, 2, -1, 1, 3, 0, 1, -2, 1, 1, 2}, {}};
    const int64_t channels = axis == 1 ? 3 : 2, n = 12 / channels;
    const auto channel = [&](size_t i) { return axis == 1 ? i / 2 % 3 : i % 2; };
    const Tensor scale = floats(axis == 1 ? std::vector<double>{2, 1, -1} : std::vector<double>{2, -1});
    const Tensor shift = floats(axis == 1 ? std::vector<double>{0, 1, 5} : std::vector<double>{0, 5});
    std::vector<double> mean(channels), var(channels), sum(channels), product(channels);
    for (size_t i = 0; i < 12; ++i) mean[channel(i)] += x.f[i] / n;
    for (size_t i = 0; i < 12; ++i) var[channel(i)] += std::pow(x.f[i] - mean[channel(i)], 2) / n;
    const auto normal = [&](size_t i) { return (x.f[i] - mean[channel(i)]) / std::sqrt(var[channel(i)] + 0.5); };
    for (size_t i = 0; i < 12; ++i) sum[channel(i)] += dy.f[i], product[channel(i)] += dy.f[i] * normal(i);
    const auto y = batch_norm("stablehlo.batch_norm_training", axis, x, {scale, shift}, 3);
    const auto same =
        batch_norm("stablehlo.batch_norm_inference", axis, x, {scale, shift, floats(mean), floats(var)}, 1);
    const auto d = batch_norm("stablehlo.batch_norm_grad", axis, x, {scale, floats(mean), floats(var), dy}, 3);
    for (size_t i = 0; i < 12; ++i) {
      const size_t c = channel(i);
      EXPECT_NEAR(y[0].f[i], normal(i) * scale.f[c] + shift.f[c], 1e-5);
      EXPECT_NEAR(same[0].f[i], y[0].f[i], 1e-5);
      const double wanted = scale.f[c] / std::sqrt(var[c] + 0.5) * (dy.f[i] - sum[c] / n - normal(i) * product[c] / n);
      EXPECT_NEAR(d[0].f[i], wanted, 1e-5);
    }
    for (size_t c = 0; c < static_cast<size_t>(channels); ++c) {
      EXPECT_NEAR(y[1].f[c], mean[c], 1e-6);
      EXPECT_NEAR(y[2].f[c], var[c], 1e-5);
      EXPECT_NEAR(d[1].f[c], product[c], 1e-5);
      EXPECT_NEAR(d[2].f[c], sum[c], 1e-5);
    }
  }
}

TEST(StableHlo, ASizeThatIsSetToWhatItIs) {
  const auto sized = [](int32_t n) {
    return module(function({value("%x", "f32", {3})},
                           {number("%n", n), node("stablehlo.set_dimension_size", {"%x", "%n"},
                                                  {value("%r", "f32", {3})}, {{"dimension", 0}})},
                           {"%r"}));
  };
  EXPECT_THAT(run(sized(3), {floats({1, 2, 3})})[0].f, ElementsAre(1, 2, 3));
  EXPECT_THROW(run(sized(2), {floats({1, 2, 3})}), InternalError);
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
  // Of unknown trips it is a call, which is given whether there is a first one, and gives the same.
  const Program unknown = import_stablehlo(loop("%from"));
  const Node* call = unknown.graph.outputs.at(0).value->in(0);
  ASSERT_EQ(call->as<ExternAttr>().target, kWhile);
  const json told = json::parse(call->as<ExternAttr>().arguments);
  EXPECT_EQ(told["carried"], 2);
  const Graph trip = parse(told["graph"].get<std::string>());
  reference::Options options{reference::Precision::Rounded, {}, {}};
  options.call = [&](const Node*, const std::vector<Tensor>& operands) {
    std::vector<Tensor> carried(operands.begin(), operands.end() - 1);
    for (bool goes_on = operands.back().i[0]; goes_on;) {
      carried = reference::evaluate(trip, carried, {reference::Precision::Rounded, {}, {}});
      goes_on = carried.back().i[0], carried.pop_back();
    }
    return carried;
  };
  const auto from = [&](int64_t i) {
    return reference::evaluate(unknown.graph, {floats({1, -3}), {{DType::I32, {}}, {}, {i}}}, options);
  };
  EXPECT_THAT(from(0)[0].f, ElementsAre(8, -24));
  EXPECT_THAT(from(2)[0].f, ElementsAre(2, -6));
  EXPECT_THAT(from(3)[0].f, ElementsAre(1, -3));
  EXPECT_THAT(from(7)[1].i, ElementsAre(7));
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
    EXPECT_THAT(name, ::testing::ContainsRegex("^(complex )?(stablehlo|chlo|mhlo|func|sdy)\\.[a-z0-9_]+$"));
}

}  // namespace
}  // namespace trainc::frontend
