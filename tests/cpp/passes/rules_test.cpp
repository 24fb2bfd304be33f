// Each rule alone: a case in which it fires, with the same value on random inputs (NaN, infinities, zeros of both signs
// among them), and a case in which it must not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <random>

#include "../common/compare.h"
#include "../common/random_graph.h"
#include "graph/text.h"
#include "passes/rewrite.h"
#include "passes/rules.h"
#include "support/rounding.h"

namespace trainc {
namespace {

/// Names that the cases may use: inputs, and constants broadcast to f32[3,4] (and i64, bool).
std::string prelude() {
  std::string text =
      "%x = input index=0 : f32[3,4]\n%y = input index=1 : f32[3,4]\n%i = input index=2 : i64[3,4]\n%j = input index=3 "
      ": i64[3,4]\n"
      "%p = input index=4 : bool[3,4]\n%q = input index=5 : bool[3,4]\n%h = input index=6 : bf16[3,4]\n%k = input "
      "index=7 : i32[3,4]\n"
      "%s = input index=8 : f32[]\n%t = input index=9 : f32[1,3,4]\n%row = input index=10 : f32[1,4]\n%c0 = input "
      "index=11 : f32[3,1]\n";
  const auto constant = [&](const std::string& name, const std::string& dtype, const std::string& value) {
    text += "%" + name + ".c = constant value=" + value + " : " + dtype + "[]\n%" + name + ".r = reshape %" + name +
            ".c : " + dtype + "[1,1]\n%" + name + " = broadcast %" + name + ".r : " + dtype + "[3,4]\n";
  };
  for (const auto& [name, value] : std::map<std::string, std::string>{{"zero", "0"},
                                                                      {"nzero", "-0"},
                                                                      {"one", "1"},
                                                                      {"mone", "-1"},
                                                                      {"two", "2"},
                                                                      {"three", "3"},
                                                                      {"huge", "1.7014118346046923e+38"},
                                                                      {"half", "0.5"}})
    constant(name, "f32", value);
  constant("izero", "i64", "0");
  constant("ione", "i64", "1");
  constant("true", "bool", "1");
  constant("false", "bool", "0");
  return text;
}

struct Case {
  const char* rule;
  const char* fires;
  const char* stays;
};
// The last line's %r is the result.
const Case kCases[] = {
    {"add_neutral", "%r = add %x %nzero : f32[3,4]", "%r = add %x %zero : f32[3,4]"},  // -0.0 + 0.0 is 0.0
    {"add_neutral", "%r = add %izero %i : i64[3,4]", "%r = add %i %ione : i64[3,4]"},
    {"sub_neutral", "%r = sub %x %zero : f32[3,4]", "%r = sub %x %nzero : f32[3,4]"},
    {"sub_neutral", "%r = sub %i %izero : i64[3,4]", "%r = sub %zero %x : f32[3,4]"},
    {"mul_one", "%r = mul %one %x : f32[3,4]", "%r = mul %x %zero : f32[3,4]"},  // 0 * NaN
    {"div_one", "%r = div %x %one : f32[3,4]", "%r = div %one %x : f32[3,4]"},
    {"mul_minus_one", "%r = mul %x %mone : f32[3,4]", "%r = mul %x %one : f32[3,4]"},
    {"mul_zero_of_integers", "%r = mul %i %izero : i64[3,4]", "%r = mul %x %zero : f32[3,4]"},
    {"div_by_power_of_two", "%r = div %x %two : f32[3,4]", "%r = div %x %three : f32[3,4]"},
    // 2^-127, a subnormal, is still exact
    {"div_by_power_of_two", "%r = div %x %huge : f32[3,4]", "%r = div %x %zero : f32[3,4]"},
    {"add_of_neg", "%n = neg %y : f32[3,4]\n%r = add %x %n : f32[3,4]", "%r = add %x %y : f32[3,4]"},
    {"add_of_neg", "%n = neg %x : f32[3,4]\n%r = add %n %y : f32[3,4]",
     "%n = add %x %y : f32[3,4]\n%r = neg %n : f32[3,4]"},
    {"sub_of_neg", "%n = neg %y : f32[3,4]\n%r = sub %x %n : f32[3,4]",
     "%n = neg %x : f32[3,4]\n%r = sub %n %y : f32[3,4]"},
    {"product_of_negs", "%m = neg %x : f32[3,4]\n%n = neg %y : f32[3,4]\n%r = mul %m %n : f32[3,4]",
     "%n = neg %y : f32[3,4]\n%r = mul %x %n : f32[3,4]"},
    {"product_of_negs", "%m = neg %x : f32[3,4]\n%n = neg %y : f32[3,4]\n%r = div %m %n : f32[3,4]",
     "%m = neg %i : i64[3,4]\n%n = neg %j : i64[3,4]\n%r = div %m %n : i64[3,4]"},
    {"undo_itself", "%n = neg %x : f32[3,4]\n%r = neg %n : f32[3,4]", "%n = abs %x : f32[3,4]\n%r = neg %n : f32[3,4]"},
    {"undo_itself", "%n = not %p : bool[3,4]\n%r = not %n : bool[3,4]", "%r = not %p : bool[3,4]"},
    {"abs_of_signless", "%n = abs %x : f32[3,4]\n%r = abs %n : f32[3,4]",
     "%n = floor %x : f32[3,4]\n%r = abs %n : f32[3,4]"},
    {"abs_of_signless", "%n = neg %x : f32[3,4]\n%r = abs %n : f32[3,4]",
     "%u = cast %i : u8[3,4]\n%n = neg %u : u8[3,4]\n%r = abs %n : u8[3,4]"},
    {"of_itself", "%r = max %x %x : f32[3,4]", "%r = sub %x %x : f32[3,4]"},  // inf - inf
    {"of_itself", "%r = and %p %p : bool[3,4]", "%r = div %x %x : f32[3,4]"},
    {"logic_with_constant", "%r = and %p %true : bool[3,4]", "%r = xor %p %true : bool[3,4]"},
    {"logic_with_constant", "%r = and %false %p : bool[3,4]", "%r = and %p %q : bool[3,4]"},
    {"logic_with_constant", "%r = or %p %true : bool[3,4]", "%r = or %i %ione : i64[3,4]"},
    {"select_constant", "%r = select %false %x %y : f32[3,4]", "%r = select %p %x %y : f32[3,4]"},
    {"select_same", "%r = select %p %x %x : f32[3,4]", "%r = select %p %zero %nzero : f32[3,4]"},
    {"select_not", "%n = not %p : bool[3,4]\n%r = select %n %x %y : f32[3,4]", "%r = select %p %y %x : f32[3,4]"},
    {"select_again", "%a = select %p %x %y : f32[3,4]\n%r = select %p %zero %a : f32[3,4]",
     "%a = select %q %x %y : f32[3,4]\n%r = select %p %zero %a : f32[3,4]"},
    // of NaN
    {"not_of_comparison", "%a = eq %x %y : bool[3,4]\n%r = not %a : bool[3,4]",
     "%a = lt %x %y : bool[3,4]\n%r = not %a : bool[3,4]"},
    {"not_of_comparison", "%a = ne %x %y : bool[3,4]\n%r = not %a : bool[3,4]",
     "%a = le %x %y : bool[3,4]\n%r = not %a : bool[3,4]"},
    {"not_of_comparison", "%a = lt %i %j : bool[3,4]\n%r = not %a : bool[3,4]",
     "%a = and %p %q : bool[3,4]\n%r = not %a : bool[3,4]"},
    {"not_of_comparison", "%a = le %i %j : bool[3,4]\n%r = not %a : bool[3,4]", "%r = not %p : bool[3,4]"},
    {"cast_same", "%r = cast %x : f32[3,4]", "%r = cast %x : bf16[3,4]"},
    {"cast_cast", "%a = cast %h : f32[3,4]\n%r = cast %a : f16[3,4]",
     "%a = cast %x : bf16[3,4]\n%r = cast %a : f32[3,4]"},
    {"cast_cast", "%a = cast %k : f64[3,4]\n%r = cast %a : f32[3,4]",
     "%a = cast %k : f32[3,4]\n%r = cast %a : f64[3,4]"},
    {"cast_cast", "%a = cast %p : i64[3,4]\n%r = cast %a : f32[3,4]",
     "%a = cast %x : bool[3,4]\n%r = cast %a : f32[3,4]"},
    {"cast_cast", "%a = cast %k : f64[3,4]\n%r = cast %a : bool[3,4]",
     "%a = cast %k : f64[3,4]\n%r = cast %a : i8[3,4]"},
    {"operand_order", "%r = add %y %x : f32[3,4]", "%r = sub %y %x : f32[3,4]"},
    {"operand_order", "%r = mul %two %x : f32[3,4]", "%r = max %y %x : f32[3,4]"},
    {"pow_of_one_operation", "%r = pow %x %two : f32[3,4]", "%r = pow %two %x : f32[3,4]"},
    {"pow_of_one_operation", "%r = pow %x %one : f32[3,4]", "%r = pow %i %ione : i64[3,4]"},
    // a cube is rounded twice
    {"pow_of_one_operation", "%r = pow %x %mone : f32[3,4]", "%r = pow %x %three : f32[3,4]"},
    {"pow_of_one_operation", "%r = pow %x %zero : f32[3,4]", "%r = pow %x %half : f32[3,4]"},  // sqrt(-0.0)
    {"fold_elementwise", "%r = div %one %three : f32[3,4]", "%r = div %one %x : f32[3,4]"},
    {"fold_elementwise", "%r = lt %one %two : bool[3,4]", "%r = lt %x %x : bool[3,4]"},
    {"fold_elementwise", "%r = cast %three : i64[3,4]", "%r = cast %i : f32[3,4]"},
    {"move_constant", "%r = permute %two order=[1,0] : f32[4,3]", "%r = permute %x order=[1,0] : f32[4,3]"},
    {"move_constant", "%r = reshape %two : f32[12]", "%a = neg %two : f32[3,4]\n%r = reshape %a : f32[12]"},
    {"move_constant", "%r = slice %two start=[0,1] step=[1,2] : f32[3,2]",
     "%a = neg %two.c : f32[]\n%r = reshape %a : f32[1]"},
    {"pad_constant", "%r = pad %two %two.c low=[1,0] high=[0,0] : f32[4,4]",
     "%r = pad %zero %nzero.c low=[1,0] high=[0,0] : f32[4,4]"},
    {"concat_constants", "%r = concat %two %two axis=0 : f32[6,4]", "%r = concat %two %one axis=0 : f32[6,4]"},
    {"reduce_constant", "%r = reduce %two kind=max axes=[1] : f32[3]", "%r = reduce %two kind=sum axes=[1] : f32[3]"},
    {"gather_constant", "%r = gather %two %ione axis=1 : f32[3,4]", "%r = gather %two %i axis=1 : f32[3,4]"},
    {"identity", "%r = reshape %x : f32[3,4]", "%r = reshape %x : f32[4,3]"},
    {"identity", "%r = permute %x order=[0,1] : f32[3,4]",
     "%a = slice %x start=[0,0] step=[1,1] : f32[3,3]\n%r = permute %a order=[1,0] : f32[3,3]"},
    {"identity", "%r = slice %x start=[0,0] step=[1,1] : f32[3,4]", "%r = slice %x start=[0,1] step=[1,1] : f32[3,3]"},
    // a whole slice of a slice is a copy that is wanted
    {"identity", "%r = slice %x start=[0,0] step=[1,1] : f32[3,4]",
     "%a = slice %x start=[1,0] step=[1,1] : f32[2,4]\n%r = slice %a start=[0,0] step=[1,1] : f32[2,4]"},
    {"identity", "%r = pad %x %one.c low=[0,0] high=[0,0] : f32[3,4]",
     "%r = pad %x %one.c low=[0,0] high=[0,1] : f32[3,5]"},
    {"identity", "%r = concat %x axis=0 : f32[3,4]", "%r = concat %x %x axis=0 : f32[6,4]"},
    {"identity", "%r = reverse %t axes=[0] : f32[1,3,4]", "%r = reverse %t axes=[0,1] : f32[1,3,4]"},
    {"identity", "%r = broadcast %x : f32[3,4]", "%r = broadcast %row : f32[3,4]"},
    {"reshape_reshape", "%a = reshape %x : f32[12]\n%r = reshape %a : f32[4,3]",
     "%a = permute %x order=[1,0] : f32[4,3]\n%r = reshape %a : f32[12]"},
    {"broadcast_broadcast", "%a = reshape %s : f32[1,1]\n%b = broadcast %a : f32[1,4]\n%r = broadcast %b : f32[3,4]",
     "%a = broadcast %row : f32[2,4]\n%b = reshape %a : f32[2,1,4]\n%r = broadcast %b : f32[2,5,4]"},
    {"permute_permute", "%a = permute %t order=[2,0,1] : f32[4,1,3]\n%r = permute %a order=[0,2,1] : f32[4,3,1]",
     "%a = permute %x order=[1,0] : f32[4,3]\n%b = neg %a : f32[4,3]\n%r = permute %b order=[1,0] : f32[3,4]"},
    {"cast_of_permute", "%a = permute %x order=[1,0] : f32[4,3]\n%r = cast %a : bf16[4,3]",
     "%a = reshape %x : f32[4,3]\n%r = cast %a : bf16[4,3]"},
    {"permute_of_ones", "%r = permute %t order=[1,0,2] : f32[3,1,4]", "%r = permute %t order=[0,2,1] : f32[1,4,3]"},
    {"slice_slice", "%a = slice %x start=[0,1] step=[1,1] : f32[3,3]\n%r = slice %a start=[1,0] step=[1,2] : f32[2,2]",
     "%a = slice %x start=[0,1] step=[1,1] : f32[3,3]\n%b = reverse %a axes=[1] : f32[3,3]\n%r = slice %b start=[1,0] "
     "step=[1,2] : f32[2,2]"},
    {"slice_slice", "%a = slice %x start=[0,0] step=[2,2] : f32[2,2]\n%r = slice %a start=[1,1] step=[5,1] : f32[1,1]",
     "%a = slice %x start=[1,0] step=[1,1] : f32[2,4]\n%r = slice %a start=[0,0] step=[1,1] : f32[2,4]"},
    {"slice_pad", "%a = pad %x %one.c low=[0,2] high=[1,1] : f32[4,7]\n%r = slice %a start=[1,2] step=[1,3] : f32[2,2]",
     "%a = pad %x %one.c low=[0,2] high=[1,1] : f32[4,7]\n%r = slice %a start=[1,1] step=[1,1] : f32[2,2]"},
    {"slice_pad", "%a = pad %x %one.c low=[1,0] high=[0,0] : f32[4,4]\n%r = slice %a start=[1,0] step=[1,1] : f32[3,4]",
     "%a = pad %x %one.c low=[0,2] high=[1,1] : f32[4,7]\n%r = slice %a start=[1,2] step=[1,1] : f32[2,5]"},
    {"slice_concat", "%a = concat %x %y axis=0 : f32[6,4]\n%r = slice %a start=[4,1] step=[1,2] : f32[2,2]",
     "%a = concat %x %y axis=0 : f32[6,4]\n%r = slice %a start=[2,0] step=[1,1] : f32[2,4]"},
    {"concat_empty", "%a = slice %x start=[0,0] step=[1,1] : f32[0,4]\n%r = concat %a %x %y axis=0 : f32[6,4]",
     "%a = slice %x start=[0,0] step=[1,1] : f32[1,4]\n%r = concat %a %x %y axis=0 : f32[7,4]"},
    {"reverse_reverse", "%a = reverse %x axes=[0,1] : f32[3,4]\n%r = reverse %a axes=[1] : f32[3,4]",
     "%a = reverse %x axes=[0] : f32[3,4]\n%b = permute %a order=[1,0] : f32[4,3]\n%r = reverse %b axes=[0] : "
     "f32[4,3]"},
    {"move_scalar", "%a = reshape %s : f32[1,1]\n%b = broadcast %a : f32[3,4]\n%r = permute %b order=[1,0] : f32[4,3]",
     "%b = broadcast %row : f32[3,4]\n%r = permute %b order=[1,0] : f32[4,3]"},
    {"elementwise_of_broadcasts", "%a = broadcast %row : f32[3,4]\n%r = exp %a : f32[3,4]",
     "%a = broadcast %row : f32[3,4]\n%r = mul %a %x : f32[3,4]"},
    {"elementwise_of_broadcasts", "%a = broadcast %row : f32[3,4]\n%r = mul %a %two : f32[3,4]",
     "%a = broadcast %row : f32[3,4]\n%b = broadcast %c0 : f32[3,4]\n%r = mul %a %b : f32[3,4]"},
    {"reduce_of_ones", "%r = reduce %t kind=sum axes=[0] : f32[3,4]", "%r = reduce %t kind=argmax axes=[0] : i64[3,4]"},
    {"reduce_of_ones", "%r = reduce %t kind=max axes=[0,2] : f32[3]", "%r = reduce %t kind=sum axes=[1,2] : f32[1]"},
    {"reduce_of_ones", "%r = reduce %x kind=sum axes=[] : f32[3,4]", "%r = reduce %x kind=sum axes=[0] : f32[4]"},
    {"reduce_reduce", "%a = reduce %t kind=max axes=[1] : f32[1,4]\n%r = reduce %a kind=max axes=[0] : f32[4]",
     "%a = reduce %x kind=sum axes=[1] : f32[3]\n%r = reduce %a kind=sum axes=[0] : f32[]"},
    {"reduce_reduce", "%a = reduce %i kind=sum axes=[0] : i64[4]\n%r = reduce %a kind=sum axes=[0] : i64[]",
     "%a = reduce %x kind=max axes=[1] : f32[3]\n%r = reduce %a kind=min axes=[0] : f32[]"},
};

Graph graph_of(const char* body) { return remove_dead(parse(prelude() + body + "\nreturn %r\n")); }

const Rule* rule_called(const std::string& name) {
  for (const Rule* rule : all_rules())
    if (name == rule->name) return rule;
  return nullptr;
}

/// Numbers at which formulas part, in no order: the ends of each dtype, denormals, places where rounding ties, zeros,
/// infinities, NaN.
std::vector<reference::Tensor> edge_inputs(const Graph& graph, uint64_t seed) {
  std::mt19937_64 rng(seed);
  auto inputs = testing::random_inputs(graph, seed, true);
  const double floats[] = {NAN,   INFINITY, -INFINITY, 0.0,   -0.0,   1,     -1,       0.5,
                           -0.5,  1.5,      2.5,       -2.5,  3,      1e-3,  1e10,     3e38,
                           -3e38, 65504,    6e-8,      1e-40, -1e-40, 2e-45, 0x1p-126, 0x1p-127};
  const int64_t integers[] = {0,         1,         -1,        2,         -7,       INT64_MIN, INT64_MAX,
                              INT32_MIN, INT32_MAX, INT16_MIN, INT16_MAX, INT8_MIN, INT8_MAX,  UINT8_MAX};
  for (reference::Tensor& t : inputs) {
    for (double& x : t.f)
      if (rng() % 4) x = round_to(t.type.dtype, floats[rng() % std::size(floats)]);
    for (int64_t& x : t.i)
      if (rng() % 4) x = wrap_to(t.type.dtype, integers[rng() % std::size(integers)]);
  }
  return inputs;
}

void expect_same_values(const Graph& before, const Graph& after, const std::string& what) {
  const reference::Options options{reference::Precision::Rounded, {}, {}};
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto inputs = edge_inputs(before, seed);
    ASSERT_EQ(testing::difference(evaluate(before, inputs, options)[0], evaluate(after, inputs, options)[0]), "")
        << what << ":\n"
        << print(before) << "-->\n"
        << print(after);
  }
}

TEST(Rules, FireAndKeepTheValue) {
  for (const Case& c : kCases) {
    const Rule* rule = rule_called(c.rule);
    ASSERT_TRUE(rule) << c.rule;
    const Graph before = graph_of(c.fires);
    const Graph after = simplify_with(before, std::span(&rule, 1));
    EXPECT_NE(print(before), print(after)) << c.rule << " does not fire:\n" << c.fires;
    expect_same_values(before, after, c.rule);
  }
}

/// Each case once more with every other dtype in the place of each of its own, where that is a graph: a rule that is
/// right for floats may be wrong where integers wrap or have no sign. It may fire or not.
TEST(Rules, KeepTheValueOfEveryDType) {
  int fired = 0;
  for (const Case& c : kCases)
    for (const char* body : {c.fires, c.stays})
      for (const std::string from : {"f32", "bf16", "i64", "i32"})
        for (const std::string to : {"f64", "f32", "bf16", "f16", "i64", "i32", "i16", "i8", "u8"}) {
          std::string text = prelude() + body + "\nreturn %r\n";
          for (size_t at = 0; (at = text.find(" " + from + "[", at)) != std::string::npos; at += to.size())
            text.replace(at + 1, from.size(), to);
          const Rule* rule = rule_called(c.rule);
          Graph before;
          try {
            before = remove_dead(parse(text));
          } catch (const InternalError&) {
            continue;  // no such constant, no such operation of this dtype
          }
          const Graph after = simplify_with(before, std::span(&rule, 1));
          if (print(before) == print(after)) continue;
          ++fired;
          ASSERT_NO_FATAL_FAILURE(expect_same_values(before, after, c.rule + (" of " + to)));
        }
  EXPECT_GT(fired, 800);
}

TEST(Rules, StayAwayWhereTheyWouldBeWrong) {
  for (const Case& c : kCases) {
    const Rule* rule = rule_called(c.rule);
    ASSERT_TRUE(rule) << c.rule;
    const Graph before = graph_of(c.stays);
    EXPECT_EQ(print(before), print(simplify_with(before, std::span(&rule, 1)))) << c.rule << " fires:\n" << c.stays;
  }
}

TEST(Rules, EachHasItsCases) {
  for (const Rule* rule : all_rules()) {
    const bool has = std::any_of(std::begin(kCases), std::end(kCases),
                                 [&](const Case& c) { return std::string(c.rule) == rule->name; });
    EXPECT_TRUE(has) << "no case for the rule " << rule->name << ": " << rule->meaning;
  }
}

TEST(Simplify, RandomGraphsKeepTheirValuesToTheBit) {
  int64_t before_nodes = 0, after_nodes = 0;
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    testing::RandomGraphOptions options;
    options.random_masks = true;
    options.max_numel = 600;
    const Graph g = testing::random_graph(seed, options);
    const Graph h = simplify(g);
    const auto inputs = seed % 2 ? edge_inputs(g, seed) : testing::random_inputs(g, seed);
    const reference::Options evaluation{reference::Precision::Rounded, testing::random_mask, {}};
    const auto a = evaluate(g, inputs, evaluation), b = evaluate(h, inputs, evaluation);
    for (size_t i = 0; i < a.size(); ++i)
      ASSERT_EQ(testing::difference(a[i], b[i]), "") << "seed " << seed << " output " << i << "\n"
                                                     << print(g) << "-->\n"
                                                     << print(h);
    before_nodes += g.live().size();
    after_nodes += h.live().size();
  }
  EXPECT_LT(after_nodes, before_nodes);
}

TEST(Simplify, AgainChangesNothing) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const std::string once = print(simplify(testing::random_graph(seed)));
    ASSERT_EQ(print(simplify(parse(once))), once) << "seed " << seed;
  }
}

TEST(Simplify, KeepsOriginsStridesAndArguments) {
  Graph g;
  Builder b{g, "model.py:7"};
  const Node* x = b.input(0, {DType::F32, {2, 3}});
  b.origin = "model.py:8";
  const Node* y = b.mul(b.unary(Op::Exp, x), b.full(DType::F32, {2, 3}, 1));
  g.outputs = {{y, {1, 2}}, {}};
  g.input_count = 5;
  EXPECT_EQ(print(simplify(g)),
            "inputs 5\n%0 = input index=0 : f32[2,3]   // model.py:7\n%1 = exp %0 : f32[2,3]   // model.py:8\nreturn "
            "%1:strides=[1,2] none\n");
}

}  // namespace
}  // namespace trainc
