// Contractions over the windows of an image in memory: an lhs in runs both ways, which the micro-kernel may read where
// it lies. As convolutions have them: rows are places and k is taps (forward), or rows are taps and k is places (the
// weight's gradient).
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "gemm.h"
#include "interpret/interpret.h"
#include "schedule/contraction_blocking.h"

namespace trainc {
namespace {

using namespace loop;
using namespace lower;
using namespace schedule;
using namespace testing;

struct Windows {
  int64_t images, height, width, channels, taps, step, n;  // taps x taps windows, `step` apart; rows of n in the rhs
  bool places_are_rows = true;
  DType dtype = DType::F32;

  int64_t down() const { return (height - taps) / step + 1; }
  int64_t across() const { return (width - taps) / step + 1; }
  int64_t places() const { return images * down() * across(); }
  int64_t window() const { return taps * taps * channels; }
  int64_t m() const { return places_are_rows ? places() : window(); }
  int64_t k() const { return places_are_rows ? window() : places(); }
  int64_t row_of_taps() const { return taps * channels; }

  // Where the first tap of a place lies, and how far from it an element of its window; of numbers and of expressions.
  template <class I, class Div, class Mod>
  I place_at(const I& p, Div div, Mod mod) const {
    return (div(p, down() * across()) * height + mod(div(p, across()), down()) * step) * (width * channels) +
           mod(p, across()) * (step * channels);
  }
  template <class I, class Div, class Mod>
  I tap_at(const I& w, Div div, Mod mod) const {
    return div(w, row_of_taps()) * (width * channels) + mod(w, row_of_taps());
  }
};

ContractionSpec spec_of(LoopNest& nest, const Windows& w) {
  nest.name = "windows";
  nest.add_buffer({"image", w.dtype, w.images * w.height * w.width * w.channels});
  nest.add_buffer({"rhs", w.dtype, w.n * w.k()});
  nest.add_buffer({"out", w.dtype == DType::F64 ? DType::F64 : DType::F32, w.m() * w.n, Space::Argument, true});
  const auto div = [](const Expr& e, int64_t d) { return floor_div(e, d); };
  const auto mod = [](const Expr& e, int64_t d) { return loop::mod(e, d); };
  ContractionSpec spec{1, w.m(), w.n, w.k()};
  spec.lhs = [&nest, w, div, mod](Expr, Expr row, Expr k) {
    return nest.load(
        kLhs, w.place_at(w.places_are_rows ? row : k, div, mod) + w.tap_at(w.places_are_rows ? k : row, div, mod));
  };
  spec.lhs_k_contiguous = w.places_are_rows;
  spec.rhs = [&nest, w](Expr, Expr row, Expr k) { return nest.load(kRhs, row * w.k() + k); };
  if (w.k() % 5 == 0)  // the rhs in runs along k, too
    spec.rhs_k_run = 5, spec.rhs_in_k_run = [&nest, w](Expr, Expr row, Expr major, Expr minor) {
      return nest.load(kRhs, row * w.k() + major * 5 + minor);
    };
  spec.epilogue = [w](Expr, Expr m, Expr n, Expr sum) { return store(kOut, m * w.n + n, sum); };
  const auto first = [w, div, mod](const Expr& row_of_places, const Expr& row_of_taps) {
    return w.place_at(row_of_places * w.across(), div, mod) + w.tap_at(row_of_taps * w.row_of_taps(), div, mod);
  };
  const int64_t step = w.step * w.channels;
  if (w.places_are_rows)
    spec.lhs_unpacked = {
        kLhs, w.across(), step, w.row_of_taps(), 1, [first](Expr, Expr i, Expr j) { return first(i, j); }};
  else
    spec.lhs_unpacked = {
        kLhs, w.row_of_taps(), 1, w.across(), step, [first](Expr, Expr i, Expr j) { return first(j, i); }};
  return spec;
}

// Small whole numbers: every sum is exact, so that whatever computes it must be equal to the bit.
struct Data {
  std::vector<float> image, rhs, out;
  explicit Data(const Windows& w)
      : image(size_t(w.images * w.height * w.width * w.channels)), rhs(size_t(w.n * w.k())), out(size_t(w.m() * w.n)) {
    std::mt19937 engine(3);
    std::uniform_int_distribution<int> small(-4, 4);
    for (float& x : image) x = float(small(engine));
    for (float& x : rhs) x = float(small(engine));
    const auto div = [](int64_t a, int64_t d) { return a / d; };
    const auto mod = [](int64_t a, int64_t d) { return a % d; };
    for (int64_t i = 0; i < w.m(); ++i)
      for (int64_t j = 0; j < w.n; ++j)
        for (int64_t k = 0; k < w.k(); ++k)
          out[size_t(i * w.n + j)] += image[size_t(w.place_at(w.places_are_rows ? i : k, div, mod) +
                                                   w.tap_at(w.places_are_rows ? k : i, div, mod))] *
                                      rhs[size_t(j * w.k() + k)];
  }
};

template <class T>
Guarded as(const std::vector<float>& values) {
  Guarded memory(values.size() * sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) memory.as<T>()[i] = static_cast<T>(values[i]);
  return memory;
}
template <class T>
std::vector<T> vector_as(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

template <class T, class Out>
void expect_equal(const Data& data, const LoopNest& nest, CpuLevel level, bool interpreted) {
  if (interpreted) {
    std::vector<interpret::Memory> arguments = {interpret::memory_of(vector_as<T>(data.image)),
                                                interpret::memory_of(vector_as<T>(data.rhs)),
                                                interpret::output_of(int64_t(data.out.size() * sizeof(Out)))};
    for (const std::string& message : interpret::run(nest, arguments).messages) ADD_FAILURE() << message;
    ASSERT_EQ(interpret::values_of<Out>(arguments[kOut]), vector_as<Out>(data.out));
    return;
  }
  Code code(emit::compile(nest, level));
  Scratch scratch(nest);
  Guarded image = as<T>(data.image), rhs = as<T>(data.rhs), out(data.out.size() * sizeof(Out));
  uint32_t status = 0;
  void* arguments[] = {image.as<void>(), rhs.as<void>(), out.as<void>()};
  code.kernel(arguments, scratch.data(), &status, 0, nest.parallel_extent);
  ASSERT_EQ(status, 0u);
  ASSERT_EQ(std::vector<Out>(out.as<Out>(), out.as<Out>() + data.out.size()), vector_as<Out>(data.out));
}

// All ways of cutting it up; gives how many distinct ones read the lhs unpacked.
int expect_windows(const Windows& w, CpuLevel level, bool interpreted) {
  SCOPED_TRACE(std::to_string(w.images) + " images " + std::to_string(w.height) + "x" + std::to_string(w.width) + "x" +
               std::to_string(w.channels) + ", " + std::to_string(w.taps) + " taps, step " + std::to_string(w.step) +
               ", n " + std::to_string(w.n) + (w.places_are_rows ? " places " : " taps ") +
               std::string(name_of(w.dtype)) + " " + std::string(name_of(level)));
  const CacheSizes small{.l1d = 4 << 10, .l2 = 64 << 10, .l3 = 1 << 20};  // several m blocks and tasks
  const Data data(w);
  std::set<std::string> texts;
  int unpacked = 0;
  for (int variant = 0; variant < kBlockingVariants; ++variant) {
    SCOPED_TRACE("variant " + std::to_string(variant));
    LoopNest nest;
    build_contraction(nest, spec_of(nest, w), cpu_target(level, small), variant);
    verify(nest);
    const std::string text = print(nest);
    if (!texts.insert(text).second) continue;
    unpacked += text.find("lhs_pack") == std::string::npos;
    if (w.dtype == DType::BF16) expect_equal<Bf16, float>(data, nest, level, interpreted);
    else if (w.dtype == DType::F64) expect_equal<double, double>(data, nest, level, interpreted);
    else expect_equal<float, float>(data, nest, level, interpreted);
  }
  return unpacked;
}

// images, height, width, channels, taps, step, n
const Windows kWindows[] = {
    {2, 6, 26, 16, 3, 1, 32},    // runs of k that make a block: 4 of 48, 8 of 24
    {1, 5, 42, 80, 3, 1, 20},    // a run of k is two blocks
    {1, 4, 250, 211, 1, 1, 33},  // a run of k is no whole number of blocks, columns fill no panel
    {2, 23, 45, 3, 7, 2, 64},    // an image of three colours, as the first layer of a network reads it
    {1, 9, 50, 9, 2, 3, 7},      // 17 places in a row: no tile of so many
    {1, 7, 23, 6, 3, 1, 16},     // rows of 21
    {1, 1, 60, 211, 1, 1, 33},   // one run both ways: a matrix as it lies
};

TEST(ContractionWindows, InterpretedWithoutFindings) {
  int unpacked = 0;
  for (Windows w : {Windows{1, 5, 18, 6, 3, 1, 17}, Windows{1, 3, 21, 8, 2, 1, 33}, Windows{1, 3, 201, 3, 1, 1, 5}})
    for (w.places_are_rows = false;; w.places_are_rows = true) {
      for (CpuLevel level : {CpuLevel::Avx512, CpuLevel::Avx2}) unpacked += expect_windows(w, level, true);
      if (w.places_are_rows) break;
    }
  EXPECT_GT(unpacked, 15);
}

TEST(ContractionWindows, Compiled) {
  int unpacked = 0;
  for (CpuLevel level : {CpuLevel::Avx512Bf16, CpuLevel::Avx512, CpuLevel::Avx2}) {
    // of f32, the same code
    if (level < machine_cpu_level() || (level == CpuLevel::Avx512 && has_bf16_dot(machine_cpu_level()))) continue;
    for (Windows w : kWindows)
      for (DType dtype : {DType::F32, DType::F64, DType::BF16}) {
        w.dtype = dtype;
        if (dtype == DType::F64 && w.channels != 3) continue;
        // pairs lie within a run
        if (dtype == DType::BF16 && (!has_bf16_dot(level) || w.row_of_taps() % 2 != 0)) continue;
        w.places_are_rows = true;
        unpacked += expect_windows(w, level, false);
        w.places_are_rows = false;
        if (dtype != DType::BF16) unpacked += expect_windows(w, level, false);  // pairs along k are not neighbours
      }
  }
  EXPECT_GT(unpacked, 20);
}

// A block of k holds whole runs, or a run whole blocks; as deep as usual where neither is half of that.
TEST(ContractionWindows, BlocksOfRuns) {
  const auto block_k = [](int64_t width, int64_t channels) {
    LoopNest nest;
    return choose_blocking(shape_of(spec_of(nest, {1, 10, width, channels, 3, 1, 64})), DType::F32,
                           cpu_target(CpuLevel::Avx512))
        .block_k;
  };
  EXPECT_EQ(block_k(10, 64), 192);
  EXPECT_EQ(block_k(10, 32), 96 * 2);
  EXPECT_EQ(block_k(10, 128), 192);
  EXPECT_EQ(block_k(10, 3), 27);
}

// Rows of a matrix that lie far apart meet in few sets of L1: they are packed.
TEST(ContractionWindows, AMatrixUnpackedIfItsRowsAreNear) {
  const auto unpacked = [](int64_t k) {
    LoopNest nest;
    return choose_blocking(shape_of(spec_of(nest, {1, 1, 960, k, 1, 1, 64})), DType::F32, cpu_target(CpuLevel::Avx512))
        .lhs_unpacked;
  };
  EXPECT_TRUE(unpacked(64));
  EXPECT_TRUE(unpacked(256));
  EXPECT_FALSE(unpacked(260));
  EXPECT_FALSE(unpacked(8));  // finding where a row begins would be most of the work
}

}  // namespace
}  // namespace trainc
