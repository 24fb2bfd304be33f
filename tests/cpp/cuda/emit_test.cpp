// Device nests as CUDA C++, compiled by NVRTC for every architecture: no GPU is needed, and no kernel spills.
#include <gmock/gmock.h>

#include "../common/random_graph.h"
#include "../lower/run_schedule.h"
#include "graphs.h"
#include "nvrtc.h"
#include "passes/pipeline.h"
#include "schedule/prepare.h"

namespace trainc {
namespace {

using ::testing::HasSubstr;

TEST(Nvrtc, IsThere) {
  EXPECT_EQ(emit::cuda::nvrtc_missing(), "") << "the tests need it: requirements.txt has nvidia-cuda-nvrtc";
}

void add_nests(Graph graph, const lower::LoweringOptions& lowering, std::vector<loop::LoopNest>& nests) {
  Pipeline pipeline("device");
  const Graph prepared = schedule::prepare(optimize(std::move(graph), pipeline));
  const schedule::Schedule s = schedule::make_schedule(prepared, false);
  for (const schedule::Group& group : s.groups)
    for (const lower::LoweredKernel& k : lower::lower(prepared, s, group, lowering)) nests.push_back(k.nest);
}

TEST(Nvrtc, EveryKindOfGroup) {
  std::vector<loop::LoopNest> nests;
  lower::LoweringOptions lowering = lower::LoweringOptions{gpu_target(Gpu::Sm80)};
  for (int64_t columns : {30, 1000, 50257}) add_nests(testing::softmax(64, columns), lowering, nests);
  for (DType dtype : {DType::F32, DType::BF16, DType::F64})
    for (int64_t columns : {128, 197}) add_nests(testing::transposed(16, 512, columns, dtype), lowering, nests);
  add_nests(testing::column_sums(2000, 768), lowering, nests);
  add_nests(testing::scatter(256, 50, 768), lowering, nests);
  for (bool tf32 : {false, true})
    for (DType dtype : {DType::F32, DType::BF16})
      for (int64_t size : {40, 1000, 3000}) {  // each size of tile
        lowering.tf32 = tf32;
        add_nests(testing::contraction(1, size, size, 64, dtype, size == 1000, size == 3000), lowering, nests);
      }
  for (DType dtype : {DType::F32, DType::BF16})  // on tensor cores, as many stages as there are
    for (int transposed = 0; transposed < 4; ++transposed)
      for (int64_t size : {1000, 3000, 2999})  // 2,999: element by element along it
        add_nests(testing::contraction(1, size, size, 520, dtype, transposed & 1, transposed & 2), lowering, nests);
  testing::expect_no_spills(testing::distinct(nests));
}

TEST(Nvrtc, RandomGraphs) {  // every operation, integers, bf16 and f16, f64
  std::vector<loop::LoopNest> nests;
  for (uint64_t seed = 100; seed < 106; ++seed)
    add_nests(testing::random_graph(seed, {}), lower::LoweringOptions{gpu_target(Gpu::Sm80)}, nests);
  const std::vector<loop::LoopNest> kept = testing::distinct(nests);
  for (const testing::Compiled& c : testing::compile_all(kept)) EXPECT_EQ(c.error, "");
}

TEST(Nvrtc, SpillsAreSeen) {
  // 64 values that live across a barrier, in a kernel that may have 32 registers
  std::string text = "extern \"C\" __global__ void __launch_bounds__(1024, 2) spills(float* x) {\n  float v[64];\n";
  text += "#pragma unroll\n  for (int i = 0; i < 64; ++i) v[i] = x[i * 1024 + threadIdx.x];\n  __syncthreads();\n";
  text += "#pragma unroll\n  for (int i = 0; i < 64; ++i) x[i * 1024 + threadIdx.x] = v[i] * v[(i + 7) % 64];\n}\n";
  const emit::cuda::Resources r = emit::cuda::compile(text, "spills", Gpu::Sm80).resources;
  EXPECT_LE(r.registers, 32);
  EXPECT_GT(r.spill_bytes, 0);
  EXPECT_GT(r.stack_bytes, 0);
}

TEST(Nvrtc, RefusalsShowTheLog) {
  try {
    emit::cuda::compile("// first\nextern \"C\" __global__ void wrong() { nothing(); }", "wrong", Gpu::Sm80);
    FAIL();
  } catch (const InternalError& e) {
    EXPECT_THAT(e.what(), HasSubstr("wrong.cu(2): error: identifier \"nothing\" is undefined"));
    EXPECT_THAT(e.what(), ::testing::EndsWith("\nline 2: extern \"C\" __global__ void wrong() { nothing(); }"));
  }
}

}  // namespace
}  // namespace trainc
