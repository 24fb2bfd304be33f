// Small plans, for tests of plans and of their files.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace trainc::plan {

inline Buffer buffer(const std::string& name, MemorySpace space, int64_t n, int64_t index = 0) {
  return {
      .name = name, .space = space, .index = index, .dtype = DType::F32, .shape = {n}, .strides = {1}, .bytes = 4 * n};
}
inline Step kernel_step(const std::string& name, std::vector<int> reads, std::vector<int> writes) {
  Step s{.kind = StepKind::Kernel, .name = name, .reads = reads, .writes = writes, .kernel = 0};
  for (int b : reads) s.arguments.push_back(b);
  for (int b : writes)
    if (std::find(reads.begin(), reads.end(), b) == reads.end()) s.arguments.push_back(b);
  return s;
}

/// Begins `target`, which reads and writes so; and what waits for it.
inline Step start_step(const std::string& name, int token, std::vector<int> reads, std::vector<int> writes,
                       const std::string& target = "sleep", double seconds = 0) {
  Step s = kernel_step(name, std::move(reads), std::move(writes));
  s.kind = StepKind::Start, s.kernel = -1, s.token = token, s.target = target, s.arguments_json = "{}",
  s.seconds = seconds;
  return s;
}
inline Step wait_step(const Step& start) {
  return {.kind = StepKind::Wait,
          .name = "wait_" + start.name,
          .reads = start.reads,
          .writes = start.writes,
          .token = start.token};
}

/// x -> a -> b -> y, with a constant, a saved buffer, a mask and an extern call.
inline Plan small_plan() {
  Plan p{.name = "small", .cpu = "avx2"};
  p.buffers = {buffer("x", MemorySpace::Input, 8, 0),
               buffer("a", MemorySpace::Temp, 8),
               buffer("b", MemorySpace::Temp, 20),
               buffer("y", MemorySpace::Output, 8, 0),
               buffer("c", MemorySpace::Constant, 2),
               buffer("s", MemorySpace::Saved, 8),
               {.name = "mask",
                .space = MemorySpace::Temp,
                .dtype = DType::Bool,
                .shape = {2, 4},
                .strides = {4, 1},
                .bytes = 8},
               buffer("e", MemorySpace::Extern, 8)};
  p.kernels = {{.name = "k", .code = {0xc3, 1, 2}, .entry = 0, .scratch_bytes = 64}};
  p.constants = std::vector<uint8_t>(8, 7);
  p.steps = {kernel_step("one", {0, 4}, {1}),
             {.kind = StepKind::Random, .name = "draw", .writes = {6}, .p = 0.9},
             kernel_step("two", {1, 6}, {2, 5}),
             {.kind = StepKind::Extern,
              .name = "call",
              .arguments = {2},
              .reads = {2},
              .writes = {7},
              .target = "aten.relu.default",
              .arguments_json = "{}",
              .origins = {"m.py:3"}},
             kernel_step("three", {7}, {3})};
  p.input_count = 1, p.output_count = 3, p.outputs = {3, -1, 0}, p.saved_bytes = 64;
  p.notes = {"a note"};
  p.remarks = {{"schedule", missed::kFuse, "a circle", "exp", {"m.py:1", "m.py:2"}, 3, 96},
               {"compiler", missed::kInPlace, "it is read later", "", {}, 1, 0}};
  plan_memory(p);
  return p;
}

inline Foreach small_foreach() {
  Foreach f{.name = "step",
            .cpu = "avx2",
            .inputs = {{}, {.scalar = true, .dtype = DType::F64}},
            .chunk = 16,
            .origins = {"a.py:1"}};
  f.kernel = {"step", {0x90, 0xc3}, 1, 64};
  return f;
}

}  // namespace trainc::plan
