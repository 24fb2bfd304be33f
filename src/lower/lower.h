// Groups -> loop nests.
#pragma once
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "loop/loop.h"
#include "plan/plan.h"
#include "schedule/contraction_blocking.h"
#include "schedule/schedule.h"
#include "support/target.h"

namespace trainc::lower {

// What the schedule decided, which every writer reads.
using schedule::Access;
using schedule::base_of;
using schedule::broadcasts_rows;
using schedule::Group;
using schedule::GroupKind;
using schedule::is_copy;
using schedule::is_sum;
using schedule::is_trailing_reduce;
using schedule::op_cost;
using schedule::Read;
using schedule::reads_of;
using schedule::Schedule;

struct LoweredKernel {
  loop::LoopNest nest;
  // a product of the vendor's library instead of the nest, which then has name, flops, bytes and origins alone
  std::optional<plan::Product> product = {};
  // The nest's arguments, in order: stored values and Input nodes; nullptr: a draw's seed and offset, two i64.
  std::vector<const Node*> arguments;
};

/// The blockings of a plan's contractions, in the order in which they are lowered: chosen for the first sizes, and kept
/// for all others, so that one kernel serves them.
struct FixedBlockings {
  std::vector<schedule::Blocking> made;
  size_t next = 0;
};

/// The next one of `blockings`; nullptr where there is none.
inline schedule::Blocking* next_of(FixedBlockings* blockings) {
  if (!blockings) return nullptr;
  if (blockings->next == blockings->made.size()) blockings->made.emplace_back();
  return &blockings->made[blockings->next++];
}

/// What kernels are made for, and what the user lets them do; the same for all groups of a plan.
struct LoweringOptions {
  Target target;
  // Set where kernels are shared between sizes: contractions use these blockings again
  // (ContractionSpec::fixed_blocking).
  FixedBlockings* fixed_blockings = nullptr;
  // Contractions of so many operations may go to the vendor's library; 0: none.
  int64_t vendor_product_flops = 0;
  // Whether the library has an algorithm for one, null: for each; and where to note those with an epilogue that it has
  // none for.
  std::function<bool(const plan::Product&, int64_t bytes)> library_has = {};
  std::set<schedule::ProductShape>* refused = nullptr;
  // Of contractions: which variant of the blocking; 0: the cost model's choice.
  int blocking = 0;
  bool tf32 = false;  // f32 contractions may round their operands to tf32, as the framework's own flag says
  // with tiles: f32 contractions may be six bf16 products each (ContractionSpec::f32_in_parts)
  bool float32_in_parts = true;
};

/// The kernels of one group, to run in this order; none for the host's draws, externs, and values without elements.
/// `remarks`: gets a remark where no vendor's library computes a contraction, and where a mask is not seen to be
/// causal.
std::vector<LoweredKernel> lower(const Graph&, const Schedule&, const Group&, const LoweringOptions&,
                                 Remarks* remarks = nullptr);

}  // namespace trainc::lower
