// Handwritten nests, one a feature of loop.h, against the interpreter: same bytes at every level of this machine, odd
// extents.
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <thread>

#include "harness.h"

namespace trainc::emit::test {
namespace {

using namespace loop;
using interpret::memory_of;
using interpret::output_of;

Stmt vector(int var, int64_t extent, Stmt body, int lanes) {
  return for_loop(LoopKind::Vector, var, integer(extent), std::move(body), lanes);
}

class Extents : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Odd, Extents, ::testing::Values(1, 7, 15, 16, 17, 31, 48, 100, 129));

// y = a * x + b * x, not contracted; x / y and the rest of exact f32 arithmetic
TEST_P(Extents, ElementwiseFloat) {
  const int64_t n = GetParam();
  const struct {
    const char* name;
    std::function<Expr(Expr, Expr)> make;
  } cases[] = {
      {"mul_add", [](Expr a, Expr b) { return apply(Op::Add, {apply(Op::Mul, {a, b}), a}); }},
      {"fma", [](Expr a, Expr b) { return fma(a, b, a); }},
      {"div", [](Expr a, Expr b) { return apply(Op::Div, {a, b}); }},
      {"max", [](Expr a, Expr b) { return apply(Op::Max, {a, b}); }},
      {"min", [](Expr a, Expr b) { return apply(Op::Min, {a, b}); }},
      {"sqrt", [](Expr a, Expr) { return apply(Op::Sqrt, {apply(Op::Abs, {a})}); }},
      {"rsqrt", [](Expr a, Expr) { return apply(Op::Rsqrt, {apply(Op::Abs, {a})}); }},
      {"floor", [](Expr a, Expr) { return apply(Op::Floor, {a}); }},
      {"ceil", [](Expr a, Expr) { return apply(Op::Ceil, {a}); }},
      {"round", [](Expr a, Expr) { return apply(Op::Round, {apply(Op::Mul, {a, real(0.5, DType::F32)})}); }},
      {"trunc", [](Expr a, Expr) { return apply(Op::Trunc, {a}); }},
      {"sign", [](Expr a, Expr) { return apply(Op::Sign, {a}); }},
      {"neg", [](Expr a, Expr) { return apply(Op::Neg, {a}); }},
      {"floor_div", [](Expr a, Expr b) { return apply(Op::FloorDiv, {a, b}); }},
      {"select", [](Expr a, Expr b) { return apply(Op::Select, {apply(Op::Lt, {a, b}), a, real(2, DType::F32)}); }},
      {"select_nan", [](Expr a, Expr b) { return apply(Op::Select, {apply(Op::IsNan, {a}), b, a}); }},
      {"bf16", [](Expr a, Expr) { return cast(cast(a, DType::BF16), DType::F32); }},
      {"f16", [](Expr a, Expr) { return cast(cast(a, DType::F16), DType::F32); }},
      {"i32",
       [](Expr a, Expr) {
         return cast(
             cast(apply(Op::Max, {apply(Op::Min, {a, real(1e6, DType::F32)}), real(-1e6, DType::F32)}), DType::I32),
             DType::F32);
       }},
      {"i64", [](Expr a, Expr) { return cast(cast(a, DType::I64), DType::F32); }},
      {"f64",
       [](Expr a, Expr b) { return cast(apply(Op::Mul, {cast(a, DType::F64), cast(b, DType::F64)}), DType::F32); }},
      {"bool", [](Expr a, Expr) { return cast(cast(a, DType::Bool), DType::F32); }},
  };
  std::vector<float> x = random_floats(static_cast<size_t>(n)), y = random_floats(static_cast<size_t>(n), 2);
  const float inf = std::numeric_limits<float>::infinity();
  const float special[] = {0.0f, -0.0f, inf, -inf, 1e-42f, 0.5f, -2.5f, 3e9f, -7e18f, 65519.0f, 65520.0f, 1.0f};
  for (size_t i = 0; i < std::size(special); ++i) {
    if (3 * i + 1 < x.size()) x[3 * i + 1] = special[i];
    if (5 * i + 2 < y.size()) y[5 * i + 2] = special[i];
  }
  for (const auto& c : cases) {
    LoopNest nest;
    nest.name = c.name;
    const int a = nest.add_buffer({"a", DType::F32, n}), b = nest.add_buffer({"b", DType::F32, n});
    const int out = nest.add_buffer({"out", DType::F32, n, Space::Argument, true});
    const int i = nest.add_var("i", n);
    nest.body = vector(i, n, store(out, nest.var(i), c.make(nest.load(a, nest.var(i)), nest.load(b, nest.var(i)))), 16);
    expect_as_interpreted(nest, {memory_of(x), memory_of(y), output_of(n * 4)});
  }
}

// Bools that lie as bits: neighbours at any offset, strewn, repeated, transposed, and under guards; what lies behind
// the last bit is not read as one.
TEST_P(Extents, Bits) {
  const int64_t n = GetParam(), numel = 3 * n + 11;
  Memory bits = memory_of(std::vector<uint8_t>(static_cast<size_t>(bytes_of_bits(numel)), 0xA5));
  std::mt19937 random(static_cast<unsigned>(n));
  std::vector<bool> set;
  for (int64_t e = 0; e < numel; ++e) {
    set.push_back(random() % 3 > 0);
    uint8_t& byte = bits.bytes[static_cast<size_t>(e / 8)];
    byte = static_cast<uint8_t>(set.back() ? byte | 1 << e % 8 : byte & ~(1 << e % 8));
  }
  // from element `low` on: the others are guarded
  const struct {
    const char* name;
    std::function<Expr(const Expr&)> at;
    int64_t low;
  } cases[] = {
      {"neighbours", [](const Expr& i) { return i; }, 0},
      {"a_byte_on", [](const Expr& i) { return i + integer(8); }, 0},
      {"odd", [](const Expr& i) { return i + integer(5); }, 0},
      {"before", [](const Expr& i) { return i - integer(3); }, 3},
      {"every_third", [](const Expr& i) { return i * 3; }, 0},
      {"backwards", [n](const Expr& i) { return integer(n - 1) - i; }, 0},
      {"repeated", [](const Expr& i) { return floor_div(i, 5); }, 0},
      {"transposed", [](const Expr& i) { return mod(i, 7) * 2 + floor_div(i, 7); }, 0},
      {"one", [n](const Expr&) { return integer(n); }, 0},
      {"one_guarded", [](const Expr&) { return integer(2); }, 1},
  };
  for (const auto& c : cases)
    for (int lanes : {1, 2, 8, 16, 32, 64}) {
      LoopNest nest;
      nest.name = c.name;
      const int mask = nest.add_buffer({"mask", DType::Bool, numel, Space::Argument, false, -1, true});
      const int out = nest.add_buffer({"out", DType::F32, 2 * n, Space::Argument, true});
      // the guard of the first half is one for all lanes, and false
      const int half = nest.add_var("half", 2), i = nest.add_var("i", n);
      const Expr place = c.at(nest.var(i)), all = apply(Op::Lt, {integer(0), nest.var(half)});
      const Expr each = c.low > 0 ? apply(Op::And, {all, apply(Op::Le, {integer(c.low), nest.var(i)})}) : all;
      const Expr value = apply(Op::Select, {nest.load(mask, place, each), nest.var(i) + integer(1), integer(0)});
      nest.body = for_loop(LoopKind::Serial, half, integer(2),
                           vector(i, n, store(out, nest.var(half) * n + nest.var(i), cast(value, DType::F32)), lanes));
      expect_as_interpreted(nest, {bits, output_of(2 * n * 4)});

      std::vector<Memory> got = {bits, output_of(2 * n * 4)};
      run(nest, runnable_levels()[0], got);
      const auto values = interpret::values_of<float>(got[1]);
      for (int64_t e = 0; e < n; ++e) {
        const int64_t at = range_of(c.at(integer(e))).low;
        EXPECT_EQ(values[static_cast<size_t>(e)], 0) << c.name << " element " << e << ", whose guard is false";
        EXPECT_EQ(values[static_cast<size_t>(n + e)], e >= c.low && set[static_cast<size_t>(at)] ? e + 1 : 0)
            << c.name << " element " << e << ", lanes " << lanes;
      }
      if (c.low == 0) {
        LoopNest plain = nest;
        const Expr unguarded = apply(Op::Select, {nest.load(mask, place), nest.var(i) + integer(1), integer(0)});
        plain.body = vector(i, n, store(out, nest.var(i), cast(unguarded, DType::F32)), lanes);
        plain.buffers[static_cast<size_t>(out)].numel = n;
        expect_as_interpreted(plain, {bits, output_of(n * 4)});
      }
      if (HasFailure()) return;
    }
}

// Out of range: what cvttss2si gives, never poison.
TEST(Nests, FloatsOutOfRangeBecomeTheLowestInteger) {
  const std::vector<double> x = {3e9, -3e9, 2147483647.5, -2147483648.5, NAN, INFINITY, 1e300, -7.9, 0.99};
  const auto n = static_cast<int64_t>(x.size());
  for (CpuLevel level : runnable_levels())
    for (int lanes : {1, 8}) {
      LoopNest nest;
      nest.name = "to_int";
      const int a = nest.add_buffer({"a", DType::F64, n}),
                out = nest.add_buffer({"out", DType::I32, n, Space::Argument, true});
      const int i = nest.add_var("i", n);
      nest.body = vector(i, n, store(out, nest.var(i), cast(nest.load(a, nest.var(i)), DType::I32)), lanes);
      std::vector<Memory> arguments = {memory_of(x), output_of(n * 4)};
      run(nest, level, arguments);
      const int32_t low = std::numeric_limits<int32_t>::min();
      EXPECT_EQ(interpret::values_of<int32_t>(arguments[1]),
                (std::vector<int32_t>{low, low, 2147483647, low, low, low, low, -7, 0}));
    }
}

TEST(Nests, NanWinsMaxAndMin) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (Op op : {Op::Max, Op::Min})
    for (int lanes : {1, 8}) {
      LoopNest nest;
      nest.name = "nan_wins";
      const int a = nest.add_buffer({"a", DType::F32, 8}), b = nest.add_buffer({"b", DType::F32, 8});
      const int out = nest.add_buffer({"out", DType::Bool, 8, Space::Argument, true});
      const int i = nest.add_var("i", 8);
      const Expr m = apply(op, {nest.load(a, nest.var(i)), nest.load(b, nest.var(i))});
      nest.body = vector(i, 8, store(out, nest.var(i), apply(Op::IsNan, {m})), lanes);
      const std::vector<float> x = {nan, 1, nan, 1, nan, 1, 1, 1}, y = {1, nan, nan, 1, 1, nan, 1, 1};
      expect_as_interpreted(nest, {memory_of(x), memory_of(y), output_of(8)});
    }
}

template <class T> void integers(DType dtype) {
  const std::vector<Op> ops = {Op::Add, Op::Sub, Op::Mul, Op::Div, Op::FloorDiv, Op::Mod, Op::Max, Op::Min,
                               Op::And, Op::Or,  Op::Xor, Op::Shl, Op::Shr,      Op::Sar, Op::Lt,  Op::Le};
  std::vector<T> x, y;
  const T low = std::numeric_limits<T>::min(), high = std::numeric_limits<T>::max();
  for (T p : {T(0), T(1), T(-1), T(7), T(-7), T(100), low, high, T(high / 2 + 1)})
    for (T q : {T(0), T(1), T(-1), T(3), T(-3), low, high, T(7), T(8), T(31), T(32), T(63), T(64)}) {
      x.push_back(p);
      y.push_back(q);
    }
  const auto n = static_cast<int64_t>(x.size());
  for (Op op : ops) {
    LoopNest nest;
    nest.name = "integers";
    const int a = nest.add_buffer({"a", dtype, n}), b = nest.add_buffer({"b", dtype, n});
    const int i = nest.add_var("i", n);
    Expr r = apply(op, {nest.load(a, nest.var(i)), nest.load(b, nest.var(i))});
    const int out = nest.add_buffer({"out", r->dtype, n, Space::Argument, true});
    nest.body = vector(i, n, store(out, nest.var(i), r), 16);
    expect_as_interpreted(nest, {memory_of(x), memory_of(y), output_of(n * size_of(r->dtype))});
  }
  for (DType other : {DType::F64, DType::F32, DType::I64, DType::U32, DType::U64, DType::BF16}) {
    LoopNest nest;
    nest.name = "converted";
    const int a = nest.add_buffer({"a", dtype, n}), out = nest.add_buffer({"out", other, n, Space::Argument, true});
    const int i = nest.add_var("i", n);
    nest.body = vector(i, n, store(out, nest.var(i), cast(nest.load(a, nest.var(i)), other)), 16);
    expect_as_interpreted(nest, {memory_of(x), output_of(n * size_of(other))});
  }
}
TEST(Nests, IntegersNeverTrapAndFloor) {
  integers<int64_t>(DType::I64);
  integers<int32_t>(DType::I32);
  integers<int16_t>(DType::I16);
  integers<int8_t>(DType::I8);
  integers<uint8_t>(DType::U8);
  integers<uint16_t>(DType::U16);
  integers<uint32_t>(DType::U32);
  integers<uint64_t>(DType::U64);
}

TEST(Nests, BitsAreKept) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {0, -0.0f, 1, -1.5f, inf, -inf, nan, -nan, 1e-40f, 3e38f};
  const auto n = static_cast<int64_t>(x.size());
  for (int lanes : {1, 4}) {
    LoopNest nest;
    nest.name = "bits";
    const int a = nest.add_buffer({"a", DType::F32, n}),
              out = nest.add_buffer({"out", DType::U32, n, Space::Argument, true});
    const int back = nest.add_buffer({"back", DType::F32, n, Space::Argument, true});
    const int i = nest.add_var("i", n);
    const Expr bits = bitcast(nest.load(a, nest.var(i)), DType::U32);
    // none of these becomes a signalling NaN: the interpreter's f64 would make it a quiet one
    const Expr quiet = integer(0x400000, DType::U32);
    nest.body = vector(i, n,
                       block({store(out, nest.var(i), bits),
                              store(back, nest.var(i), bitcast(apply(Op::Xor, {bits, quiet}), DType::F32))}),
                       lanes);
    expect_as_interpreted(nest, {memory_of(x), output_of(n * 4), output_of(n * 4)});
  }
}

// Rows in parallel, mean over columns in a Vector loop: lane partials, fixed tree, tail
TEST_P(Extents, RowReductions) {
  const int64_t rows = 5, n = GetParam();
  for (ReduceKind kind : {ReduceKind::Sum, ReduceKind::Prod, ReduceKind::Max, ReduceKind::Min})
    for (int lanes : {1, 8, 16, 64}) {
      LoopNest nest;
      nest.name = "row_reduce";
      const int a = nest.add_buffer({"a", DType::F32, rows * n}),
                out = nest.add_buffer({"out", DType::F32, rows * n, Space::Argument, true});
      const int r = nest.add_var("r", rows), i = nest.add_var("i", n), j = nest.add_var("j", n);
      const int sum = nest.add_local("sum", DType::F32);
      nest.parallel_extent = rows;
      const Expr at = nest.var(r) * n + nest.var(i), at2 = nest.var(r) * n + nest.var(j);
      nest.body =
          for_loop(LoopKind::Parallel, r, integer(rows),
                   block({
                       let(sum, real(0.5, DType::F32)),
                       vector(i, n, reduce(sum, kind, nest.load(a, at)), lanes),
                       vector(j, n, store(out, at2, apply(Op::Sub, {nest.load(a, at2), nest.local(sum)})), lanes),
                   }));
      expect_as_interpreted(nest, {memory_of(random_floats(static_cast<size_t>(rows * n))), output_of(rows * n * 4)});
    }
}

// Of 0.0 and -0.0 the first that came, of numbers and NaN the NaN: by their bits, at every level as interpreted
TEST_P(Extents, ExtremesOfRowsWithZerosAndNan) {
  const int64_t rows = 4, n = GetParam();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> x(static_cast<size_t>(rows * n));
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t row = i / static_cast<size_t>(n), at = i % static_cast<size_t>(n);
    x[i] = row == 1 && at == static_cast<size_t>(n) / 2 ? nan : (at * 7 + row) % 3 == 0 ? 0.0f : -0.0f;
  }
  for (ReduceKind kind : {ReduceKind::Max, ReduceKind::Min})
    for (int lanes : {1, 8, 16, 64}) {
      LoopNest nest;
      nest.name = "extremes";
      const int a = nest.add_buffer({"a", DType::F32, rows * n}),
                out = nest.add_buffer({"out", DType::I32, rows, Space::Argument, true});
      const int r = nest.add_var("r", rows), i = nest.add_var("i", n), best = nest.add_local("best", DType::F32);
      nest.parallel_extent = rows;
      const Expr start = kind == ReduceKind::Max ? real(-1, DType::F32) : real(1, DType::F32);
      nest.body = for_loop(
          LoopKind::Parallel, r, integer(rows),
          block({let(best, start), vector(i, n, reduce(best, kind, nest.load(a, nest.var(r) * n + nest.var(i))), lanes),
                 store(out, nest.var(r), bitcast(nest.local(best), DType::I32))}));
      expect_as_interpreted(nest, {memory_of(x), output_of(rows * 4)});
    }
}

// Columns: the local is a vector, the Reduce in a Serial loop
TEST_P(Extents, ColumnReduction) {
  const int64_t rows = 9, n = GetParam();
  for (DType total : {DType::F32, DType::F64}) {
    LoopNest nest;
    nest.name = "column_reduce";
    const int a = nest.add_buffer({"a", DType::BF16, rows * n}),
              out = nest.add_buffer({"out", DType::F32, n, Space::Argument, true});
    const int r = nest.add_var("r", rows), i = nest.add_var("i", n);
    const int sum = nest.add_local("sum", total);
    nest.body = vector(
        i, n,
        block({
            let(sum, real(0, total)),
            for_loop(LoopKind::Serial, r, integer(rows),
                     reduce(sum, ReduceKind::Sum, cast(nest.load(a, nest.var(r) * n + nest.var(i)), DType::F32))),
            store(out, nest.var(i), cast(nest.local(sum), DType::F32)),
        }),
        16);
    std::vector<uint16_t> x;
    for (float f : random_floats(static_cast<size_t>(rows * n))) {
      uint32_t bits;
      std::memcpy(&bits, &f, 4);
      x.push_back(static_cast<uint16_t>(bits >> 16));
    }
    expect_as_interpreted(nest, {memory_of(x), output_of(n * 4)});
  }
}

// Long sums: runs of vectors, runs of runs, their remainders and the masked last vector, in f64 and in the terms'
// dtype; extents that are numbers and others.
TEST(Nests, LongSumsInRuns) {
  const struct {
    DType terms, total;
  } kinds[] = {{DType::F32, DType::F32}, {DType::F32, DType::F64}, {DType::F64, DType::F64}};
  for (const auto& [terms, total] : kinds)
    for (int lanes : {1, 4, 16})
      for (int64_t vectors : {7, 8, 9, 63, 255, 256, 257, 300, 800, 8193})
        for (bool number : {true, false}) {
          const int64_t rows = 2, n = vectors * lanes + (vectors % 2 ? lanes / 2 : 0);
          LoopNest nest;
          nest.name = "long_row";
          const int a = nest.add_buffer({"a", terms, rows * n}),
                    out = nest.add_buffer({"out", total, 2 * rows, Space::Argument, true});
          const int r = nest.add_var("r", rows), i = nest.add_var("i", n), sum = nest.add_local("sum", total),
                    most = nest.add_local("most", terms);
          nest.parallel_extent = rows;
          const Expr x = nest.load(a, nest.var(r) * n + nest.var(i)),
                     extent = number ? integer(n) : integer(n) - nest.var(r) * 3;
          nest.body =
              for_loop(LoopKind::Parallel, r, integer(rows),
                       block({
                           let(sum, real(0.5, total)),
                           let(most, real(0, terms)),
                           for_loop(LoopKind::Vector, i, extent,
                                    block({reduce(sum, ReduceKind::Sum, x), reduce(most, ReduceKind::Max, x)}), lanes),
                           store(out, nest.var(r) * 2, nest.local(sum)),
                           store(out, nest.var(r) * 2 + integer(1), cast(nest.local(most), total)),
                       }));
          const std::vector<float> x32 = random_floats(static_cast<size_t>(rows * n));
          const Memory values =
              terms == DType::F32 ? memory_of(x32) : memory_of(std::vector<double>(x32.begin(), x32.end()));
          expect_as_interpreted(nest, {values, output_of(2 * rows * size_of(total))});
          if (HasFailure()) return;
        }
}

// A Vector loop in a Serial loop folds into the outer local each time it ends; its extent depends on the outer
// variable.
TEST(Nests, FoldInsideSerialLoopWithVaryingExtent) {
  const int64_t n = 37;
  LoopNest nest;
  nest.name = "triangle";
  const int a = nest.add_buffer({"a", DType::F32, n * n}),
            out = nest.add_buffer({"out", DType::F32, 1, Space::Argument, true});
  const int r = nest.add_var("r", n), i = nest.add_var("i", n), sum = nest.add_local("sum", DType::F32);
  nest.body = block({
      let(sum, real(0, DType::F32)),
      for_loop(LoopKind::Serial, r, integer(n),
               for_loop(LoopKind::Vector, i, nest.var(r),
                        reduce(sum, ReduceKind::Sum, nest.load(a, nest.var(r) * n + nest.var(i))), 16)),
      store(out, integer(0), nest.local(sum)),
  });
  expect_as_interpreted(nest, {memory_of(random_floats(static_cast<size_t>(n * n))), output_of(4)});
}

// Strides 0, 1, -1, 3, rows and unknown (through an index), and index arithmetic that is uniform within a vector
TEST_P(Extents, Addressing) {
  const int64_t n = GetParam();
  for (int kind = 0; kind < 8; ++kind)
    for (DType dtype : {DType::F32, DType::F16, DType::U8, DType::F64, DType::Bool}) {
      LoopNest nest;
      nest.name = "address" + std::to_string(kind);
      const int64_t size = 3 * n + 64;
      const int a = nest.add_buffer({"a", dtype, size}), ids = nest.add_buffer({"ids", DType::I64, n});
      const int out = nest.add_buffer({"out", dtype, 3 * n, Space::Argument, true});
      const int i = nest.add_var("i", n);
      const Expr v = nest.var(i);
      const Expr from = kind == 0   ? integer(5)
                        : kind == 1 ? integer(n - 1) - v
                        : kind == 2 ? v * 3 + integer(1)
                        : kind == 3 ? nest.load(ids, v)
                        : kind == 4 ? floor_div(v, 16)
                        : kind == 5 ? mod(v, 32)
                        : kind == 6 ? floor_div(v, 24)
                                    : mod(v, 24);  // neither 0 nor 1 from lane to lane: 24 is no multiple of 16
      const Expr to = kind == 2 ? v * 3 : v;
      nest.body = vector(i, n, store(out, to, nest.load(a, from)), 16);
      std::vector<uint8_t> x(static_cast<size_t>(size * size_of(dtype)));
      for (size_t k = 0; k < x.size(); ++k)
        x[k] = dtype == DType::Bool ? k % 3 == 0 : static_cast<uint8_t>(k * 37 % 120);
      std::vector<int64_t> indices;
      for (int64_t k = 0; k < n; ++k) indices.push_back(k * 7 % n);
      Memory result = output_of(3 * n * size_of(dtype));
      result.initialised = true;
      expect_as_interpreted(nest, {memory_of(x), memory_of(indices), result});
    }
}

// Guards: uniform, varying (both sides of an edge, as padding has), on a uniform place; nothing outside is touched
TEST_P(Extents, Guards) {
  const int64_t n = GetParam();
  for (int kind = 0; kind < 4; ++kind)
    for (DType dtype : {DType::F32, DType::I8}) {
      LoopNest nest;
      nest.name = "guard" + std::to_string(kind);
      const int64_t rows = 3;
      const int a = nest.add_buffer({"a", dtype, n}),
                out = nest.add_buffer({"out", dtype, rows * n, Space::Argument, true});
      const int r = nest.add_var("r", rows), i = nest.add_var("i", n);
      const Expr shifted = nest.var(i) + nest.var(r) - integer(1);
      const Expr inside = apply(Op::And, {apply(Op::Le, {integer(0), shifted}), apply(Op::Lt, {shifted, integer(n)})});
      const Expr row_ok = apply(Op::Lt, {nest.var(r), integer(1)});
      const Expr odd = apply(Op::Lt, {mod(nest.var(i), 3), integer(1)});
      const Expr value = kind == 0   ? nest.load(a, shifted, inside)
                         : kind == 1 ? nest.load(a, nest.var(i), row_ok)
                         : kind == 2 ? nest.load(a, nest.var(r) * n, apply(Op::And, {row_ok, odd}))
                                     : nest.load(a, nest.var(r) * (4 * n), row_ok);
      nest.body = for_loop(LoopKind::Serial, r, integer(rows),
                           vector(i, n, store(out, nest.var(r) * n + nest.var(i), value), 16));
      std::vector<uint8_t> x(static_cast<size_t>(n * size_of(dtype)));
      for (size_t k = 0; k < x.size(); ++k) x[k] = static_cast<uint8_t>(1 + k % 100);
      expect_as_interpreted(nest, {memory_of(x), output_of(rows * n * size_of(dtype))});
    }
}

// Rows that padding makes longer on either side, one by one there or not: no lane of a register's half is, whatever the
// row. What lies beside the rows is no zero.
TEST(Nests, PaddedRowsOfFewColumns) {
  for (DType dtype : {DType::F32, DType::I64, DType::F64, DType::I32, DType::BF16, DType::I8})
    for (int lanes : {4, 8, 16})
      for (const auto& [n, left, right] : {std::array{5, 0, 1},
                                           {8, 0, 4},
                                           {9, 0, 1},
                                           {7, 0, 4},
                                           {16, 0, 8},
                                           {13, 0, 6},
                                           {3, 0, 2},
                                           {12, 0, 3},
                                           {11, 4, 3},
                                           {8, 4, 0},
                                           {16, 8, 0},
                                           {13, 4, 8},
                                           {9, 2, 3}}) {
        const int64_t rows = 6, columns = n, there = n - left - right;
        LoopNest nest;
        nest.name = "padded";
        const int a = nest.add_buffer({"a", dtype, 3 * there}),
                  out = nest.add_buffer({"out", dtype, rows * columns, Space::Argument, true});
        const int r = nest.add_var("r", rows), i = nest.add_var("i", columns);
        const Expr row = nest.var(r) - integer(2), column = nest.var(i) - integer(left);
        const auto within = [](const Expr& x, int64_t extent) {
          return apply(Op::And, {apply(Op::Le, {integer(0), x}), apply(Op::Lt, {x, integer(extent)})});
        };
        nest.body = for_loop(
            LoopKind::Serial, r, integer(rows),
            vector(i, columns,
                   store(out, nest.var(r) * columns + nest.var(i),
                         nest.load(a, row * there + column, apply(Op::And, {within(row, 3), within(column, there)}))),
                   lanes));
        std::vector<uint8_t> x(static_cast<size_t>(3 * there * size_of(dtype)));
        for (size_t k = 0; k < x.size(); ++k) x[k] = static_cast<uint8_t>(1 + k % 60);
        expect_as_interpreted(nest, {memory_of(x), output_of(rows * columns * size_of(dtype))});
        if (HasFailure()) return;
      }
}

TEST(Nests, CausalMaskByComparedIndices) {
  const int64_t n = 45;
  for (Op op : {Op::Lt, Op::Le, Op::Eq, Op::Ne}) {
    LoopNest nest;
    nest.name = "causal";
    const int out = nest.add_buffer({"out", DType::I32, n * n, Space::Argument, true});
    const int r = nest.add_var("r", n), i = nest.add_var("i", n);
    const Expr c = apply(op, {nest.var(i), nest.var(r)});
    nest.body = for_loop(LoopKind::Serial, r, integer(n),
                         vector(i, n,
                                store(out, nest.var(r) * n + nest.var(i),
                                      apply(Op::Select, {c, cast(nest.var(i), DType::I32), integer(-1, DType::I32)})),
                                16));
    expect_as_interpreted(nest, {output_of(n * n * 4)});
  }
}

// Squares of every dtype and size, from rows with a pitch of their own to the halves of a wider row.
TEST(Nests, TransposeTurnsSquares) {
  for (DType dtype : {DType::F32, DType::F64, DType::BF16, DType::I8, DType::I64})
    for (int lanes : {2, 4, 8, 16}) {
      SCOPED_TRACE(std::string(name_of(dtype)) + " " + std::to_string(lanes));
      LoopNest nest;
      nest.name = "turn";
      const int64_t pitch = lanes + 3;
      const int x = nest.add_buffer({"x", dtype, 2 * lanes * pitch});
      const int out = nest.add_buffer({"out", dtype, 2 * lanes * lanes, Space::Argument, true});
      const int i = nest.add_var("i", 2);
      nest.body =
          for_loop(LoopKind::Serial, i, integer(2),
                   transpose(out, nest.var(i) * lanes, 2 * lanes, x, nest.var(i) * (lanes * pitch), pitch, lanes));
      std::vector<uint8_t> bytes(size_t(2 * lanes * pitch * size_of(dtype)));
      for (size_t at = 0; at < bytes.size(); ++at) bytes[at] = uint8_t(at * 37 + at / 251);
      expect_as_interpreted(nest, {memory_of(bytes), output_of(2 * lanes * lanes * size_of(dtype))});
    }
}

// Pairs made of neighbours (one load), of others, and transposed; the dot product at every width, as an instruction or
// as two FMAs.
TEST(Nests, PairsAndTheirDotProduct) {
  std::mt19937 engine(3);
  std::vector<uint16_t> x(256), y(256);
  for (auto* v : {&x, &y})
    // no denormals: they may count as zero
    for (uint16_t& bits : *v) bits = uint16_t((engine() & 0x80ff) | (115 + engine() % 20) << 7);
  for (int lanes : {1, 2, 4, 8, 16, 32}) {
    SCOPED_TRACE(lanes);
    LoopNest nest;
    nest.name = "dots";
    const int a = nest.add_buffer({"a", DType::BF16, 256}), b = nest.add_buffer({"b", DType::BF16, 256}),
              c = nest.add_buffer({"c", DType::F32, 40});
    const int out = nest.add_buffer({"out", DType::F32, 40, Space::Argument, true});
    const int transposed = nest.add_buffer({"transposed", DType::I32, 64, Space::Scratch, true});
    const int i = nest.add_var("i", 40);
    const Expr lane = nest.var(i), neighbours = pair(nest.load(a, integer(6)), nest.load(a, integer(7)));
    const auto row = [&](const Expr& at, const Expr& with) {
      return dot(with, pair(nest.load(a, lane + at), nest.load(b, lane + at)),
                 dot(neighbours, nest.load(transposed, lane), nest.load(c, lane)));
    };
    nest.body =
        block({transpose(transposed, integer(0), 8, b, integer(1), 17, 8),
               for_loop(LoopKind::Vector, i, integer(40),
                        store(out, lane, row(integer(50), pair(nest.load(b, integer(3)), nest.load(b, integer(9))))),
                        lanes)});
    verify(nest);
    expect_as_interpreted(nest, {memory_of(x), memory_of(y), memory_of(random_floats(40)), output_of(160)});
  }
}

TEST(Nests, PrefetchTouchesNothing) {
  LoopNest nest;
  nest.name = "far";
  const int x = nest.add_buffer({"x", DType::F32, 16}),
            out = nest.add_buffer({"out", DType::F32, 16, Space::Argument, true});
  const int i = nest.add_var("i", 16);
  nest.body = for_loop(LoopKind::Serial, i, integer(16),
                       block({prefetch(x, nest.var(i) * (int64_t{1} << 40), 1), prefetch(x, nest.var(i) * -4096, 2),
                              store(out, nest.var(i), nest.load(x, nest.var(i)))}));
  expect_as_interpreted(nest, {memory_of(random_floats(16)), output_of(64)});
}

/// Copies `ids` in vectors, each element after `checks` of it.
void expect_checked_as_interpreted(const std::vector<int64_t>& ids,
                                   const std::function<std::vector<Stmt>(const Expr&)>& checks) {
  const int64_t n = static_cast<int64_t>(ids.size());
  LoopNest nest;
  nest.name = "checked";
  const int from = nest.add_buffer({"ids", DType::I64, n}),
            out = nest.add_buffer({"out", DType::I64, n, Space::Argument, true});
  const int i = nest.add_var("i", n);
  const Expr id = nest.load(from, nest.var(i));
  std::vector<Stmt> body = checks(id);
  body.push_back(store(out, nest.var(i), id));
  nest.body = vector(i, n, block(std::move(body)), 16);
  expect_as_interpreted(nest, {memory_of(ids), output_of(n * 8)});
}

TEST(Nests, CheckSetsTheStatus) {
  for (int64_t bad : {-1, 0, 16, 36}) {
    std::vector<int64_t> ids(37, 5);
    if (bad >= 0) ids[static_cast<size_t>(bad)] = 100;
    expect_checked_as_interpreted(
        ids, [](const Expr& id) { return std::vector{check(apply(Op::Lt, {id, integer(100)}), 7)}; });
  }
}

TEST(Nests, OfFailedChecksTheGreatestCodeIsTold) {
  for (const auto& [large, small] : {std::pair<size_t, size_t>{0, 36}, {36, 0}, {16, 16}, {17, 3}}) {
    std::vector<int64_t> ids(37, 5);
    ids[large] = large == small ? 300 : 100;
    if (large != small) ids[small] = 200;
    expect_checked_as_interpreted(ids, [](const Expr& id) {
      const auto differs = [&](int64_t from, int code) { return check(apply(Op::Ne, {id, integer(from)}), code); };
      return std::vector{differs(100, 7), differs(200, 3), differs(300, 7)};
    });
  }
}

// Scratch, Unroll, Register and two Vector loops: transpose through scratch, then a register tile with a tail
TEST_P(Extents, ScratchAndRegisters) {
  const int64_t n = GetParam(), rows = 4;
  LoopNest nest;
  nest.name = "tile";
  const int a = nest.add_buffer({"a", DType::F32, rows * n}),
            out = nest.add_buffer({"out", DType::F32, rows * n, Space::Argument, true});
  const int pad = nest.add_buffer({"pad", DType::Bool, 3, Space::Scratch, true});
  const int t = nest.add_buffer({"t", DType::F32, rows * n, Space::Scratch, true});
  const int reg = nest.add_buffer({"reg", DType::F32, rows * 20, Space::Register, true});
  const int r = nest.add_var("r", rows), i = nest.add_var("i", n), u = nest.add_var("u", rows),
            c = nest.add_var("c", 20), k = nest.add_var("k", 3);
  const int w = nest.add_var("w", n), q = nest.add_var("q", rows);
  const auto tile = [&] { return nest.var(u) * 20 + nest.var(c); };
  const int c2 = nest.add_var("c2", 20), u2 = nest.add_var("u2", rows);
  nest.body = block({
      store(pad, integer(2), integer(1, DType::Bool)),
      for_loop(
          LoopKind::Serial, r, integer(rows),
          vector(i, n, store(t, nest.var(i) * rows + nest.var(r), nest.load(a, nest.var(r) * n + nest.var(i))), 16)),
      for_loop(LoopKind::Unroll, u, integer(rows),
               vector(c, 20, store(reg, tile(), cast(nest.var(c), DType::F32)), 16)),
      for_loop(LoopKind::Serial, k, integer(3),
               for_loop(LoopKind::Unroll, u2, integer(rows),
                        vector(c2, 20,
                               store(reg, nest.var(u2) * 20 + nest.var(c2),
                                     fma(nest.load(t, nest.var(u2)), real(2, DType::F32),
                                         nest.load(reg, nest.var(u2) * 20 + nest.var(c2)))),
                               16))),
      for_loop(LoopKind::Unroll, q, integer(rows),
               vector(w, n,
                      store(out, nest.var(q) * n + nest.var(w),
                            apply(Op::Select, {nest.load(pad, integer(2)),
                                               apply(Op::Add, {nest.load(t, nest.var(w) * rows + nest.var(q)),
                                                               nest.load(reg, nest.var(q) * 20 + integer(19))}),
                                               real(0, DType::F32)})),
                      16)),
  });
  expect_as_interpreted(nest, {memory_of(random_floats(static_cast<size_t>(rows * n))), output_of(rows * n * 4)});
}

LoopNest exponential_kernel(int64_t n) {
  LoopNest nest;
  nest.name = "exponential";
  const int a = nest.add_buffer({"a", DType::F32, n}),
            out = nest.add_buffer({"out", DType::F32, n, Space::Argument, true});
  const int i = nest.add_var("i", n);
  nest.body = vector(i, n, store(out, nest.var(i), apply(Op::Exp, {nest.load(a, nest.var(i))})), 16);
  return nest;
}

TEST(Nests, CodeIsDeterministicAlsoFromThreads) {
  const LoopNest nest = exponential_kernel(100);
  for (CpuLevel level : all_levels()) {
    const Blob first = compile(nest, level);
    std::vector<Blob> blobs(4);
    std::vector<std::thread> threads;
    for (Blob& b : blobs) threads.emplace_back([&] { b = compile(nest, level); });
    for (auto& t : threads) t.join();
    for (const Blob& b : blobs) {
      EXPECT_EQ(b.code, first.code);
      EXPECT_EQ(b.entry, first.entry);
    }
  }
}

// Floats of every exponent, and what is none: results that overflow, that are denormal, and NaN. (Which NaN may
// differ.)
TEST(Nests, FunctionsGiveTheSameBitsAtEveryLevelAndWidth) {
  std::vector<float> x;
  for (uint32_t k = 0; k < 1 << 14; ++k) x.push_back(std::bit_cast<float>(k << 18 | k * 40503 % (1 << 18)));
  for (float edge = -104.5f; edge < -85; edge += 0.01f) x.push_back(edge);  // e^x is denormal
  const auto n = static_cast<int64_t>(x.size());
  for (Op op : {Op::Exp, Op::Tanh, Op::Erf, Op::Erfc})
    for (DType dtype : {DType::F32, DType::F64}) {
      SCOPED_TRACE(std::string(name_of(op)) + " of " + std::string(name_of(dtype)));
      std::vector<uint64_t> expected;
      for (CpuLevel level : runnable_levels())
        for (int lanes : {1, 3, 4, 6, 8, 16, 24, 48, 64}) {
          LoopNest nest;
          nest.name = "function";
          const int in = nest.add_buffer({"x", DType::F32, n}),
                    out = nest.add_buffer({"y", dtype, n, Space::Argument, true});
          const int i = nest.add_var("i", n);
          const Expr y = apply(op, {cast(nest.load(in, nest.var(i)), dtype)});
          nest.body = for_loop(LoopKind::Vector, i, integer(n), store(out, nest.var(i), y), lanes);
          std::vector<Memory> arguments = {memory_of(x), output_of(n * size_of(dtype))};
          run(nest, level, arguments);
          std::vector<uint64_t> bits;
          if (dtype == DType::F64)
            for (double v : values_of<double>(arguments[1]))
              bits.push_back(std::isnan(v) ? 1 : std::bit_cast<uint64_t>(v));
          else
            for (float v : values_of<float>(arguments[1]))
              bits.push_back(std::isnan(v) ? 1 : std::bit_cast<uint32_t>(v));
          if (expected.empty()) expected = bits;
          EXPECT_TRUE(bits == expected) << name_of(level) << ", " << lanes << " lanes";
        }
    }
}

}  // namespace
}  // namespace trainc::emit::test
