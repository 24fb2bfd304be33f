// Index arithmetic: a table of what becomes of what, and random expressions held against their unsimplified twins.
#include <gtest/gtest.h>

#include <random>

#include "interpret/value.h"
#include "loop/loop.h"

namespace trainc::loop {
namespace {

// i in [0,12), j in [0,256), k in [0,1), n without a known extent
struct Indices : testing::Test {
  LoopNest nest;
  Expr i, j, k, n;
  Indices() {
    nest.name = "t";
    nest.add_buffer({"out", DType::I64, 0, Space::Argument, true});
    i = nest.var(nest.add_var("i", 12));
    j = nest.var(nest.add_var("j", 256));
    k = nest.var(nest.add_var("k", 1));
    n = nest.var(nest.add_var("n"));
  }
  std::string text(const Expr& e) {
    nest.body = store(0, integer(0), e);
    const std::string all = print(nest), mark = "out[0] = ";
    const size_t at = all.find(mark) + mark.size();
    return all.substr(at, all.find('\n', at) - at);
  }
};

TEST_F(Indices, SumsAreInNormalForm) {
  EXPECT_EQ(text(j + i * 256 + integer(3) - j), "i * 256 + 3");
  EXPECT_EQ(text(j + i * 256), text(i * 256 + j));
  EXPECT_EQ(text((i + j) * 2 - i * 2), "j * 2");
  EXPECT_EQ(text(i + integer(2) - integer(5)), "i - 3");
  EXPECT_EQ(text(i - i), "0");
  EXPECT_EQ(text(i + k * 7), "i") << "an extent of 1 leaves 0";
  EXPECT_EQ(text(apply(Op::Mul, {integer(3), apply(Op::Sub, {i, integer(1)})}) + integer(3)), "i * 3")
      << "takes apart what apply has built";
}

TEST_F(Indices, QuotientsSplitOffWhatTheDivisorDivides) {
  const Expr flat = i * 256 + j;
  EXPECT_EQ(text(floor_div(flat, 256)), "i");
  EXPECT_EQ(text(mod(flat, 256)), "j");
  EXPECT_EQ(text(floor_div(flat, 64)), "i * 4 + j // 64");
  EXPECT_EQ(text(mod(flat, 64)), "j % 64");
  EXPECT_EQ(text(floor_div(flat, 1024)), "i // 4") << "j cannot carry";
  EXPECT_EQ(text(mod(flat, 1024)), "i % 4 * 256 + j");
  EXPECT_EQ(text(floor_div(flat, 12 * 256)), "0");
  EXPECT_EQ(text(mod(flat, 12 * 256)), "i * 256 + j");
  EXPECT_EQ(text(floor_div(n * 768 + j, 768)), "n");
  EXPECT_EQ(text(floor_div(j + integer(256), 256)), "1");
  EXPECT_EQ(text(mod(j + integer(256), 256)), "j");
}

TEST_F(Indices, WhatCanCarryStays) {
  const Expr five = nest.var(nest.add_var("five", 5)), four = nest.var(nest.add_var("four", 4));
  EXPECT_EQ(text(floor_div(n * 4 + four, 16)), "n // 4");
  EXPECT_EQ(text(floor_div(n * 4 + five, 16)), "(n * 4 + five) // 16");
  EXPECT_EQ(text(mod(n * 4 + five, 16)), "(n * 4 + five) % 16");
  EXPECT_EQ(text(floor_div(five, 4)), "five // 4");
}

TEST_F(Indices, NestedQuotientsBecomeOne) {
  EXPECT_EQ(text(floor_div(floor_div(n, 12), 5)), "n // 60");
  EXPECT_EQ(text(mod(mod(n, 60), 12)), "n % 12");
  EXPECT_EQ(text(floor_div(mod(n, 60), 12)), "n // 12 % 5");
  EXPECT_EQ(text(floor_div(floor_div(n, 12) + integer(3), 5)), "(n + 36) // 60");
}

TEST_F(Indices, AReshapeAndItsWayBackVanish) {
  EXPECT_EQ(text(floor_div(n, 12) * 12 + mod(n, 12)), "n");
  // [.., 4, 12] unflattened and flattened
  const Expr a = floor_div(n, 48), b = mod(floor_div(n, 12), 4), c = mod(n, 12);
  EXPECT_EQ(text(a * 48 + b * 12 + c), "n");
  EXPECT_EQ(text((floor_div(n, 12) * 12 + mod(n, 12)) * 5), "n * 5");
  EXPECT_EQ(text(floor_div(n, 12) * 24 + mod(n, 12)), "n // 12 * 24 + n % 12") << "strides apart: stays";
  // the two inner axes alone, joined
  EXPECT_EQ(text(a * 100 + b * 12 + c), "n // 48 * 100 + n % 48");
  EXPECT_EQ(text(b * 13 + c), "n // 12 % 4 * 13 + n % 12") << "strides apart: stays";
}

TEST_F(Indices, WhatMayBeNegativeStaysTogether) {
  EXPECT_EQ(text(floor_div(i * 256 - j + integer(255), 256)), "i");
  EXPECT_EQ(text(floor_div(n * 256 - j, 256)), "(n * 256 - j) // 256") << "taking n out leaves a dividend below 0";
}

TEST_F(Indices, Ranges) {
  const Range r = range_of(i * 256 + j);
  EXPECT_TRUE(r.known);
  EXPECT_EQ(r.low, 0);
  EXPECT_EQ(r.high, 12 * 256 - 1);
  EXPECT_FALSE(range_of(n).known);
  EXPECT_EQ(range_of(mod(n, 7)).high, 6);
  EXPECT_EQ(range_of(i - j).low, -255);
  EXPECT_EQ(range_of(apply(Op::Min, {n, integer(9)})).high, 9);
}

// --- random expressions

int64_t value_of(const Expr& e, const std::vector<int64_t>& vars) {
  if (e->kind == ExprKind::Int) return e->int_value;
  if (e->kind == ExprKind::Var) return vars[static_cast<size_t>(e->id)];
  interpret::Value args[3];
  for (size_t i = 0; i < e->args.size(); ++i) args[i] = interpret::int_value(value_of(e->args[i], vars));
  return interpret::elementwise(e->op, DType::I64, DType::I64, args).i;
}

Expr rebuilt(const Expr& e) {
  if (e->kind != ExprKind::Apply) return e;
  switch (e->op) {
    case Op::Add: return rebuilt(e->args[0]) + rebuilt(e->args[1]);
    case Op::Sub: return rebuilt(e->args[0]) - rebuilt(e->args[1]);
    case Op::Mul: return rebuilt(e->args[0]) * e->args[1]->int_value;
    case Op::FloorDiv: return floor_div(rebuilt(e->args[0]), e->args[1]->int_value);
    case Op::Mod: return mod(rebuilt(e->args[0]), e->args[1]->int_value);
    default: return e;
  }
}

TEST(SimplifyRandom, KeepsValuesRangesAndIsIdempotent) {
  std::mt19937 random(7);
  auto pick = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); };
  for (int round = 0; round < 4000; ++round) {
    LoopNest nest;
    nest.name = "t";
    nest.add_buffer({"out", DType::I64, 0, Space::Argument, true});
    std::vector<int64_t> extents;
    for (int v = 0; v < 3; ++v)
      extents.push_back(pick(0, 3) == 0 ? 1 : pick(1, 2) == 1 ? pick(1, 40) : int64_t{1} << pick(0, 8));
    if (pick(0, 3) == 0) extents[2] = -1;
    for (size_t v = 0; v < 3; ++v) nest.add_var("v" + std::to_string(v), extents[v]);
    const int64_t divisors[] = {1, 2, 3, 4, 8, 12, 16, 48, 64, 256};
    auto divisor = [&] { return pick(0, 2) == 0 && extents[1] > 0 ? extents[1] : divisors[pick(0, 9)]; };

    // pool[x] = {simplified, its twin as written}
    std::vector<std::pair<Expr, Expr>> pool;
    for (int v = 0; v < 3; ++v) pool.emplace_back(nest.var(v), nest.var(v));
    for (int step = 0; step < 8; ++step) {
      const auto a = pool[static_cast<size_t>(pick(0, static_cast<int64_t>(pool.size()) - 1))];
      const auto b = pool[static_cast<size_t>(pick(0, static_cast<int64_t>(pool.size()) - 1))];
      const int64_t d = divisor(), c = pick(-2, 20);
      switch (pick(0, 5)) {
        case 0: pool.emplace_back(a.first + b.first, apply(Op::Add, {a.second, b.second})); break;
        case 1:
          pool.emplace_back(a.first * d + b.first, apply(Op::Add, {apply(Op::Mul, {a.second, integer(d)}), b.second}));
          break;
        case 2: pool.emplace_back(a.first + integer(c), apply(Op::Add, {a.second, integer(c)})); break;
        case 3: pool.emplace_back(a.first - b.first, apply(Op::Sub, {a.second, b.second})); break;
        case 4: pool.emplace_back(floor_div(a.first, d), apply(Op::FloorDiv, {a.second, integer(d)})); break;
        case 5: pool.emplace_back(mod(a.first, d), apply(Op::Mod, {a.second, integer(d)})); break;
      }
    }
    auto text = [&](const Expr& e) {
      nest.body = store(0, integer(0), e);
      return print(nest);
    };
    for (const auto& [simple, plain] : pool) {
      const Range range = range_of(simple);
      for (int sample = 0; sample < 12; ++sample) {
        std::vector<int64_t> vars;
        for (int64_t e : extents)
          vars.push_back(sample == 0 ? 0 : sample == 1 ? (e < 0 ? 1000003 : e - 1) : pick(0, e < 0 ? 100000 : e - 1));
        const int64_t want = value_of(plain, vars);
        ASSERT_EQ(value_of(simple, vars), want) << "as written: " << text(plain) << "simplified: " << text(simple);
        ASSERT_TRUE(!range.known || (range.low <= want && want <= range.high))
            << text(simple) << range.low << ".." << range.high;
      }
      ASSERT_EQ(text(rebuilt(simple)), text(simple)) << "of " << text(plain);
    }
  }
}

TEST(Expressions, ConstructorsHoldTheDtypeRules) {
  const Expr a = real(1.5, DType::F32), b = integer(2), t = integer(1, DType::Bool);
  EXPECT_EQ(apply(Op::Lt, {a, a})->dtype, DType::Bool);
  EXPECT_EQ(apply(Op::IsNan, {a})->dtype, DType::Bool);
  EXPECT_EQ(apply(Op::Select, {t, a, a})->dtype, DType::F32);
  EXPECT_EQ(cast(a, DType::F32), a);
  EXPECT_EQ(real(0.1, DType::F32)->float_value, static_cast<double>(0.1f));
  EXPECT_THROW(apply(Op::Add, {a, b}), InternalError);
  EXPECT_THROW(apply(Op::Add, {a}), InternalError);
  EXPECT_THROW(apply(Op::Select, {a, a, a}), InternalError);
  EXPECT_THROW(apply(Op::Reduce, {a}), InternalError);
  EXPECT_THROW(fma(a, a, b), InternalError);
  EXPECT_THROW(a + a, InternalError);
  EXPECT_THROW(floor_div(b, 0), InternalError);
}

}  // namespace
}  // namespace trainc::loop
