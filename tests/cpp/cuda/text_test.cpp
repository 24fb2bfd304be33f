// What the printer writes computes what the nest means: the interpreter checks nests, NVRTC that the text compiles;
// this checks that both are the same program.
#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>

#include "../common/adam.h"
#include "device_run.h"
#include "graph/text.h"
#include "graphs.h"
#include "host_text.h"
#include "reference/philox.h"

namespace trainc {
namespace {

using testing::HostDriver;

/// What is lost of a third of each element in bf16; the greater of it and 0 / 0, 1 / 1, 2 / 2; numbers from -16 on,
/// by 7.
Graph roundings() {
  Graph g;
  Builder b{g, {}};
  const Dims shape = {6, 33};
  const Node* third = b.div(b.input(0, {DType::F32, shape}), b.full(DType::F32, shape, 3));
  const Node* index = b.binary(Op::Mod, b.iota(DType::I64, shape, 1), b.full(DType::I64, shape, 3));
  const Node* x = b.cast(index, DType::F32);
  g.outputs = {
      {b.sub(third, b.cast(b.cast(third, DType::BF16), DType::F32)), {}},
      {b.binary(Op::Max, b.div(x, x), third), {}},
      {b.binary(Op::FloorDiv, b.sub(b.cast(b.input(0, {DType::F32, shape}), DType::I64), b.full(DType::I64, shape, 16)),
                b.full(DType::I64, shape, 7)),
       {}}};
  g.input_count = 1;
  return g;
}

/// Graphs of every kind of kernel.
std::vector<Graph> graphs(uint64_t random) {
  std::vector<Graph> all;
  testing::RandomGraphOptions o;
  for (uint64_t seed = 500; seed < 500 + random; ++seed) {
    o.transcendental = seed % 5 == 0;
    all.push_back(testing::random_graph(seed, o));
  }
  for (int64_t columns : {33, 1000}) all.push_back(testing::softmax(3, columns));
  all.push_back(roundings());
  for (DType dtype : {DType::F32, DType::BF16, DType::F64}) all.push_back(testing::transposed(3, 65, 70, dtype));
  all.push_back(testing::column_sums(70, 65));
  all.push_back(testing::scatter(40, 7, 50));
  for (int transposed = 0; transposed < 4; ++transposed)
    for (DType dtype : {DType::F32, DType::BF16})
      all.push_back(testing::contraction(2, 33, 65, 17, dtype, transposed & 1, transposed & 2));
  for (int transposed = 0; transposed < 4; ++transposed)  // copied while others are multiplied
    all.push_back(testing::contraction(2, 40, 72, 168, DType::BF16, transposed & 1, transposed & 2));
  return all;
}

std::string apart(const reference::Tensor& got, const reference::Tensor& wanted) {
  ::testing::TestPartResultArray failures;
  {
    const ::testing::ScopedFakeTestPartResultReporter caught(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
    testing::expect_close({got}, {wanted});
  }
  return failures.size() ? failures.GetTestPartResult(0).message() : "";
}

/// The first result that is not the reference's, in words; "" where all are.
std::string wrong(const std::vector<Graph>& graphs, const compiler::CompileOptions& options,
                  const testing::Mistake& mistake = {}) {
  const auto driver = std::make_shared<HostDriver>(TRAINC_CXX);
  driver->mistake = mistake;
  std::vector<plan::Plan> plans;
  for (const Graph& g : graphs) {
    plans.push_back(compiler::compile(testing::copy_of(g), "text", options));
    driver->add(plans.back());
  }
  try {
    driver->compile();
  } catch (const std::runtime_error& e) { return e.what(); }
  for (size_t p = 0; p < plans.size(); ++p) {
    const auto inputs = testing::halves(graphs[p], p + 1);
    const auto got = testing::run_on_device(plans[p], driver, inputs), wanted = testing::oracle(graphs[p], inputs);
    for (size_t i = 0; i < wanted.size(); ++i)
      if (const std::string d = apart(got[i], wanted[i]); !d.empty())
        return "result " + std::to_string(i) + ": " + d + "\n" + print(graphs[p]);
  }
  EXPECT_GE(driver->launches, static_cast<int64_t>(plans.size()));
  return "";
}

TEST(Text, ComputesWhatTheNestMeans) { EXPECT_EQ(wrong(graphs(30), testing::device_options(true)), ""); }

TEST(Text, TensorCoresInTf32) {
  compiler::CompileOptions options = testing::device_options(true);
  options.tf32 = true;
  std::vector<Graph> all;
  for (int transposed = 0; transposed < 4; ++transposed)
    for (int64_t odd : {1, 0})
      all.push_back(
          testing::contraction(2, 36 - 3 * odd, 68 - 3 * odd, 84 - odd, DType::F32, transposed & 1, transposed & 2));
  EXPECT_EQ(wrong(all, options), "");  // halves are exact in tf32
  options.target.multiprocessors = 1;  // the largest tiles
  all.clear();
  all.push_back(testing::contraction(1, 130, 136, 56, DType::F32, false, true));
  all.push_back(testing::contraction(1, 136, 130, 72, DType::BF16, true, false));
  EXPECT_EQ(wrong(all, options), "");
}

TEST(Text, AnOptimizersStep) {
  const plan::Foreach step = compiler::compile_foreach(testing::copy_of(testing::adam(8)), {0, 2, 3}, "adam step",
                                                       testing::device_options(true));
  const auto driver = std::make_shared<HostDriver>(TRAINC_CXX);
  driver->add(step.kernel, emit::cuda::Entry::Foreach);
  driver->compile();
  runtime::cuda::CudaForeach foreach (step, driver);
  testing::AdamTensors tensors;
  static_cast<runtime::Foreach&>(foreach).run(tensors.pointers, tensors.numels, tensors.scalars, nullptr);
  for (size_t t = 0; t < tensors.numels.size(); ++t) {
    testing::expect_close(tensors.written(t), testing::oracle(testing::adam(tensors.numels[t]), tensors.inputs[t]));
    EXPECT_EQ(tensors.trespassed(t), "");
  }
}

TEST(Text, Masks) {
  const auto driver = std::make_shared<HostDriver>(TRAINC_CXX);
  std::vector<plan::Plan> plans;
  for (int64_t vector : {1, 2, 4, 8}) {
    Graph g;
    g.outputs = {{Builder{g, {}}.random({5000}, {0, 0.5, 256, vector}), {}}};
    plans.push_back(compiler::compile(testing::copy_of(g), "mask", testing::device_options(true)));
    driver->add(plans.back());
  }
  driver->compile();
  for (size_t i = 0; i < plans.size(); ++i) {
    runtime::cuda::CudaExecutable executable(plans[i], driver);
    runtime::Call call;
    std::vector<uint8_t> state(16), mask(5000, 0xCD), temp(plans[i].temp_bytes + 1);
    state[0] = 7, state[8] = 100;  // seed, offset
    call.generator = {[&] { return state; }, [&](const auto&, const auto& to) { return state = to, true; }};
    call.outputs = {mask.data()};
    call.temp = temp.data();
    executable.run(call);
    EXPECT_EQ(mask, reference::dropout_mask(7, 100, 5000, 256, int64_t{1} << i, 0.5)) << "vector " << (1 << i);
  }
}

/// A mask that kernels alone see: drawn as bits, read eight at a time, one by one, and in another order.
TEST(Text, MasksAsBits) {
  const auto driver = std::make_shared<HostDriver>(TRAINC_CXX);
  struct Case { int64_t rows, columns, vector; };
  const Case cases[] = {{40, 128, 8}, {40, 128, 2}, {33, 36, 4}, {7, 50, 2}};
  std::vector<plan::Plan> plans;
  for (const auto& [rows, columns, vector] : cases) {
    Graph g;
    Builder b{g, {}};
    const Node *x = b.input(0, {DType::F32, {rows, columns}}), *mask = b.random({rows, columns}, {0, 0.5, 256, vector});
    const Node* kept = b.select(mask, x, b.full(DType::F32, {rows, columns}, 0));
    const Node *turned = b.permute(kept, {1, 0}), *sums = b.reduce(ReduceKind::Sum, kept, {1});
    g.outputs = {{kept, {}}, {turned, {}}, {sums, {}}};
    g.input_count = 1;
    plans.push_back(compiler::compile(testing::copy_of(g), "mask", testing::device_options(true)));
    EXPECT_THAT(print(plans.back()), ::testing::HasSubstr(" bits"));
    driver->add(plans.back());
  }
  driver->compile();
  for (size_t i = 0; i < plans.size(); ++i) {
    const auto& [rows, columns, vector] = cases[i];
    SCOPED_TRACE(fmt::format("{} x {}, vector {}", rows, columns, vector));
    runtime::cuda::CudaExecutable executable(plans[i], driver);
    runtime::Call call;
    std::vector<uint8_t> state(16), temp(plans[i].temp_bytes + 1);
    state[0] = 7, state[8] = 100;  // seed, offset
    std::vector<float> x(static_cast<size_t>(rows * columns)), kept(x.size()), turned(x.size()),
        sums(static_cast<size_t>(rows));
    for (size_t e = 0; e < x.size(); ++e) x[e] = static_cast<float>(e + 1);
    call.generator = {[&] { return state; }, [&](const auto&, const auto& to) { return state = to, true; }};
    call.inputs = {x.data()};
    call.outputs = {kept.data(), turned.data(), sums.data()};
    call.temp = temp.data();
    executable.run(call);
    const std::vector<uint8_t> mask = reference::dropout_mask(7, 100, rows * columns, 256, vector, 0.5);
    for (size_t e = 0; e < x.size(); ++e) {
      const auto row = e / static_cast<size_t>(columns), column = e % static_cast<size_t>(columns);
      ASSERT_EQ(kept[e], mask[e] ? x[e] : 0) << e;
      ASSERT_EQ(turned[column * static_cast<size_t>(rows) + row], kept[e]) << e;
      sums[row] -= kept[e];  // exact: whole numbers below 2^24
    }
    for (const float s : sums) EXPECT_EQ(s, 0);
  }
}

TEST(Text, MemoryThatBeginsAnywhere) {  // copies of 16 bytes are no single accesses there
  const Graph g = testing::softmax(3, 1000);
  const auto inputs = testing::halves(g, 1), wanted = testing::oracle(g, inputs);
  const plan::Plan plan = compiler::compile(testing::copy_of(g), "text", testing::device_options(true));
  ASSERT_EQ(plan.kernels.size(), 1u);
  const std::string nest(plan.kernels[0].code.begin(), plan.kernels[0].code.end());
  ASSERT_NE(nest.find("copy(4)"), std::string::npos) << nest;
  const auto driver = std::make_shared<HostDriver>(TRAINC_CXX);
  driver->add(plan);
  driver->compile();
  runtime::cuda::CudaExecutable executable(plan, driver);
  const std::vector<uint8_t> given = testing::to_bytes(inputs[0]);
  std::vector<uint8_t> temp(plan.temp_bytes + 1);
  for (size_t from = 0; from < 32; from += 4) {
    std::vector<uint8_t> in(from + given.size()), out(from + given.size() + 32, 0xCD);
    std::copy(given.begin(), given.end(), in.begin() + static_cast<std::ptrdiff_t>(from));
    runtime::Call call;
    call.inputs = {in.data() + from};
    call.outputs = {out.data() + from};
    call.temp = temp.data();
    executable.run(call);
    testing::expect_close({testing::from_bytes(wanted[0].type, out.data() + from)}, wanted);
    for (size_t i = 0; i < from; ++i) EXPECT_EQ(out[i], 0xCD);
    for (size_t i = from + given.size(); i < out.size(); ++i) EXPECT_EQ(out[i], 0xCD);
  }
}

TEST(Text, OperandsThatBeginAnywhere) {  // likewise of what is copied to Shared memory
  const Graph g = testing::contraction(1, 40, 40, 104, DType::BF16, false, true);
  const auto inputs = testing::halves(g, 1), wanted = testing::oracle(g, inputs);
  const plan::Plan plan = compiler::compile(testing::copy_of(g), "text", testing::device_options(true));
  ASSERT_EQ(plan.kernels.size(), 1u);
  ASSERT_NE(std::string(plan.kernels[0].code.begin(), plan.kernels[0].code.end()).find("copyasync(8)"),
            std::string::npos);
  const auto driver = std::make_shared<HostDriver>(TRAINC_CXX);
  driver->add(plan);
  driver->compile();
  runtime::cuda::CudaExecutable executable(plan, driver);
  std::vector<uint8_t> temp(plan.temp_bytes + 1);
  for (size_t from = 0; from < 32; from += 2) {
    std::vector<std::vector<uint8_t>> in;
    runtime::Call call;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const std::vector<uint8_t> given = testing::to_bytes(inputs[i]);
      const size_t at = i == 2 ? 0 : (from * (i + 1)) % 32;  // the two differently; floats where they may be
      in.emplace_back(at + given.size());
      std::copy(given.begin(), given.end(), in.back().begin() + static_cast<std::ptrdiff_t>(at));
      call.inputs.push_back(in.back().data() + at);
    }
    std::vector<uint8_t> out(testing::to_bytes(wanted[0]).size());
    call.outputs = {out.data()};
    call.temp = temp.data();
    executable.run(call);
    testing::expect_close({testing::from_bytes(wanted[0].type, out.data())}, wanted);
  }
}

// --- each mistake of the printer is seen

struct Seeded { const char *what, *from, *to; };
class TextWithAMistake : public ::testing::TestWithParam<Seeded> {};

TEST_P(TextWithAMistake, IsSeen) {
  const Seeded seeded = GetParam();
  int64_t changed = 0;
  const std::string found = wrong(graphs(8), testing::device_options(true), [&](std::string& text) {
    const std::string from = seeded.from, to = seeded.to;
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
      text.replace(at, from.size(), to), ++changed;
  });
  EXPECT_GT(changed, 0);
  EXPECT_NE(found, "");
}

INSTANTIATE_TEST_SUITE_P(
    Printer, TextWithAMistake,
    ::testing::Values(Seeded{"no barrier", "__syncthreads();", ""},
                      Seeded{"copies are not waited for", "wait_copies<", "wait_copies<1 + "},
                      Seeded{"copies are one group", "  commit_copies();", "  "},
                      Seeded{"what does not exist is copied", "exists ? from : nullptr", "from"},
                      Seeded{"a matrix is not transposed", "load_matrix_transposed(a_", "load_matrix(a_"},
                      Seeded{"one exchange too few", "apart >= 1;", "apart >= 2;"},
                      Seeded{"another order of fma", "fmaf(", "-fmaf("}, Seeded{"rounding to odd", "0x7fff", "0x0fff"},
                      Seeded{"a NaN loses", "a != a || a > b", "a > b"},
                      Seeded{"half a bf16", "(unsigned)x << 16", "(unsigned)x << 15"},
                      Seeded{"threads run on", "if (threadIdx.x < ", "if (threadIdx.x <= "},
                      Seeded{"copies repeat themselves", "to[i] = w.x[i];", "to[i] = w.x[0];"},
                      Seeded{"sums lose a term", "return (T)(a + b);", "return b;"},
                      Seeded{"signed division", "return b != 0 && r != 0 && (r < 0) != (b < 0) ? (T)(q - 1) : q;",
                             "return q;"}),
    [](const auto& info) {
      std::string name = info.param.what;
      for (char& c : name)
        if (c == ' ') c = '_';
      return name;
    });

}  // namespace
}  // namespace trainc
