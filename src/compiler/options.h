// What a compile depends on, as one value.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "cost/chunking.h"
#include "support/mask_generator.h"
#include "support/target.h"

namespace trainc::compiler {

/// All that a plan depends on beside its graph and what is asked of that graph: the limit of its memory, the outputs
/// that are deferred, the tangents that are defined (arguments of JointGraph, and parts of the key beside this). It is
/// made once, by who asks for a plan (python/trainc/base/options.py), and its text is part of the plan's key in the
/// cache. Nothing below reads a configuration, the environment or the machine.
struct CompileOptions {
  Target target = cpu_target();  // what kernels are made for
  // contractions of so many operations may be products of the vendor's library, where the target has them and the
  // library can be loaded; 0: none
  int64_t vendor_product_flops = 0;
  bool tf32 = false;             // where the target has it: f32 contractions may round their operands to tf32
  bool float32_in_parts = true;  // where the target has tiles: f32 contractions may be six bf16 products each
  int64_t loss_chunk_rows = cost::kChunkRows;        // schedule::Chunks::rows
  int64_t loss_chunk_bytes = cost::kWorthChunks;     // schedule::Chunks::worth
  int64_t skip_hidden_flops = cost::kWorthSkipping;  // schedule::Chunks::skip_flops
  bool skip_padding = false;  // whether kernels may pass over rows of padding, from skip_hidden_flops on
  // threads that it will run on, each with scratch memory of its own: counted where a plan has a budget
  int workers = 1;
  // how the framework draws masks on the host: the front end asks it
  MaskGenerator generator = MaskGenerator::Twister;
  // whether denormal numbers count as zero where the plan runs, and so where its constants are folded: whoever calls
  // the compiler puts its thread into that floating-point environment (support/float_environment.h)
  bool flushes_denormals = false;
  std::vector<std::string> disabled_passes = {};

  bool operator==(const CompileOptions&) const = default;
};

/// Of a JSON object that has every field, and no other: {"cpu": "avx2", "l1d": ..., "l2": ..., "l3": ..., "cores": ...,
/// "device": "cpu" | "interpret" | "sm_90a" ..., ...}. Throws UserError for a word that is none, InternalError for a
/// field too many or too few.
CompileOptions options_of(std::string_view json);

}  // namespace trainc::compiler
